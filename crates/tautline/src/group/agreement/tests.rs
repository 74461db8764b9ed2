//! Agreements of members in threads, some of which are played by the tests.

use std::sync::Barrier;

use super::*;
use crate::group::Call;
use crate::group::tests::jobs::run;
use crate::tags::ANY;

/// What member 0 decides.
fn decision(group: &Inner) -> Decision {
    let id = groups(&group.tags).give_id(group.members[group.me], group.tags.node().size()).unwrap();
    Decision { by: 0, value: 77, id: id.to_bytes(), lost: vec![false; group.members.len()] }
}

/// G-11: a member that takes a decision sends it on: the coordinator has told nobody else.
#[test]
fn decisions_are_sent_on() {
    let told = Barrier::new(2);
    run(3, |world| {
        if world.member() == 0 {
            let tags = &world.0.collective;
            let reports = [1, 2].map(|member| {
                tags.start_receive(member, AGREEMENT | Agreement::REPORT, vec![0; 8 + 3])?.wait()
            });
            let bytes = decision(&world.0).to_bytes();
            let sent = tags.send_buffered(2, AGREEMENT | Agreement::DECISION, &bytes);
            told.wait();
            assert!(reports.iter().all(Result::is_ok) && sent.is_ok(), "{reports:?}, {sent:?}");
        } else {
            let agreed = world.agree(1);
            if world.member() == 2 {
                told.wait();
            }
            assert_eq!(agreed.unwrap(), (77, vec![]));
        }
        // The others close, so a member that still waits decides alone.
    });
}

/// G-9, G-11: a coordinator that learns of a decision of a former one makes it its own.
#[test]
fn coordinators_adopt_decisions() {
    let over = Barrier::new(3);
    run(3, |world| {
        let tags = &world.0.collective;
        match world.member() {
            1 => {
                world.exclude(0).unwrap();
                let agreed = world.agree(1);
                over.wait();
                assert_eq!(agreed.unwrap(), (77, vec![]));
            }
            2 => {
                let theirs = Agreement::listen(&world.0, AGREEMENT).unwrap();
                let bytes = decision(&world.0).to_bytes();
                tags.send_buffered(1, AGREEMENT | Agreement::DECISION, &bytes).unwrap();
                let theirs = theirs.wait();
                over.wait();
                let theirs = Decision::from_bytes(&theirs.unwrap().1).unwrap();
                assert_eq!((theirs.by, theirs.value, theirs.lost), (1, 77, vec![false; 3]));
            }
            _ => drop(over.wait()),
        }
    });
}

/// E-17, G-8: members that wait for tagged messages of a group learn that it was revoked, as do those
/// that use them later. Those of other groups go on, and so does agreement.
#[test]
fn a_revoked_group_exchanges_no_tagged_messages() {
    run(3, |world| {
        let group = world.duplicate().unwrap();
        let is_revoked = |error: Error| matches!(error, Error::Revoked);
        match world.member() {
            0 => group.revoke(),
            1 => assert!(group.tags().receive(ANY, 1, &mut Vec::new()).is_err_and(is_revoked)),
            _ => assert!(group.tags().probe(1, ANY).is_err_and(is_revoked)),
        }
        for other in (0..3).filter(|other| *other != world.member() as u32) {
            assert!(group.tags().send(other, 1, b"late").is_err_and(is_revoked));
            assert!(group.tags().receive(other, 1, &mut Vec::new()).is_err_and(is_revoked));
            world.tags().send(other, 1, b"on").unwrap();
        }
        for other in (0..3).filter(|other| *other != world.member() as u32) {
            let mut bytes = vec![0; 2];
            world.tags().receive(other, 1, &mut bytes).unwrap();
            assert_eq!(bytes, b"on");
        }
        assert!(group.barrier().is_err_and(is_revoked));
        let shrunk = group.shrink().unwrap();
        assert_eq!(shrunk.ranks(), world.ranks());
        shrunk.barrier().unwrap();
    });
}

/// G-13: a rank that was excluded, and decides alone because the others have closed, names the one that
/// said so first.
#[test]
fn an_excluded_rank_does_not_name_itself() {
    run(2, |world| {
        if world.member() == 1 {
            world.0.note_excluded(0);
            for _ in 0..2 {
                let shrunk = world.shrink().map(|group| group.size());
                assert!(matches!(shrunk, Err(Error::Excluded(0))), "{shrunk:?}");
            }
        }
    });
}

/// G-9: nobody waits for a member whose loss a report tells.
#[test]
fn reported_losses_count() {
    let over = Barrier::new(3);
    run(3, |world| match world.member() {
        2 => drop(over.wait()),
        me => {
            if me == 1 {
                world.exclude(2).unwrap();
            }
            let agreed = world.agree(1);
            over.wait();
            assert_eq!(agreed.unwrap(), (1, vec![2]));
        }
    });
}

