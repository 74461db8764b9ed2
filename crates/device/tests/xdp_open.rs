//! Opening and closing the AF_XDP device: privileges, pinned memory, occupied interfaces, killed processes.
#![allow(clippy::print_stdout)]

mod netns_device;
mod spaces;

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netns_device::{data_frame, in_namespaces, open, poll, send, udp_config};
use spaces::{Shape, Spaces};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{self, Unavailable, Xdp, XdpConfig};
use tautline_device::{Datagram, RxBatch};

/// An interface with another program is refused with the program's name and id, and the error contains what
/// UDP needs.
#[test]
fn an_occupied_interface_is_refused() {
    in_namespaces("an_occupied_interface_is_refused", Shape::default(), |spaces| {
        let first = open(spaces, 0, XdpConfig::default());
        spaces.enter(0);
        let refused = Xdp::open(XdpConfig::with(|config| config.udp = udp_config(spaces, 0))).err().unwrap();
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

/// Opening and closing leaks nothing; tested in a process of its own, where nothing else is opened.
#[test]
fn opening_and_closing_leaks_nothing() {
    in_namespaces("opening_and_closing_leaks_nothing", Shape::default(), |spaces| {
        let out = as_child(spaces, "leak", "").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(said.contains("NOTHING LEAKED"), "{said}");
        assert!(spaces.is_left_alone(), "no program is left");
    });
}

/// Returns the numbers of descriptors, of mapped sockets and maps, and of mapped kilobytes.
fn resources() -> (usize, usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("socket:") || line.contains("bpf-map")).count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    (open, mapped, size.trim().trim_end_matches(" kB").parse().unwrap())
}

fn open_and_close(config: fn() -> XdpConfig) {
    drop(Xdp::open(config()).unwrap_or_else(|r| panic!("{}", r.why)));
    let before = resources();
    for _ in 0..20 {
        let device = Xdp::open(config()).unwrap_or_else(|r| panic!("{}", r.why));
        assert!(resources().1 > before.1, "the mappings of a device are counted");
        drop(device);
    }
    let after = resources();
    assert_eq!((after.0, after.1), (before.0, before.1), "descriptors and mappings");
    assert!(after.2 < before.2 + 1_024, "memory: {} kB, then {}", before.2, after.2);
    println!("NOTHING LEAKED");
}

/// The child of these tests: opens a device, reports it, and lives on.
#[test]
fn child() {
    let Ok(role) = std::env::var("TAUTLINE_XDP_CHILD") else { return };
    let bind = "10.211.9.1:7100".parse().unwrap();
    if role == "leak" {
        return open_and_close(|| {
            XdpConfig::with(|config| config.udp.bind = "10.211.9.1:7100".parse().unwrap())
        });
    }
    let udp = UdpConfig::with(|config| (config.bind, config.tx_slots) = (bind, 256));
    let drop_privileges = role == "drop";
    let config = XdpConfig::with(|config| (config.udp, config.drop_privileges) = (udp, drop_privileges));
    let mut device = match Xdp::open(config) {
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
        poll(&mut device);
        if Instant::now() >= until {
            break;
        }
    }
    println!("TRANSPORT {:?}", device.transport(route));
}

/// Returns a command that runs this program as a child in a namespace.
fn as_child(spaces: &Spaces, role: &str, before: &str) -> Command {
    let me = std::env::current_exe().unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &spaces.names[0]]);
    command.args(before.split_whitespace()).arg(me).args([
        "--exact",
        "child",
        "--nocapture",
        "--test-threads=2",
    ]);
    command.env("TAUTLINE_XDP_CHILD", role).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// D-19: a process that is killed at any time leaves no program: the kernel detaches it.
#[test]
fn killed_processes_leave_no_program() {
    let kills = tautline_skips::number("TAUTLINE_KILLS", 12);
    in_namespaces("killed_processes_leave_no_program", Shape::default(), |spaces| {
        for round in 0..=kills {
            let mut child = as_child(spaces, "kill", "").spawn().unwrap();
            if round == kills {
                // However slow the machine is, one of them has attached its program.
                let until = Instant::now() + Duration::from_secs(60);
                while !spaces.has_program(0) {
                    assert!(Instant::now() < until, "no program was attached");
                }
            } else {
                std::thread::sleep(Duration::from_micros(round * 7_919 % 60_000));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            while spaces.has_program(0) {
                assert!(Instant::now() < until, "round {round}: a program is left");
            }
        }
    });
}

fn is_installed(program: &str) -> bool {
    let _alone = netns_device::alone();
    spaces::run(program, "--version").is_ok()
}

/// N-14: three capabilities suffice; a missing one is named, with how to grant it; and they can be dropped.
#[test]
fn three_privileges_suffice() {
    if !is_installed("setpriv") {
        return tautline_skips::skip("three_privileges_suffice", "setpriv is not installed");
    }
    in_namespaces("three_privileges_suffice", Shape::default(), |spaces| {
        let run = |role: &str, caps: &str| {
            let set = format!("setpriv --bounding-set=-all{caps} --inh-caps=-all");
            let out = as_child(spaces, role, &set).output().unwrap();
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let said = run("once", ",+net_raw,+net_admin,+bpf");
        assert!(said.contains("OPEN") && said.contains("TRANSPORT Some(Xdp)"), "{said}");
        let said = run("drop", ",+net_raw,+net_admin,+bpf");
        assert!(said.contains("TRANSPORT Some(Xdp)") && said.contains("CapEff:\t0000000000000000"), "{said}");
        let said = run("once", ",+net_raw,+bpf");
        assert!(
            said.contains("REFUSED") && said.contains("cap_net_admin") && said.contains("setcap"),
            "{said}"
        );
        let said = run("once", "");
        assert!(said.contains("lacks cap_net_raw,cap_net_admin,cap_bpf"), "{said}");
    });
}

/// N-14: a process in a user namespace may have all capabilities, without effect; the device and the probe
/// say so.
#[test]
fn ineffective_privileges_are_reported() {
    let script = "ip link add v0 type veth peer name v1 && ip addr add 10.211.9.1/24 dev v0 && ip link set v0 up && exec \"$0\" --exact child --nocapture --test-threads=2";
    let _alone = netns_device::alone();
    let mut command = Command::new("unshare");
    command.args(["-U", "-r", "-n", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    let out = command.env("TAUTLINE_XDP_CHILD", "once").output();
    let said = out.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
    if !said.contains("running 1 test") {
        let why = "user namespaces cannot be created";
        return tautline_skips::skip("ineffective_privileges_are_reported", why);
    }
    assert!(
        said.contains("REFUSED the privileges of this process have no effect in this user namespace"),
        "{said}"
    );
    assert!(said.contains("PROBE Err(\"the privileges of this process have no effect"), "{said}");
}

/// N-14: too low a limit on pinned memory is refused with the value to set; with a slightly higher one, fewer
/// chunks and queues are used.
#[test]
fn a_low_memlock_limit_is_reported() {
    if !is_installed("setpriv") || !is_installed("prlimit") {
        let why = "setpriv or prlimit is not installed";
        return tautline_skips::skip("a_low_memlock_limit_is_reported", why);
    }
    in_namespaces(
        "a_low_memlock_limit_is_reported",
        Shape { queues: Some(4), ..Shape::default() },
        |spaces| {
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
            for (kib, what) in [(wanted, "the value suffices"), (least, "fewer queues are used")] {
                if spaces::run("prlimit", &format!("--memlock={} true", kib * 1_024)).is_err() {
                    let why = format!("RLIMIT_MEMLOCK cannot be raised to {kib} KiB (in part)");
                    tautline_skips::skip("a_low_memlock_limit_is_reported", why);
                    continue;
                }
                let said = run(kib);
                assert!(
                    said.contains("OPEN") && said.contains(&format!("{kib} KiB pinned")),
                    "{what}: {said}"
                );
            }
        },
    );
}

#[test]
fn unusable_addresses_are_refused() {
    let refused = |bind: &str| {
        let udp = UdpConfig::with(|config| config.bind = bind.parse().unwrap());
        Xdp::open(XdpConfig::with(|config| config.udp = udp)).err().unwrap()
    };
    let loopback = refused("127.0.0.1:0");
    assert!(loopback.why.to_string().contains("loopback"), "{}", loopback.why);
    let bound = loopback
        .udp
        .socket
        .as_ref()
        .expect("the error contains the socket")
        .as_fd()
        .try_clone_to_owned()
        .unwrap();
    assert!(Udp::open(loopback.udp).is_ok());
    drop(bound);
    assert!(refused("0.0.0.0:0").why.to_string().contains("no particular address"));
}

/// D-1: a datagram that was in the socket before the device was opened is received at once, and not after
/// thousands of polls during which the socket keeps an idle program awake.
#[test]
fn early_datagrams_are_received() {
    in_namespaces("early_datagrams_are_received", Shape::default(), |spaces| {
        spaces.enter(1);
        let socket = UdpSocket::bind(SocketAddr::new(spaces.addr(1, false), 0)).unwrap();
        let to = socket.local_addr().unwrap();
        spaces.enter(0);
        let sender = UdpSocket::bind(SocketAddr::new(spaces.addr(0, false), 0)).unwrap();
        // The kernel may drop what is sent before it knows the neighbour.
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let arrived = (0..300).any(|_| {
            sender.send_to(&data_frame(1, 100), to).unwrap();
            socket.peek(&mut [0; 200]).is_ok()
        });
        assert!(arrived, "none of 300 datagrams arrived");
        spaces.enter(1);
        let mut device = Xdp::open(XdpConfig::with(|config| {
            config.udp = udp_config(spaces, 1);
            config.udp.socket = Some(socket.into());
            config.rx_chunks = 512;
        }))
        .unwrap_or_else(|refused| panic!("{}", refused.why));
        let mut batch = RxBatch::new(8);
        let received = (0..1_000).any(|_| device.recv(&mut batch).unwrap() > 0);
        assert!(received, "it was not received in 1,000 polls");
    });
}
