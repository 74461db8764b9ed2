//! The suite for datagram devices (D-1 … D-6, D-8).

use std::net::{IpAddr, SocketAddr};

use super::pattern;
use crate::{Datagram, HEADROOM, RouteId, RxBatch};

/// What the suite must know about the devices' surroundings. The path between them must not lose frames under
/// light load.
pub struct DatagramOptions<'a> {
    /// An address at which nobody listens.
    pub dead: Option<SocketAddr>,
    /// A device reaches itself by its own address.
    pub reaches_itself: bool,
    /// How often `recv` is tried before a frame counts as lost.
    pub polls: usize,
    /// Called between tries: lets a virtual network advance, or yields to a real one.
    pub idle: &'a dyn Fn(),
}

impl Default for DatagramOptions<'_> {
    fn default() -> Self {
        DatagramOptions { dead: None, reaches_itself: true, polls: 20_000, idle: &std::thread::yield_now }
    }
}

/// Two devices that reach each other.
type Pair = (Box<dyn Datagram>, Box<dyn Datagram>);

/// Checks a device against D-1 … D-6 and D-8; `make` creates a new pair each time.
///
/// # Panics
/// If the device violates a rule.
pub fn datagram_suite(make: impl Fn() -> Pair, options: &DatagramOptions<'_>) {
    let suite = Suite { options };
    suite.a_new_device_is_usable(make());
    suite.every_size_arrives(make());
    suite.every_range_arrives(make());
    suite.slots_are_free_after_flush(make());
    suite.full_queue_flushes_itself(make());
    suite.dead_port_loses_only_its_frames(make());
    suite.routes_of_one_batch(make());
    suite.empty_receive(make());
    suite.overflowing_batch_keeps_the_rest(make());
    suite.descriptor_becomes_readable(make());
    suite.limits_fit(make());
    suite.counters_add_up(make());
    suite.frames_are_buffered(make());
    suite.sources_can_be_turned_off(make());
}

struct Suite<'a> {
    options: &'a DatagramOptions<'a>,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Received {
    bytes: Vec<u8>,
    /// Only the address: a device may send from another port than the one that it receives at.
    from: Option<IpAddr>,
}

/// Queues bytes as a frame behind the headroom, without a flush.
fn queue(device: &mut dyn Datagram, route: RouteId, bytes: &[u8]) -> crate::SlotId {
    let slot = device.arena().take().expect("the suite takes fewer slots than there are");
    device.arena().payload_mut(slot)[..bytes.len()].copy_from_slice(bytes);
    device.send(route, slot, HEADROOM..HEADROOM + bytes.len());
    slot
}

/// Sends frames in one batch.
fn send_all(device: &mut dyn Datagram, frames: impl IntoIterator<Item = (RouteId, Vec<u8>)>) {
    let slots: Vec<_> = frames.into_iter().map(|(route, bytes)| queue(device, route, &bytes)).collect();
    device.flush();
    slots.into_iter().for_each(|slot| device.arena().give(slot));
}

