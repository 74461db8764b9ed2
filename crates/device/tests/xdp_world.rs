//! The AF_XDP device in a world that changes: peers over UDP, neighbours, links, interfaces, ways.
#![allow(clippy::print_stdout)]

mod resident;
mod spaces;

use std::time::{Duration, Instant};

use resident::{
    Resident, apart, arrives, data_frame, open, open_udp, receive, receive_some, send, until_back, until_way,
};
use spaces::{Shape, ip};
use tautline_device::xdp::{Completion, Framing, Mode, Receive, Xdp, XdpConfig};
use tautline_device::{Datagram, DeviceEvent, HEADROOM, RouteId, Transport};

const STRANGERS: Shape = Shape { mtu: 1_500, vlan: None, acquainted: false, queues: None };

/// An xdp device and a udp device understand each other, both ways, in all sizes.
#[test]
fn xdp_and_udp_interoperate() {
    apart("xdp_and_udp_interoperate", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let mut a = open(spaces, 0, XdpConfig { mode, ..XdpConfig::default() });
            let mut b = open_udp(spaces, 1);
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            assert_eq!(a.transport(to_b), Some(Transport::Xdp));
            for len in [48, 49, 64, 1_000, a.max_frame(to_b)] {
                let frame = data_frame(len, len);
                send(&mut a, to_b, &frame);
                assert!(receive(&mut b, 1) == [frame.clone()], "{len} bytes, xdp to udp");
                send(&mut b, to_a, &frame);
                assert!(receive(&mut a, 1) == [frame], "{len} bytes, udp to xdp");
            }
            if mode == Mode::Native {
                assert_eq!(a.counters().receive_calls, 0, "all of it came by the ring");
            }
            // A train that a card would cut, or in generic mode nobody.
            let slot = b.arena().take().unwrap();
            b.arena().payload_mut(slot)[..1_000].copy_from_slice(&data_frame(1, 1_000));
            (0..20).for_each(|_| b.send(to_a, slot, HEADROOM..HEADROOM + 1_000));
            b.flush();
            b.arena().give(slot);
            assert_eq!(receive(&mut a, 20).len(), 20, "a train arrives frame by frame");
        }
    });
}

/// D-13: an unknown neighbour is reached through the socket until the kernel knows it; a neighbour that moves is followed.
#[test]
fn neighbours_come_and_move() {
    apart("neighbours_come_and_move", STRANGERS, |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        assert_eq!(a.transport(route), Some(Transport::Udp));
        assert!(a.transport_reason(route).contains("10.211.9.2"), "{}", a.transport_reason(route));
        let told = until_way(&mut a, &mut b, route, Transport::Xdp);
        assert!(matches!(&told[..], [DeviceEvent::Transport { transport: Transport::Xdp, .. }]), "{told:?}");
        arrives(&mut a, &mut b, route, 1);

        ip(&format!("-n {} link set v0 address 02:00:00:54:4c:99", spaces.names[1])).unwrap();
        ip(&format!(
            "-n {} neigh replace 10.211.9.2 lladdr 02:00:00:54:4c:99 dev v0 nud reachable",
            spaces.names[0]
        ))
        .unwrap();
        receive_some(&mut a);
        assert_eq!(a.transport(route), Some(Transport::Xdp));
        arrives(&mut a, &mut b, route, 2);

        ip(&format!("-n {} neigh del 10.211.9.2 dev v0", spaces.names[0])).unwrap();
        receive_some(&mut a);
        assert_eq!(a.transport(route), Some(Transport::Udp), "nobody knows where it is");
        until_way(&mut a, &mut b, route, Transport::Xdp);
        arrives(&mut a, &mut b, route, 3);
    });
}

/// D-12: who is behind a gateway gets no raw frames, which it would not forward, but goes through the socket; UDP framing goes directly.
#[test]
fn no_raw_frames_for_gateways() {
    apart("no_raw_frames_for_gateways", Shape::default(), |spaces| {
        ip(&format!("-n {} route add 10.212.9.0/24 via 10.211.9.2", spaces.names[0])).unwrap();
        let behind = "10.212.9.7:9000".parse().unwrap();
        for (framing, transport) in [(Framing::Raw, Transport::Udp), (Framing::Udp, Transport::Xdp)] {
            let mut a = open(spaces, 0, XdpConfig { framing, ..XdpConfig::default() });
            let near = a.route(std::net::SocketAddr::new(spaces.addr(1, false), 9_000)).unwrap();
            let far = a.route(behind).unwrap();
            assert_eq!(
                (a.transport(near), a.transport(far)),
                (Some(Transport::Xdp), Some(transport)),
                "{}",
                a.transport_reason(far)
            );
            assert_eq!(
                a.transport_reason(far).contains("gateway 10.211.9.2"),
                framing == Framing::Raw,
                "{}",
                a.transport_reason(far)
            );
        }
    });
}

