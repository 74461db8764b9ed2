//! Messages from one member of a group to all others.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{config, join, pattern, run, run_over};
use tautline::group::{Form, Group, Multicast, MulticastConfig};
use tautline::{DeviceName, Endpoint, Error, Job};

fn enter(job: Job) -> (Endpoint, Group) {
    let ep = join(Endpoint::builder().config(config(|_| {})), job);
    let world = ep.world().unwrap();
    (ep, world)
}

/// The bytes of a root's message of some number; some are empty, some longer than a window.
fn message(root: usize, number: usize) -> Vec<u8> {
    let len = [8, 0, 1, 700, 20_000, 64][(root + number) % 6];
    pattern(len, root * 100 + number)
}

/// Receives the messages of a root, from the first on.
fn receive_all(multicast: &Multicast, root: usize, count: usize) {
    for number in 0..count {
        let wanted = message(root, number);
        let mut buffer = vec![0; 20_000];
        assert_eq!(multicast.receive(root, &mut buffer).unwrap(), (root, wanted.len()));
        assert!(buffer[..wanted.len()] == wanted, "message {number} of {root}");
    }
}

/// Receives the messages of all others, as they come.
fn receive_any(multicast: &Multicast, count: usize) {
    let n = multicast.group().size();
    let mut next = vec![0; n];
    for _ in 0..count * (n - 1) {
        let mut buffer = vec![0; 20_000];
        let (root, len) = multicast.receive(None, &mut buffer).unwrap();
        let number = next[root];
        assert!(buffer[..len] == message(root, number), "message {number} of {root}");
        next[root] += 1;
    }
    next[multicast.group().member()] = count;
    assert!(next.iter().all(|next| *next == count));
}

const FORMS: [Form; 3] = [Form::Tree, Form::MultiSend, Form::RepeatedSend];

