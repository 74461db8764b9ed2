//! What becomes of messages whose senders are gone, and who is told.

use std::rc::Rc;

use tautline_node::link::Death;

use super::dispatch::end_message;
use super::stream::End;
use crate::core::Core;
use crate::{Down, Event, PeerState, Rank};

/// A peer's channel is no more: every message that it left half sent ends.
pub(crate) fn end_peers(core: &Rc<Core>) {
    for (from, last, why) in std::mem::take(&mut *core.gone.borrow_mut()) {
        let left = core.running.borrow().of(from, last);
        for incoming in left {
            end_message(core, incoming, End::PeerGone(why));
        }
    }
}

/// Takes what the node reports and keeps it for the program.
pub(crate) fn absorb_events(core: &Rc<Core>) {
    while let Some(event) = core.node.poll_event() {
        match event {
            Event::PeerDown { peer, incarnation, why } => note_gone(core, peer, incarnation, why),
            // There is somebody to wait for again.
            Event::PeerUp { .. } => core.deserted.set(None),
            // Deaths may be among them.
            Event::Lost { .. } => note_all_gone(core),
            _ => {}
        }
        core.keep_event(event);
    }
    crate::memory::absorb(core);
}

fn note_gone(core: &Rc<Core>, peer: Rank, incarnation: u32, why: Down) {
    core.gone.borrow_mut().push((peer, incarnation, why));
    core.peer_waits.wake();
    if core.node.all_peers_lost() {
        core.desert(peer, why);
    }
}

/// Events were lost: what would have been told of peers is worked out from how they are.
#[cold]
fn note_all_gone(core: &Rc<Core>) {
    for peer in 0..core.node.size() {
        let Ok(incarnation) = core.node.last_incarnation(peer) else { return };
        match core.node.peer_state(peer) {
            Some(PeerState::Down(why)) => note_gone(core, peer, incarnation, why),
            _ if incarnation > 1 => {
                note_gone(core, peer, incarnation - 1, Down::Died(Death::Restarted));
            }
            _ => {}
        }
    }
}
