//! Requests of every kind that a peer makes without being allowed to.

use super::fake::FakeLent;
use super::*;
use tautline_wire::record::RecordHead;

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forged {
    Put,
    Part,
    LentPart,
    Get,
    Atomic,
    Notice,
}

impl Forged {
    pub(super) const ALL: [Forged; 6] =
        [Forged::Put, Forged::Part, Forged::LentPart, Forged::Get, Forged::Atomic, Forged::Notice];
    pub(super) const BUT_GET: [Forged; 5] =
        [Forged::Put, Forged::Part, Forged::LentPart, Forged::Atomic, Forged::Notice];
    /// Those that can claim any length.
    pub(super) const WITH_LENGTH: [Forged; 4] = [Forged::Part, Forged::LentPart, Forged::Get, Forged::Notice];

    /// Requests `len` bytes, or eight for an atomic. A whole put has at most 16; a put in parts begins with
    /// as many, and the rest follows in a second part, which must have no effect and no answer of its own.
    pub(super) fn request(
        self,
        ep: &Node,
        peer: &mut Peer,
        rng: &mut Rng,
        (handle, at, len): (u32, u64, u64),
    ) {
        let mut target = peer.target(handle, at);
        let data = [0xaa; 16];
        let first = &data[..len.min(16) as usize];
        let rest = len - first.len() as u64;
        match self {
            Forged::Put => peer.say(ep, &Message::Put(target, &[]), 0, first),
            Forged::Part => peer.say(ep, &Message::Part(target, rest, &[]), 0, first),
            Forged::LentPart => lend(ep, peer.rank, (target, rest), first),
            Forged::Get => peer.say(ep, &Message::Get(target, len), 0, &[]),
            Forged::Atomic => {
                let atomics =
                    [Atomic::Add(1), Atomic::Swap(1), Atomic::CompareSwap(0x5555_5555_5555_5555, 1)];
                peer.say(ep, &Message::Atomic(target, *rng.any(&atomics)), 0, &[]);
            }
            Forged::Notice => peer.say(ep, &Message::Notice { target, len, value: 1 }, 0, &[]),
        }
        if matches!(self, Forged::Part | Forged::LentPart) && rest > 0 {
            // To a place that the peer may write to, if its first part had been.
            target.at = 0;
            peer.say(ep, &Message::Part(target, 0, &[]), 0, &data[..8]);
        }
    }
}

/// Hands over a part that the peer lends. It is returned, whatever becomes of it.
fn lend(ep: &Node, rank: Rank, (target, rest): (Target, u64), bytes: &[u8]) {
    let extent = ExtentRef { number: 0, len: bytes.len() as u32, at: 0 };
    let message = Message::LoanedPart(target, rest, extent);
    let mut frame = vec![0; message.head_len()];
    message.write(&mut frame, 0, 0);
    let parts = [bytes.to_vec()];
    let mut lent = FakeLent { parts: &parts, returned: Vec::new() };
    assert!(ep.with(|it| it.handle_records(PeerId::new(rank, 1), &mut lent, &frame)), "{message:?}");
    assert_eq!(lent.returned, [0]);
}
