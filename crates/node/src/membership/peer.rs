//! What a node keeps of one other rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tautline_device::RouteId;
use tautline_link::Nanos;

use super::handlers::PeerHandlers;
use crate::channel::{Channel, Port};
use crate::{Down, PeerId, Rank, Shortage};

/// How things stand with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// No channel has been asked for yet.
    Unknown,
    /// A channel is being opened.
    Connecting,
    /// Messages can be sent.
    Up,
    /// The peer is gone.
    Down(Down),
}

/// Whether a channel to a peer lasts: what can be read without the owner word.
#[derive(Debug, Default)]
pub struct Liveness(AtomicBool);

impl Liveness {
    /// Whether the channel is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A member of the job, as this node knows it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    pub(crate) state: PeerState,
    pub(crate) incarnation: u32,
    pub(crate) channel: Channel,
    pub(crate) handlers: PeerHandlers,
    /// When a channel that is being opened counts as unreachable.
    pub(crate) connect_by: Nanos,
    /// This node has announced its handlers on the channel.
    pub(crate) announced: bool,
    pub(crate) local: LocalHints,
    /// The process was started again, while the channel to its former life was still up.
    pub(crate) restarted: bool,
    /// The number of the address of its rank that frames go to (J-28).
    pub(crate) address: u8,
    /// Where the hello came from that was answered last, and the number of that address, if the peer is
    /// another lane than lane 0 of its rank (H-13) or its rank has several addresses (J-28).
    pub(crate) answered_at: Option<(RouteId, u8)>,
    liveness: Option<Arc<Liveness>>,
}

/// What is known of a peer that may be on this host.
#[derive(Debug, Default)]
pub(crate) struct LocalHints {
    /// Its address is one of this host, as far as addresses tell.
    pub(crate) same_host: bool,
    /// It is not known to be on another host.
    pub(crate) may_share: bool,
    /// Its address is this rank's own.
    pub(crate) same_ip: bool,
    /// Its listener is not dialled before this time: it could not be entered the last time.
    pub(crate) dial_after: Nanos,
    /// Why no memory could be shared with it the last time.
    pub(crate) refused: Option<String>,
    /// What was lacking the last time that something was, since memory was shared with it.
    pub(crate) shortage: Option<Shortage>,
}

impl Peer {
    pub(crate) fn new(rank: Rank, channel: Channel, local: LocalHints) -> Peer {
        Peer {
            rank,
            state: PeerState::Unknown,
            incarnation: 0,
            channel,
            handlers: PeerHandlers::default(),
            connect_by: 0,
            announced: false,
            local,
            restarted: false,
            address: 0,
            answered_at: None,
            liveness: None,
        }
    }

    /// The present incarnation.
    #[inline]
    pub(crate) fn id(&self) -> PeerId {
        PeerId::new(self.rank, self.incarnation)
    }

    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.state == PeerState::Up
    }

    /// When the peer has to be served at the latest.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Nanos {
        let at = self.channel.link.peering.next_deadline().unwrap_or(Nanos::MAX);
        if self.state == PeerState::Connecting { at.min(self.connect_by) } else { at }
    }

    /// Says when the channel that there is, or will be next, is over.
    pub(crate) fn liveness(&mut self) -> Arc<Liveness> {
        self.liveness.get_or_insert_default().clone()
    }

    /// The channel is over.
    pub(crate) fn end_liveness(&mut self) {
        if let Some(liveness) = self.liveness.take() {
            liveness.end();
        }
    }

    /// A new channel begins: nothing of the old one may leak into it (N-4).
    pub(crate) fn reset_channel(&mut self, port: &mut Port) {
        self.channel.reset(port);
        self.handlers.reset();
        self.announced = false;
    }
}
