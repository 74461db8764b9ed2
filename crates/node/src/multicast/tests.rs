//! Groups of nodes in one thread, with channels that hold a single frame, in random order.

use std::sync::Arc;

use tautline_wire::multicast::{MulticastRecord, PACKET_HEAD, Stream};
use tautline_wire::record::RecordHead;

use super::{MIN_WINDOW, Multicast, MulticastOptions, MulticastReceiveId, Shape};
use crate::limits::MAX_MULTICAST;
use crate::tags::{Buffer, Failure};
use crate::testing::{FakeWriter, Rng};
use crate::{Down, PeerId, Rank, SendError};

const GROUP: u32 = 5;

struct World {
    nodes: Vec<Multicast>,
    /// By sender and receiver.
    wires: Vec<Vec<FakeWriter>>,
    rng: Rng,
}

impl World {
    fn new(n: usize, options: MulticastOptions, seed: u64) -> World {
        let mut rng = Rng(seed);
        let wire = |rng: &mut Rng| FakeWriter {
            limit: PACKET_HEAD + 1 + rng.below(200) as usize,
            ..FakeWriter::new(1)
        };
        let wires = (0..n).map(|_| (0..n).map(|_| wire(&mut rng)).collect()).collect();
        let open = |me: usize| {
            let mut node = Multicast::new(me as Rank);
            assert!(node.open(GROUP, (0..n as Rank).collect(), me as u32, options));
            node
        };
        World { nodes: (0..n).map(open).collect(), wires, rng }
    }

    /// One random step of one node: it receives a frame, or sends what it has. Returns the node if it has
    /// received.
    fn step(&mut self) -> Option<usize> {
        let n = self.nodes.len() as u64;
        let (a, b) = (self.rng.below(n) as usize, self.rng.below(n) as usize);
        if self.rng.below(2) == 0 {
            let frame = self.wires[b][a].take_frame()?;
            assert!(self.nodes[a].handle_records(PeerId::new(b as Rank, 1), &frame), "a violation");
            return Some(a);
        }
        while let Some(rank) = self.nodes[a].next_unreached() {
            self.nodes[a].peer_up(PeerId::new(rank, 1));
        }
        for _ in 0..self.nodes[a].start_round() {
            let Some(rank) = self.nodes[a].next_busy() else { break };
            self.nodes[a].pump_peer(rank, &mut self.wires[a][rank as usize]);
        }
        None
    }

    fn is_idle(&self) -> bool {
        let empty = |wires: &Vec<FakeWriter>| wires.iter().all(|wire| wire.frames.is_empty());
        self.wires.iter().all(empty) && self.nodes.iter().all(|node| !node.is_busy())
    }
}

fn message(root: usize, number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + root * 31 + number * 101) as u8).collect()
}

/// Lengths that include none, a byte, and several windows.
fn len(number: usize, root: usize) -> usize {
    [0, 1, 100, 777, 3_000, 64][(number + root) % 6]
}

/// R-3 … R-6: all members are roots at once, with the smallest windows and channels for one frame each,
/// programs that take messages late, and every order of events that a seed draws. Nobody waits for ever, each
/// member gets the messages of each root in order and unaltered, and no node keeps more than a window and a
/// message of each root that may be active.
#[test]
fn all_roots_at_once_with_the_smallest_windows() {
    for seed in 1..=60_u64 {
        let n = 2 + seed as usize % 9;
        let roots = [1, 2, 4][seed as usize % 3];
        let shape = if seed % 5 == 0 { Shape::Star } else { Shape::Binomial };
        let options = MulticastOptions { shape, window: MIN_WINDOW, roots };
        let mut world = World::new(n, options, seed);
        let messages = 6;
        for (root, node) in world.nodes.iter_mut().enumerate() {
            for number in 0..messages {
                let bytes = Arc::new(message(root, number, len(number, root)));
                let id = node.send(GROUP, bytes).unwrap();
                node.forget_send(id);
            }
        }
        // The next message of each root, at each member.
        let mut next = vec![vec![0; n]; n];
        let mut left = vec![messages * (n - 1); n];
        let mut receives: Vec<Option<MulticastReceiveId>> = vec![None; n];
        let mut idle = 0;
        while left.iter().any(|left| *left > 0) {
            let received = world.step();
            let me = world.rng.below(n as u64) as usize;
            let node = &mut world.nodes[me];
            if left[me] > 0 {
                let id = *receives[me]
                    .get_or_insert_with(|| node.receive(GROUP, None, Buffer::Whole(vec![0; 3_000])).unwrap());
                if let Some((result, Buffer::Whole(bytes))) = node.take_received(id) {
                    let status = result.unwrap();
                    let root = status.source as usize;
                    let wanted = message(root, next[me][root], len(next[me][root], root));
                    assert!(bytes[..status.len as usize] == wanted, "seed {seed}");
                    next[me][root] += 1;
                    left[me] -= 1;
                    receives[me] = None;
                }
            }
            // Nobody else keeps more than before.
            if let Some(received) = received {
                let group = &world.nodes[received].groups[&GROUP];
                let kept: usize = group
                    .streams
                    .iter()
                    .filter(|(root, _)| **root != group.me)
                    .flat_map(|(_, stream)| &stream.packets)
                    .map(|packet| packet.data.bytes().len())
                    .sum();
                // A window of each root, and a message that the program has not begun to take.
                let room = (MIN_WINDOW as usize + 3_000) * roots.min(n);
                assert!(kept <= room, "seed {seed}: {kept} bytes");
            }
            idle = if world.is_idle() { idle + 1 } else { 0 };
            assert!(idle < 200 * n * n, "seed {seed}: everybody waits: {left:?}");
        }
    }
}

