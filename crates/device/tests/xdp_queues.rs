//! The AF_XDP device on interfaces with several queues: one device with all of them, and several processes
//! that share.
#![allow(clippy::print_stdout, clippy::needless_pass_by_value)]

mod forge;
mod netns_device;
mod spaces;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forge::{frame_by_hand, raw_socket};
use netns_device::{NetnsDevice, data_frame, in_namespaces, open, poll, receive, send, udp_config};
use spaces::{Shape, Spaces};
use tautline_device::udp::UdpConfig;
use tautline_device::xdp::{Mode, Unavailable, Xdp, XdpConfig, probe};
use tautline_device::{Datagram, Transport};

const FOUR: Shape = Shape { mtu: 1_500, vlan: None, acquainted: true, queues: Some(4) };
/// Senders' ports; the kernel's hash of them selects the queue.
const FLOWS: u16 = 64;

/// Sends a frame of each of many flows, from side 1 to a device at side 0.
fn send_flows(spaces: &Spaces, to: SocketAddr) -> Vec<Vec<u8>> {
    spaces.enter(1);
    let socket = raw_socket("v0");
    let frames: Vec<_> = (0..FLOWS).map(|flow| data_frame(flow.into(), 100 + usize::from(flow))).collect();
    for (flow, frame) in (0..FLOWS).zip(&frames) {
        let whole = frame_by_hand(SocketAddr::new(spaces.addr(1, false), 20_000 + flow), to, frame);
        rustix::net::send(&socket, &whole, rustix::net::SendFlags::empty()).unwrap();
    }
    frames
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

/// D-15: a device that is alone on an interface has all of its queues, and every frame arrives by a ring.
#[test]
fn every_queue_receives() {
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces("every_queue_receives", FOUR, |spaces| {
            let mut a = open(spaces, 0, XdpConfig::with(|config| config.mode = mode));
            assert_eq!(a.device.queues(), [0, 1, 2, 3], "{}", a.device.describe());
            for _ in 0..40 {
                let sent = send_flows(spaces, a.local_addr());
                let got = receive(&mut a, sent.len());
                assert!(sorted(got) == sorted(sent), "every flow arrives");
            }
            assert_eq!(a.device.frames_by_socket(), 0, "all by rings");
        });
    }
}

/// D-15, D-18: a device with one queue of four receives the rest through the socket, counts it, and loses
/// nothing.
#[test]
fn frames_of_other_queues_arrive_by_the_socket() {
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces("frames_of_other_queues_arrive_by_the_socket", FOUR, |spaces| {
            let mut a = open(spaces, 0, XdpConfig::with(|config| (config.mode, config.sharers) = (mode, 4)));
            assert_eq!(a.device.queues(), [0]);
            let sent = send_flows(spaces, a.local_addr());
            let got = receive(&mut a, sent.len());
            assert!(sorted(got) == sorted(sent.clone()), "every flow arrives");
            let by_socket = a.device.frames_by_socket();
            assert!(by_socket > 0 && by_socket < sent.len() as u64, "{by_socket} of {}", sent.len());
        });
    }
}

/// Opens a device while another one is polled, as a node does.
fn open_beside(
    first: &mut impl Datagram,
    spaces: &Arc<Spaces>,
    mut config: XdpConfig,
) -> Result<NetnsDevice<Xdp>, Unavailable> {
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            spaces.enter(0);
            (config.udp, config.rx_chunks) = (udp_config(spaces, 0), 512);
            let device = Xdp::open(config).map_err(|refused| refused.why);
            opened.store(true, Ordering::Relaxed);
            device
        });
        while !opened.load(Ordering::Relaxed) && !opening.is_finished() {
            poll(first);
        }
        opening.join().unwrap()
    })
    .map(|device| NetnsDevice { device, spaces: spaces.clone(), side: 0 })
}

