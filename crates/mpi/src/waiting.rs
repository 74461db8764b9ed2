//! Waiting for operations, and progress of those that nobody waits for. A thread that waits holds no lock, so
//! it never holds up the calls of another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use tautline::tags::RequestId;

use crate::error::Result;
use crate::network::{failure, network};
use crate::objects::lock;
use crate::request::Pending;

/// After this time without an event a waiting thread looks for lost ranks.
pub const IDLE: Duration = Duration::from_millis(100);

/// A clock for looking for lost ranks, in milliseconds.
pub fn now_ms() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_millis() as u64
}

/// What the program itself completes is looked at this often.
const OWN: Duration = Duration::from_millis(1);

/// Receives whose requests were freed: they make progress whoever waits.
static BACKGROUND: Mutex<Vec<Arc<Pending>>> = Mutex::new(Vec::new());
static BACKGROUND_LEN: AtomicUsize = AtomicUsize::new(0);

/// Lets an operation make progress in every call that waits or tests.
pub fn add_background(pending: Arc<Pending>) {
    let mut list = lock(&BACKGROUND);
    list.push(pending);
    BACKGROUND_LEN.store(list.len(), Ordering::Release);
}

/// Polls collectives and what is in the background, and adds what they wait for.
fn poll_background(ids: &mut Vec<RequestId>, search: Search) {
    network().world().progress_and_waits(ids);
    if BACKGROUND_LEN.load(Ordering::Acquire) == 0 {
        return;
    }
    let list = lock(&BACKGROUND).clone();
    let ended: Vec<&Arc<Pending>> = list.iter().filter(|pending| pending.poll(ids, search)).collect();
    if !ended.is_empty() {
        let mut list = lock(&BACKGROUND);
        list.retain(|one| !ended.iter().any(|other| Arc::ptr_eq(one, other)));
        BACKGROUND_LEN.store(list.len(), Ordering::Release);
    }
}

/// The program has started a collective without waiting for it.
static STARTS_COLLECTIVES: AtomicBool = AtomicBool::new(false);

/// Notes that a collective was started that makes progress in other calls.
pub fn note_started_collective() {
    STARTS_COLLECTIVES.store(true, Ordering::Release);
}

/// For how long a call may wait for one operation without looking after others; none if there are others
/// that make progress only in calls like this one. Makes progress with those.
pub fn time_alone() -> Option<Duration> {
    if may_have_others() { time_beside_others() } else { Some(IDLE) }
}

/// Whether there may be operations that make progress only in calls that wait.
#[inline]
pub fn may_have_others() -> bool {
    STARTS_COLLECTIVES.load(Ordering::Acquire) || BACKGROUND_LEN.load(Ordering::Acquire) > 0
}

#[inline(never)]
fn time_beside_others() -> Option<Duration> {
    let mut ids = Vec::new();
    poll_background(&mut ids, Search::None);
    ids.is_empty().then_some(IDLE)
}

/// Makes progress without waiting.
pub fn progress() -> Result<()> {
    network().tags().progress().map_err(failure)?;
    poll_background(&mut Vec::new(), Search::None);
    Ok(())
}

/// When a call looks for lost ranks that it does not wait for by name.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Search {
    /// Not now.
    #[default]
    None,
    /// In one call of each tenth of a second: the program polls, and may never wait.
    AtTimes,
    /// Now: nothing has happened for some time.
    Now,
}

/// What a waiting call needs.
#[derive(Default)]
pub struct Wait {
    /// What it waits for.
    pub ids: Vec<RequestId>,
    /// How many of them have to end before it looks again; 1 if this is not set.
    pub count: Option<usize>,
    /// Whether lost ranks are looked for.
    pub search: Search,
    /// Whether something is waited for that has no number.
    pub own: bool,
}

/// Waits until `look` finds something. It is called at the beginning and whenever something has ended, and
/// adds what it still waits for.
pub fn wait_until<T>(mut look: impl FnMut(&mut Wait) -> Result<Option<T>>) -> Result<T> {
    let mut wait = Wait::default();
    loop {
        wait.ids.clear();
        (wait.count, wait.own) = (None, false);
        if let Some(found) = look(&mut wait)? {
            return Ok(found);
        }
        let own = wait.ids.len();
        poll_background(&mut wait.ids, wait.search);
        let count = if wait.ids.len() == own { wait.count.unwrap_or(1) } else { 1 };
        let time = if wait.own || wait.ids.is_empty() { OWN } else { IDLE };
        let woken = network().tags().wait_ids(&wait.ids, count.min(wait.ids.len()).max(1), Some(time));
        wait.search = if woken.map_err(failure)? { Search::None } else { Search::Now };
    }
}

/// Makes progress; for how long a call may wait then that looks for messages, not for the end of operations.
pub fn probe_time() -> Duration {
    let mut ids = Vec::new();
    poll_background(&mut ids, Search::None);
    if ids.is_empty() { IDLE } else { OWN }
}
