//! From the node's reports to the program's events and to everybody who waits for them.

use tautline_node::PeerId;
use tautline_node::link::Death;

use super::Core;
use super::peer_loss::LostPeer;
use crate::{Down, Event, PeerState};

impl Core {
    /// Takes what the node reports, keeps it for the program, and wakes its waiters.
    pub(crate) fn absorb_events(&self) {
        while let Some(event) = self.node.poll_event() {
            match event {
                Event::PeerDown { peer, incarnation, why } => {
                    self.peer_down(LostPeer { peer: PeerId::new(peer, incarnation), why });
                }
                Event::PeerUp { .. } => self.peer_loss.peer_up(),
                // Among them may have been peers that went down.
                Event::Lost { .. } => self.find_lost_peers(),
                _ => {}
            }
            self.events.push(event);
        }
        self.absorb_memory();
    }

    fn absorb_memory(&self) {
        while let Ok(Some(what)) = self.node.take_woken() {
            self.waits.wake_memory(what);
        }
        if self.node.acknowledge_memory_events().unwrap_or(false) {
            self.events.set_unseen(true);
        }
        self.events.wake_waiters();
    }

    fn peer_down(&self, lost: LostPeer) {
        self.peer_loss.push(lost);
        self.waits.peers.wake();
        self.shared.peer_down(lost.peer.rank, lost.why);
        if self.node.all_peers_lost() {
            self.peer_loss.last_peer_lost(lost);
        }
    }

    /// Events were dropped: derives from the state of all peers which of them went down.
    #[cold]
    fn find_lost_peers(&self) {
        for rank in self.node.peers().unwrap_or_default() {
            let Ok(incarnation) = self.node.last_incarnation(rank) else { return };
            match self.node.peer_state(rank) {
                Some(PeerState::Down(why)) => {
                    self.peer_down(LostPeer { peer: PeerId::new(rank, incarnation), why });
                }
                _ if incarnation > 1 => {
                    let peer = PeerId::new(rank, incarnation - 1);
                    self.peer_down(LostPeer { peer, why: Down::Died(Death::Restarted) });
                }
                _ => {}
            }
        }
    }
}