/// D-15, D-19, D-29: the second device takes the next queues and a share of the first one's program. Each
/// gets its own frames, by ring or by socket, and the program stays until the last one is closed.
#[test]
fn two_share_an_interface() {
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces("two_share_an_interface", FOUR, |spaces| {
            let config = || XdpConfig::with(|config| (config.mode, config.sharers) = (mode, 2));
            let mut first = open(spaces, 0, config());
            let mut second = open_beside(&mut first, spaces, config()).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!((first.device.queues(), second.device.queues()), (&[0, 1][..], &[2, 3][..]));
            assert!(second.device.describe().contains("another process"), "{}", second.device.describe());
            spaces.enter(0);
            let probed = probe(&XdpConfig::default()).interfaces.into_iter().find(|of| of.name == "v0");
            let verdict = probed.unwrap().verdict;
            assert!(verdict.as_ref().is_ok_and(|said| said.contains("of this user share")), "{verdict:?}");
            for device in [&mut first, &mut second] {
                let sent = send_flows(spaces, device.local_addr());
                let got = receive(device, sent.len());
                assert!(sorted(got) == sorted(sent), "every flow arrives");
                let by_socket = device.device.frames_by_socket();
                assert!(by_socket < FLOWS.into(), "some arrive by the rings");
            }
            // Both send by queues of their own, too.
            let mut b = open(spaces, 1, XdpConfig::with(|config| config.mode = mode));
            for device in [&mut first, &mut second] {
                let route = device.route(b.local_addr()).unwrap();
                assert_eq!(device.transport(route), Some(Transport::Xdp));
                send(device, route, &data_frame(3, 300));
                assert!(receive(&mut b, 1) == [data_frame(3, 300)]);
            }
            assert_eq!(b.device.frames_by_socket(), 0, "by rings");
            drop(first);
            assert!(spaces.has_program(0), "the second device still has it");
            let sent = send_flows(spaces, second.local_addr());
            let got = receive(&mut second, sent.len());
            assert!(sorted(got) == sorted(sent), "every flow arrives");
            // The first one's queues can be taken again, with a share from the second one.
            let third = open_beside(&mut second, spaces, config()).unwrap_or_else(|why| panic!("{why}"));
            // The kernel may not have released both yet.
            let queues = third.device.queues();
            assert!(!queues.is_empty() && queues.iter().all(|queue| *queue < 2), "{queues:?}");
            drop((second, third, b));
            assert!(spaces.is_left_alone());
        });
    }
}

/// D-15: on veth, ranks that divide the queues all receive by their rings in the default mode, not only the
/// rank with the first queue.
#[test]
fn every_sharer_receives_by_its_rings() {
    const FRAMES: usize = 40;
    in_namespaces("every_sharer_receives_by_its_rings", FOUR, |spaces| {
        let shared = || XdpConfig::with(|config| config.sharers = 2);
        let mut first = open(spaces, 0, shared());
        let mut second = open_beside(&mut first, spaces, shared()).unwrap_or_else(|why| panic!("{why}"));
        assert!(second.device.describe().contains("native mode"), "{}", second.device.describe());
        let mut b = open(spaces, 1, XdpConfig::with(|config| (config.sharers, config.queue) = (2, 2)));
        let route = b.route(second.local_addr()).unwrap();
        assert_eq!(b.transport(route), Some(Transport::Xdp));
        for number in 0..FRAMES {
            send(&mut b, route, &data_frame(number, 300));
            assert!(receive(&mut second, 1) == [data_frame(number, 300)]);
        }
        // Once per second a frame goes through the socket, to confirm the neighbour.
        let by_socket = second.device.frames_by_socket();
        assert!(by_socket < FRAMES as u64 / 2, "{by_socket} of {FRAMES}");
    });
}

