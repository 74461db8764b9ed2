//! The AF_XDP device among other people: their traffic, their frames, their programs; deaths, and privileges.
#![allow(clippy::print_stdout)]

mod forge;
mod resident;
mod spaces;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forge::{frame_by_hand, raw_socket};
use resident::{apart, data_frame, open, receive, receive_some, send, udp_config};
use spaces::{Shape, Spaces};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{self, Mode, Unavailable, Xdp, XdpConfig};
use tautline_device::{Datagram, HEADROOM};

/// What others send over the same interface arrives byte for byte, while this device sends as fast as it can.
#[test]
fn foreign_traffic_is_undisturbed() {
    const BYTES: usize = 8 << 20;
    fn byte(i: usize) -> u8 {
        (i * 31 + (i >> 8) * 7 + (i >> 16)) as u8
    }
    for mode in [Mode::Generic, Mode::Native] {
        apart("foreign_traffic_is_undisturbed", Shape::default(), |spaces| {
            let mut a = open(spaces, 0, XdpConfig { mode, ..XdpConfig::default() });
            let mut b = open(spaces, 1, XdpConfig { mode, ..XdpConfig::default() });
            let route = a.route(b.local_addr()).unwrap();
            spaces.enter(1);
            let listener = TcpListener::bind(SocketAddr::new(spaces.addr(1, false), 0)).unwrap();
            let other = UdpSocket::bind(SocketAddr::new(spaces.addr(1, false), 0)).unwrap();
            other.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let (tcp, udp) = (listener.local_addr().unwrap(), other.local_addr().unwrap());
            spaces.enter(0);
            let mut stream = TcpStream::connect(tcp).unwrap();
            let near = UdpSocket::bind(SocketAddr::new(spaces.addr(0, false), 0)).unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let data: Vec<u8> = (0..BYTES).map(byte).collect();
                    stream.write_all(&data).unwrap();
                });
                let server = scope.spawn(|| {
                    let mut data = Vec::with_capacity(BYTES);
                    listener.accept().unwrap().0.take(BYTES as u64).read_to_end(&mut data).unwrap();
                    assert_eq!(data.len(), BYTES);
                    assert!(data.iter().enumerate().all(|(i, b)| *b == byte(i)), "TCP, byte for byte");
                });
                let pings = scope.spawn(|| {
                    let mut buffer = [0; 2_000];
                    for i in 0..200usize {
                        // Even what looks like a frame of ours, for another port.
                        let ping = data_frame(i, 100 + i);
                        near.send_to(&ping, udp).unwrap();
                        let len = other.recv(&mut buffer).unwrap();
                        assert!(buffer[..len] == ping, "UDP of others, byte for byte");
                    }
                });
                let flood = scope.spawn(|| {
                    let (mut batch, mut got) = (tautline_device::RxBatch::new(64), 0);
                    while !over.load(Ordering::Relaxed) {
                        for number in 0..16 {
                            let slot = a.arena().take().unwrap();
                            let frame = data_frame(number, 200);
                            a.arena().payload_mut(slot)[..200].copy_from_slice(&frame);
                            a.send(route, slot, HEADROOM..HEADROOM + 200);
                            a.arena().hold(slot);
                            a.arena().give(slot);
                            a.flush();
                            a.arena().unhold(slot);
                        }
                        got += b.recv(&mut batch).unwrap();
                        assert!(batch.frames().iter().all(|f| batch.bytes(*f).len() == 200));
                    }
                    got
                });
                let done = [server.join(), pings.join()];
                over.store(true, Ordering::Relaxed);
                assert!(flood.join().unwrap() > 1_000, "Tautline ran all the while");
                assert!(done.iter().all(Result::is_ok));
            });
        });
    }
}

