//! Checked traffic: a member sends numbered messages to every other rank and checks what it receives.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tautline::{Builder, Endpoint, Event, Message, Outgoing, Rank};

/// The name of the handler.
const DATA: &str = "data";
/// The bytes before the pattern: generation of the sender, incarnation of the channel, number, bytes of the
/// pattern.
const HEADER: usize = 32;
/// Lengths of what follows the header, in turn: short messages, several frames, many frames.
const LENGTHS: [usize; 7] = [0, 40, 1_000, 5_000, 300, 60_000, 10];

type Header = [u64; 4];

/// What was received from one peer.
#[derive(Default)]
struct Received {
    last: Option<Header>,
    /// Generation and incarnation of the newest channel that a whole message came by, and how many did.
    channel: [u64; 2],
    whole: u64,
    /// Whole messages in all.
    checked: u64,
}

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
    ended: u64,
    sending: Option<Sending>,
}

/// The traffic of one member with all others.
pub struct Traffic {
    generation: u64,
    received: Rc<RefCell<HashMap<Rank, Received>>>,
    outboxes: HashMap<Rank, Outbox>,
}

fn pattern(size: usize, salt: u64) -> impl Iterator<Item = u8> {
    (0..size).map(move |i| (i * 31 + i / 251 + salt as usize * 97) as u8)
}

impl Traffic {
    /// Registers the handler. A member that is started again has a higher generation.
    pub fn new(generation: u64, builder: Builder) -> (Traffic, Builder) {
        let received = Rc::<RefCell<HashMap<Rank, Received>>>::default();
        let handled = received.clone();
        let builder = builder.on(DATA, move |message: Message| check(message, handled.clone()));
        (Traffic { generation, received, outboxes: HashMap::new() }, builder)
    }

    pub fn connect(&mut self, ep: &Endpoint) -> tautline::Result<()> {
        for peer in (0..ep.size()).filter(|rank| *rank != ep.rank()) {
            self.outboxes.insert(peer, Outbox::default());
            ep.connect(peer)?;
        }
        Ok(())
    }

    /// Reports an event, and reconnects to a peer that was lost.
    pub fn note(&mut self, ep: &Endpoint, event: &Event) {
        match event {
            Event::PeerUp { peer, incarnation } => {
                let outbox = self.outboxes.entry(*peer).or_default();
                outbox.begin_incarnation(*incarnation);
                outbox.up = true;
                println!("@up {peer}");
            }
            Event::PeerDown { peer, why, incarnation } => {
                println!("@down {peer} {why}");
                let outbox = self.outboxes.entry(*peer).or_default();
                if outbox.incarnation == *incarnation {
                    *outbox = Outbox::default();
                }
                let _ = ep.connect(*peer);
            }
            Event::Transport { peer, device, reason } => println!("@transport {peer} {device} {reason}"),
            _ => {}
        }
    }

    /// Only a message that its sender could not finish may fail.
    pub fn check_failures(&self, ep: &Endpoint) {
        while let Some(failure) = ep.poll_failure() {
            assert!(!failure.panicked && failure.reason.contains("is gone"), "{failure:?}");
        }
    }

    /// Adds to the messages in progress and, unless told to finish, begins others; never waits. Returns
    /// whether any message is in progress.
    pub fn send(&mut self, ep: &Endpoint, finish: bool) -> bool {
        let generation = self.generation;
        self.outboxes.iter_mut().for_each(|(peer, outbox)| outbox.send(ep, *peer, generation, finish));
        self.outboxes.values().any(|outbox| outbox.up && outbox.sending.is_some())
    }

    /// Messages that were received and checked.
    pub fn checked(&self) -> u64 {
        self.received.borrow().values().map(|of| of.checked).sum()
    }

    /// Messages sent to each rank and received from each, on the present channels.
    pub fn counts(&self, ranks: u32) -> (Vec<u64>, Vec<u64>) {
        let received = self.received.borrow();
        let out = (0..ranks).map(|rank| self.outboxes.get(&rank).map_or(0, |outbox| outbox.ended));
        (out.collect(), (0..ranks).map(|rank| received.get(&rank).map_or(0, |of| of.whole)).collect())
    }
}

impl Outbox {
    /// Messages to a new incarnation are numbered from zero.
    fn begin_incarnation(&mut self, incarnation: u32) {
        if self.incarnation != incarnation {
            *self = Outbox { incarnation, up: self.up, ..Outbox::default() };
        }
    }

    fn send(&mut self, ep: &Endpoint, peer: Rank, generation: u64, finish: bool) {
        const AT_A_TIME: usize = 8;
        for _ in 0..AT_A_TIME {
            if !self.up || (finish && self.sending.is_none()) {
                return;
            }
            if self.sending.is_none() {
                let size = LENGTHS[self.number as usize % LENGTHS.len()];
                let Ok(out) = ep.try_begin(peer, DATA, (HEADER + size) as u64) else { return };
                // The peer may have been started again, and be up, since the last event was read.
                self.begin_incarnation(out.incarnation());
                let header: Header = [generation, self.incarnation.into(), self.number, size as u64];
                let bytes: Vec<u8> = header
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .chain(pattern(size, self.number))
                    .collect();
                self.sending = Some(Sending { out, bytes, at: 0 });
                self.number += 1;
            }
            let Some(sending) = &mut self.sending else { return };
            match sending.out.try_piece(&sending.bytes[sending.at..]) {
                Ok(added) => sending.at += added,
                Err(_) => return,
            }
            if sending.at == sending.bytes.len() {
                let ended = self.sending.take().map(|sending| sending.out.end());
                self.ended += u64::from(matches!(ended, Some(Ok(_))));
            }
        }
    }
}

async fn check(mut message: Message, of: Rc<RefCell<HashMap<Rank, Received>>>) -> tautline::Result<()> {
    let mut header = [0; HEADER];
    message.read_into(&mut header).await?;
    let word = |at: usize| u64::from_le_bytes(header[8 * at..][..8].try_into().expect("eight bytes"));
    let header = [word(0), word(1), word(2), word(3)];
    let from = message.from();
    {
        let mut of = of.borrow_mut();
        let received = of.entry(from).or_default();
        let expected = match received.last {
            Some(last) if last[..2] == header[..2] => last[2] + 1,
            Some(last) => {
                assert!(header[..2] > last[..2], "from {from}: {header:?} after {last:?}");
                0
            }
            None => 0,
        };
        assert_eq!(header[2], expected, "from {from}: {header:?} after {:?}", received.last);
        received.last = Some(header);
    }
    let bytes = message.read_to_end().await?;
    let unaltered =
        bytes.len() as u64 == header[3] && bytes.iter().copied().eq(pattern(bytes.len(), header[2]));
    assert!(unaltered, "from {from}: {header:?} is altered");
    let mut of = of.borrow_mut();
    let received = of.entry(from).or_default();
    received.checked += 1;
    // A message of a former channel may still be extracted when the next one is open.
    if header[..2] > received.channel[..] {
        (received.channel, received.whole) = ([header[0], header[1]], 0);
    }
    received.whole += u64::from(header[..2] == received.channel[..]);
    Ok(())
}