/// Who moves frames is measured on the first traffic, which is answered as ever, and then stays; whoever it is, frames arrive.
#[test]
fn the_faster_receive_is_measured() {
    apart("the_faster_receive_is_measured", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let measured = || XdpConfig { mode, receive: Receive::Measured, ..XdpConfig::default() };
            let (mut a, mut b) = (open(spaces, 0, measured()), open(spaces, 1, measured()));
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            assert!(a.device.is_measuring() && b.device.is_measuring());
            for number in 0..4_000 {
                arrives(&mut a, &mut b, to_b, number);
                arrives(&mut b, &mut a, to_a, number);
                if !(a.device.is_measuring() || b.device.is_measuring()) {
                    break;
                }
            }
            assert!(!a.device.is_measuring() && !b.device.is_measuring(), "it ends");
            (0..10).for_each(|number| arrives(&mut a, &mut b, to_b, number));
        }
    });
}

/// D-13: a steering program that somebody detaches is attached again, and that is told; meanwhile frames come through the socket. One that cannot be
/// attached again is told, too.
#[test]
fn the_program_is_detached() {
    apart("the_program_is_detached", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let mut a = open(spaces, 0, XdpConfig { mode, ..XdpConfig::default() });
            let mut b = open(spaces, 1, XdpConfig { mode, ..XdpConfig::default() });
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            arrives(&mut a, &mut b, to_b, 1);
            b.device.detach_program();
            assert!(!spaces.has_program(1));
            let until = Instant::now() + Duration::from_secs(5);
            let mut told = Vec::new();
            for number in 2.. {
                arrives(&mut a, &mut b, to_b, number);
                arrives(&mut b, &mut a, to_a, number);
                told.extend(std::iter::from_fn(|| b.poll_event()));
                if spaces.has_program(1) && !told.is_empty() {
                    break;
                }
                assert!(Instant::now() < until, "it stays away");
            }
            let again = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Xdp, why, .. } if why.contains("attached again"));
            assert!(told.iter().all(again), "{told:?}");
            let before = b.device.frames_by_socket();
            (0..10).for_each(|number| arrives(&mut a, &mut b, to_b, number));
            // One in a second keeps the neighbour known.
            assert!(b.device.frames_by_socket() < before + 10, "by the ring again");
        }
    });
}

/// D-13: a link that goes down and comes up again is told both times, and frames go on.
#[test]
fn the_link_flaps() {
    apart("the_link_flaps", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let mut a = open(spaces, 0, XdpConfig { mode, ..XdpConfig::default() });
            let mut b = open(spaces, 1, XdpConfig { mode, ..XdpConfig::default() });
            let route = a.route(b.local_addr()).unwrap();
            for flap in 0..2 {
                arrives(&mut a, &mut b, route, flap);
                ip(&format!("-n {} link set v0 down", spaces.names[1])).unwrap();
                // The kernel takes its time to notice.
                let told = until_way(&mut a, &mut b, route, Transport::Udp);
                let down = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("down"));
                assert!(told.iter().any(down), "{told:?}");
                send(&mut a, route, &data_frame(9, 100));
                ip(&format!("-n {} link set v0 up", spaces.names[1])).unwrap();
                spaces.acquaint().unwrap();
                until_way(&mut a, &mut b, route, Transport::Xdp);
                while !receive(&mut b, 1).is_empty() {}
            }
            arrives(&mut a, &mut b, route, 7);
            assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is lost");
        }
    });
}

/// D-13: the interface vanishes; the device says so, holds nothing, and lives.
#[test]
fn the_interface_vanishes() {
    apart("the_interface_vanishes", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig { completion: Completion::Ring, ..XdpConfig::default() });
        let b = open_udp(spaces, 1);
        let route = a.route(b.local_addr()).unwrap();
        send(&mut a, route, &data_frame(1, 100));
        ip(&format!("-n {} link del v0", spaces.names[0])).unwrap();
        receive_some(&mut a);
        assert_eq!(a.transport(route), Some(Transport::Udp));
        let told: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        assert!(
            told.iter().any(|e| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("gone") || why.contains("down"))),
            "{told:?}"
        );
        for number in 0..100 {
            send(&mut a, route, &data_frame(number, 100));
            receive_some(&mut a);
        }
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is held for ever");
    });
}