/// a receive of any root takes whatever comes first; a message that is too long is cut, and the next one
/// arrives whole.
#[test]
fn receives_of_any_root() {
    let options = MulticastOptions { shape: Shape::Binomial, window: 4 * MIN_WINDOW, roots: 4 };
    let mut world = World::new(4, options, 7);
    for root in [1, 3] {
        for number in 0..3 {
            let id = world.nodes[root].send(GROUP, Arc::new(message(root, number, 50))).unwrap();
            world.nodes[root].forget_send(id);
        }
    }
    let mut next = [0; 4];
    for count in 0..6 {
        let room = if count == 1 { 20 } else { 50 };
        let id = world.nodes[0].receive(GROUP, None, Buffer::Whole(vec![0; room])).unwrap();
        while !world.nodes[0].is_received(id) {
            world.step();
        }
        let (result, Buffer::Whole(bytes)) = world.nodes[0].take_received(id).unwrap() else { panic!() };
        let status = match result {
            Ok(status) if room == 50 => status,
            Err(Failure::Truncated(status)) if room == 20 => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(status.len, 50);
        let root = status.source as usize;
        assert_eq!(bytes, message(root, next[root], 50)[..room]);
        next[root] += 1;
    }
    assert_eq!(next, [0, 3, 0, 3]);
}

/// when a member is lost, every member that waits for it or for others fails, however far it is from the
/// lost one in the trees.
#[test]
fn a_member_is_lost() {
    for seed in 1..=40_u64 {
        let n = 4 + seed as usize % 6;
        let options = MulticastOptions { shape: Shape::Binomial, window: MIN_WINDOW, roots: 2 };
        let mut world = World::new(n, options, seed);
        let sends: Vec<_> = world
            .nodes
            .iter_mut()
            .map(|node| (0..4).map(|_| node.send(GROUP, Arc::new(vec![1; 2_000])).unwrap()).last().unwrap())
            .collect();
        for _ in 0..seed * 30 {
            world.step();
        }
        let lost = (seed as usize * 5) % n;
        let gone = Failure::PeerGone(lost as Rank, Down::Exited);
        // Those that have a channel to it learn of it.
        let connected: Vec<usize> =
            (0..n).filter(|at| *at != lost && world.nodes[*at].peers.get(lost as Rank).is_some()).collect();
        world.nodes[lost].close();
        for at in 0..n {
            world.wires[lost][at].frames.clear();
        }
        for at in connected {
            world.nodes[at].peer_down(lost as Rank, gone);
        }
        for _ in 0..20_000 {
            world.wires.iter_mut().for_each(|from| from[lost].frames.clear());
            world.step();
            if (0..n).all(|at| at == lost || world.nodes[at].is_sent(sends[at])) {
                break;
            }
        }
        for at in (0..n).filter(|at| *at != lost) {
            assert!(world.nodes[at].is_sent(sends[at]), "seed {seed}: member {at} waits for ever");
            // Nobody took anything, so no window opened.
            assert_eq!(world.nodes[at].take_sent(sends[at]), Some(Err(gone)), "seed {seed}");
        }
    }
}

/// what no correct peer sends is refused: bytes that are not the parent's, not the next ones
/// or beyond the window, more roots than there is room for, and grants of others than the first member.
#[test]
fn forged_records_are_refused() {
    let options = MulticastOptions { shape: Shape::Star, window: MIN_WINDOW, roots: 1 };
    let packet = |root: u32, at: u64, data: &'static [u8]| {
        let stream = Stream { group: GROUP, root };
        MulticastRecord::Packet { stream, at, last: false, flush: false, data }
    };
    let feed = |node: &mut Multicast, from: Rank, record: MulticastRecord<'_>| {
        let data = if let MulticastRecord::Packet { data, .. } = record { data } else { &[] };
        let mut bytes = vec![0; PACKET_HEAD + data.len()];
        let head = record.write(&mut bytes, 0, data.len());
        bytes[head..].copy_from_slice(data);
        node.handle_records(PeerId::new(from, 1), &bytes)
    };
    let node = || {
        let mut node = Multicast::new(3);
        assert!(node.open(GROUP, vec![0, 1, 2, 3], 3, options));
        node
    };
    static LONG: [u8; MIN_WINDOW as usize + 1] = [0; MIN_WINDOW as usize + 1];
    assert!(feed(&mut node(), 1, packet(1, 0, b"good")));
    assert!(!feed(&mut node(), 2, packet(1, 0, b"not the parent")));
    assert!(!feed(&mut node(), 3, packet(3, 0, b"its own")));
    assert!(!feed(&mut node(), 1, packet(9, 0, b"no member")));
    assert!(!feed(&mut node(), 1, packet(1, 1, b"not the next")));
    assert!(!feed(&mut node(), 1, packet(1, u64::MAX - 10, b"not the next")));
    assert!(!feed(&mut node(), 1, packet(1, 0, &LONG)));
    assert!(!feed(&mut node(), 1, packet(1, 0, b"")));
    let mut two = node();
    assert!(feed(&mut two, 1, packet(1, 0, b"good")) && !feed(&mut two, 2, packet(2, 0, b"one too many")));
    // a message that never ends. The program takes none of it, and it is acknowledged as it comes.
    let mut endless = node();
    let mut at = 0;
    while feed(&mut endless, 1, packet(1, at, &LONG[..512])) {
        at += 512;
        endless.peers.get_mut(1).into_iter().for_each(|peer| peer.answers.clear());
    }
    assert_eq!(at, MAX_MULTICAST);
    let too_long = endless.send(GROUP, Arc::new(vec![0; MAX_MULTICAST as usize + 1]));
    assert!(matches!(too_long, Err(SendError::TooMany(_))), "{too_long:?}");
    let stream = Stream { group: GROUP, root: 3 };
    for (from, record) in [
        (1, MulticastRecord::Grant(stream)),
        (0, MulticastRecord::Grant(stream)),
        (0, MulticastRecord::Recall(stream)),
        (1, MulticastRecord::Request(stream)),
        (1, MulticastRecord::Release(stream)),
        (1, MulticastRecord::Ack { stream, to: 1 }),
    ] {
        assert!(!feed(&mut node(), from, record), "{record:?} of {from}");
    }
    // Of what was not sent to that member yet, or was acknowledged.
    let mut root = Multicast::new(3);
    assert!(root.open(GROUP, vec![0, 1, 2, 3], 3, MulticastOptions { roots: 4, ..options }));
    root.send(GROUP, Arc::new(vec![1; 100])).unwrap();
    for to in [0, 1, 100, u64::MAX] {
        assert!(!feed(&mut root, 1, MulticastRecord::Ack { stream, to }), "{to}");
    }
    // Of a group that this node does not have: its members are told, once.
    let mut stranger = Multicast::new(3);
    for _ in 0..10 {
        assert!(feed(&mut stranger, 1, packet(1, 0, b"good")) && stranger.has_unsent());
    }
    assert_eq!(stranger.peers.get(1).unwrap().answers.len(), 1);
    // Of one that failed before this node closed it: they are told why.
    let mut former = node();
    former.peer_down(2, Failure::PeerGone(2, Down::Exited));
    former.close_group(GROUP);
    former.peers.get_mut(1).into_iter().for_each(|peer| peer.answers.clear());
    assert!(feed(&mut former, 1, packet(1, 0, b"good")));
    let why = Down::Exited.to_byte();
    let told = former.peers.get(1).unwrap().answers.front().copied();
    assert_eq!(told, Some(MulticastRecord::Failed { group: GROUP, gone: 2, why }));
    // A peer that goes on with more and more groups is disconnected.
    let request = |group| MulticastRecord::Request(Stream { group, root: 1 });
    let refused = (0..).take_while(|group| feed(&mut stranger, 1, request(*group))).count();
    assert!((4_000..5_000).contains(&refused), "{refused}");
}

