//! Live ranks that the other members of a group exclude.

use crate::common::{config, join, run_over};
use tautline::group::{Group, Sum};
use tautline::tags::ANY;
use tautline::{DeviceName, Endpoint, Error, Result};

/// What the excluded rank waits in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waits {
    Collective,
    Receive,
    /// A send that ends when it is matched.
    Send,
    Probe,
    Agreement,
}

fn wait(group: &Group, other: u32, waits: Waits) -> Result<()> {
    let tags = group.tags();
    match waits {
        Waits::Collective => group.all_reduce(&mut [1_u32], Sum),
        Waits::Receive => tags.receive(other, 1, &mut vec![0; 8]).map(drop),
        Waits::Send => tags.send(other, 2, &vec![1; 1 << 20]),
        Waits::Probe => tags.probe(other, 1).map(drop),
        Waits::Agreement => group.agree(0).map(drop),
    }
}

/// G-12, G-13, E-13, E-14: a live rank learns that the others have excluded it, whatever call it waits in.
/// Nothing that it sent or sends in the group is received, its later calls fail at once, and the others go
/// on, also if it would have been the coordinator.
#[test]
fn an_excluded_rank_is_told_and_fenced() {
    use Waits::{Agreement, Collective, Probe, Receive, Send};
    for (round, waits) in [Collective, Receive, Send, Probe, Agreement].into_iter().enumerate() {
        for device in [DeviceName::Shm, DeviceName::Udp] {
            let excluded = if round % 2 == 0 { 0 } else { 2 };
            run_over(device, 4, |job| {
                let ep = join(Endpoint::builder().config(config(|_| {})), job);
                let world = ep.world().unwrap();
                let group = world.duplicate().unwrap();
                let (me, other) = (group.member(), 3);
                if me == excluded {
                    // Nobody ever receives these.
                    group.tags().send(other, 9, b"early").unwrap();
                    let long = group.tags().start_send(other, 9, vec![1; 1 << 20]).unwrap();
                    world.barrier().unwrap();
                    let check = |result: Result<()>| {
                        assert!(matches!(result, Err(Error::Excluded(_))), "{waits:?}: {result:?}");
                    };
                    check(wait(&group, other, waits));
                    if waits == Collective {
                        // The notice of a member may come before the decision.
                        check(wait(&group, other, Receive));
                    }
                    check(long.wait().map(drop));
                    check(group.barrier());
                    check(group.tags().send(other, 9, b"late"));
                    check(group.shrink().map(drop));
                } else {
                    world.barrier().unwrap();
                    if me == 1 {
                        group.exclude(excluded).unwrap();
                    }
                    assert!(group.barrier().is_err());
                    let rest = group.shrink().unwrap();
                    assert_eq!(rest.size(), 3);
                    rest.barrier().unwrap();
                    let sent = group.tags().send(excluded as u32, 1, &[0; 8]);
                    assert!(matches!(sent, Err(Error::PeerGone(..))), "{sent:?}");
                    // Further agreements do not wait for it.
                    assert_eq!(group.agree(7).unwrap(), (7, vec![excluded]));
                    let mut sum = [1_u32];
                    rest.all_reduce(&mut sum, Sum).unwrap();
                    assert_eq!(sum, [3]);
                    assert_eq!(group.tags().try_probe(ANY, 9).unwrap(), None);
                }
                // Other groups are not concerned.
                world.barrier().unwrap();
                assert_eq!(group.tags().try_probe(ANY, 9).unwrap(), None);
                ep.close().unwrap();
            });
        }
    }
}

/// A member excludes others that there are, and not itself.
#[test]
fn impossible_exclusions_are_refused() {
    run_over(DeviceName::Shm, 2, |job| {
        let ep = join(Endpoint::builder().config(config(|_| {})), job);
        let world = ep.world().unwrap();
        for member in [world.member(), 2] {
            let error = world.exclude(member).unwrap_err().to_string();
            assert!(error.contains(&format!("member {member} cannot be excluded")), "{error}");
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}