/// every member sends to all others, all at once, with a small window and fewer roots
/// than members; all messages arrive in order and unaltered.
#[test]
fn every_member_sends_to_all() {
    for n in [1, 2, 3, 5, 8] {
        run(n, |job| {
            let (ep, world) = enter(job);
            for form in FORMS {
                let multicast = world.multicast(MulticastConfig { form, window: 2048, roots: 2 }).unwrap();
                let me = multicast.group().member();
                if form == Form::RepeatedSend {
                    // A program that sends long messages by itself must not do so at the same time as others.
                    for root in 0..n {
                        if root == me {
                            (0..6).for_each(|number| multicast.send(&message(me, number)).unwrap());
                        } else {
                            receive_all(&multicast, root, 6);
                        }
                    }
                } else {
                    let sends: Vec<_> =
                        (0..6).map(|number| multicast.start_send(message(me, number)).unwrap()).collect();
                    receive_any(&multicast, 6);
                    sends.into_iter().for_each(|send| send.wait().unwrap());
                }
                multicast.close().unwrap();
            }
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// a receive of any member, and one whose buffer is too short.
#[test]
fn receives_of_any_member() {
    run(3, |job| {
        let (ep, world) = enter(job);
        for form in FORMS {
            let multicast = world.multicast(MulticastConfig { form, ..MulticastConfig::default() }).unwrap();
            let me = multicast.group().member();
            if me == 2 {
                let mut buffer = vec![0; 3];
                let mut seen = [0; 2];
                for _ in 0..2 {
                    let (from, len) = multicast.receive(None, &mut buffer).unwrap();
                    assert_eq!((len, &buffer[..]), (3, [from as u8 + 1; 3].as_slice()));
                    seen[from] += 1;
                }
                assert_eq!(seen, [1, 1]);
                world.barrier().unwrap();
                let mut short = vec![9; 2];
                let error = multicast.receive(1, &mut short).unwrap_err();
                assert!(matches!(error, Error::Truncated(status) if status.len == 4), "{error:?}");
                assert_eq!(short, [7; 2]);
                assert!(multicast.receive(2, &mut short).is_err(), "a member sends nothing to itself");
                multicast.receive(1, &mut short).unwrap();
                assert_eq!(short, [8; 2]);
            } else {
                multicast.send(&[me as u8 + 1; 3]).unwrap();
                let mut buffer = vec![0; 3];
                multicast.receive(1 - me, &mut buffer).unwrap();
                // Messages of different members are not ordered: the first ones are to be received first.
                world.barrier().unwrap();
                if me == 1 {
                    multicast.send(&[7; 4]).unwrap();
                    multicast.send(&[8; 2]).unwrap();
                } else {
                    let mut buffer = vec![0; 4];
                    for _ in 0..2 {
                        multicast.receive(1, &mut buffer).unwrap();
                    }
                }
            }
            multicast.close().unwrap();
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// nodes forward while their programs do nothing. Members 2 and 1 of four, which member 0's tree passes
/// through, make no call until member 3 has received everything.
#[test]
fn idle_programs_forward() {
    for device in [DeviceName::Shm, DeviceName::Udp] {
        let received = AtomicU32::new(0);
        run_over(device, 4, |job| {
            let (ep, world) = enter(job);
            let multicast = world.multicast(MulticastConfig::default()).unwrap();
            let me = multicast.group().member();
            match me {
                0 => (0..20).for_each(|number| multicast.send(&message(0, number)).unwrap()),
                3 => {
                    receive_all(&multicast, 0, 20);
                    received.store(1, Ordering::Release);
                }
                _ => {
                    while received.load(Ordering::Acquire) == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    receive_all(&multicast, 0, 20);
                }
            }
            multicast.close().unwrap();
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// a member that receives nothing holds the root back after a window, and lets it go on when it
/// receives.
#[test]
fn a_slow_member_holds_the_root_back() {
    run(3, |job| {
        let (ep, world) = enter(job);
        let config = MulticastConfig { window: 4096, ..MulticastConfig::default() };
        let multicast = world.multicast(config).unwrap();
        let me = multicast.group().member();
        if me == 0 {
            let sends: Vec<_> = (0..40).map(|_| multicast.start_send(vec![5; 1000]).unwrap()).collect();
            // Members 1 and 2 wait here until these have gone as far as they go.
            let ended = |sends: &[tautline::group::MulticastSend]| {
                sends.iter().filter(|send| send.test().unwrap()).count()
            };
            assert!((1..=4).contains(&ended(&sends)), "as much as fits the window");
            world.barrier().unwrap();
            assert!((1..=4).contains(&ended(&sends)), "member 2 has taken nothing");
            world.barrier().unwrap();
            sends.into_iter().for_each(|send| send.wait().unwrap());
            multicast.flush().unwrap();
        } else {
            let mut buffer = vec![0; 1000];
            if me == 1 {
                // One member alone opens no window.
                for _ in 0..3 {
                    multicast.receive(0, &mut buffer).unwrap();
                }
            }
            world.barrier().unwrap();
            world.barrier().unwrap();
            for _ in if me == 1 { 3..40 } else { 0..40 } {
                assert_eq!(multicast.receive(0, &mut buffer).unwrap(), (0, 1000));
                assert!(buffer.iter().all(|byte| *byte == 5));
            }
        }
        multicast.close().unwrap();
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// a member that leaves makes sends and receives of all others fail, of roots and of members that only
/// wait.
#[test]
fn a_member_leaves() {
    for (device, n) in [(DeviceName::Shm, 5), (DeviceName::Udp, 4), (DeviceName::Shm, 2)] {
        for victim in [n - 1, 0] {
            run_over(device, n, |job| {
                let (ep, world) = enter(job);
                let multicast =
                    world.multicast(MulticastConfig { window: 2048, ..MulticastConfig::default() }).unwrap();
                let me = multicast.group().member();
                // The first member that misses the victim makes calls of the multicast's group fail, also the
                // one that prepares it, if another member is not done with that.
                world.barrier().unwrap();
                if me == victim {
                    return ep.close().unwrap();
                }
                let check_gone = |error: Error| {
                    assert!(matches!(error, Error::PeerGone(rank, _) if rank == victim as u32), "{error:?}");
                };
                if me == 1 && n > 2 {
                    // Nobody receives, so it waits for its window.
                    let sent = (0..20).find_map(|_| multicast.send(&[1; 1000]).err());
                    check_gone(sent.unwrap());
                } else {
                    let mut buffer = vec![0; 10];
                    check_gone(multicast.receive(victim, &mut buffer).unwrap_err());
                }
                check_gone(multicast.send(b"more").unwrap_err());
                drop(multicast);
                // The others go on without it.
                let rest = world.shrink().unwrap();
                assert_eq!(rest.size(), n - 1);
                let multicast = rest.multicast(MulticastConfig::default()).unwrap();
                if rest.member() == 0 {
                    multicast.send(b"again").unwrap();
                } else {
                    let mut buffer = vec![0; 5];
                    multicast.receive(0, &mut buffer).unwrap();
                    assert_eq!(buffer, b"again");
                }
                multicast.close().unwrap();
                match ep.close() {
                    Ok(()) | Err(Error::Undelivered(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            });
        }
    }
}
