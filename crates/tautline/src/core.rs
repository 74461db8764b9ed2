//! What all parts of an endpoint share.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::ThreadId;

use tautline_node::limits::MAX_EVENTS;
use tautline_node::memory::Wakeup;
use tautline_node::{Delivery, FrameBatch, MessageId};

use crate::later::Outbox;
use crate::messages::begun::Begun;
use crate::messages::handlers::Registered;
use crate::rpc::Rpc;
use crate::waits::Waits;
use crate::{Down, Event, Rank, SendError};

pub(crate) struct Core {
    pub(crate) node: tautline_node::Endpoint,
    pub(crate) names: Vec<(String, bool)>,
    pub(crate) handlers: Vec<Registered>,
    /// Whose calls are answered here.
    pub(crate) rpc: Option<Rpc>,
    pub(crate) running: RefCell<Begun>,
    pub(crate) delivery: RefCell<Option<Box<Delivery>>>,
    /// Where frames from peers on this host are read.
    pub(crate) taken: RefCell<FrameBatch>,
    pub(crate) extracting: Cell<bool>,
    /// Messages whose handlers have finished, well or not.
    pub(crate) handled: Cell<u64>,
    /// `async` handlers under way.
    pub(crate) live: Cell<usize>,
    pub(crate) failures: RefCell<VecDeque<Failure>>,
    pub(crate) events: RefCell<VecDeque<Event>>,
    /// Handlers that wait for room to send.
    pub(crate) blocked: Waits,
    /// Windows that could not be granted for want of a slot.
    pub(crate) grants: RefCell<Vec<(MessageId, u64)>>,
    /// Incarnations of peers that are no more, and whose half-sent messages are to be ended.
    pub(crate) gone: RefCell<Vec<(Rank, u32, Down)>>,
    /// The last reachable peer went, and nobody has been told.
    pub(crate) deserted: Cell<Option<(Rank, Down)>>,
    /// The endpoint was closed, by whichever of its clones.
    pub(crate) closed: Cell<bool>,
    /// Events came that the program has not been told of.
    pub(crate) news: Cell<bool>,
    /// The node's activity when the oldest of `blocked` and `grants` was last tried in vain.
    pub(crate) tried_at: Cell<u64>,
    /// What found no room, and is sent later.
    pub(crate) outbox: Outbox,
    pub(crate) wakes: Arc<Wakes>,
    /// Who waits for what of memory: of each wire, set and operation there is one holder, and so one who waits.
    pub(crate) memory_waits: RefCell<HashMap<Wakeup, Waker>>,
    /// Who is to look again when there are events.
    pub(crate) event_waits: Waits,
    /// What handlers send by way of [`Core::gather`] leaves when the extraction is over.
    pub(crate) gathering: Cell<bool>,
    /// Who is to look again when a peer goes.
    pub(crate) peer_waits: Waits,
    /// How often the last reachable peer went, and who that was.
    pub(crate) desertions: Cell<(u64, Option<(Rank, Down)>)>,
    /// Events that gave way to others, and that nobody has been told of.
    pub(crate) events_lost: Cell<u64>,
}

/// A handler that failed; see [`crate::Endpoint::poll_failure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The handler's name.
    pub handler: String,
    /// Who sent the message.
    pub from: Rank,
    /// What the handler returned, or the panic's text.
    pub reason: String,
    /// The handler panicked.
    pub panicked: bool,
}

/// How many failures wait to be read; the oldest give way.
const MAX_FAILURES: usize = 1024;

impl Core {
    pub(crate) fn new(
        node: tautline_node::Endpoint,
        names: Vec<(String, bool)>,
        handlers: Vec<Registered>,
        rpc: Option<Rpc>,
    ) -> Rc<Core> {
        let wakes = Arc::new(Wakes {
            woken: Mutex::new(Vec::new()),
            any: AtomicBool::new(false),
            called: AtomicBool::new(false),
            home: std::thread::current().id(),
            bell: node.waker(),
        });
        Rc::new(Core {
            node,
            names,
            handlers,
            rpc,
            running: RefCell::default(),
            delivery: RefCell::new(Some(Box::default())),
            taken: RefCell::default(),
            extracting: Cell::new(false),
            handled: Cell::new(0),
            live: Cell::new(0),
            failures: RefCell::default(),
            events: RefCell::default(),
            blocked: Waits::default(),
            grants: RefCell::default(),
            gone: RefCell::default(),
            deserted: Cell::new(None),
            closed: Cell::new(false),
            news: Cell::new(false),
            tried_at: Cell::new(u64::MAX),
            outbox: Outbox::default(),
            wakes,
            memory_waits: RefCell::default(),
            event_waits: Waits::default(),
            gathering: Cell::new(false),
            peer_waits: Waits::default(),
            desertions: Cell::new((0, None)),
            events_lost: Cell::new(0),
        })
    }

