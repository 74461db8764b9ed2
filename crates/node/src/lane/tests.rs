//! Lanes against each other over a wire made of memory, on a virtual clock: frames can be dropped, repeated,
//! reordered and looked at between two polls.

mod handshake;
mod local;
mod outgoing;
mod receive;
mod transmit;
mod waiting;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use tautline_device::{Arena, Counters as DeviceCounters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId};
use tautline_link::{JobKey, Nanos};
use tautline_wire::frame::Kind;
use tautline_wire::handshake::Security;

use super::inbox::Delivery;
use super::*;
use crate::membership::Key;
use crate::{Down, Member, SendError};

/// Frames under way to one node, oldest first.
type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// How many frames left by each flush.
type Trains = Arc<Mutex<Vec<usize>>>;

const MAX_FRAME: usize = 1472;

/// One end of the wire. What it learns by itself is put into `events` by the test.
struct Wire {
    arena: Arena,
    addr: SocketAddr,
    peer: SocketAddr,
    out: Frames,
    input: Frames,
    events: Arc<Mutex<VecDeque<DeviceEvent>>>,
    /// Frames since the last flush.
    queued: usize,
    trains: Trains,
}

impl Datagram for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
    fn arena_ref(&self) -> &Arena {
        &self.arena
    }
    fn route(&mut self, to: SocketAddr) -> std::io::Result<RouteId> {
        Ok(RouteId(to.port().into()))
    }
    fn max_frame(&self, _: RouteId) -> usize {
        MAX_FRAME
    }
    fn send(&mut self, _: RouteId, slot: SlotId, range: Range<usize>) {
        self.out.lock().unwrap().push_back(self.arena.bytes(slot, range).to_vec());
        self.queued += 1;
    }
    fn flush(&mut self) {
        match std::mem::take(&mut self.queued) {
            0 => {}
            frames => self.trains.lock().unwrap().push(frames),
        }
    }
    fn recv(&mut self, batch: &mut RxBatch) -> std::io::Result<usize> {
        batch.clear();
        let mut input = self.input.lock().unwrap();
        while input.front().is_some_and(|frame| batch.push(self.peer, frame)) {
            input.pop_front();
        }
        Ok(batch.frames().len())
    }
    fn receive_buffer(&self) -> usize {
        1 << 20
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.lock().unwrap().pop_front()
    }
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

/// A device that reaches nobody.
fn dead_end(addr: SocketAddr) -> Wire {
    let arena = Arena::new(64, MAX_FRAME);
    let (out, input, events) = Default::default();
    Wire { arena, addr, peer: addr, out, input, events, queued: 0, trains: Trains::default() }
}

/// Two lanes and the wire between them.
struct Pair {
    now: Nanos,
    lanes: [Lane; 2],
    /// Frames under way to each.
    frames: [Frames; 2],
    events: [Arc<Mutex<VecDeque<DeviceEvent>>>; 2],
    /// What has left each.
    trains: [Trains; 2],
    /// The handlers "short" and "stream" of the other side.
    short: Key,
    stream: Key,
}

fn address(rank: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + rank as u8], 1 + rank as u16))
}

fn job(rank: usize) -> Job {
    Job::new(rank as Rank, JobKey::new([1; 32]), (0..2).map(|rank| Member::new(address(rank))).collect())
}

/// A lane, and the keys of the handlers "short" and "stream".
fn new_lane(job: &Job, config: Config, wire: Wire, entropy: [u8; 32]) -> (Lane, [Key; 2]) {
    let names = vec![("short".to_owned(), true), ("stream".to_owned(), false)];
    let mut lane = Lane::new(job, 0, config, Box::new(wire), entropy, names).unwrap();
    assert!(lane.add_peer(1 - job.rank));
    let keys = ["short", "stream"].map(|name| {
        let key = lane.names.insert(name);
        lane.peers.iter_mut().for_each(|peer| peer.handlers.add_key(key, name));
        key
    });
    (lane, keys)
}

impl Pair {
    fn new() -> Pair {
        Pair::with(|_, _| {})
    }

    /// A pair whose jobs and configurations `change` has changed.
    fn with(mut change: impl FnMut(&mut Job, &mut Config)) -> Pair {
        let frames: [Frames; 2] = Default::default();
        let events: [Arc<Mutex<VecDeque<DeviceEvent>>>; 2] = Default::default();
        let trains: [Trains; 2] = Default::default();
        let [(lane, keys), (other, same_keys)] = [0, 1].map(|rank: usize| {
            let wire = Wire {
                arena: Arena::new(256, MAX_FRAME),
                addr: address(rank),
                peer: address(1 - rank),
                out: frames[1 - rank].clone(),
                input: frames[rank].clone(),
                events: events[rank].clone(),
                queued: 0,
                trains: trains[rank].clone(),
            };
            let (mut job, mut config) = (job(rank), Config::default());
            change(&mut job, &mut config);
            new_lane(&job, config, wire, [rank as u8 + 1; 32])
        });
        assert_eq!(keys, same_keys);
        let [short, stream] = keys;
        Pair { now: 1, lanes: [lane, other], frames, events, trains, short, stream }
    }

