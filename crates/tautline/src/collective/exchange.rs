//! Long messages in both directions at once (M-17).

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use tautline_node::SendError;

use super::{EXCHANGE, handler};
use crate::blocking::{Step, extract_until};
use crate::core::{Charge, Core};
use crate::error::{Error, Result};
use crate::transfer::Transfer;
use crate::waiting::suspend_until;
use crate::{PeerId, Rank};

/// Messages of one peer that no call has taken. A correct peer sends the next one when its call has ended, so
/// that there are as many as its program names this rank in two calls.
const MAX_UNTAKEN: usize = 1 << 10;

/// The exchanges of one endpoint.
#[derive(Default)]
pub(super) struct Exchanges {
    /// Messages of peers that no call has taken, in the order in which they began.
    places: RefCell<HashMap<Rank, VecDeque<Rc<Place>>>>,
    /// Messages that will begin to arrive, and that no call will take.
    skipped: RefCell<HashMap<PeerId, u64>>,
    /// Peers of calls that are under way.
    busy: RefCell<BTreeSet<Rank>>,
}

/// A message, and what its sender is charged for it until a call takes it (M-19).
type Kept = (Vec<u8>, Charge);

/// A message that has begun to arrive.
pub(super) struct Place {
    from: PeerId,
    content: RefCell<Option<Result<Kept>>>,
}

impl Place {
    /// The message has arrived, or will not.
    pub(super) fn fill(&self, content: Result<Kept>) {
        *self.content.borrow_mut() = Some(content);
    }
}

/// One peer of a call.
struct Partner<'a> {
    rank: Rank,
    /// Its incarnation, once it is connected.
    peer: Option<PeerId>,
    /// Nothing when all is sent.
    unsent: Option<Transfer>,
    bytes: &'a [u8],
    received: Option<Vec<u8>>,
    /// Its message was taken, or has failed.
    is_over: bool,
}

/// The peers of a call. Dropped before its end, what was sent in part is aborted.
struct Partners<'a> {
    core: &'a Core,
    exchanges: &'a Exchanges,
    ranks: Vec<Rank>,
    all: Vec<Partner<'a>>,
}

impl Exchanges {
    /// A message of a peer has begun to arrive.
    pub(super) fn reserve(&self, from: PeerId) -> Result<Rc<Place>> {
        let mut places = self.places.borrow_mut();
        let places = places.entry(from.rank).or_default();
        // Nobody will take what a former incarnation has sent.
        places.retain(|place| place.from == from);
        let mut skipped = self.skipped.borrow_mut();
        skipped.retain(|peer, _| peer.rank != from.rank || *peer == from);
        if places.len() == MAX_UNTAKEN {
            return Err(Error::TooMany("exchanges that this rank has not called"));
        }
        let place = Rc::new(Place { from, content: RefCell::default() });
        match skipped.get_mut(&from).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => places.push_back(place.clone()),
        }
        Ok(place)
    }

    /// Takes the next message of a peer's incarnation, if it is complete.
    fn take(&self, peer: PeerId) -> Option<Result<Kept>> {
        let mut places = self.places.borrow_mut();
        let places = places.get_mut(&peer.rank)?;
        while places.front()?.from != peer {
            places.pop_front();
        }
        let content = places.front()?.content.take()?;
        places.pop_front();
        Some(content)
    }

    /// As [`crate::Endpoint::exchange_all`].
    pub(super) fn run(&self, core: &Rc<Core>, messages: &[(Rank, &[u8])]) -> Result<Vec<Vec<u8>>> {
        core.check_not_in_handler()?;
        let mut partners = self.begin(core, messages)?;
        extract_until(core, |taken| partners.step(taken))
    }

    /// As [`crate::AsyncEndpoint::exchange_all`].
    pub(super) async fn run_async(
        &self,
        core: &Rc<Core>,
        messages: &[(Rank, &[u8])],
    ) -> Result<Vec<Vec<u8>>> {
        let mut partners = self.begin(core, messages)?;
        suspend_until(core, |taken| partners.step(taken)).await
    }

    /// Begins a call. An error if another one with the same peer is under way: their messages would mix.
    fn begin<'a>(&'a self, core: &'a Core, messages: &[(Rank, &'a [u8])]) -> Result<Partners<'a>> {
        let handler = handler(core, EXCHANGE)?;
        let mut busy = self.busy.borrow_mut();
        if messages.iter().any(|(rank, _)| busy.contains(rank)) {
            return Err(Error::TooMany("exchanges with this peer under way"));
        }
        let ranks: Vec<Rank> = messages.iter().map(|(rank, _)| *rank).collect();
        busy.extend(&ranks);
        let partner = |&(rank, bytes): &(Rank, &'a [u8])| {
            let (peer, unsent) = (core.peer_id(rank), Some(Transfer::new(rank, handler)));
            Partner { rank, peer, unsent, bytes, received: None, is_over: false }
        };
        Ok(Partners { core, exchanges: self, ranks, all: messages.iter().map(partner).collect() })
    }

    /// Nobody will take the next message of a peer: its exchange matched one that was dropped.
    fn skip(&self, peer: PeerId) {
        let mut places = self.places.borrow_mut();
        let begun = places.get_mut(&peer.rank).is_some_and(|places| {
            let own = places.iter().position(|place| place.from == peer);
            own.is_some_and(|at| places.remove(at).is_some())
        });
        if !begun {
            *self.skipped.borrow_mut().entry(peer).or_default() += 1;
        }
    }
}