    /// Ends suspended handlers and closes the node, if that has not been done.
    pub(crate) fn shut(&self) {
        self.closed.set(true);
        self.let_handlers_go();
        if !self.node.is_closed().unwrap_or(true) {
            let _ = self.node.close();
        }
        self.wake_everyone();
    }

    /// The program's handlers, and those of them that are suspended, are dropped, with all that they hold: nobody will run them any more. While one runs
    /// they stay: whoever extracts next finds the endpoint closed, and does it.
    pub(crate) fn let_handlers_go(&self) {
        if self.extracting.get() {
            return;
        }
        for (which, handler) in self.handlers.iter().enumerate() {
            handler.let_go(|(from, reason)| self.fail(which, from, reason, true));
        }
        self.live.set(0);
    }

    /// Whatever waits for messages has an end when the endpoint is closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        if self.closed.get() { Err(SendError::Closed) } else { Ok(()) }
    }

    /// What is sent from now on shares frames, until the extraction that is under way is over.
    pub(crate) fn gather(&self) {
        if self.extracting.get() && !self.gathering.replace(true) {
            let _ = self.node.open_batch();
        }
    }

    /// The extraction is over.
    pub(crate) fn let_leave(&self) {
        if self.gathering.replace(false) {
            let _ = self.node.close_batch();
        }
    }

    /// The endpoint is closed: whoever waits for anything is told, because nobody will extract any more.
    pub(crate) fn wake_everyone(&self) {
        self.peer_waits.wake();
        self.memory_waits.take().into_values().for_each(Waker::wake);
        self.event_waits.wake();
        self.blocked.wake();
    }

    /// The last reachable peer is gone.
    pub(crate) fn desert(&self, peer: Rank, why: Down) {
        self.deserted.set(Some((peer, why)));
        self.desertions.set((self.desertions.get().0 + 1, Some((peer, why))));
    }

    /// Keeps an event for the program; the oldest give way, and that is told.
    pub(crate) fn keep_event(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        if events.len() == MAX_EVENTS {
            let lost = match events.pop_front() {
                Some(Event::Lost { events }) => events,
                _ => 1,
            };
            self.events_lost.set(self.events_lost.get() + lost);
        }
        events.push_back(event);
        self.news.set(true);
    }

    /// Whether something that would have blocked may succeed now.
    pub(crate) fn may_retry(&self) -> Option<u64> {
        let waits = !self.blocked.is_empty() || !self.grants.borrow().is_empty() || !self.outbox.is_empty();
        waits.then(|| self.tried_at.get())
    }

    /// Something was tried in vain; what the network did since `activity` is reason to try again.
    pub(crate) fn tried(&self, activity: u64) {
        self.tried_at.set(self.tried_at.get().min(activity));
    }

    /// Handlers or the program have something to do, whatever the network does.
    pub(crate) fn has_work(&self) -> bool {
        self.wakes.any() || self.wakes.is_called() || !self.gone.borrow().is_empty()
    }

    pub(crate) fn fail(&self, handler: usize, from: Rank, reason: String, panicked: bool) {
        let mut failures = self.failures.borrow_mut();
        if failures.len() == MAX_FAILURES {
            failures.pop_front();
        }
        failures.push_back(Failure { handler: self.names[handler].0.clone(), from, reason, panicked });
    }
}

/// Handlers that were woken, and calls to the program itself, from whatever thread.
pub(crate) struct Wakes {
    woken: Mutex<Vec<WokenSlot>>,
    /// Whether `woken` has anything in it: looked at in every poll.
    any: AtomicBool,
    /// The program was called, by [`crate::Waker::wake`].
    called: AtomicBool,
    home: ThreadId,
    bell: tautline_node::Waker,
}

impl Wakes {
    pub(crate) fn take(&self) -> Vec<WokenSlot> {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *woken)
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Set under the lock before the bell rings; whoever misses it here is rung for.
        self.any.load(Ordering::Acquire)
    }

    /// Calls the program.
    pub(crate) fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.bell.wake();
    }

    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Whether the program was called since the last time.
    pub(crate) fn take_call(&self) -> bool {
        self.is_called() && self.called.swap(false, Ordering::AcqRel)
    }
}

/// A handler's slot; it is among the woken once, which the flag says.
#[derive(Clone)]
pub(crate) struct WokenSlot {
    pub(crate) handler: usize,
    pub(crate) slot: usize,
    queued: Arc<AtomicBool>,
}

impl WokenSlot {
    /// It is about to be polled: who wakes it from now on wakes it again.
    pub(crate) fn polled(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }
}

/// Wakes one handler's slot. Made once per slot, used for every message that runs there.
pub(crate) struct SlotWaker {
    which: WokenSlot,
    wakes: Arc<Wakes>,
}

