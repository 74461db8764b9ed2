//! Handlers of several kinds, all of which check what they receive.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tautline::{AsyncEndpoint, Builder, Error, Message, Rank, Result, Short};

use crate::Nanos;
use crate::check::{BegunMessage, Check, Expected, Intent, Outcome};
use crate::content;
use crate::places::Places;
use crate::rng::{Rng, mix};
use crate::sabotage::{Sabotage, Saboteur};

/// What a handler does with its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A plain function that reads all of it.
    Short,
    /// A plain function that sends something back.
    Echo,
    /// A plain function that panics.
    PanicShort,
    /// Reads everything, in odd pieces.
    Stream,
    /// The same, and waits for something else in between.
    Slow,
    /// Returns before the end.
    Early,
    /// Panics before the end.
    Panic,
    /// Sends something on, and waits until there is room.
    Relay,
}

impl Kind {
    pub(crate) const ALL: [Kind; 8] = [
        Kind::Short,
        Kind::Echo,
        Kind::PanicShort,
        Kind::Stream,
        Kind::Slow,
        Kind::Early,
        Kind::Panic,
        Kind::Relay,
    ];

    pub(crate) fn name(self) -> &'static str {
        ["short", "echo", "panic-short", "stream", "slow", "early", "panic", "relay"][self as usize]
    }

    pub(crate) fn is_short(self) -> bool {
        matches!(self, Kind::Short | Kind::Echo | Kind::PanicShort)
    }

    pub(crate) fn panics(name: &str) -> bool {
        name == Kind::Panic.name() || name == Kind::PanicShort.name()
    }
}

/// The handlers of all kinds, looked up once.
pub(crate) type Names = [tautline::Handler; Kind::ALL.len()];

/// One incarnation of a node, as its program and its handlers share it.
pub(crate) struct Incarnation {
    /// Where it runs. The other places are named likewise, but for the calls of the library.
    pub(crate) place: u32,
    pub(crate) number: u64,
    pub(crate) born: Nanos,
    clock: Arc<AtomicU64>,
    pub(crate) check: Rc<RefCell<Check>>,
    sleepers: RefCell<Vec<(Nanos, Waker)>>,
    /// It has crashed: whatever still runs is only being dropped.
    pub(crate) over: Cell<bool>,
    names: Cell<Option<Names>>,
    /// The channel on which a message was last sent to each peer.
    channels: RefCell<Vec<Option<u32>>>,
    keys: Cell<u64>,
    scratch: RefCell<Vec<u8>>,
    pub(crate) places: Places,
    pub(crate) saboteur: Rc<Saboteur>,
    /// A short message that its handler gets after the next one: see [`Sabotage::Reorder`].
    delayed: RefCell<Option<(Kind, Rank, Vec<u8>)>>,
}

