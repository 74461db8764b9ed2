//! The rings of an AF_XDP device: held slots, lost doorbells, full and stuck rings, and who moves frames.
#![allow(clippy::print_stdout)]

mod netns_device;
mod spaces;

use netns_device::{NetnsDevice, assert_arrives, data_frame, in_namespaces, open, receive, send};
use spaces::Shape;
use tautline_device::xdp::{Completion, Mode, Receive, Xdp, XdpConfig};
use tautline_device::{Datagram, DeviceEvent, HEADROOM, RouteId, Transport};

/// Who moves frames is measured on the first traffic, which is not disturbed, and then stays; frames arrive
/// either way.
#[test]
fn measuring_the_receive_mode_ends() {
    in_namespaces("measuring_the_receive_mode_ends", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let measured =
                || XdpConfig::with(|config| (config.mode, config.receive) = (mode, Receive::Measured));
            let (mut a, mut b) = (open(spaces, 0, measured()), open(spaces, 1, measured()));
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            assert!(a.device.is_measuring() && b.device.is_measuring());
            for number in 0..4_000 {
                assert_arrives(&mut a, &mut b, to_b, number);
                assert_arrives(&mut b, &mut a, to_a, number);
                if !(a.device.is_measuring() || b.device.is_measuring()) {
                    break;
                }
            }
            assert!(!a.device.is_measuring() && !b.device.is_measuring(), "it ends");
            (0..10).for_each(|number| assert_arrives(&mut a, &mut b, to_b, number));
        }
    });
}

/// D-9, D-16, D-25: until the kernel returns a slot, it is not taken again after it was given back, and a
/// frame sent from it again is copied; then all slots are free.
#[test]
fn slots_are_held_until_completion() {
    in_namespaces("slots_are_held_until_completion", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::with(|config| config.completion = Completion::Ring));
        let mut b = open(spaces, 1, XdpConfig::default());
        let mut by_socket = 0;
        let route = a.route(b.local_addr()).unwrap();
        let all = a.arena_ref().capacity();
        for number in 0..2_000 {
            let frame = data_frame(number, 200);
            let slot = a.arena().take().expect("slots come back");
            assert!(!a.arena_ref().is_held(slot), "a free slot is not held");
            a.arena().payload_mut(slot)[..200].copy_from_slice(&frame);
            a.send(route, slot, HEADROOM..HEADROOM + 200);
            // From time to time a frame goes through the socket, to confirm the neighbour: at most one for
            // sixteen doorbells, of which two frames need two at most.
            by_socket += usize::from(!a.arena_ref().is_held(slot));
            assert!(by_socket <= number / 8, "held from the moment it is queued");
            a.send(route, slot, HEADROOM..HEADROOM + 200);
            assert!(a.arena_ref().is_held(slot), "held from the moment it is queued");
            a.flush();
            a.arena().give(slot);
            assert!(receive(&mut b, 2) == [frame.clone(), frame], "frame {number}, twice");
        }
        // The next flush releases whatever is still held.
        send(&mut a, route, &data_frame(1, 100));
        assert!(a.arena_ref().available() + 4 >= all, "{} of {all}", a.arena_ref().available());
    });
}

/// Queues frames, one slot each, without a flush.
fn queue(device: &mut NetnsDevice<Xdp>, route: RouteId, frames: &[Vec<u8>]) -> Vec<tautline_device::SlotId> {
    let slots = frames.iter().map(|frame| {
        let slot = device.arena().take().unwrap();
        device.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
        device.send(route, slot, HEADROOM..HEADROOM + frame.len());
        slot
    });
    slots.collect()
}