/// Hostile frames from the peer's namespace: dropped and counted, or passed to the socket as the strays they are; never taken as frames.
#[test]
fn hostile_frames_are_never_taken() {
    for mode in [Mode::Generic, Mode::Native] {
        apart("hostile_frames_are_never_taken", Shape::default(), |spaces| {
            let mut b = open(spaces, 1, XdpConfig { mode, ..XdpConfig::default() });
            let local = b.local_addr();
            spaces.enter(0);
            let socket = raw_socket("v0");
            let inject = |frame: &[u8]| {
                rustix::net::send(&socket, frame, rustix::net::SendFlags::empty()).unwrap();
            };
            let good =
                frame_by_hand(SocketAddr::new(spaces.addr(0, false), 9_999), local, &data_frame(1, 100));
            inject(&good);
            assert_eq!(receive(&mut b, 1).len(), 1, "the hand-made frame is right");
            let mut injected = 0u64;
            // The UDP checksum, the payload, cut short, run together.
            let mut wrong = Vec::new();
            for at in [40, 41, 43, 60, 141] {
                let mut frame = good.clone();
                frame[at] ^= 0x10;
                wrong.push(frame);
            }
            wrong.extend([43, 60, 90, 100, 141].map(|len| good[..len].to_vec()));
            // IP header and lengths.
            for at in [15, 16, 17, 18, 22, 24, 25, 26, 38, 39] {
                let mut frame = good.clone();
                frame[at] ^= 1;
                wrong.push(frame);
            }
            for frame in &wrong {
                inject(frame);
                injected += 1;
            }
            let got = receive(&mut b, 1);
            assert!(got.is_empty(), "{} of {injected} hostile frames were taken", got.len());
            let counted = b.device.refused_frames();
            assert_eq!(b.counters().frames_refused, counted.total());
            assert_eq!(counted.total(), injected, "all are counted: {counted:?}");
            // And then all goes on.
            inject(&good);
            assert_eq!(receive(&mut b, 1).len(), 1);
        });
    }
}

/// A second program on the interface is refused, by name and number, and the refused gets back what UDP needs.
#[test]
fn an_occupied_interface_is_refused() {
    apart("an_occupied_interface_is_refused", Shape::default(), |spaces| {
        let first = open(spaces, 0, XdpConfig::default());
        spaces.enter(0);
        let refused =
            Xdp::open(XdpConfig { udp: udp_config(spaces, 0), ..XdpConfig::default() }).err().unwrap();
        let Unavailable::Occupied { interface, program, owner } = &refused.why else {
            panic!("{}", refused.why)
        };
        assert_eq!(interface, "v0");
        assert!(*program > 0 && owner.contains("\"tautline\""), "{owner}");
        assert!(owner.contains(&format!("process {}", std::process::id())), "{owner}");
        assert!(refused.why.to_string().contains("ip link set dev v0 xdp off"), "{}", refused.why);
        let found = xdp::probe(&XdpConfig::default()).interfaces;
        let said = found.into_iter().find(|i| i.name == "v0").unwrap().verdict.unwrap();
        assert!(said.contains(&format!("id {program}, \"tautline\"")), "{said}");
        assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
        let udp = Udp::open(refused.udp).unwrap();
        assert_ne!(udp.local_addr().port(), first.local_addr().port());
        drop(first);
        open(spaces, 0, XdpConfig::default());
    });
}

/// Opening and closing leaves nothing behind: in a process of its own, where nobody else opens anything.
#[test]
fn nothing_is_leaked() {
    apart("nothing_is_leaked", Shape::default(), |spaces| {
        let out = as_child(spaces, "leak", "").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(said.contains("NOTHING LEAKED"), "{said}");
        assert!(spaces.is_left_alone(), "no program is left");
    });
}

/// Descriptors, mappings of sockets and maps, and mapped bytes.
fn possessions() -> (usize, usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("socket:") || line.contains("bpf-map")).count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    (open, mapped, size.trim().trim_end_matches(" kB").parse().unwrap())
}

