//! Interfaces of an AF_XDP device that vanish, come back, move between namespaces, or come back occupied.
#![allow(clippy::print_stdout)]

mod netns_device;
mod no_waiting;
mod spaces;

use std::time::{Duration, Instant};

use netns_device::{
    assert_arrives, data_frame, in_namespaces, open, open_udp, poll, receive, send, until_reopened,
    until_transport,
};
use spaces::{Shape, ip};
use tautline_device::xdp::{Completion, Framing, Mode, XdpConfig};
use tautline_device::{Datagram, DeviceEvent, HEADROOM, Transport};

/// D-26: when the interface is removed, the device reports it, holds no slots, and keeps working.
#[test]
fn a_removed_interface_is_reported() {
    in_namespaces("a_removed_interface_is_reported", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::with(|config| config.completion = Completion::Ring));
        let b = open_udp(spaces, 1);
        let route = a.route(b.local_addr()).unwrap();
        send(&mut a, route, &data_frame(1, 100));
        ip(&format!("-n {} link del v0", spaces.names[0])).unwrap();
        poll(&mut a);
        assert_eq!(a.transport(route), Some(Transport::Udp));
        let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        assert!(
            events.iter().any(|e| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("gone") || why.contains("down"))),
            "{events:?}"
        );
        for number in 0..100 {
            send(&mut a, route, &data_frame(number, 100));
            poll(&mut a);
        }
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is held forever");
    });
}

/// D-26: an interface that was removed and created again is reopened, whatever its queues. Slots, routes and
/// memory stay, and frames use AF_XDP again, which is reported with the reason.
#[test]
fn a_recreated_interface_is_reopened() {
    for (mode, completion) in [
        (Mode::Generic, Completion::Auto),
        (Mode::Native, Completion::Auto),
        (Mode::Generic, Completion::Ring),
    ] {
        in_namespaces("a_recreated_interface_is_reopened", Shape::default(), |spaces| {
            let config = || XdpConfig::with(|config| (config.mode, config.completion) = (mode, completion));
            let mut a = open(spaces, 0, config());
            let mut b = open(spaces, 1, config());
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            for round in 0..2 {
                assert_arrives(&mut a, &mut b, to_b, round);
                // A slot that is in use all the time.
                let kept = a.arena().take().unwrap();
                a.arena().payload_mut(kept)[..100].copy_from_slice(&data_frame(77, 100));
                // A frame in flight may be lost, as any frame.
                send(&mut b, to_a, &data_frame(1, 100));
                spaces.rejoin().unwrap();
                let events = until_reopened(&mut a, &mut b, to_b);
                until_reopened(&mut b, &mut a, to_a);
                let back = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Xdp, why, .. } if why.contains("known"));
                assert!(events.iter().any(back), "{events:?}");
                assert!(events.contains(&DeviceEvent::Descriptors), "{events:?}");
                while !receive(&mut b, 1).is_empty() {}
                while !receive(&mut a, 1).is_empty() {}
                a.send(to_b, kept, HEADROOM..HEADROOM + 100);
                a.flush();
                a.arena().give(kept);
                assert!(receive(&mut b, 1) == [data_frame(77, 100)], "from the slot in use");
                // More frames than there are chunks: no chunk was lost.
                let before = b.device.frames_by_socket();
                for number in 0..700 {
                    assert_arrives(&mut a, &mut b, to_b, number);
                }
                // Once per second a frame goes through the socket, to confirm the neighbour.
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

/// D-26: an interface that is moved to another namespace and back keeps its link and loses its sockets. The
/// device detaches the program, reports what happens, and uses AF_XDP again, with all queues.
#[test]
fn an_interface_moved_between_namespaces_is_reopened() {
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces("an_interface_moved_between_namespaces_is_reopened", Shape::default(), |spaces| {
            let config = || XdpConfig::with(|config| config.mode = mode);
            let mut a = open(spaces, 0, config());
            let mut b = open(spaces, 1, config());
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            let queues = b.device.queues().len();
            for round in 0..2 {
                assert_arrives(&mut a, &mut b, to_b, round);
                assert_arrives(&mut b, &mut a, to_a, round);
                let [at_a, at_b] = &spaces.names;
                ip(&format!("-n {at_b} link set v0 netns {at_a} name t0")).unwrap();
                poll(&mut b);
                let events: Vec<_> = std::iter::from_fn(|| b.poll_event()).collect();
                let gone = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("gone"));
                assert!(events.iter().any(gone), "{events:?}");
                assert!(
                    events.contains(&DeviceEvent::Descriptors),
                    "the request socket is closed: {events:?}"
                );
                ip(&format!("-n {at_a} link set t0 netns {at_b} name v0")).unwrap();
                ip(&format!("-n {at_b} link set v0 up")).unwrap();
                ip(&format!("-n {at_b} addr add 10.211.9.2/24 dev v0")).unwrap();
                ip(&format!("-n {at_b} addr add fd00:211:9::2/64 dev v0 nodad")).unwrap();
                spaces.acquaint().unwrap();
                until_reopened(&mut b, &mut a, to_a);
                until_transport(&mut a, &mut b, to_b, Transport::Xdp);
                assert_eq!(b.device.queues().len(), queues, "all queues again");
                while !receive(&mut b, 1).is_empty() {}
                while !receive(&mut a, 1).is_empty() {}
            }
            let before = b.device.frames_by_socket();
            (0..200).for_each(|number| assert_arrives(&mut a, &mut b, to_b, number));
            assert!(b.device.frames_by_socket() - before < 100, "by the ring");
            drop((a, b));
            assert!(spaces.is_left_alone());
        });
    }
}

/// D-26: if the interface is occupied when it comes back, that is reported with the process that has it; once
/// it is free, it is used.
#[test]
fn an_occupied_interface_is_reopened_later() {
    in_namespaces("an_occupied_interface_is_reopened_later", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let b = open_udp(spaces, 1);
        let route = a.route(b.local_addr()).unwrap();
        ip(&format!("-n {} link del v0", spaces.names[0])).unwrap();
        poll(&mut a);
        while a.poll_event().is_some() {}
        spaces.join().unwrap();
        let taker = open(spaces, 0, XdpConfig::with(|config| config.framing = Framing::Raw));
        let mut events = Vec::new();
        let is_reported = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("came back and cannot be used"));
        let until = Instant::now() + Duration::from_secs(10);
        while !events.iter().any(is_reported) {
            assert!(Instant::now() < until, "{events:?}");
            poll(&mut a);
            events.extend(std::iter::from_fn(|| a.poll_event()));
        }
        let held = format!("process {}", std::process::id());
        assert!(a.transport_reason(route).contains(&held), "{}", a.transport_reason(route));
        // Reported once, although it is tried often.
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            poll(&mut a);
            events.extend(std::iter::from_fn(|| a.poll_event()));
        }
        assert_eq!(events.iter().filter(|e| is_reported(e)).count(), 1, "{events:?}");
        drop(taker);
        let until = Instant::now() + Duration::from_secs(10);
        while a.transport(route) != Some(Transport::Xdp) {
            assert!(Instant::now() < until, "{}", a.transport_reason(route));
            poll(&mut a);
        }
    });
}