impl Suite<'_> {
    /// Receives until `want` frames have arrived, and then a little longer in case there are more.
    fn receive(&self, device: &mut dyn Datagram, want: usize, buffers: usize) -> Vec<Received> {
        let mut batch = RxBatch::new(buffers);
        let mut got = Vec::new();
        let mut beyond = 0;
        for _ in 0..self.options.polls {
            let count = device.recv(&mut batch).expect("receiving works");
            assert_eq!(count, batch.frames().len(), "D-4: recv returns how many frames the batch holds");
            got.extend(batch.frames().iter().map(|f| Received {
                bytes: batch.bytes(*f).to_vec(),
                from: batch.source(*f).map(|a| a.ip()),
            }));
            beyond += usize::from(got.len() >= want);
            if beyond > 3 {
                break;
            }
            (self.options.idle)();
        }
        got
    }

    /// Receives exactly these frames from that address, in any order.
    fn expect(&self, device: &mut dyn Datagram, from: SocketAddr, want: &[Vec<u8>], rule: &str) {
        let mut got = self.receive(device, want.len(), 8);
        let mut want: Vec<_> =
            want.iter().map(|bytes| Received { bytes: bytes.clone(), from: Some(from.ip()) }).collect();
        got.sort();
        want.sort();
        let lens = |frames: &[Received]| frames.iter().map(|f| f.bytes.len()).collect::<Vec<_>>();
        assert_eq!(lens(&got), lens(&want), "{rule}: lengths of the frames");
        assert!(got == want, "{rule}: contents or sources of the frames");
    }

    /// D-1: a new device has a name, an address of its own, free slots and zero counters.
    fn a_new_device_is_usable(&self, (a, b): Pair) {
        for device in [&a, &b] {
            assert!(!device.name().is_empty(), "D-1: a name");
            assert!(device.local_addr().port() != 0, "D-1: an address that others can use");
            assert_eq!(
                device.arena_ref().available(),
                device.arena_ref().capacity(),
                "D-2: all slots are free"
            );
            assert_eq!(device.counters(), crate::Counters::default(), "D-6: counters start at zero");
        }
        assert_ne!(a.local_addr(), b.local_addr(), "D-1: an address of its own");
    }

    /// D-2, D-5: frames of 1 byte up to the limit arrive byte for byte.
    fn every_size_arrives(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let max = a.max_frame(route);
        let sizes = [1, 2, 3, 7, 8, 40, 63, 64, 65, 127, 128, 500, 1_024, 1_200, 1_231, 1_232, 1_472, 4_096];
        let sizes = sizes.into_iter().filter(|len| *len < max - 1).chain([max - 1, max]);
        for len in sizes {
            let frame = pattern(len, len);
            send_all(&mut *a, [(route, frame.clone())]);
            self.expect(&mut *b, a.local_addr(), &[frame], "D-2");
        }
        // Equal and unequal lengths in one batch, so that a device that joins frames sees all transitions.
        for lens in
            [vec![100; 9], vec![200, 200, 100, 200, 50, 50, 60], vec![max, max, 1, max], (1..40).collect()]
        {
            let frames: Vec<_> = lens.iter().enumerate().map(|(i, len)| pattern(*len, i)).collect();
            send_all(&mut *a, frames.iter().map(|frame| (route, frame.clone())));
            self.expect(&mut *b, a.local_addr(), &frames, "D-2");
        }
    }

    /// D-2: a frame may start anywhere in the headroom.
    fn every_range_arrives(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let slot = a.arena().take().expect("a slot");
        let (head, payload) = a.arena().split_mut(slot);
        head.copy_from_slice(&pattern(HEADROOM, 1));
        payload.copy_from_slice(&pattern(payload.len(), 2));
        for range in
            [0..HEADROOM, HEADROOM - 48..HEADROOM + 1, 13..HEADROOM + 100, HEADROOM..HEADROOM + 9, 0..1]
        {
            let frame = a.arena_ref().bytes(slot, range.clone()).to_vec();
            a.send(route, slot, range);
            a.flush();
            self.expect(&mut *b, a.local_addr(), &[frame], "D-2");
        }
        a.arena().give(slot);
    }

    /// D-2: the device does not read a slot after `flush`.
    fn slots_are_free_after_flush(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let slot = a.arena().take().expect("a slot");
        let frames: Vec<_> = (0..50).map(|i| pattern(64 + i % 3, i)).collect();
        for frame in &frames {
            a.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
            a.send(route, slot, HEADROOM..HEADROOM + frame.len());
            a.flush();
            a.arena().payload_mut(slot).fill(0xee);
        }
        a.arena().give(slot);
        self.expect(&mut *b, a.local_addr(), &frames, "D-2");
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "D-2: the device keeps no slot");
    }

    /// D-3: more frames than the queue holds leave without a flush by the caller; an empty flush does
    /// nothing.
    fn full_queue_flushes_itself(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let count = a.arena_ref().capacity().min(150);
        let frames: Vec<_> = (0..count).map(|i| pattern(32 + i % 5, i)).collect();
        send_all(&mut *a, frames.iter().map(|frame| (route, frame.clone())));
        a.flush();
        self.expect(&mut *b, a.local_addr(), &frames, "D-3");
    }

    /// D-3: frames to a port without a listener are lost, and no others.
    fn dead_port_loses_only_its_frames(&self, (mut a, mut b): Pair) {
        let Some(dead) = self.options.dead else { return };
        let nowhere = a.route(dead).expect("a route");
        let route = a.route(b.local_addr()).expect("a route");
        for round in 0..5 {
            let frames: Vec<_> = (0..10).map(|i| pattern(100, round * 10 + i)).collect();
            let mixed = frames.iter().flat_map(|frame| [(nowhere, frame.clone()), (route, frame.clone())]);
            send_all(&mut *a, mixed);
            self.expect(&mut *b, a.local_addr(), &frames, "D-3");
            assert!(self.receive(&mut *a, 0, 4).is_empty(), "D-3: receiving goes on");
        }
    }

    /// D-3: frames of several routes in one batch arrive at their destinations.
    fn routes_of_one_batch(&self, (mut a, mut b): Pair) {
        if !self.options.reaches_itself {
            return;
        }
        let there = a.route(b.local_addr()).expect("a route");
        let here = a.route(a.local_addr()).expect("a route to itself");
        let frames: Vec<_> = (0..24).map(|i| pattern(80, i)).collect();
        let route = |i: usize| if i % 5 < 3 { there } else { here };
        send_all(&mut *a, frames.iter().enumerate().map(|(i, frame)| (route(i), frame.clone())));
        let (local, of) = (a.local_addr(), |to| {
            (0..24).filter(|i| route(*i) == to).map(|i| frames[i].clone()).collect::<Vec<_>>()
        });
        self.expect(&mut *b, local, &of(there), "D-3");
        self.expect(&mut *a, local, &of(here), "D-3");
    }

    /// D-4: a receive that finds nothing returns zero and empties the batch.
    fn empty_receive(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let mut batch = RxBatch::new(4);
        assert_eq!(b.recv(&mut batch).expect("receiving works"), 0, "D-4: nothing has arrived");
        assert!(batch.push(b.local_addr(), b"left over"));
        assert_eq!(b.recv(&mut batch).expect("receiving works"), 0, "D-4: nothing has arrived");
        assert!(batch.frames().is_empty(), "D-4: the batch's contents are replaced");
        send_all(&mut *a, [(route, vec![1])]);
        self.expect(&mut *b, a.local_addr(), &[vec![1]], "D-4");
        assert_eq!(a.poll_event(), None, "D-5: no event");
    }

    /// D-4: frames that do not fit the batch arrive with the next receive. That bounds a poll (N-3).
    fn overflowing_batch_keeps_the_rest(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        for buffers in [1, 2, 5] {
            let frames: Vec<_> = (0..40).map(|i| pattern(10 + i, i)).collect();
            send_all(&mut *a, frames.iter().map(|frame| (route, frame.clone())));
            let mut got: Vec<_> =
                self.receive(&mut *b, frames.len(), buffers).into_iter().map(|got| got.bytes).collect();
            got.sort_by_key(Vec::len);
            assert!(got == frames, "D-4: all {} of 40 frames through {buffers} buffers", got.len());
        }
    }

    /// D-4: the descriptor, if there is one, is readable once a frame has arrived, and not before.
    fn descriptor_becomes_readable(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        if b.fd().is_none() {
            return;
        }
        assert!(!is_readable(&*b), "D-4: nothing to read yet");
        send_all(&mut *a, [(route, vec![1])]);
        assert!((0..self.options.polls).any(|_| is_readable(&*b)), "D-4: the descriptor becomes readable");
        self.expect(&mut *b, a.local_addr(), &[vec![1]], "D-4");
        assert!(!is_readable(&*b), "D-4: nothing to read any more");
    }

    /// D-5: limits fit the slots.
    fn limits_fit(&self, (mut a, b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let max = a.max_frame(route);
        assert!(max <= HEADROOM + a.arena_ref().payload_len(), "D-5: a slot holds the largest frame");
        assert!(
            max <= tautline_wire::frame::MAX_FRAME,
            "D-5: the limit does not exceed the largest frame of the protocol"
        );
        assert!(max >= tautline_wire::frame::BASE_FRAME, "D-5: the limit is at least that of a healthy path");
    }

    /// D-6: counters of both sides add up.
    fn counters_add_up(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let frames: Vec<_> = (0..100).map(|i| pattern(30 + i % 4 * 10, i)).collect();
        let bytes: usize = frames.iter().map(Vec::len).sum();
        for batch in frames.chunks(9) {
            send_all(&mut *a, batch.iter().map(|frame| (route, frame.clone())));
            self.expect(&mut *b, a.local_addr(), batch, "D-6");
        }
        let (sent, got) = (a.counters(), b.counters());
        assert_eq!((sent.frames_sent, sent.bytes_sent), (100, bytes as u64), "D-6: sent");
        assert_eq!((got.frames_received, got.bytes_received), (100, bytes as u64), "D-6: received");
        assert_eq!((sent.send_failures, got.receive_overflows), (0, 0), "D-6: nothing was lost");
        assert!(sent.send_calls <= 100, "D-6: never more calls than frames");
    }

    /// D-8: frames arrive with and without sources, and sources can be turned on again.
    fn sources_can_be_turned_off(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        for wanted in [false, true] {
            b.want_sources(wanted);
            for i in 0..20 {
                let frame = pattern(40 + i, i);
                send_all(&mut *a, [(route, frame.clone())]);
                let got = self.receive(&mut *b, 1, 8);
                assert_eq!(got.len(), 1, "D-8: one frame");
                assert!(got[0].bytes == frame, "D-8: its contents");
                assert!(!wanted || got[0].from == Some(a.local_addr().ip()), "D-8: its source");
            }
        }
    }

    /// D-6: the device returns how many bytes the system buffers, and part of that can be used.
    fn frames_are_buffered(&self, (mut a, mut b): Pair) {
        let route = a.route(b.local_addr()).expect("a route");
        let buffer = b.receive_buffer();
        assert!(buffer > 0, "D-6: the receive buffer has a size");
        // The system charges more than a frame's bytes; half the buffer in frames of 1 KiB is safe anywhere.
        let count = (buffer / 2 / 2_048).clamp(1, 100);
        let frames: Vec<_> = (0..count).map(|i| pattern(1_024, i)).collect();
        for frame in &frames {
            send_all(&mut *a, [(route, frame.clone())]);
        }
        self.expect(&mut *b, a.local_addr(), &frames, "D-6");
    }
}

fn is_readable(device: &dyn Datagram) -> bool {
    let Some(fd) = device.fd() else { return false };
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}
