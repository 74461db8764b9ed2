//! Every transport and every stream between two threads. No test depends on timing; the crate's own silence
//! bound keeps a fault from hanging the run.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tautline_baseline::content::{Account, take_account};
use tautline_baseline::drive::{self, Content};
use tautline_baseline::udp_gso::{self, Plan};
use tautline_baseline::{Kind, Measured, Setup, Side, Transport, cpu, open, packed, shm};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Runs both sides, and requires that every byte written to be sent was received and read.
fn both<T: Send>(
    address: IpAddr,
    blocking: bool,
    rcvbuf: Option<usize>,
    run: impl Fn(&mut Setup<'_>) -> io::Result<T> + Sync,
) -> (T, T) {
    let (returned, account) = pair(address, blocking, rcvbuf, run);
    assert_eq!(account.written, account.read);
    returned
}

/// Runs both sides, each in a thread of its own; returns what they returned, and their common account.
fn pair<T: Send>(
    address: IpAddr,
    blocking: bool,
    rcvbuf: Option<usize>,
    run: impl Fn(&mut Setup<'_>) -> io::Result<T> + Sync,
) -> ((T, T), Account) {
    // Two spinning sides need the cores to themselves.
    static CORES: Mutex<()> = Mutex::new(());
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    cpu::share_single_core().unwrap();
    take_account();
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let setup = |side, control| Setup { side, control, local: address, remote: address, blocking, rcvbuf };
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| on_core(1, || run(&mut setup(Side::B, &mut b))));
        let asking = scope.spawn(|| on_core(0, || run(&mut setup(Side::A, &mut a))));
        let answered = answering.join().expect("side B does not panic");
        let asked = asking.join().expect("side A does not panic");
        ((asked.expect("side A"), answered.expect("side B")), take_account())
    })
}

/// Each side has a core of its own, where there are two.
fn on_core<T>(index: usize, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let cores = cpu::allowed_cores()?;
    cpu::pin(cores[index % cores.len()])?;
    run()
}

fn every_transport(run: impl Fn(&mut dyn Transport, Side, bool) -> io::Result<()> + Sync) {
    let libraries = [Kind::ZeroMq, Kind::Iceoryx2].into_iter().filter(|kind| kind.is_installed());
    for kind in Kind::ALL.into_iter().chain(libraries) {
        for blocking in [false, true] {
            let addresses: &[IpAddr] = if kind.is_network() { &[V4, V6] } else { &[V4] };
            for &address in addresses {
                both(address, blocking, None, |setup| {
                    let mut transport = open(kind, setup, 1 << 20)?;
                    assert_eq!(transport.name(), kind.name());
                    run(transport.as_mut(), setup.side, setup.blocking)
                });
            }
        }
    }
}

#[test]
fn ping_pong_over_every_transport() {
    every_transport(|transport, side, _| {
        for bytes in [0, 1, 8, 64, 1024, 1025, 4096, 65_536, 300_000] {
            let round_trips = drive::ping_pong(transport, side, bytes, 20, Content::Rewritten)?;
            assert_eq!(round_trips.len(), if side == Side::A { 20 } else { 0 });
        }
        drive::ping_pong(transport, side, 4096, 20, Content::Warm).map(drop)
    });
}

#[test]
fn streams_over_every_transport() {
    every_transport(|transport, side, _| {
        for (bytes, count) in [(0, 200), (8, 1000), (1024, 200), (4096, 300), (65_536, 100), (1 << 20, 10)] {
            // With an answer every 64 messages, and with one at the end.
            for window in [Some(64), None] {
                let measured = drive::stream(transport, side, bytes, count, window, Content::Rewritten)?;
                assert_eq!((measured.messages, measured.bytes), (count, count * bytes as u64));
            }
        }
        Ok(())
    });
}