/// D-4: receiving does not wait, even while the device opens an interface that came back and requests a share
/// of the program that another one has attached. Both are polled by one thread: a device that waited for the
/// other's answer would never get it.
#[test]
fn reopening_does_not_wait() {
    let two = Shape { queues: Some(2), ..Shape::default() };
    in_namespaces("reopening_does_not_wait", two, |spaces| {
        let config = || XdpConfig::with(|config| (config.mode, config.sharers) = (Mode::Native, 2));
        let mut first = open(spaces, 0, config());
        let mut second = std::thread::scope(|scope| {
            let opening = scope.spawn(|| open(spaces, 0, config()));
            while !opening.is_finished() {
                poll(&mut first);
            }
            opening.join().unwrap()
        });
        let b = open_udp(spaces, 1);
        let routes = [&mut first, &mut second].map(|device| device.route(b.local_addr()).unwrap());
        spaces.rejoin().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                spaces.enter(0);
                no_waiting::forbid_waiting();
                let until = Instant::now() + Duration::from_secs(20);
                let mut reopened = [false; 2];
                while reopened != [true; 2] {
                    for (at, device) in [&mut first, &mut second].into_iter().enumerate() {
                        poll(device);
                        let events: Vec<_> = std::iter::from_fn(|| device.poll_event()).collect();
                        let back = |e: &DeviceEvent| {
                            matches!(e, DeviceEvent::Transport { transport: Transport::Xdp, .. })
                        };
                        reopened[at] |= events.iter().any(back);
                        let why = device.transport_reason(routes[at]);
                        assert!(Instant::now() < until, "{reopened:?}: {at} is not reopened, because {why}");
                    }
                }
                assert_eq!(first.device.queues().len() + second.device.queues().len(), 2);
            });
        });
    });
}