fn open_and_close(config: fn() -> XdpConfig) {
    drop(Xdp::open(config()).unwrap_or_else(|r| panic!("{}", r.why)));
    let before = possessions();
    for _ in 0..20 {
        let device = Xdp::open(config()).unwrap_or_else(|r| panic!("{}", r.why));
        assert!(possessions().1 > before.1, "what is counted is what devices map");
        drop(device);
    }
    let after = possessions();
    assert_eq!((after.0, after.1), (before.0, before.1), "descriptors and mappings");
    assert!(after.2 < before.2 + 1_024, "memory: {} kB, then {}", before.2, after.2);
    println!("NOTHING LEAKED");
}

/// What a child of these tests does: opens a device, says so, and lives on.
#[test]
fn child() {
    let Ok(role) = std::env::var("TAUTLINE_XDP_CHILD") else { return };
    let bind = "10.211.9.1:7100".parse().unwrap();
    if role == "leak" {
        return open_and_close(|| XdpConfig {
            udp: UdpConfig { bind: "10.211.9.1:7100".parse().unwrap(), ..UdpConfig::default() },
            ..XdpConfig::default()
        });
    }
    let udp = UdpConfig { bind, tx_slots: 256, ..UdpConfig::default() };
    let drop_privileges = role == "drop";
    let mut device = match Xdp::open(XdpConfig { udp, drop_privileges, ..XdpConfig::default() }) {
        Ok(device) => device,
        Err(refused) => {
            println!("REFUSED {}\nPROBE {:?}", refused.why, xdp::probe(&XdpConfig::default()).allowed);
            return;
        }
    };
    println!("OPEN {}", device.describe());
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    println!("{}", status.lines().find(|line| line.starts_with("CapEff")).unwrap());
    std::io::stdout().flush().unwrap();
    let route = device.route("10.211.9.2:7100".parse().unwrap()).unwrap();
    let until = Instant::now() + Duration::from_secs(if role == "kill" { 20 } else { 0 });
    loop {
        send(&mut device, route, &data_frame(1, 100));
        receive_some(&mut device);
        if Instant::now() >= until {
            break;
        }
    }
    println!("WAY {:?}", device.transport(route));
}

/// This very program, as a child in a namespace.
fn as_child(spaces: &Spaces, role: &str, before: &str) -> Command {
    let me = std::env::current_exe().unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &spaces.names[0]]);
    command.args(before.split_whitespace()).arg(me).args(["--exact", "child", "--nocapture"]);
    command.env("TAUTLINE_XDP_CHILD", role).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A process that is killed at any time leaves no program: the kernel takes it away.
#[test]
fn the_killed_leave_nothing() {
    let kills: u32 = std::env::var("TAUTLINE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    apart("the_killed_leave_nothing", Shape::default(), |spaces| {
        let mut attached = 0;
        for round in 0..kills {
            let mut child = as_child(spaces, "kill", "").spawn().unwrap();
            std::thread::sleep(Duration::from_micros(u64::from(round) * 7_919 % 60_000));
            attached += u32::from(spaces.has_program(0));
            child.kill().unwrap();
            child.wait().unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            while spaces.has_program(0) {
                assert!(Instant::now() < until, "round {round}: a program is left");
            }
        }
        assert!(attached > 0, "some were killed while their program was attached");
    });
}