#[test]
fn calls_over_every_transport() {
    every_transport(|transport, side, _| {
        for (bytes, window) in [(64, 1), (64, 64), (8, 7), (1024, 4)] {
            // Opened for messages of 1 MiB, iceoryx2 has room for two each way. With more calls under way,
            // both sides would wait for room for ever.
            let window = if transport.name() == Kind::Iceoryx2.name() { window.min(2) } else { window };
            let measured = drive::calls(transport, side, bytes, 100, window)?;
            assert_eq!((measured.messages, measured.bytes), (100, 100 * bytes as u64));
        }
        Ok(())
    });
}

#[cfg(feature = "tarpc")]
#[test]
fn calls_by_tarpc() {
    for tcp in [false, true] {
        for window in [1, 64] {
            let (asked, _) = both(V4, true, None, |setup| {
                tautline_baseline::tarpc_calls(setup, tcp, 64, [3, 200], window)
            });
            assert_eq!((asked.messages, asked.bytes), (200, 12_800));
        }
    }
}

#[test]
fn paced_over_every_transport() {
    every_transport(|transport, side, blocking| {
        let round_trips = drive::paced(transport, side, 64, 10, Duration::from_micros(200), blocking)?;
        assert_eq!(round_trips.len(), if side == Side::A { 10 } else { 0 });
        Ok(())
    });
}

#[test]
fn large_messages_through_a_small_and_a_large_buffer() {
    for rcvbuf in [Some(8192), Some(4 << 20)] {
        for kind in Kind::ALL {
            both(V4, false, rcvbuf, |setup| {
                let mut transport = open(kind, setup, 1 << 20)?;
                drive::ping_pong(transport.as_mut(), setup.side, 1 << 20, 3, Content::Rewritten)
            });
        }
    }
}

#[test]
fn a_peer_that_is_gone_is_an_error() {
    for kind in [Kind::Pipe, Kind::Unix, Kind::Tcp] {
        for blocking in [false, true] {
            both(V4, blocking, None, |setup| {
                let mut transport = open(kind, setup, 1 << 20)?;
                if setup.side == Side::A {
                    assert!(transport.recv(&mut [0; 8]).is_err(), "{kind:?}");
                }
                Ok(())
            });
        }
    }
}

#[test]
fn a_wrong_message_is_detected() {
    let ((wrong, _), _) = pair(V4, false, None, |setup| {
        let mut transport = open(Kind::Unix, setup, 64)?;
        match setup.side {
            Side::A => Ok(drive::ping_pong(transport.as_mut(), Side::A, 64, 1, Content::Rewritten).err()),
            Side::B => {
                transport.recv(&mut [0; 64])?;
                transport.send(&[0xEE; 64])?;
                Ok(None)
            }
        }
    });
    assert_eq!(wrong.map(|e| e.kind()), Some(io::ErrorKind::InvalidData));
}

fn stream_of(plan: Plan, address: IpAddr, blocking: bool, rcvbuf: Option<usize>) {
    let (a, b): (Measured, Measured) = both(address, blocking, rcvbuf, |setup| udp_gso::stream(setup, &plan));
    for side in [a, b] {
        assert_eq!((side.messages, side.bytes), (plan.count, plan.count * plan.bytes as u64));
    }
}

#[test]
fn a_hundred_large_messages_with_gso() {
    for address in [V4, V6] {
        for bytes in [64 << 10, 1 << 20] {
            for blocking in [false, true] {
                stream_of(Plan::new(bytes, 100), address, blocking, None);
            }
            stream_of(Plan { datagram: Some(1472), ..Plan::new(bytes, 100) }, address, false, Some(1 << 20));
        }
    }
}

#[test]
fn large_messages_without_gso() {
    for address in [V4, V6] {
        for bytes in [64 << 10, 1 << 20] {
            let plan = Plan::new(bytes, 20).without_gso();
            stream_of(plan, address, false, None);
            stream_of(Plan { datagram: Some(1472), ..plan }, address, true, None);
        }
    }
}

#[test]
fn odd_lengths_and_tiny_windows() {
    for bytes in [1, 1463, 1464, 1465, 70_001] {
        stream_of(Plan { datagram: Some(1472), window: 1, ..Plan::new(bytes, 50) }, V4, false, None);
        stream_of(Plan { packet: 40_000, window: 50_000, ..Plan::new(bytes, 50) }, V4, true, None);
    }
}

