//! Memory of which every member of a group has a copy.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::network_faults::FaultsMet;
use crate::common::{config, join, run_over};
use tautline::node::device::fault::Faults;
use tautline::{DeviceName, Endpoint, Error, Job};

const ROUNDS: u64 = 20;
/// Bytes of each member's part: more than a frame.
const PART: usize = 5_000;

fn enter(job: Job, faulty: bool) -> Endpoint {
    let faults = Faults::with(|faults| {
        (faults.loss, faults.duplicate, faults.reorder, faults.reorder_by) = (0.05, 0.05, 0.1, 4);
    });
    let config = config(|config| config.fault = faulty.then_some((u64::from(job.rank) + 1, faults)));
    join(Endpoint::builder().config(config), job)
}

fn content(member: usize, round: u64) -> Vec<u8> {
    (0..PART as u64).map(|at| (at * 7 + round * 31 + member as u64 * 101) as u8).collect()
}

/// every member writes its part of the memory again and again, all at once; in the end all copies have
/// the last content of each, and a member that sees a word of a round sees no earlier round afterwards.
#[test]
fn puts_reach_every_copy() {
    for (device, faulty) in [(DeviceName::Shm, false), (DeviceName::Udp, false), (DeviceName::Udp, true)] {
        let (n, met) = (4, FaultsMet::default());
        run_over(device, n, |job| {
            let ep = enter(job, faulty);
            let world = ep.world().unwrap();
            let me = world.member();
            // The lengths differ: that of the shortest counts.
            let copy = ep.aperture(n * (PART + 8) + me * 8).unwrap();
            let memory = world.multicast_memory(&copy).unwrap();
            assert_eq!(memory.len(), (n * (PART + 8)) as u64);
            // In front of each part is the number of its round, which is put after it.
            let words = (n * PART) as u64;
            let mut latest = vec![0; n];
            for round in 1..=ROUNDS {
                drop(memory.put((me * PART) as u64, content(me, round)).unwrap());
                let mut put = memory.put(words + me as u64 * 8, round.to_le_bytes().to_vec()).unwrap();
                put.wait((round % n as u64) as usize).unwrap();
                for (member, latest) in latest.iter_mut().enumerate() {
                    let seen = copy.read_u64(words + member as u64 * 8).unwrap();
                    assert!(seen >= *latest, "member {member}: round {seen} after {latest}");
                    *latest = seen;
                }
                if round == ROUNDS {
                    put.wait(n - 1).unwrap();
                    assert_eq!((put.acknowledged(), put.failed().len()), (n - 1, 0));
                }
            }
            world.barrier().unwrap();
            for member in 0..n {
                let mut bytes = vec![0; PART];
                copy.read((member * PART) as u64, &mut bytes).unwrap();
                assert!(bytes == content(member, ROUNDS), "the part of member {member}");
                assert_eq!(copy.read_u64(words + member as u64 * 8).unwrap(), ROUNDS);
            }
            world.barrier().unwrap();
            met.add(&ep);
            ep.close().unwrap();
        });
        if faulty {
            met.check();
        }
    }
}

/// a wait for k acknowledgements ends when k members have the bytes, though another has closed its
/// copy and a third is gone; a wait for more fails, and says where. Members need not poll.
#[test]
fn some_acknowledgements_are_enough() {
    for device in [DeviceName::Shm, DeviceName::Udp] {
        let done = AtomicBool::new(false);
        run_over(device, 5, |job| {
            let ep = enter(job, false);
            let world = ep.world().unwrap();
            let copy = ep.aperture(64).unwrap();
            let memory = world.multicast_memory(&copy).unwrap();
            let check = |put: &mut tautline::memory::MulticastPut, most: usize, failed: &[usize]| {
                put.wait(most).unwrap();
                let error = put.wait(most + 1).unwrap_err().to_string();
                let text = format!("{} of 4 members cannot acknowledge the put any more", most + 1);
                assert!(error.contains(&text), "{error}");
                let members: Vec<usize> = put.failed().iter().map(|(member, _)| *member).collect();
                assert_eq!((put.acknowledged(), members), (most, failed.to_vec()));
            };
            match world.member() {
                0 => {
                    for (at, len) in [(0, 0), (60, 5), (u64::MAX, 1)] {
                        let put = memory.put(at, vec![1; len]).map(drop);
                        assert!(matches!(put, Err(Error::OutOfRange)), "{put:?}");
                    }
                    memory.put(0, vec![1; 8]).unwrap().wait(4).unwrap();
                    world.barrier().unwrap();
                    world.barrier().unwrap();
                    check(&mut memory.put(8, vec![2; 8]).unwrap(), 3, &[3]);
                    world.tags().send(4, 1, &[]).unwrap();
                    // It has left when nothing more can come from it.
                    world.tags().receive(4, 1, &mut Vec::new()).unwrap_err();
                    let mut put = memory.put(16, vec![3; 8]).unwrap();
                    put.wait(2).unwrap();
                    put.wait(3).unwrap_err();
                    let mut members: Vec<usize> = put.failed().iter().map(|(member, _)| *member).collect();
                    members.sort_unstable();
                    assert_eq!((put.acknowledged(), members), (2, vec![3, 4]));
                    done.store(true, Ordering::Release);
                }
                3 => {
                    world.barrier().unwrap();
                    drop(copy);
                    world.barrier().unwrap();
                    while !done.load(Ordering::Acquire) {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                4 => {
                    world.barrier().unwrap();
                    world.barrier().unwrap();
                    world.tags().receive(0, 1, &mut Vec::new()).unwrap();
                }
                _ => {
                    world.barrier().unwrap();
                    world.barrier().unwrap();
                    // These make no call meanwhile.
                    while !done.load(Ordering::Acquire) {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    let mut bytes = [0; 24];
                    copy.read(0, &mut bytes).unwrap();
                    assert_eq!(
                        (&bytes[..8], &bytes[8..16], &bytes[16..]),
                        (&[1; 8][..], &[2; 8][..], &[3; 8][..])
                    );
                }
            }
            match ep.close() {
                Ok(()) | Err(Error::Undelivered(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        });
    }
}
