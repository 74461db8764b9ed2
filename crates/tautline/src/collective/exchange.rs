//! Long messages in both directions at once (M-17).

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use tautline_node::SendError;

use super::{EXCHANGE, handler};
use crate::blocking::{Step, extract_until};
use crate::core::{Charge, Core};
use crate::error::{Error, Result};
use crate::transfer::Transfer;
use crate::{PeerId, Rank};

/// Messages of one peer that no call has taken. A correct peer sends the next one when its call has ended, so
/// that there are as many as its program names this rank in two calls.
const MAX_UNTAKEN: usize = 1 << 10;

/// Messages of peers that no call has taken, in the order in which they began.
#[derive(Default)]
pub(super) struct Exchanges(RefCell<HashMap<Rank, VecDeque<Rc<Place>>>>);

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
}

/// The peers of a call. Dropped before its end, what was sent in part is aborted.
struct Partners<'a> {
    core: &'a Core,
    all: Vec<Partner<'a>>,
}

impl Exchanges {
    /// A message of a peer has begun to arrive.
    pub(super) fn reserve(&self, from: PeerId) -> Result<Rc<Place>> {
        let mut places = self.0.borrow_mut();
        let places = places.entry(from.rank).or_default();
        // Nobody will take what a former incarnation has sent.
        places.retain(|place| place.from == from);
        if places.len() == MAX_UNTAKEN {
            return Err(Error::TooMany("exchanges that this rank has not called"));
        }
        let place = Rc::new(Place { from, content: RefCell::default() });
        places.push_back(place.clone());
        Ok(place)
    }

    /// Takes the next message of a peer's incarnation, if it is complete.
    fn take(&self, peer: PeerId) -> Option<Result<Kept>> {
        let mut places = self.0.borrow_mut();
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
        let handler = handler(core, EXCHANGE)?;
        let mut partners = Partners { core, all: Vec::with_capacity(messages.len()) };
        for &(rank, bytes) in messages {
            let (peer, unsent) = (core.peer_id(rank), Some(Transfer::new(rank, handler)));
            partners.all.push(Partner { rank, peer, unsent, bytes, received: None });
        }
        extract_until(core, |taken| {
            let (mut wants_room, mut waits) = (false, false);
            for partner in &mut partners.all {
                wants_room |= partner.send(core)?;
                partner.receive(self)?;
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
                (false, _) => Step::Done(()),
                (true, false) => Step::Wait,
                (true, true) => Step::WaitForRoom,
            })
        })?;
        Ok(partners.all.iter_mut().map(|partner| partner.received.take().unwrap_or_default()).collect())
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
            self.received = Some(content?.0);
        }
        Ok(())
    }
}

impl Drop for Partners<'_> {
    fn drop(&mut self) {
        self.all
            .iter()
            .filter_map(|partner| partner.unsent.as_ref())
            .for_each(|unsent| unsent.abort(&self.core.node));
    }
}