#[test]
fn a_stream_survives_an_overflowing_buffer() {
    // The smallest buffer that the kernel gives, and the window is not below a packet: some packets may be
    // dropped.
    for gso in [true, false] {
        let plan = Plan { gso, datagram: Some(1472), batch: 4, ..Plan::new(256 << 10, 10) };
        stream_of(plan, V4, false, Some(1));
    }
}

#[test]
fn both_sides_agree_on_the_best_plan() {
    let plan = Plan::new(64 << 10, 50);
    let (a, b) = both(V4, false, None, |setup| udp_gso::best_plan(setup, &plan, 1 << 20));
    assert_eq!(a, b);
    assert_eq!((a.bytes, a.count), (plan.bytes, plan.count));
}

#[test]
fn packed_records_arrive() {
    for address in [V4, V6] {
        for blocking in [false, true] {
            let (a, b) = both(address, blocking, None, |setup| packed::window(setup, 100));
            assert_eq!((a.messages, b.messages), (6400, 6400));
            let (a, b) = both(address, blocking, None, |setup| packed::stream(setup, 100_000, 128 << 10));
            assert!(a.messages >= 100_000 && a.messages == b.messages);
            assert_eq!(a.bytes, a.messages * packed::PAYLOAD as u64);
        }
    }
}

#[test]
fn messages_through_shared_memory() {
    use shm::HandOff;
    for (hand_off, sizes) in [
        (HandOff::Line, &[0, 8][..]),
        (HandOff::CopyInCopyOut, &[0, 8, 64, 4096, 300_000]),
        (HandOff::WriteFlagCopy, &[0, 64, 65_536, 300_000]),
        (HandOff::Pipelined, &[8, 4096, 65_536, 300_001]),
    ] {
        for &bytes in sizes {
            let (a, b) = both(V4, false, None, |setup| shm::ping_pong(setup, hand_off, bytes, 2, 10));
            assert_eq!((a.len(), b.len()), (10, 0), "{hand_off:?} {bytes}");
        }
    }
}

#[test]
fn a_line_holds_at_most_eight_bytes() {
    let (a, b) =
        both(V4, false, None, |setup| Ok(shm::ping_pong(setup, shm::HandOff::Line, 9, 1, 1).is_err()));
    assert!(a && b);
}

#[test]
fn a_ring_keeps_its_order() {
    let (a, b) = both(V4, false, None, |setup| shm::ring_window(setup, 10));
    assert_eq!((a.messages, b.messages), (640, 640));
    let (a, b) = both(V4, false, None, |setup| shm::ring_stream(setup, 20_001));
    assert_eq!((a.messages, b.bytes), (20_001, 160_008));
}

#[test]
fn streams_of_chunks_through_shared_memory() {
    for (bytes, count) in [(1, 5000), (100, 700), (4096, 100), (70_001, 20), (1 << 20, 5)] {
        for (chunk, slots) in [(4096, 2), (5000, 3), (65_536, 4)] {
            for touch in [shm::Touch::Both, shm::Touch::InPlace, shm::Touch::Unread] {
                let plan = shm::Plan { chunk, slots, touch, ..shm::Plan::new(bytes, count) };
                let ((a, b), account) = pair(V4, false, None, |setup| shm::two_copies(setup, &plan));
                assert_eq!((a.messages, a.bytes, b.bytes), (count, count * bytes as u64, a.bytes));
                let unread = touch == shm::Touch::Unread;
                assert_eq!(account.read == account.written, !unread, "{touch:?} {bytes}");
                assert!(account.written.bytes >= a.bytes && (!unread || account.read.bytes == 0));
            }
        }
    }
    let plan = shm::Plan::new(64 << 10, 50);
    let (a, b) = both(V4, false, None, |setup| shm::best_plan(setup, &plan, 1 << 18));
    assert!(a == b && (a.bytes, a.count) == (plan.bytes, plan.count));
    let (a, _) = both(V4, false, None, |setup| shm::copies(setup, 4096, 100));
    assert_eq!((a.messages, a.bytes), (100, 409_600));
}