impl Partners<'_> {
    /// Sends and takes what it can.
    fn step(&mut self, taken: usize) -> Result<Step<Vec<Vec<u8>>>> {
        let Partners { core, exchanges, all, .. } = self;
        let (mut wants_room, mut waits) = (false, false);
        for partner in all.iter_mut() {
            wants_room |= partner.send(core)?;
            partner.receive(exchanges)?;
            let done = partner.unsent.is_none() && partner.received.is_some();
            // What it sent before it went down comes first. It is there when the loss is noticed.
            if !done
                && taken == 0
                && let Some(error) = core.peer_error(partner.rank, partner.peer)
                && !core.node.has_slots()?
            {
                return Err(error);
            }
            waits |= !done;
        }
        Ok(match (waits, wants_room) {
            (false, _) => Step::Done(all.drain(..).filter_map(|partner| partner.received).collect()),
            (true, false) => Step::Wait,
            (true, true) => Step::WaitForRoom,
        })
    }
}

impl Partner<'_> {
    /// Sends as much as there is room for; true if that is not all.
    fn send(&mut self, core: &Core) -> Result<bool> {
        let Some(transfer) = &mut self.unsent else { return Ok(false) };
        self.peer = self.peer.or_else(|| core.peer_id(self.rank));
        let sent = transfer.try_send(&core.node, self.bytes);
        if matches!(sent, Err(SendError::WouldBlock)) {
            return Ok(true);
        }
        self.unsent = None;
        sent?;
        // The peer may have come up during the attempt, and may be gone by now.
        if self.peer.is_none() {
            self.peer = Some(PeerId::new(self.rank, core.node.last_incarnation(self.rank)?));
        }
        Ok(false)
    }

    fn receive(&mut self, exchanges: &Exchanges) -> Result<()> {
        if self.received.is_none()
            && let Some(peer) = self.peer
            && let Some(content) = exchanges.take(peer)
        {
            self.is_over = true;
            self.received = Some(content?.0);
        }
        Ok(())
    }
}

impl Drop for Partners<'_> {
    fn drop(&mut self) {
        let Partners { core, exchanges, ranks, all } = self;
        exchanges.busy.borrow_mut().retain(|rank| !ranks.contains(rank));
        for partner in all.iter() {
            let begun = partner.unsent.as_ref().is_none_or(Transfer::is_begun);
            partner.unsent.iter().for_each(|unsent| unsent.abort(&core.node));
            // Its message is for this call, unless the peer will never know that there was one.
            if let Some(peer) = partner.peer.filter(|_| begun && !partner.is_over) {
                exchanges.skip(peer);
            }
        }
    }
}