/// D-13: a hundred changes of way while frames flow lose none.
#[test]
fn a_hundred_changes_of_way() {
    apart("a_hundred_changes_of_way", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        for change in 0..100 {
            let transport = if change % 2 == 0 { Transport::Udp } else { Transport::Xdp };
            let mut sent: Vec<_> = (0..8).map(|i| data_frame(change * 8 + i, 100 + i)).collect();
            for (i, frame) in sent.iter().enumerate() {
                if i == 4 {
                    a.prefer_transport(route, Some(transport));
                    assert_eq!(a.transport(route), Some(transport));
                    assert!(
                        matches!(a.poll_event(), Some(DeviceEvent::Transport { transport: told, .. }) if told == transport)
                    );
                }
                let slot = a.arena().take().unwrap();
                a.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
                a.send(route, slot, HEADROOM..HEADROOM + frame.len());
                if i % 3 == 0 {
                    a.flush();
                }
                // A slot that waits for the flush is given back only behind it, as everywhere.
                a.flush();
                a.arena().give(slot);
            }
            let mut got = receive(&mut b, sent.len());
            got.sort();
            sent.sort();
            assert!(got == sent, "change {change}: {} of {} frames", got.len(), sent.len());
        }
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity());
    });
}

/// D-9: while the kernel has not said that it is done, a slot that was given back is not taken anew, and what is sent again from it goes from
/// a copy; then all is free.
#[test]
fn slots_are_held_until_told() {
    apart("slots_are_held_until_told", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig { completion: Completion::Ring, ..XdpConfig::default() });
        let mut b = open(spaces, 1, XdpConfig::default());
        let (start, mut by_socket) = (Instant::now(), 0);
        let route = a.route(b.local_addr()).unwrap();
        let all = a.arena_ref().capacity();
        for number in 0..2_000 {
            let frame = data_frame(number, 200);
            let slot = a.arena().take().expect("slots come back");
            assert!(!a.arena_ref().is_held(slot), "a slot that is free is not held");
            a.arena().payload_mut(slot)[..200].copy_from_slice(&frame);
            a.send(route, slot, HEADROOM..HEADROOM + 200);
            // Once a second one goes through the socket, to keep the neighbour.
            by_socket += u64::from(!a.arena_ref().is_held(slot));
            // (The device's clock moves in steps of some milliseconds.)
            let seconds = (start.elapsed() + Duration::from_millis(20)).as_secs();
            assert!(by_socket <= seconds, "held from the moment it is queued");
            a.send(route, slot, HEADROOM..HEADROOM + 200);
            assert!(a.arena_ref().is_held(slot), "held from the moment it is queued");
            a.flush();
            a.arena().give(slot);
            assert!(receive(&mut b, 2) == [frame.clone(), frame], "frame {number}, twice");
        }
        // Whatever is still held is let go by the next flush.
        send(&mut a, route, &data_frame(1, 100));
        assert!(a.arena_ref().available() + 4 >= all, "{} of {all}", a.arena_ref().available());
    });
}