/// D-15: the request socket is in a directory of this user alone. A stale file is replaced, an error is
/// reported, and nothing is left behind.
#[test]
fn request_sockets_are_in_a_private_directory() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    in_namespaces("request_sockets_are_in_a_private_directory", FOUR, |spaces| {
        let config = || XdpConfig::with(|config| config.sharers = 2);
        spaces.enter(0);
        let network = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let link = spaces::ip(&format!("-n {} -o link show v0", spaces.names[0])).unwrap();
        let interface = link.split(':').next().unwrap().trim().to_owned();
        drop(open(spaces, 0, config()));
        let dir = tautline_device::shm::discovery_dir();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        let socket = dir.join(format!("xdp-{network}-{interface}-0"));
        // A file that its owner did not unlink.
        drop(std::os::unix::net::UnixDatagram::bind(&socket).unwrap());
        let mut first = open(spaces, 0, config());
        assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
        let second = open_beside(&mut first, spaces, config()).unwrap_or_else(|why| panic!("{why}"));
        assert!(second.device.describe().contains("another process"), "{}", second.device.describe());
        drop((first, second));
        assert!(!socket.exists(), "unlinked");
        std::fs::create_dir(&socket).unwrap();
        let first = open(spaces, 0, config());
        std::fs::remove_dir(&socket).unwrap();
        let said = first.device.describe();
        assert!(said.contains("no other process can share the program because"), "{said}");
    });
}

/// D-30: a program that cannot be shared is refused with the reason.
#[test]
fn conflicts_between_sharers_are_reported() {
    let one = Shape { queues: Some(1), ..FOUR };
    in_namespaces("conflicts_between_sharers_are_reported", one, |spaces| {
        let mut first = open(spaces, 0, XdpConfig::with(|config| config.mode = Mode::Generic));
        let why = open_beside(&mut first, spaces, XdpConfig::default()).err().unwrap();
        assert!(matches!(why, Unavailable::Queues(_)), "{why}");
        assert!(why.to_string().contains("the 1 queue(s) of v0 is taken"), "{why}");
        let native = XdpConfig::with(|config| config.mode = Mode::Native);
        let why = open_beside(&mut first, spaces, native).err().unwrap();
        assert!(matches!(why, Unavailable::Occupied { .. }), "{why}");
        assert!(why.to_string().contains("cannot be shared: it is in generic mode"), "{why}");
    });
}

/// The child of these tests: shares the interface, and lives on.
#[test]
fn child() {
    if std::env::var("TAUTLINE_XDP_QUEUES_CHILD").is_err() {
        return;
    }
    let udp =
        UdpConfig::with(|config| (config.bind, config.tx_slots) = ("10.211.9.1:7200".parse().unwrap(), 64));
    let config = XdpConfig::with(|config| {
        config.udp = udp;
        config.rx_chunks = 256;
        config.sharers = 2;
    });
    let mut device = match Xdp::open(config) {
        Ok(device) => device,
        Err(refused) => return println!("REFUSED {}", refused.why),
    };
    println!("OPEN {:?}", device.queues());
    std::io::stdout().flush().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        poll(&mut device);
    }
}

/// D-19, D-29: the process that attached the program is killed. A process that shares it goes on unaffected,
/// and can be joined; in the end nothing is left.
#[test]
fn sharers_survive_the_first_process() {
    in_namespaces("sharers_survive_the_first_process", FOUR, |spaces| {
        for _ in 0..3 {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &spaces.names[0]]).arg(std::env::current_exe().unwrap());
            command
                .args(["--exact", "child", "--nocapture", "--test-threads=2"])
                .env("TAUTLINE_XDP_QUEUES_CHILD", "1");
            let mut owner = command.stdout(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
            let said =
                lines.into_iter().find(|line| line.contains("OPEN") || line.contains("REFUSED")).unwrap();
            assert!(said.contains("OPEN [0, 1]"), "{said}");
            let mut mine = open(spaces, 0, XdpConfig::with(|config| config.sharers = 2));
            assert_eq!(mine.device.queues(), [2, 3], "{}", mine.device.describe());
            owner.kill().unwrap();
            owner.wait().unwrap();
            assert!(spaces.has_program(0), "the survivor still has it");
            let before = mine.device.frames_by_socket();
            for _ in 0..10 {
                let sent = send_flows(spaces, mine.local_addr());
                let got = receive(&mut mine, sent.len());
                assert!(sorted(got) == sorted(sent), "every flow arrives");
            }
            assert!(
                mine.device.frames_by_socket() - before < 10 * u64::from(FLOWS),
                "some arrive by its rings"
            );
            drop(mine);
            assert!(spaces.is_left_alone(), "nothing is left");
        }
    });
}