/// N-14: the three privileges suffice; without one of them it is named, with how to grant it; and they can be given up.
#[test]
fn three_privileges_suffice() {
    if spaces::run("setpriv", "--version").is_err() {
        println!("SKIPPED three_privileges_suffice: there is no setpriv");
        return;
    }
    apart("three_privileges_suffice", Shape::default(), |spaces| {
        let run = |role: &str, caps: &str| {
            let set = format!("setpriv --bounding-set=-all{caps} --inh-caps=-all");
            let out = as_child(spaces, role, &set).output().unwrap();
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let said = run("once", ",+net_raw,+net_admin,+bpf");
        assert!(said.contains("OPEN") && said.contains("WAY Some(Xdp)"), "{said}");
        let said = run("drop", ",+net_raw,+net_admin,+bpf");
        assert!(said.contains("WAY Some(Xdp)") && said.contains("CapEff:\t0000000000000000"), "{said}");
        let said = run("once", ",+net_raw,+bpf");
        assert!(
            said.contains("REFUSED") && said.contains("cap_net_admin") && said.contains("setcap"),
            "{said}"
        );
        let said = run("once", "");
        assert!(said.contains("lacks cap_net_raw,cap_net_admin,cap_bpf"), "{said}");
    });
}

/// N-14: in a user namespace a process may have all privileges, and they do not count; that is said, by the device and by the probe.
#[test]
fn privileges_in_vain() {
    let script = "ip link add v0 type veth peer name v1 && ip addr add 10.211.9.1/24 dev v0 && ip link set v0 up && exec \"$0\" --exact child --nocapture";
    let mut command = Command::new("unshare");
    command.args(["-U", "-r", "-n", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    let out = command.env("TAUTLINE_XDP_CHILD", "once").output();
    let said = out.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
    if !said.contains("running 1 test") {
        println!("SKIPPED privileges_in_vain: no user namespace can be had");
        return;
    }
    assert!(
        said.contains("REFUSED the privileges of this process have no effect in this user namespace"),
        "{said}"
    );
    assert!(said.contains("PROBE Err(\"the privileges of this process have no effect"), "{said}");
}

/// N-14: too little memory to pin is refused with the number to set; a little more, and fewer chunks and queues are taken. The probe says the same.
#[test]
fn little_memory_may_be_pinned() {
    if spaces::run("setpriv", "--version").is_err() || spaces::run("prlimit", "--version").is_err() {
        println!("SKIPPED little_memory_may_be_pinned: no setpriv or prlimit");
        return;
    }
    apart("little_memory_may_be_pinned", Shape { queues: Some(4), ..Shape::default() }, |spaces| {
        let run = |kib: u32| {
            let set = format!(
                "prlimit --memlock={} setpriv --bounding-set=-all,+net_raw,+net_admin,+bpf --inh-caps=-all",
                kib * 1_024
            );
            String::from_utf8_lossy(&as_child(spaces, "once", &set).output().unwrap().stdout).into_owned()
        };
        let said = run(64);
        assert!(said.contains("REFUSED") && said.contains("RLIMIT_MEMLOCK is 64 KiB"), "{said}");
        let number = |text: Option<&str>| {
            let digits = text.and_then(|text| text.split(|c: char| !c.is_ascii_digit()).next());
            digits.and_then(|digits| digits.parse::<u32>().ok()).unwrap_or_else(|| panic!("{said}"))
        };
        let wanted = number(said.split("ulimit -l ").nth(1));
        let least = number(said.split("REFUSED ").nth(1));
        assert!(least < wanted, "{said}");
        for (kib, what) in [(wanted, "the number suffices"), (least, "fewer queues are better than none")] {
            if spaces::run("prlimit", &format!("--memlock={} true", kib * 1_024)).is_err() {
                println!("SKIPPED: nobody may raise RLIMIT_MEMLOCK to {kib} KiB here");
                continue;
            }
            let said = run(kib);
            assert!(said.contains("OPEN") && said.contains(&format!("{kib} KiB pinned")), "{what}: {said}");
        }
    });
}

#[test]
fn what_cannot_be_is_said() {
    let refused = |bind: &str| {
        let udp = UdpConfig { bind: bind.parse().unwrap(), ..UdpConfig::default() };
        Xdp::open(XdpConfig { udp, ..XdpConfig::default() }).err().unwrap()
    };
    let loopback = refused("127.0.0.1:0");
    assert!(loopback.why.to_string().contains("loopback"), "{}", loopback.why);
    let bound =
        loopback.udp.socket.as_ref().expect("the socket comes back").as_fd().try_clone_to_owned().unwrap();
    assert!(Udp::open(loopback.udp).is_ok());
    drop(bound);
    assert!(refused("0.0.0.0:0").why.to_string().contains("no particular address"));
}