/// D-13: an interface that was removed and made anew is opened again, whatever its queues; slots, routes and memory stay, and frames go directly again, which is
/// told with the reason.
#[test]
fn the_interface_comes_back() {
    for (mode, completion) in [
        (Mode::Generic, Completion::Auto),
        (Mode::Native, Completion::Auto),
        (Mode::Generic, Completion::Ring),
    ] {
        apart("the_interface_comes_back", Shape::default(), |spaces| {
            let config = || XdpConfig { mode, completion, ..XdpConfig::default() };
            let mut a = open(spaces, 0, config());
            let mut b = open(spaces, 1, config());
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            for round in 0..2 {
                arrives(&mut a, &mut b, to_b, round);
                // A slot that is in use all the while.
                let kept = a.arena().take().unwrap();
                a.arena().payload_mut(kept)[..100].copy_from_slice(&data_frame(77, 100));
                // What is on its way then may be lost, as anything may.
                send(&mut b, to_a, &data_frame(1, 100));
                spaces.rejoin().unwrap();
                let told = until_back(&mut a, &mut b, to_b);
                until_back(&mut b, &mut a, to_a);
                let back = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Xdp, why, .. } if why.contains("known"));
                assert!(told.iter().any(back), "{told:?}");
                assert!(told.contains(&DeviceEvent::Descriptors), "{told:?}");
                while !receive(&mut b, 1).is_empty() {}
                while !receive(&mut a, 1).is_empty() {}
                a.send(to_b, kept, HEADROOM..HEADROOM + 100);
                a.flush();
                a.arena().give(kept);
                assert!(receive(&mut b, 1) == [data_frame(77, 100)], "from the slot that was kept");
                // More than there are chunks: none was lost.
                let before = b.device.frames_by_socket();
                for number in 0..700 {
                    arrives(&mut a, &mut b, to_b, number);
                }
                // Once a second one goes through the socket, to keep the neighbour.
                assert!(b.device.frames_by_socket() - before < 100, "by the ring again");
                send(&mut a, to_b, &data_frame(1, 100));
                assert_eq!(receive(&mut b, 1).len(), 1);
            }
            a.flush();
            assert!(a.arena_ref().available() + 4 >= a.arena_ref().capacity(), "no slot is lost");
            drop((a, b));
            assert!(spaces.is_left_alone());
        });
    }
}

/// D-13: an interface that travels to another namespace and back keeps its link and loses its sockets: the device lets go of the one, tells what
/// it sees, and goes directly again, all queues included.
#[test]
fn the_interface_travels() {
    for mode in [Mode::Generic, Mode::Native] {
        apart("the_interface_travels", Shape::default(), |spaces| {
            let config = || XdpConfig { mode, ..XdpConfig::default() };
            let mut a = open(spaces, 0, config());
            let mut b = open(spaces, 1, config());
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            let queues = b.device.queues().len();
            for round in 0..2 {
                arrives(&mut a, &mut b, to_b, round);
                arrives(&mut b, &mut a, to_a, round);
                let [at_a, at_b] = &spaces.names;
                ip(&format!("-n {at_b} link set v0 netns {at_a} name t0")).unwrap();
                receive_some(&mut b);
                let told: Vec<_> = std::iter::from_fn(|| b.poll_event()).collect();
                let gone = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("gone"));
                assert!(told.iter().any(gone), "{told:?}");
                assert!(told.contains(&DeviceEvent::Descriptors), "the door is closed: {told:?}");
                ip(&format!("-n {at_a} link set t0 netns {at_b} name v0")).unwrap();
                ip(&format!("-n {at_b} link set v0 up")).unwrap();
                ip(&format!("-n {at_b} addr add 10.211.9.2/24 dev v0")).unwrap();
                ip(&format!("-n {at_b} addr add fd00:211:9::2/64 dev v0 nodad")).unwrap();
                spaces.acquaint().unwrap();
                until_back(&mut b, &mut a, to_a);
                until_way(&mut a, &mut b, to_b, Transport::Xdp);
                assert_eq!(b.device.queues().len(), queues, "all of them again");
                while !receive(&mut b, 1).is_empty() {}
                while !receive(&mut a, 1).is_empty() {}
            }
            let before = b.device.frames_by_socket();
            (0..200).for_each(|number| arrives(&mut a, &mut b, to_b, number));
            assert!(b.device.frames_by_socket() - before < 100, "by the ring");
            drop((a, b));
            assert!(spaces.is_left_alone());
        });
    }
}

/// D-13: an interface that came back and is taken by then: that is told, with who has it; and once it is free it is used.
#[test]
fn the_interface_comes_back_taken() {
    apart("the_interface_comes_back_taken", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let b = open_udp(spaces, 1);
        let route = a.route(b.local_addr()).unwrap();
        ip(&format!("-n {} link del v0", spaces.names[0])).unwrap();
        receive_some(&mut a);
        while a.poll_event().is_some() {}
        spaces.join().unwrap();
        let taker = open(spaces, 0, XdpConfig { framing: Framing::Raw, ..XdpConfig::default() });
        let mut told = Vec::new();
        let is_told = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("came back and cannot be used"));
        let until = Instant::now() + Duration::from_secs(10);
        while !told.iter().any(is_told) {
            assert!(Instant::now() < until, "{told:?}");
            receive_some(&mut a);
            told.extend(std::iter::from_fn(|| a.poll_event()));
        }
        let held = format!("process {}", std::process::id());
        assert!(a.transport_reason(route).contains(&held), "{}", a.transport_reason(route));
        // Told once, however often it is looked at.
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            receive_some(&mut a);
            told.extend(std::iter::from_fn(|| a.poll_event()));
        }
        assert_eq!(told.iter().filter(|e| is_told(e)).count(), 1, "{told:?}");
        drop(taker);
        let until = Instant::now() + Duration::from_secs(10);
        while a.transport(route) != Some(Transport::Xdp) {
            assert!(Instant::now() < until, "{}", a.transport_reason(route));
            receive_some(&mut a);
        }
    });
}

