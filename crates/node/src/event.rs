//! What can happen to a node. Failures are events, never a crash of the process (N-8).

use crate::memory::MemoryEvent;
use crate::{Address, Choice, Down, Launcher, Rank};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A device was opened, with the reason for the choice.
    Device(Choice),
    /// How this process found its job, and why not in another way.
    Launcher(Launcher),
    /// Which transport a channel to a peer uses, and why. Reported before the peer is up, and whenever it
    /// changes; a change loses nothing and reorders nothing.
    Transport {
        /// The peer.
        peer: Rank,
        /// The device's name.
        device: &'static str,
        /// Why this one.
        reason: String,
    },
    /// This process lacks descriptors or memory, and shares no memory with further peers on its host. They
    /// use datagrams instead, or try again where only shared memory is to be used. Reported when that begins,
    /// not for every peer.
    LocalRefused {
        /// What it lacks, and what to do about it.
        reason: String,
    },
    /// A peer can be reached.
    PeerUp {
        /// The peer.
        peer: Rank,
        /// Counts the channels to this rank, from one: a process that was started again has a new one, and so
        /// has a process that was unreachable for too long.
        incarnation: u32,
    },
    /// A peer can no longer be reached. What was sent to it and not acknowledged may or may not have arrived.
    /// What it sent before can still be extracted.
    PeerDown {
        /// The peer.
        peer: Rank,
        /// Which of its incarnations, also if this one was never up; zero if there was none.
        incarnation: u32,
        /// Why.
        why: Down,
    },
    /// A member that had ended was started again. Only told to programs that watch members, when the launcher
    /// or another member reports it. A channel to the member's former process reports that one's end itself,
    /// as [`Event::PeerDown`], which may come before or after this event; the new process is connected when
    /// [`Event::PeerUp`] has another incarnation.
    MemberStarted {
        /// The member.
        member: Rank,
    },
    /// A process has joined the running job, with the next rank: it can be connected to. Only told to
    /// programs that watch members.
    MemberJoined {
        /// The member.
        member: Rank,
    },
    /// Others took this process for dead, for instance because it was stopped or cut off for too long. It
    /// goes on, in a new incarnation, and they are told. Only told to programs that watch members.
    Fenced {
        /// Which incarnation this process is among the members, from zero.
        incarnation: u32,
    },
    /// Frames to this peer may now have at most this many bytes.
    PathChanged {
        /// The peer.
        peer: Rank,
        /// Bytes of a frame.
        max_frame: usize,
    },
    /// Which algorithm carries out a collective of groups. Reported when this process first uses it for that
    /// collective among as many members.
    Algorithm {
        /// The collective.
        collective: &'static str,
        /// What was chosen.
        algorithm: &'static str,
        /// The number of members.
        members: usize,
        /// The bytes by which the first such collective was chosen.
        bytes: usize,
    },
    /// The oldest events were dropped because the program did not read them.
    Lost {
        /// How many.
        events: u64,
    },
    /// A tripwire, an operation's end, a notice: something that happened to memory.
    Memory(MemoryEvent),
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Device(choice) => write!(f, "device {}: {}", choice.device, choice.reason),
            Event::Launcher(launcher) => write!(f, "started by {launcher}"),
            Event::Transport { peer, device, reason } => {
                write!(f, "{} uses {device}: {reason}", Address::from(*peer))
            }
            Event::LocalRefused { reason } => write!(f, "a peer on this host was refused: {reason}"),
            Event::PeerUp { peer, .. } => write!(f, "{} is up", Address::from(*peer)),
            Event::PeerDown { peer, why, .. } => write!(f, "{} is down: {why}", Address::from(*peer)),
            Event::MemberStarted { member } => write!(f, "rank {member} was started again"),
            Event::MemberJoined { member } => write!(f, "rank {member} has joined the job"),
            Event::Fenced { incarnation } => {
                write!(f, "others took this process for dead; it goes on as incarnation {incarnation}")
            }
            Event::PathChanged { peer, max_frame } => {
                write!(f, "frames to {} have at most {max_frame} bytes", Address::from(*peer))
            }
            Event::Algorithm { collective, algorithm, members, bytes } => {
                write!(f, "{collective} of {bytes} bytes among {members} members: {algorithm}")
            }
            Event::Lost { events } => write!(f, "{events} events were dropped because nobody read them"),
            Event::Memory(event) => write!(f, "memory: {event:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_as_sentences() {
        let down = Event::PeerDown { peer: 3, incarnation: 1, why: Down::Exited };
        assert_eq!(down.to_string(), "rank 3 is down: its process has ended");
        let narrower = Event::PathChanged { peer: 1, max_frame: 1232 };
        assert_eq!(narrower.to_string(), "frames to rank 1 have at most 1232 bytes");
        let (collective, algorithm) = ("all-reduce", "recursive-doubling");
        let chosen = Event::Algorithm { collective, algorithm, members: 3, bytes: 8 };
        assert_eq!(chosen.to_string(), "all-reduce of 8 bytes among 3 members: recursive-doubling");
    }
}