/// G-11: whoever has reported to a coordinator takes no decision of an earlier one, unless the
/// coordinator has taken it.
#[test]
fn old_decisions_are_not_taken() {
    run(1, |world| {
        let group = &*world.0;
        let id = groups(&group.tags).give_id(0, 1).unwrap();
        let decided = Agreement::listen(group, AGREEMENT).unwrap();
        let old = decision(group);
        let newer = Decision { by: 2, ..old.clone() };
        let (lost, decisive) = (vec![false; 3], vec![None; 3]);
        let (tag, value, known) = (AGREEMENT, 0, vec![old.clone()]);
        let mut agreement = Agreement { group, tag, value, id, lost, decided, decisive, known };
        assert_eq!(agreement.acceptable(0), Some(&old));
        assert_eq!(agreement.acceptable(1), None);
        agreement.decisive[1] = Some(0);
        assert_eq!(agreement.acceptable(1), Some(&old));
        agreement.known.push(newer.clone());
        assert_eq!(agreement.acceptable(1), Some(&newer));
    });
}

#[test]
fn decisions_survive_the_wire() {
    let decision = Decision { by: 2, value: 1 << 63 | 5, id: [1, 2, 3, 4], lost: vec![true, false, true] };
    assert_eq!(Decision::from_bytes(&decision.to_bytes()), Some(decision));
    assert_eq!(Decision::from_bytes(&[0; HEAD - 1]), None);
}

/// G-6, G-12, G-13: members that agree learn that one of them is excluded, whichever of them it is: nobody
/// waits for it, and it learns of it.
#[test]
fn members_are_excluded_before_they_agree() {
    for excluded in [0, 1] {
        let (noted, over) = (Barrier::new(3), Barrier::new(3));
        run(3, |world| {
            if world.member() == 2 {
                world.exclude(excluded).unwrap();
            }
            noted.wait();
            let agreed = world.agree(1);
            over.wait();
            if world.member() == excluded {
                assert!(matches!(agreed, Err(Error::Excluded(_))), "{agreed:?}");
            } else {
                assert_eq!(agreed.unwrap(), (1, vec![excluded]));
            }
        });
    }
}

/// G-12: members that agree already no longer wait for one that does not answer, once a thread of one of them
/// has excluded it.
#[test]
fn members_are_excluded_while_the_others_agree() {
    for excluded in [0, 1] {
        let (reported, over) = (Barrier::new(2), Barrier::new(3));
        run(3, |world| {
            let me = world.member();
            std::thread::scope(|scope| {
                if me == excluded {
                    for member in (0..3_u32).filter(|member| excluded == 0 && *member > 0) {
                        world.0.collective.probe(member, AGREEMENT | Agreement::REPORT).unwrap();
                    }
                    reported.wait();
                    over.wait();
                    let agreed = world.agree(1);
                    assert!(matches!(agreed, Err(Error::Excluded(_))), "{agreed:?}");
                    return;
                }
                if me == 2 {
                    scope.spawn(|| {
                        reported.wait();
                        world.exclude(excluded).unwrap();
                    });
                }
                let agreed = world.agree(1);
                over.wait();
                assert_eq!(agreed.unwrap(), (1, vec![excluded]));
            });
        });
    }
}

/// G-7: a member that is told that it is excluded sends that on: the one that told it may have told nobody
/// else.
#[test]
fn an_excluded_member_tells_the_others() {
    let over = Barrier::new(3);
    run(3, |world| {
        if world.member() == 2 {
            let notice = crate::group::failure::exclusion(0);
            world.0.notices.send_buffered(0, 0, &notice).unwrap();
        }
        let agreed = world.agree(1);
        over.wait();
        if world.member() == 0 {
            assert!(matches!(agreed, Err(Error::Excluded(2))), "{agreed:?}");
        } else {
            assert_eq!(agreed.unwrap(), (1, vec![0]));
        }
    });
}

/// G-21: a member that waits in an agreement, or for the id of a group that is created, advances the
/// collectives that it has started: the others wait for them first.
#[test]
fn agreements_advance_what_was_started() {
    run(4, |world| {
        let started = |call: &dyn Fn()| {
            let barrier = world.start(&Call::Barrier, Vec::new()).unwrap();
            if world.member() == 0 {
                call();
                barrier.wait().unwrap();
            } else {
                barrier.wait().unwrap();
                call();
            }
        };
        started(&|| assert_eq!(world.agree(7).unwrap(), (7, vec![])));
        started(&|| assert_eq!(world.shrink().unwrap().size(), 4));
        started(&|| assert_eq!(Group::create(&world.0.tags, &[1, 0, 2, 3], 5).unwrap().size(), 4));
    });
}