/// Queues frames, one slot each, without a flush.
fn queue(device: &mut Resident<Xdp>, route: RouteId, frames: &[Vec<u8>]) -> Vec<tautline_device::SlotId> {
    let slots = frames.iter().map(|frame| {
        let slot = device.arena().take().unwrap();
        device.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
        device.send(route, slot, HEADROOM..HEADROOM + frame.len());
        slot
    });
    slots.collect()
}

/// A doorbell that the system misses is rung again: by the next flush at the latest everything is on its way, once.
#[test]
fn a_doorbell_is_missed() {
    for (mode, receive_mode) in
        [(Mode::Generic, Receive::Kernel), (Mode::Native, Receive::Kernel), (Mode::Native, Receive::BusyPoll)]
    {
        apart("a_doorbell_is_missed", Shape::default(), |spaces| {
            let config = || XdpConfig { mode, receive: receive_mode, ..XdpConfig::default() };
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
                    assert!(got.is_empty(), "nobody has rung");
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

/// D-13: a ring that does not move for long is given up, frames go through the socket, and it is used again once it moves; all of it is told.
#[test]
fn the_ring_is_stuck_for_a_while() {
    apart("the_ring_is_stuck_for_a_while", Shape::default(), |spaces| {
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
        arrives(&mut a, &mut b, route, 2);
        a.device.lose_doorbells(0);
        a.flush();
        assert_eq!(a.transport(route), Some(Transport::Xdp), "{}", a.transport_reason(route));
        assert!(receive(&mut b, 1) == stuck, "late, but there");
        let told: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        let ways: Vec<_> = told
            .iter()
            .filter_map(|e| {
                if let DeviceEvent::Transport { transport, .. } = e { Some(*transport) } else { None }
            })
            .collect();
        assert_eq!(ways, [Transport::Udp, Transport::Xdp]);
        slots.into_iter().for_each(|slot| a.arena().give(slot));
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity());
    });
}

/// D-3: what finds the ring to send by full counts as lost, and is counted; what was in it goes, and so does what comes later.
#[test]
fn the_ring_is_full() {
    apart("the_ring_is_full", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig { tx_ring: 8, ..XdpConfig::default() });
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        let frames: Vec<_> = (0..20).map(|i| data_frame(i, 100 + i)).collect();
        a.device.lose_doorbells(u32::MAX);
        let slots = queue(&mut a, route, &frames);
        assert_eq!(a.counters().send_failures, 12, "eight fit");
        a.device.lose_doorbells(0);
        a.flush();
        assert!(receive(&mut b, 8) == frames[..8], "those that fitted arrive, in order");
        slots.into_iter().for_each(|slot| a.arena().give(slot));
        arrives(&mut a, &mut b, route, 99);
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is lost");
    });
}

/// Frames that find no chunk to receive into are lost, and counted; when there is room again, frames come again.
#[test]
fn nobody_receives_for_a_while() {
    for mode in [Mode::Generic, Mode::Native] {
        apart("nobody_receives_for_a_while", Shape { queues: Some(1), ..Shape::default() }, |spaces| {
            let mut a = open(spaces, 0, XdpConfig { mode, ..XdpConfig::default() });
            let mut b = open(spaces, 1, XdpConfig { mode, ..XdpConfig::default() });
            let route = a.route(b.local_addr()).unwrap();
            const SENT: usize = 2_000;
            (0..SENT).for_each(|number| send(&mut a, route, &data_frame(number, 100)));
            let got = receive(&mut b, SENT);
            assert!(got.len() >= 256 && got.len() < SENT, "{} of {SENT}", got.len());
            // In the end the loss shows, wherever the kernel noticed it; what it drops before our program sees it only the interface knows.
            assert!(b.counters().receive_overflows > 0, "{:?}", b.counters());
            for number in 0..1_000 {
                arrives(&mut a, &mut b, route, number);
            }
        });
    }
}