impl Incarnation {
    pub(crate) fn new(
        (place, number, born): (u32, u64, Nanos),
        places: Places,
        clock: Arc<AtomicU64>,
        (check, saboteur): (Rc<RefCell<Check>>, Rc<Saboteur>),
        seed: u64,
    ) -> Rc<Incarnation> {
        Rc::new(Incarnation {
            place,
            number,
            born,
            clock,
            check,
            sleepers: RefCell::default(),
            over: Cell::new(false),
            names: Cell::new(None),
            channels: RefCell::new(vec![None; places.count() as usize]),
            keys: Cell::new(mix(seed ^ mix(number))),
            scratch: RefCell::default(),
            places,
            saboteur,
            delayed: RefCell::default(),
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self, ep: &AsyncEndpoint, kind: Kind) -> Result<tautline::Handler> {
        if let Some(names) = self.names.get() {
            return Ok(names[kind as usize]);
        }
        let first = ep.handler(Kind::Short.name())?;
        let mut names = [first; Kind::ALL.len()];
        for kind in Kind::ALL {
            names[kind as usize] = ep.handler(kind.name())?;
        }
        self.names.set(Some(names));
        Ok(names[kind as usize])
    }

    pub(crate) fn fresh_key(&self) -> u64 {
        self.keys.set(self.keys.get().wrapping_add(1));
        mix(self.keys.get())
    }

    /// Wakes sleepers whose time has come; returns when the next one is due.
    pub(crate) fn wake_sleepers(&self) -> Nanos {
        let now = self.now();
        let mut next = Nanos::MAX;
        self.sleepers.borrow_mut().retain(|(at, waker)| {
            if *at <= now || self.over.get() {
                waker.wake_by_ref();
                return false;
            }
            next = next.min(*at);
            true
        });
        next
    }

    /// Returns the number of the channel to a peer.
    pub(crate) fn channel(&self, ep: &AsyncEndpoint, peer: u32) -> Option<u32> {
        if peer == self.place {
            return Some(0);
        }
        ep.node().channel_number(self.places.number(peer))
    }

    /// Notes a message that was begun on the channel to a peer.
    pub(crate) fn note(&self, ep: &AsyncEndpoint, peer: u32, message: BegunMessage) {
        let channel = self.channel(ep, peer);
        self.channels.borrow_mut()[peer as usize] = channel;
        let generation = (self.number, channel.unwrap_or(0));
        // None if the peer was lost within the call that sent.
        let incarnation = ep.node().incarnation(self.places.number(peer));
        let networked = peer != self.place && !ep.node().is_local(self.places.number(peer));
        self.check.borrow_mut().message_begun(
            (self.place, peer, networked),
            (generation, incarnation),
            message,
        );
    }

    /// Whether the first message on a channel is still to be sent: it shows its key to a handler that sees it
    /// at once.
    pub(crate) fn is_new(&self, peer: u32, channel: Option<u32>) -> bool {
        channel.is_none() || self.channels.borrow()[peer as usize] != channel
    }

    /// Sends a whole message, if that is possible at once.
    pub(crate) fn post(&self, ep: &AsyncEndpoint, peer: u32, kind: Kind, len: usize) -> Result<()> {
        let channel = self.channel(ep, peer);
        if self.is_new(peer, channel) && !(kind.is_short() && len >= 8) {
            self.post(ep, peer, Kind::Short, 8)?;
        }
        let key = self.fresh_key();
        let mut scratch = self.scratch.borrow_mut();
        scratch.resize(len, 0);
        content::fill(key, 0, &mut scratch);
        ep.try_send(self.places.number(peer), self.name(ep, kind)?, &scratch)?;
        // Sending polls first when a timer is due; the channel may be another one now.
        let message = BegunMessage { key, len: len as u64, kind, intent: Intent::Whole, sent: true };
        self.note(ep, peer, message);
        Ok(())
    }

    fn start(&self, from: Rank, kind: Kind, len: u64, head: Option<u64>) -> Option<Expected> {
        if self.over.get() || self.saboteur.withholds((self.place, self.number), from) {
            return None;
        }
        self.check.borrow_mut().handler_started(
            (self.place, self.number, self.born),
            self.places.at(from),
            (kind, len, head),
        )
    }

    fn handler_read(&self, expected: Expected, offset: u64, bytes: &[u8]) {
        let good = content::is(expected.key, offset, bytes);
        self.check.borrow_mut().handler_read(expected, offset, bytes.len(), good);
    }

    fn finish(&self, expected: Expected, outcome: Outcome) {
        if !self.over.get() {
            self.check.borrow_mut().handler_finished(expected, outcome);
        }
    }

    /// A short message: all of it has arrived.
    fn short(&self, kind: Kind, message: &Short<'_>) {
        let from = message.from();
        if self.saboteur.strikes(Sabotage::Skip) {
            return;
        }
        if self.saboteur.withholds((self.place, self.number), from) {
            return self.saboteur.keep(kind, message.data());
        }
        if let Some((from, messages)) = self.saboteur.overdue((self.place, self.number)) {
            messages.iter().for_each(|(kind, data)| self.check_short(*kind, from, data));
        }
        if self.saboteur.strikes(Sabotage::Reorder) {
            *self.delayed.borrow_mut() = Some((kind, from, message.data().to_vec()));
            return;
        }
        if self.saboteur.strikes(Sabotage::Repeat) {
            self.check_short(kind, from, message.data());
        }
        self.check_short(kind, from, message.data());
        if self.delayed.borrow().as_ref().is_some_and(|(_, other, _)| *other == from) {
            let (kind, from, data) = self.delayed.take().expect("it is there");
            self.check_short(kind, from, &data);
        }
        match kind {
            Kind::Echo => {
                // No room is no fault: nothing was promised.
                let _ = self.post(&message.endpoint(), self.places.at(from), Kind::Short, 16);
            }
            Kind::PanicShort => unwind(),
            Kind::Short if self.saboteur.strikes(Sabotage::Panic) => unwind(),
            _ => {}
        }
    }

    fn check_short(&self, kind: Kind, from: Rank, data: &[u8]) {
        let head = data.first_chunk().map(|key| u64::from_le_bytes(*key));
        let Some(expected) = self.start(from, kind, data.len() as u64, head) else { return };
        self.handler_read(expected, 0, data);
        self.finish(expected, if kind == Kind::PanicShort { Outcome::Quit } else { Outcome::Complete });
    }
}

/// Panics without output on standard error.
fn unwind() -> ! {
    std::panic::resume_unwind(Box::new("a handler that panics on purpose"))
}

/// Registers handlers of all kinds.
pub(crate) fn register(mut builder: Builder, incarnation: &Rc<Incarnation>) -> Builder {
    for kind in Kind::ALL {
        let incarnation = incarnation.clone();
        builder = if kind.is_short() {
            builder.on_short(kind.name(), move |message: Short<'_>| incarnation.short(kind, &message))
        } else {
            builder.on(kind.name(), move |message: Message| {
                let expected = incarnation.start(message.from(), kind, message.len(), None);
                handle(incarnation.clone(), message, kind, expected)
            })
        };
    }
    builder
}

async fn handle(
    incarnation: Rc<Incarnation>,
    message: Message,
    kind: Kind,
    expected: Option<Expected>,
) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    let mut rng = Rng::new(expected.key, 7);
    let mut reader = Reader { incarnation: incarnation.clone(), message, expected, at: 0 };
    let until = match kind {
        Kind::Stream | Kind::Relay => reader.message.len(),
        _ => rng.below(reader.message.len() + 1),
    };
    let mut result = reader.read(until, &mut rng).await;
    if kind == Kind::Slow && result.is_ok() {
        let pause = rng.magnitude(1_000, 30_000_000);
        Sleep { incarnation: incarnation.clone(), until: incarnation.now() + pause }.await;
        result = reader.read(reader.message.len(), &mut rng).await;
    }
    let outcome = match &result {
        Ok(()) if matches!(kind, Kind::Early | Kind::Panic) => Outcome::Quit,
        Ok(()) => Outcome::Complete,
        Err(Error::Aborted) => Outcome::Aborted,
        Err(Error::PeerGone(..)) => Outcome::PeerGone,
        Err(other) => {
            incarnation.check.borrow_mut().violation(format!("a handler got the error \"{other}\""));
            Outcome::Quit
        }
    };
    incarnation.finish(expected, outcome);
    match kind {
        Kind::Panic => unwind(),
        Kind::Early if rng.chance(500_000) => Err(Error::other("enough")),
        Kind::Relay if outcome == Outcome::Complete => relay(&incarnation, &reader.message, &mut rng).await,
        _ => result,
    }
}

/// Sends a message to a third node; waits for room without blocking other handlers.
async fn relay(incarnation: &Incarnation, message: &Message, rng: &mut Rng) -> Result<()> {
    if incarnation.over.get() {
        return Ok(());
    }
    let ep = message.endpoint();
    let peer = rng.below(u64::from(incarnation.places.count())) as u32;
    let key = incarnation.fresh_key();
    let mut bytes = [0; 100];
    let len = rng.range(8, 100) as usize;
    content::fill(key, 0, &mut bytes[..len]);
    let name = incarnation.name(&ep, Kind::Short)?;
    ep.send(incarnation.places.number(peer), name, &bytes[..len]).await?;
    if !incarnation.over.get() {
        let (kind, intent) = (Kind::Short, Intent::Whole);
        incarnation.note(&ep, peer, BegunMessage { key, len: len as u64, kind, intent, sent: true });
    }
    Ok(())
}

struct Reader {
    incarnation: Rc<Incarnation>,
    message: Message,
    expected: Expected,
    at: u64,
}

impl Reader {
    /// Reads up to `until` in pieces of odd sizes, by every method there is.
    async fn read(&mut self, until: u64, rng: &mut Rng) -> Result<()> {
        while self.at < until {
            let left = until - self.at;
            let want = rng.magnitude(1, left.min(100_000));
            match rng.below(8) {
                0 | 1 if left >= 8 => {
                    let value: [u8; 8] = self.message.read().await?;
                    self.incarnation.handler_read(self.expected, self.at, &value);
                    self.at += 8;
                }
                2 | 3 => {
                    let mut piece = [0; 300];
                    let piece = &mut piece[..want.min(300) as usize];
                    self.message.read_into(piece).await?;
                    self.incarnation.handler_read(self.expected, self.at, piece);
                    self.at += piece.len() as u64;
                }
                4 => {
                    self.message.skip(want).await?;
                    self.at += want;
                }
                _ => {
                    let (incarnation, expected, mut at) = (&self.incarnation, self.expected, self.at);
                    self.message
                        .read_with(want as usize, |part| {
                            incarnation.handler_read(expected, at, part);
                            at += part.len() as u64;
                        })
                        .await?;
                    self.at = at;
                }
            }
        }
        Ok(())
    }
}

/// Waits for a time of the virtual clock.
struct Sleep {
    incarnation: Rc<Incarnation>,
    until: Nanos,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.incarnation.now() >= self.until || self.incarnation.over.get() {
            return Poll::Ready(());
        }
        self.incarnation.sleepers.borrow_mut().push((self.until, context.waker().clone()));
        Poll::Pending
    }
}
