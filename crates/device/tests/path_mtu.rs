//! D-5: the path MTU changes during traffic, between two network namespaces.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::{Datagram, DeviceEvent, HEADROOM, RouteId, RxBatch};

/// Two namespaces joined by a veth pair; removed when dropped, also after a panic.
struct Spaces {
    names: [String; 2],
}

fn ip(args: &str) -> Result<(), String> {
    let run = Command::new("ip").args(args.split_whitespace()).output().map_err(|e| format!("ip: {e}"))?;
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    if run.status.success() { Ok(()) } else { Err(format!("ip {args}: {said}")) }
}

impl Spaces {
    fn new() -> Result<Spaces, String> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        let names = ["a", "b"].map(|side| format!("tl{side}-{}-{nanos:x}", std::process::id()));
        let spaces = Spaces { names };
        let [a, b] = &spaces.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add v0 mtu 1500 type veth peer name v0 mtu 1500 netns {b}"))?;
        for (name, host) in [(a, 1), (b, 2)] {
            ip(&format!("-n {name} addr add 10.211.7.{host}/24 dev v0"))?;
            ip(&format!("-n {name} addr add fd00:211:7::{host}/64 dev v0 nodad"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set v0 up"))?;
        }
        Ok(spaces)
    }

    fn enter(&self, side: usize) {
        let file = File::open(format!("/var/run/netns/{}", self.names[side])).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn send(device: &mut Udp, route: RouteId, count: usize, len: usize) {
    let slot = device.arena().take().unwrap();
    for _ in 0..count {
        device.send(route, slot, HEADROOM..HEADROOM + len);
    }
    device.flush();
    device.arena().give(slot);
}

fn receive(device: &mut Udp, want: usize) -> usize {
    let mut batch = RxBatch::new(16);
    let until = Instant::now() + Duration::from_millis(500);
    let mut got = 0;
    loop {
        // Read first: a thread that was held up looks once more.
        let late = Instant::now() >= until;
        got += device.recv(&mut batch).unwrap();
        if late || got >= want {
            return got;
        }
    }
}

/// Runs in a thread of its own, because a thread that entered a namespace stays there.
fn change_mtu(spaces: &Spaces, from: &str, to: &str, headers: usize) {
    let (high, low) = (1_500 - headers, 1_280 - headers);
    let open = |bind: &str| Udp::open(UdpConfig::with(|config| config.bind = bind.parse().unwrap())).unwrap();
    spaces.enter(1);
    let mut b = open(to);
    spaces.enter(0);
    let warmed = (0..20).any(|_| {
        let mut early = open(from);
        let route = early.route(b.local_addr()).unwrap();
        send(&mut early, route, 1, 8);
        receive(&mut b, 1) == 1
    });
    assert!(warmed, "the veth pair carries frames");
    // Frames of earlier attempts may have waited for the neighbour's address.
    while receive(&mut b, 1) == 1 {}
    let mut a = open(from);
    assert_eq!(a.arena_ref().payload_len(), high, "slots have the interface's size");
    let route = a.route(b.local_addr()).unwrap();
    assert_eq!(a.max_frame(route), high);
    send(&mut a, route, 20, high);
    assert_eq!(receive(&mut b, 20), 20);

    for frames in [1, 20] {
        ip(&format!("-n {} link set v0 mtu 1280", spaces.names[0])).unwrap();
        let lost = a.counters().send_failures;
        send(&mut a, route, frames, high);
        assert_eq!(a.counters().send_failures - lost, frames as u64, "the frames count as lost");
        assert_eq!(a.poll_event(), Some(DeviceEvent::PathLimit { route, max_frame: low }));
        assert_eq!((a.poll_event(), a.max_frame(route)), (None, low));
        send(&mut a, route, 20, low);
        assert_eq!(receive(&mut b, 20), 20, "what fits the new limit arrives");

        ip(&format!("-n {} link set v0 mtu 1500", spaces.names[0])).unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        let raised = loop {
            send(&mut a, route, 1, 100);
            receive(&mut b, 1);
            if let Some(event) = a.poll_event() {
                break event;
            }
            assert!(Instant::now() < until, "a raised limit is noticed");
        };
        assert_eq!(raised, DeviceEvent::PathLimit { route, max_frame: high });
        send(&mut a, route, 20, high);
        assert_eq!(receive(&mut b, 20), 20);
    }
}

#[test]
fn path_mtu_changes_are_reported() {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("path_mtu_changes_are_reported", why);
    }
    let spaces = &Spaces::new().unwrap();
    std::thread::scope(|scope| {
        let run = |from, to, headers| scope.spawn(move || change_mtu(spaces, from, to, headers)).join();
        run("10.211.7.1:0", "10.211.7.2:0", 28).expect("the thread in the namespaces");
        run("[fd00:211:7::1]:0", "[fd00:211:7::2]:0", 48).expect("the thread in the namespaces");
    });
}
