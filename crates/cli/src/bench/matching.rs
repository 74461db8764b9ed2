//! The cost of matching a put against many tripwires: a node puts to itself, at random places that tripwires
//! watch for reads. All are matched, and none fires. The cost of the put itself is measured first, without
//! any tripwire.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use tautline::memory::{Access, Rights};
use tautline::node::link::JobKey;
use tautline::{Endpoint, Job, Member, Tripwire};
use tautline_baseline::Measured;
use tautline_baseline::cpu::Stopwatch;

use super::memory::other;

/// The distance from one tripwire to the next, and the most that there is room for.
const APART: u64 = 80;
const MOST: u64 = 100_000;
/// Puts that are sent together.
const TOGETHER: u64 = 100;

/// Puts `count` words, first to memory without tripwires and then among `wires` of them, which overlap or
/// not.
pub fn matching(wires: u64, count: u64, overlapping: bool) -> io::Result<[Measured; 2]> {
    let len = if overlapping { 2 * APART } else { 8 };
    let endpoint = alone()?;
    let aperture = endpoint.aperture(((MOST + 1) * APART) as usize).map_err(other)?;
    let arm = |i: u64| {
        let place = i * APART;
        aperture.tripwire(place..place + len).on(Access::READ).arm().map_err(other)
    };
    let remote = endpoint.remote(&aperture.cookie(.., Rights::ALL).map_err(other)?);
    let mut state = 1u64;
    let mut put = |count: u64| -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let now = left.min(TOGETHER);
            left -= now;
            {
                let _together = endpoint.batch();
                for _ in 0..now {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    remote.put((state >> 33) % MOST * APART, &state.to_le_bytes()).map_err(other)?;
                }
            }
            endpoint.extract(usize::MAX).map_err(other)?;
        }
        Ok(())
    };
    // The memory too is touched for the first time in here.
    put(count)?;
    let watch = Stopwatch::start();
    put(count)?;
    let alone = watch.stop(count, 8 * count, 0);
    let armed: Vec<Tripwire> = (0..wires).map(arm).collect::<io::Result<_>>()?;
    put(count)?;
    let watch = Stopwatch::start();
    put(count)?;
    let among = watch.stop(count, 8 * count, 0);
    if armed.iter().any(|wire| wire.fires() > 0) {
        return Err(other("a tripwire fired, and should not have"));
    }
    endpoint.close().map_err(other)?;
    Ok([alone, among])
}

/// Joins a job of one.
fn alone() -> io::Result<Endpoint> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut key = [0; 32];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let members = vec![Member::new(socket.local_addr()?)];
    let key = JobKey::new(key);
    let job = Job::new(0, key, members).with_socket(socket);
    Endpoint::builder().join_job(job).map_err(other)
}