    /// Another process takes the place of a rank, which has been killed.
    fn restart(&mut self, rank: usize) {
        let wire = Wire {
            peer: address(1 - rank),
            out: self.frames[1 - rank].clone(),
            input: self.frames[rank].clone(),
            events: self.events[rank].clone(),
            trains: self.trains[rank].clone(),
            ..dead_end(address(rank))
        };
        (self.lanes[rank], _) = new_lane(&job(rank), Config::default(), wire, [rank as u8 + 0x81; 32]);
    }

    /// A pair with an open channel and nothing under way.
    fn connected() -> Pair {
        let mut pair = Pair::new();
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        self.lanes[0].connect(self.now, 1);
        self.settle();
        assert_eq!([self.state(0), self.state(1)], [PeerState::Up; 2]);
        for lane in &mut self.lanes {
            while lane.poll_event().is_some() {}
        }
    }

    /// What rank `of` knows of the other.
    fn state(&self, of: usize) -> PeerState {
        self.lanes[of].peers.member(1 - of as Rank).state
    }

    /// Polls one side, a microsecond later.
    fn poll(&mut self, rank: usize) {
        self.now += 1_000;
        self.lanes[rank].poll(self.now);
    }

    /// Polls both sides until nothing is under way and no acknowledgement is due.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.pass(200_000);
        }
    }

    /// Lets time pass, and polls both sides.
    fn pass(&mut self, time: Nanos) {
        self.now += time;
        for lane in &mut self.lanes {
            lane.poll(self.now);
        }
    }

    /// Takes out the frames under way to a side.
    fn intercept(&self, to: usize) -> Vec<Vec<u8>> {
        self.frames[to].lock().unwrap().drain(..).collect()
    }

    /// Puts frames on the way to a side.
    fn inject(&self, to: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.frames[to].lock().unwrap().extend(frames);
    }

    /// Sends a short message as the endpoint does.
    fn send(&mut self, from: usize, data: &[u8]) -> Result<(), SendError> {
        let (to, now) = (1 - from as Rank, self.now);
        let lane = &mut self.lanes[from];
        if lane.send_direct(to, self.short, data) || lane.send_at_once(now, to, self.short, data) {
            return Ok(());
        }
        let handler = lane.handler(now, to, self.short, data.len() as u64)?;
        let (peer, port) = lane.channel(to);
        peer.channel.write_short(port, handler, data)?;
        lane.send_now(now, to);
        Ok(())
    }

    /// Begins a message to the other side's stream handler.
    fn begin(&mut self, from: usize, total: u64) -> Result<MessageId, SendError> {
        let (to, now) = (1 - from as Rank, self.now);
        let lane = &mut self.lanes[from];
        let handler = lane.handler(now, to, self.stream, total)?;
        let (peer, port) = lane.channel(to);
        let id = peer.id();
        Ok(id.message(peer.channel.begin(port, handler, total, 1 << 16)?))
    }

    /// Adds bytes to a message; returns how many there was room for.
    fn add(&mut self, from: usize, to: MessageId, offset: u64, bytes: &[u8]) -> usize {
        let now = self.now;
        let (peer, port) = self.lanes[from].channel(to.peer.rank);
        peer.channel.add_bytes(port, now, (to.number, offset), bytes)
    }

    fn send_now(&mut self, from: usize) {
        self.lanes[from].send_now(self.now, 1 - from as Rank);
    }

    /// Takes what waits for a side's program, and gives it back as consumed.
    fn take(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut delivery = Delivery::default();
        self.lanes[at].take_ready(usize::MAX, &mut delivery);
        let slots: Vec<_> = (0..delivery.items().len()).map(|i| delivery.bytes(i).to_vec()).collect();
        self.lanes[at].give_back(&mut delivery, slots.len());
        slots
    }

    /// The data of the short messages that wait for a side's program.
    fn take_short(&mut self, at: usize) -> Vec<Vec<u8>> {
        let slots = self.take(at);
        let records = slots.iter().flat_map(|slot| tautline_wire::record::Records::new(slot, 0));
        let data = |record| match record {
            Ok(tautline_wire::record::Record::Short { data, .. }) => data.to_vec(),
            other => panic!("{other:?}"),
        };
        records.map(data).collect()
    }

    fn counters(&self, of: usize) -> Counters {
        self.lanes[of].counters()
    }
}

fn kind(frame: &[u8]) -> Kind {
    Kind::of(frame).unwrap()
}
