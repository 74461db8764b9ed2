//! Contexts in which this node exchanges no more messages with a peer (E-13, E-14).

use std::ops::RangeInclusive;

use super::matching::{Key, Pattern};
use super::peers::Answer;
use super::receives::{Receive, ReceiveState};
use super::requests::{Failure, SendState};
use super::{Buffer, Tags};
use crate::memory::Name;
use crate::{Down, Rank};

/// Contexts that are fenced against a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    peer: Rank,
    contexts: RangeInclusive<u32>,
    /// How sends to the peer and receives from it fail.
    why: Failure,
}

impl Fence {
    fn record(&self) -> Answer {
        Answer::Fence { first: *self.contexts.start(), last: *self.contexts.end(), all: false }
    }
}

/// Fences that a peer may set up here: a peer that sets up more is disconnected.
const MAX_FENCES: usize = 4096;

impl Tags {
    /// Fences contexts against a peer, and tells it if there is a channel.
    pub(crate) fn fence(&mut self, peer: Rank, contexts: RangeInclusive<u32>) {
        let fence = Fence { peer, contexts, why: Failure::PeerGone(peer, Down::Excluded) };
        if !self.fences.contains(&fence) {
            self.tell_fence(&fence);
            self.add_fence(fence);
        }
    }

    /// A peer has fenced contexts against this node. False if it has done so too often.
    pub(super) fn handle_fence(&mut self, peer: Rank, contexts: RangeInclusive<u32>) -> bool {
        let fence = Fence { peer, contexts, why: Failure::Excluded(peer) };
        if self.fences.contains(&fence) {
            return true;
        }
        let fenced = self.fences.iter().filter(|fence| fence.peer == peer).count();
        if fenced < MAX_FENCES {
            self.add_fence(fence);
        }
        fenced < MAX_FENCES
    }

    /// Tells the peer of a fence, unless that waits to be sent.
    fn tell_fence(&mut self, fence: &Fence) {
        let told = self.peers.get(fence.peer).is_some_and(|peer| peer.answers.contains(&fence.record()));
        if self.peers.is_up(fence.peer) && !told {
            self.answer(fence.peer, fence.record());
        }
    }

    /// Why messages of a context are not exchanged with a peer, if that is so.
    pub(crate) fn why_fenced(&self, peer: Rank, context: u32) -> Option<Failure> {
        if !self.is_restricted {
            return None;
        }
        self.why_revoked(context).or_else(|| self.fence_of(peer, context).map(|fence| fence.why))
    }

    fn fence_of(&self, peer: Rank, context: u32) -> Option<&Fence> {
        self.fences.iter().find(|fence| fence.peer == peer && fence.contexts.contains(&context))
    }

    /// Ends what has not begun, and drops the messages that wait. Sends that the peer was told of end when it
    /// has dropped them.
    fn add_fence(&mut self, fence: Fence) {
        let Fence { peer, contexts, why } = fence.clone();
        self.activity += 1;
        for name in self.sends.names().collect::<Vec<_>>() {
            let fails = self.sends.get(name).is_some_and(|send| {
                send.to == peer && contexts.contains(&send.context) && matches!(send.state, SendState::Queued)
            });
            if fails {
                self.peers.get_mut(peer).into_iter().for_each(|peer| peer.queue.retain(|it| *it != name));
                self.end_send(name, Err(why));
            }
        }
        for name in self.receives.names().collect::<Vec<_>>() {
            if let Some(ReceiveState::Posted { posted, source }) =
                self.receives.get(name).map(|receive| receive.state)
                && source == Some(peer)
                && contexts.contains(&self.matcher.posted_key(posted).context)
            {
                self.matcher.cancel(posted);
                self.end_receive(name, Err(why));
            }
        }
        for waiting in self.matcher.all_from(peer) {
            let (key, _) = self.matcher.message(waiting);
            if contexts.contains(&key.context) {
                let pattern = Pattern { context: key.context, source: Some(peer), tag: Some(key.tag) };
                if let Ok(id) = self.receive(pattern, &mut Buffer::Absent) {
                    self.forget_receive(id);
                }
            }
        }
        self.fences.push(fence);
        self.is_restricted = true;
    }

    /// Returns the receive that takes a message that arrives: none of the program's, if its context is
    /// fenced or revoked.
    #[inline]
    pub(super) fn arrive(&mut self, key: Key) -> Option<Name> {
        if self.is_restricted
            && let Some(name) = self.discard(key)
        {
            return Some(name);
        }
        self.matcher.arrive(key)
    }

    /// A receive that drops a message which is fenced off; its sender is told of the fence (E-14).
    #[cold]
    fn discard(&mut self, key: Key) -> Option<Name> {
        let why = match self.why_revoked(key.context) {
            Some(why) => why,
            None => {
                let fence = self.fence_of(key.source, key.context)?.clone();
                if matches!(fence.why, Failure::PeerGone(..)) {
                    self.tell_fence(&fence);
                }
                fence.why
            }
        };
        let state = ReceiveState::Done(Err(why));
        self.receives.insert(Receive { buffer: Buffer::Absent, state, detached: true })
    }

    /// How a send ends that its peer has matched: fenced off, the peer has dropped it.
    pub(super) fn matched_result(&self, name: Name) -> Result<(), Failure> {
        let send = self.sends.get(name).filter(|_| self.is_restricted);
        send.and_then(|send| self.why_fenced(send.to, send.context)).map_or(Ok(()), Err)
    }
}
