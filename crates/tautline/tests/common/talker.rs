//! A member that talks with every other all the time, checks what it receives, and reports on its standard
//! output. Its messages carry the generation of the process and the incarnation they are meant for, and are
//! numbered from the channel's start.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::{Config, Endpoint, Event, Message, Outgoing, Rank};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::launch::now;
use super::pattern;

/// Which process of this rank it is, counted by the launcher.
pub const GENERATION: &str = "TAUTLINE_TEST_GENERATION";

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    generation: u64,
    incarnation: u64,
    number: u64,
}

const HEADER: usize = size_of::<Header>();

/// What was received from one peer.
#[derive(Default)]
struct Received {
    last: Option<Header>,
    whole: u64,
}

type ReceivedByPeer = Rc<RefCell<HashMap<Rank, Received>>>;

/// A message to one peer, as far as it was sent.
struct Sending {
    out: Outgoing,
    bytes: Vec<u8>,
    at: usize,
}

/// What is sent to one incarnation of a peer.
#[derive(Default)]
struct Outbox {
    incarnation: u32,
    up: bool,
    number: u64,
    sending: Option<Sending>,
}

impl Outbox {
    /// Messages to a new incarnation are numbered from zero.
    fn begin_incarnation(&mut self, incarnation: u32) {
        if self.incarnation != incarnation {
            *self = Outbox { incarnation, up: self.up, ..Outbox::default() };
        }
    }
}

/// Talks until it is killed.
pub fn talk(config: Config) {
    let generation = std::env::var(GENERATION).unwrap().parse().unwrap();
    let received_by_peer = ReceivedByPeer::default();
    let for_handler = received_by_peer.clone();
    let builder =
        Endpoint::builder().config(config).on("data", move |msg: Message| listen(msg, for_handler.clone()));
    let ep = builder.join().unwrap();
    let peers: Vec<Rank> = (0..ep.size()).filter(|r| *r != ep.rank()).collect();
    let mut outboxes: HashMap<Rank, Outbox> = peers.iter().map(|p| (*p, Outbox::default())).collect();
    peers.iter().for_each(|p| ep.connect(*p).unwrap());
    let (mut reported, said) = (Instant::now(), Cell::new(0u64));
    loop {
        let took = ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            note(&ep, &event, &mut outboxes, &received_by_peer);
        }
        check_failures(&ep);
        let before = said.get();
        for (peer, outbox) in &mut outboxes {
            send(&ep, *peer, generation, outbox, &said);
        }
        if reported.elapsed() > Duration::from_millis(20) {
            reported = Instant::now();
            let received = received_by_peer.borrow();
            let counts: Vec<_> =
                (0..ep.size()).map(|r| received.get(&r).map_or(0, |h| h.whole).to_string()).collect();
            println!("@received {}", counts.join(" "));
        }
        if took == 0 && said.get() == before {
            ep.wait(Some(Duration::from_millis(2))).unwrap();
        }
    }
}

async fn listen(mut msg: Message, received_by_peer: ReceivedByPeer) -> tautline::Result<()> {
    let header: Header = msg.read().await?;
    let from = msg.from();
    {
        let mut received_by_peer = received_by_peer.borrow_mut();
        let received = received_by_peer.entry(from).or_default();
        let expected = match received.last {
            Some(last) if (last.generation, last.incarnation) == (header.generation, header.incarnation) => {
                last.number + 1
            }
            Some(last) => {
                let grown = (header.generation, header.incarnation) > (last.generation, last.incarnation);
                assert!(grown, "from {from}: {header:?} after {last:?}");
                0
            }
            None => 0,
        };
        assert_eq!(header.number, expected, "from {from}: {header:?} after {:?}", received.last);
        received.last = Some(header);
    }
    let bytes = msg.read_to_end().await?;
    assert!(bytes == pattern(bytes.len(), header.number as usize), "from {from}: {header:?} is altered");
    received_by_peer.borrow_mut().entry(from).or_default().whole += 1;
    Ok(())
}

fn note(
    ep: &Endpoint,
    event: &Event,
    outboxes: &mut HashMap<Rank, Outbox>,
    received_by_peer: &ReceivedByPeer,
) {
    match event {
        Event::PeerUp { peer, incarnation } => {
            let outbox = outboxes.get_mut(peer).unwrap();
            outbox.begin_incarnation(*incarnation);
            outbox.up = true;
            println!("@up {peer} {incarnation} {}", now());
        }
        Event::PeerDown { peer, incarnation, why } => {
            println!("@down {peer} {incarnation} {} {why}", now());
            let outbox = outboxes.get_mut(peer).unwrap();
            if outbox.incarnation == *incarnation {
                outbox.up = false;
                outbox.sending = None;
            }
            received_by_peer.borrow_mut().entry(*peer).or_default().whole = 0;
            ep.connect(*peer).unwrap();
        }
        _ => {}
    }
}

/// Only a message that its sender could not finish may fail.
fn check_failures(ep: &Endpoint) {
    while let Some(failure) = ep.poll_failure() {
        assert!(!failure.panicked && failure.reason.contains("is gone"), "{failure:?}");
    }
}

/// Adds to the message in progress, and begins the next; never waits.
fn send(ep: &Endpoint, peer: Rank, generation: u64, outbox: &mut Outbox, said: &Cell<u64>) {
    for _ in 0..8 {
        if !outbox.up {
            return;
        }
        if outbox.sending.is_none() {
            let size = [0, 40, 1000, 5000, 300, 60_000, 10][outbox.number as usize % 7];
            let Ok(out) = ep.try_begin(peer, "data", (HEADER + size) as u64) else { return };
            // Any call may have noticed that the peer was started again; the event is read later.
            outbox.begin_incarnation(out.incarnation());
            let header = Header { generation, incarnation: outbox.incarnation.into(), number: outbox.number };
            let bytes = [header.as_bytes(), &pattern(size, header.number as usize)].concat();
            outbox.sending = Some(Sending { out, bytes, at: 0 });
            outbox.number += 1;
        }
        let sending = outbox.sending.as_mut().expect("there is one now");
        match sending.out.try_piece(&sending.bytes[sending.at..]) {
            Ok(added) => sending.at += added,
            Err(_) => return,
        }
        if sending.at == sending.bytes.len() {
            let _ = outbox.sending.take().expect("there is one").out.end();
            said.set(said.get() + 1);
        }
    }
}