/// what a peer says that is no member of a group does not end it; who is gone is a member, or the one
/// that says so.
#[test]
fn strangers_end_no_group() {
    let options = MulticastOptions { shape: Shape::Star, window: MIN_WINDOW, roots: 1 };
    let mut node = Multicast::new(3);
    assert!(node.open(GROUP, vec![0, 1, 3], 2, options));
    let failed = |node: &mut Multicast, from: Rank, gone| {
        let record = MulticastRecord::Failed { group: GROUP, gone, why: Down::Exited.to_byte() };
        let mut bytes = vec![0; record.head_len()];
        record.write(&mut bytes, 0, 0);
        assert!(node.handle_records(PeerId::new(from, 1), &bytes));
        node.why_failed(GROUP)
    };
    assert_eq!(failed(&mut node, 2, 0), None);
    assert_eq!(failed(&mut node, 9, 1), None);
    assert_eq!(failed(&mut node, 1, 7), Some(Failure::PeerGone(1, Down::Exited)));
}

/// short packets are not kept in the memory of long ones.
#[test]
fn short_packets_take_no_long_buffers() {
    let mut node = Multicast::new(3);
    let mut kept = 0;
    for _ in 0..100 {
        let long: Vec<_> = (0..8).map(|_| node.copy(&[1; 16 << 10])).collect();
        long.into_iter().for_each(|bytes| node.spare.put(bytes));
        kept += (0..8).map(|_| node.copy(&[1]).capacity()).sum::<usize>();
    }
    assert!(kept <= 800 * 64, "{kept} bytes for 800 packets of one byte");
}