impl SlotWaker {
    pub(crate) fn new(handler: usize, slot: usize, wakes: Arc<Wakes>) -> SlotWaker {
        SlotWaker { which: WokenSlot { handler, slot, queued: Arc::default() }, wakes }
    }
}

impl std::task::Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.which.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut woken = self.wakes.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.push(self.which.clone());
        self.wakes.any.store(true, Ordering::Release);
        drop(woken);
        // At home the endpoint looks before it sleeps; from elsewhere it must be told.
        if std::thread::current().id() != self.wakes.home {
            self.wakes.bell.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Endpoint, Event, Job, Member, Rank};
    use std::future::Future;
    use std::pin::pin;
    use tautline_node::limits::MAX_EVENTS;

    /// A node of a job of its own.
    fn alone() -> Endpoint {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let members = vec![Member { addr: socket.local_addr().unwrap() }];
        let key = tautline_node::link::JobKey::new([1; 32]);
        let job = Job { rank: 0, key, members, security: None, device: None, socket: Some(socket.into()) };
        Endpoint::builder().join_job(job).unwrap()
    }

    /// T-6: events that the program does not read give way to later ones, and the first that it reads says how many did, those included that the node had dropped.
    #[test]
    fn the_oldest_events_give_way() {
        let ep = alone();
        while ep.poll_event().is_some() {}
        let event = |i: usize| Event::PathChanged { peer: 0 as Rank, max_frame: i };
        ep.core.keep_event(Event::Lost { events: 7 });
        for i in 0..MAX_EVENTS + 10 {
            ep.core.keep_event(event(i));
        }
        assert_eq!(ep.poll_event(), Some(Event::Lost { events: 17 }));
        for i in 10..MAX_EVENTS + 10 {
            assert_eq!(ep.poll_event(), Some(event(i)));
        }
        assert_eq!(ep.poll_event(), None);
        ep.close().unwrap();
    }

    /// Whoever waits, and then does not any more, leaves nothing behind.
    #[test]
    fn who_waits_no_more_is_forgotten() {
        let ep = alone();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let aperture = ep.aperture(64).unwrap();
        let mut wires: Vec<_> = (0..8).map(|i| aperture.tripwire(i..i + 1).arm().unwrap()).collect();
        let mut set = ep.tripset(&wires.iter().collect::<Vec<_>>(), 1, None).unwrap();
        let (mut queue, _) = crate::queue::make(&ep, 64).unwrap();
        let (mut reader, _) = crate::stream::make(&ep, 64).unwrap();
        for _ in 0..100 {
            for wire in &mut wires {
                assert!(pin!(wire.fired()).poll(&mut context).is_pending());
            }
            assert!(pin!(set.ready()).poll(&mut context).is_pending());
            assert!(pin!(queue.next()).poll(&mut context).is_pending());
            assert!(pin!(reader.read_async(&mut [0; 8])).poll(&mut context).is_pending());
            let full = || Err::<(), _>(crate::SendError::WouldBlock.into());
            assert!(pin!(crate::endpoint::retry(&ep.core, full)).poll(&mut context).is_pending());
            // A queue and a stream each keep the place of whoever asked last.
            assert_eq!((ep.core.memory_waits.borrow().len(), ep.core.peer_waits.len()), (2, 2));
            assert!(ep.core.blocked.is_empty());
        }
        drop((queue, reader));
        assert!(ep.core.memory_waits.borrow().is_empty() && ep.core.peer_waits.is_empty());
        ep.close().unwrap();
    }

    /// The same of events; and their stream ends when the endpoint is closed.
    #[cfg(feature = "futures")]
    #[test]
    fn events_end() {
        use futures_core::Stream;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};
        use std::task::{Poll, Wake, Waker};

        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let ep = alone();
        while ep.poll_event().is_some() {}
        let count = Arc::new(Count(AtomicU32::new(0)));
        for _ in 0..100 {
            let waker = Waker::from(count.clone());
            let polled = pin!(ep.events()).poll_next(&mut std::task::Context::from_waker(&waker));
            assert_eq!(polled, Poll::Pending);
        }
        assert!(ep.core.event_waits.is_empty() && Arc::strong_count(&count) == 1);
        let waker = Waker::from(count.clone());
        let mut context = std::task::Context::from_waker(&waker);
        let mut events = pin!(ep.events());
        assert_eq!(events.as_mut().poll_next(&mut context), Poll::Pending);
        let last = Event::PathChanged { peer: 0, max_frame: 7 };
        ep.core.keep_event(last.clone());
        ep.close().unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "closing wakes whoever waits");
        assert_eq!(events.as_mut().poll_next(&mut context), Poll::Ready(Some(last)));
        assert_eq!(events.as_mut().poll_next(&mut context), Poll::Ready(None));
        assert_eq!(events.as_mut().poll_next(&mut context), Poll::Ready(None));
    }
}