/// A doorbell that the system misses is rung again: by the next flush at the latest every frame is sent,
/// once.
#[test]
fn lost_doorbells_lose_no_frame() {
    for (mode, receive_mode) in
        [(Mode::Generic, Receive::Kernel), (Mode::Native, Receive::Kernel), (Mode::Native, Receive::BusyPoll)]
    {
        in_namespaces("lost_doorbells_lose_no_frame", Shape::default(), |spaces| {
            let config = || XdpConfig::with(|config| (config.mode, config.receive) = (mode, receive_mode));
            let mut a = open(spaces, 0, config());
            let mut b = open(spaces, 1, config());
            let route = a.route(b.local_addr()).unwrap();
            for lost in [1, 10, 100, 1_000] {
                let frames: Vec<_> = (0..10).map(|i| data_frame(lost + i, 100 + i)).collect();
                let slots = queue(&mut a, route, &frames);
                a.device.lose_doorbells(lost as u32);
                a.flush();
                let mut got = Vec::new();
                if lost > 100 {
                    got.extend(receive(&mut b, 1));
                    assert!(got.is_empty(), "no doorbell was rung");
                }
                // As a node does with every poll.
                for _ in 0..=lost / 64 {
                    a.flush();
                }
                b.device.lose_doorbells(lost as u32);
                got.extend(receive(&mut b, frames.len()));
                assert!(got == frames, "{lost} doorbells missed: {} frames", got.len());
                assert!(receive(&mut b, 1).is_empty(), "each of them once");
                slots.into_iter().for_each(|slot| a.arena().give(slot));
            }
            assert_eq!(a.transport(route), Some(Transport::Xdp));
            assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is lost");
        });
    }
}

/// D-13: a ring without progress is given up; frames go through the socket until it makes progress again, and
/// both are reported.
#[test]
fn a_stuck_ring_is_bypassed() {
    in_namespaces("a_stuck_ring_is_bypassed", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        let stuck = [data_frame(1, 100)];
        let slots = queue(&mut a, route, &stuck);
        a.device.lose_doorbells(u32::MAX);
        for _ in 0..300 {
            a.flush();
        }
        assert_eq!(
            (a.transport(route), a.transport_reason(route)),
            (Some(Transport::Udp), "the ring is stuck")
        );
        assert_arrives(&mut a, &mut b, route, 2);
        a.device.lose_doorbells(0);
        a.flush();
        assert_eq!(a.transport(route), Some(Transport::Xdp), "{}", a.transport_reason(route));
        assert!(receive(&mut b, 1) == stuck, "late, but it arrives");
        let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        let transports: Vec<_> = events
            .iter()
            .filter_map(|e| {
                if let DeviceEvent::Transport { transport, .. } = e { Some(*transport) } else { None }
            })
            .collect();
        assert_eq!(transports, [Transport::Udp, Transport::Xdp]);
        slots.into_iter().for_each(|slot| a.arena().give(slot));
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity());
    });
}

/// D-3: frames that find the send ring full are counted as lost; those in it are sent, and so are later ones.
#[test]
fn frames_for_a_full_ring_count_as_lost() {
    in_namespaces("frames_for_a_full_ring_count_as_lost", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::with(|config| config.tx_ring = 8));
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        let frames: Vec<_> = (0..20).map(|i| data_frame(i, 100 + i)).collect();
        a.device.lose_doorbells(u32::MAX);
        let slots = queue(&mut a, route, &frames);
        assert_eq!(a.counters().send_failures, 12, "eight fit");
        a.device.lose_doorbells(0);
        a.flush();
        assert!(receive(&mut b, 8) == frames[..8], "the frames in the ring arrive, in order");
        slots.into_iter().for_each(|slot| a.arena().give(slot));
        assert_arrives(&mut a, &mut b, route, 99);
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is lost");
    });
}

/// Frames that find no chunk to receive into are lost and counted; later frames arrive when there is room
/// again.
#[test]
fn frames_without_a_chunk_count_as_overflows() {
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces(
            "frames_without_a_chunk_count_as_overflows",
            Shape { queues: Some(1), ..Shape::default() },
            |spaces| {
                let mut a = open(spaces, 0, XdpConfig::with(|config| config.mode = mode));
                let mut b = open(spaces, 1, XdpConfig::with(|config| config.mode = mode));
                let route = a.route(b.local_addr()).unwrap();
                const SENT: usize = 2_000;
                (0..SENT).for_each(|number| send(&mut a, route, &data_frame(number, 100)));
                let got = receive(&mut b, SENT);
                assert!(got.len() >= 256 && got.len() < SENT, "{} of {SENT}", got.len());
                // The loss shows somewhere; frames that the kernel drops before our program are only counted
                // by the interface.
                assert!(b.counters().receive_overflows > 0, "{:?}", b.counters());
                for number in 0..1_000 {
                    assert_arrives(&mut a, &mut b, route, number);
                }
            },
        );
    }
}
