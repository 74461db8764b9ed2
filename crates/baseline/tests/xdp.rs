//! Bare AF_XDP between two network namespaces, each that of a thread: they have no names, and end with the
//! threads, however those end. Without root there is nothing to test.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc;

use tautline_baseline::xdp::{self, Attach, FULL, Mode};
use tautline_baseline::{Setup, Side, cpu};

const MODES: [Mode; 4] = [
    Mode { attach: Attach::Generic, busy: false },
    Mode { attach: Attach::Generic, busy: true },
    Mode { attach: Attach::Native, busy: false },
    Mode { attach: Attach::Native, busy: true },
];

fn ip(thread: i32, args: &[&str]) {
    let namespace = format!("--net=/proc/{thread}/ns/net");
    let out = Command::new("nsenter").arg(namespace).arg("ip").args(args).output().unwrap();
    assert!(out.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Runs both sides, each in a thread with a namespace of its own, joined by one veth pair.
fn apart<T: Send>(run: impl Fn(&mut Setup<'_>) -> io::Result<T> + Sync) -> [io::Result<T>; 2] {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    let (mut tell, threads) = (Vec::new(), mpsc::channel());
    let run = &run;
    std::thread::scope(|scope| {
        let mut sides = Vec::new();
        for (side, control) in [(Side::A, &mut one), (Side::B, &mut other)] {
            let (ready, go) = mpsc::channel::<()>();
            tell.push(ready);
            let name = threads.0.clone();
            sides.push(scope.spawn(move || {
                let core = cpu::allowed_cores()?[usize::from(side == Side::B) % cpu::allowed_cores()?.len()];
                // SAFETY: only this thread changes its namespace, and it holds nothing of the old one.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                name.send((side, rustix::thread::gettid().as_raw_pid())).unwrap();
                go.recv().map_err(io::Error::other)?;
                cpu::pin(core)?;
                let address = |last| IpAddr::V4(Ipv4Addr::new(10, 77, 0, last));
                let (local, remote) =
                    if side == Side::A { (address(1), address(2)) } else { (address(2), address(1)) };
                run(&mut Setup { side, control, local, remote, blocking: false, rcvbuf: None })
            }));
        }
        let mut ids = [threads.1.recv().unwrap(), threads.1.recv().unwrap()];
        ids.sort_by_key(|(side, _)| *side == Side::B);
        let [a, b] = ids.map(|(_, id)| id);
        ip(a, &["link", "add", "tlr0", "type", "veth", "peer", "name", "tlr0", "netns", &b.to_string()]);
        for (thread, address) in [(a, "10.77.0.1/24"), (b, "10.77.0.2/24")] {
            ip(thread, &["address", "add", address, "dev", "tlr0"]);
            ip(thread, &["link", "set", "tlr0", "up"]);
        }
        for ready in tell {
            ready.send(()).unwrap();
        }
        let mut results = sides.into_iter().map(|side| side.join().expect("no side panics"));
        [results.next().unwrap(), results.next().unwrap()]
    })
}

/// Whether this process may open AF_XDP sockets between namespaces; a test that may not is skipped.
#[track_caller]
fn may(test: &str) -> bool {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        tautline_skips::skip(test, why);
        return false;
    }
    xdp::check().unwrap();
    true
}

#[test]
fn ping_pong_in_every_mode() {
    if !may("ping_pong_in_every_mode") {
        return;
    }
    for mode in MODES {
        let [a, b] = apart(|setup| {
            let mut all = Vec::new();
            for bytes in [8, 64, FULL] {
                all.extend(xdp::ping_pong(setup, mode, bytes, 10, 50)?);
            }
            Ok(all)
        });
        assert_eq!((a.unwrap().len(), b.unwrap().len()), (150, 0), "{mode:?}");
    }
}

#[test]
fn streams_in_every_mode() {
    if !may("streams_in_every_mode") {
        return;
    }
    for mode in MODES {
        let [a, b] = apart(|setup| {
            xdp::stream(setup, mode, 8, 10_000, Some(64))?;
            xdp::stream(setup, mode, 8, 30_001, None)?;
            xdp::stream(setup, mode, FULL, 10_000, None)
        });
        for side in [a.unwrap(), b.unwrap()] {
            assert_eq!((side.messages, side.bytes), (10_000, 10_000 * FULL as u64), "{mode:?}");
        }
    }
}

/// Everything that is not ours passes to the kernel, and the program is detached with its owner.
#[test]
fn other_traffic_passes_and_nothing_stays_attached() {
    if !may("other_traffic_passes_and_nothing_stays_attached") {
        return;
    }
    let [a, b] = apart(|setup| {
        xdp::ping_pong(setup, MODES[0], 64, 0, 10)?;
        // A process that another test was starting may have the program's descriptor until it executes, and
        // the program takes what arrives meanwhile.
        let mut shown = String::new();
        for _ in 0..500 {
            let output = Command::new("ip").args(["-details", "link", "show", "tlr0"]).output()?;
            shown = String::from_utf8_lossy(&output.stdout).into_owned();
            if !shown.contains("prog/xdp") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Ordinary sockets, after the program has gone and while another pair of programs is there.
        let socket = std::net::UdpSocket::bind((setup.local, 7077))?;
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
        setup.barrier()?;
        // The first datagram waits for the neighbour's address, and the kernel may send the second before it.
        let (mut datagram, mut seen) = ([0; 16], [0; 20]);
        for number in 0..20_u8 {
            socket.send_to(&[number], (setup.remote, 7077))?;
            assert_eq!(socket.recv(&mut datagram)?, 1);
            seen[usize::from(datagram[0])] += 1;
        }
        assert_eq!(seen, [1; 20]);
        setup.barrier()?;
        Ok(shown)
    });
    for shown in [a.unwrap(), b.unwrap()] {
        assert!(shown.contains("veth") && !shown.contains("prog/xdp"), "{shown}");
    }
}

#[test]
fn impossible_setups_are_errors() {
    if !may("impossible_setups_are_errors") {
        return;
    }
    let [a, b] = apart(|setup| xdp::ping_pong(setup, MODES[0], FULL + 1, 0, 1));
    assert!(a.is_err() && b.is_err());
}
