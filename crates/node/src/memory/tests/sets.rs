//! Tripsets against a model, and the cost of removal among many.

use super::*;

/// Describes a polled tripwire.
fn plain(start: u64, len: u64) -> Trip {
    Trip::new(start, len)
}

/// A tripset of the model.
struct ModelledSet {
    id: SetId,
    cell: Arc<WireCell>,
    members: Vec<WireId>,
    fired: Vec<WireId>,
    need: usize,
    times: u64,
}

/// T-4: a set is ready as often as a model's, and over when that is, while random tripwires and sets are
/// added and removed.
#[test]
fn tripsets_match_a_model() {
    const WORDS: u64 = 12;
    let ep = node();
    let mut rng = Rng(0x5e75);
    let memory = Arc::new(ApertureMemory::adopt(vec![0; 8 * WORDS as usize]).unwrap());
    let aperture = ep.open_aperture(memory).unwrap();
    let cookie = ep.grant_cookie(aperture, (0, 8 * WORDS), Rights::ALL, None).unwrap();
    let mut peer = Peer { rank: 1, id: 0 };
    peer.open(&ep, 0, cookie.key());
    let mut wires: Vec<(WireId, u64)> = Vec::new();
    let mut sets: Vec<ModelledSet> = Vec::new();
    for step in 0..20_000 {
        match rng.below(10) {
            0 | 1 if wires.len() < 20 => {
                let word = rng.below(WORDS);
                wires.push((ep.arm_wire(aperture, plain(8 * word, 8)).unwrap().0, word));
            }
            2 if !wires.is_empty() => {
                let (gone, _) = wires.swap_remove(rng.below(wires.len() as u64) as usize);
                assert!(ep.disarm_wire(gone));
                for set in &mut sets {
                    set.members.retain(|member| *member != gone);
                    set.fired.retain(|member| *member != gone);
                }
            }
            3 if sets.len() < 8 => {
                let members: Vec<_> = wires.iter().map(|it| it.0).filter(|_| rng.below(2) == 0).collect();
                let need = rng.below(5) as usize;
                match ep.make_set(&members, need, Report::Poll, 0) {
                    None => assert!(need == 0 || need > members.len(), "step {step}"),
                    Some((id, cell)) => {
                        sets.push(ModelledSet { id, cell, members, fired: Vec::new(), need, times: 0 });
                    }
                }
            }
            4 if !sets.is_empty() => {
                let gone = sets.swap_remove(rng.below(sets.len() as u64) as usize);
                assert!(ep.dissolve_set(gone.id));
            }
            _ => {
                let word = rng.below(WORDS);
                let target = peer.target(0, 8 * word);
                peer.say(&ep, &Message::Put(target, &[]), 0, &[1; 8]);
                // In the order of names, in which they fire.
                let mut hit: Vec<_> = wires.iter().filter(|it| it.1 == word).map(|it| it.0).collect();
                hit.sort_by_key(|wire| wire.0.index);
                for set in &mut sets {
                    for wire in hit.iter().filter(|wire| set.members.contains(wire)) {
                        if !set.fired.contains(wire) {
                            set.fired.push(*wire);
                        }
                        if set.fired.len() >= set.need {
                            set.fired.clear();
                            set.times += 1;
                        }
                    }
                }
            }
        }
        for set in &sets {
            let over = set.members.len() < set.need;
            assert_eq!((set.cell.fires(), set.cell.is_over()), (set.times, over), "step {step}");
        }
    }
    assert!(ep.make_set(&[wires[0].0, wires[0].0], 1, Report::Poll, 0).is_none());
    // Closing the aperture disarms the remaining tripwires and ends their sets.
    ep.close_aperture(aperture);
    assert!(sets.iter().all(|set| set.cell.is_over()));
    assert_eq!(ep.with(|it| it.tripwires.len()), 0);
}

/// T-3: the cost of removing a tripwire, a cookie or an aperture does not depend on the number of others. If
/// it did, this test would not end in time.
#[test]
fn removal_cost_does_not_depend_on_count() {
    const MANY: u64 = 1 << 18;
    let (done, wait) = std::sync::mpsc::channel();
    let work = std::thread::spawn(move || {
        let ep = node();
        let open = || {
            let memory = Arc::new(ApertureMemory::adopt(vec![0; 64]).unwrap());
            ep.open_aperture(memory).unwrap()
        };
        let aperture = open();
        let arm = || ep.arm_wire(aperture, plain(0, 8)).unwrap().0;
        let cookies: Vec<_> =
            (0..MANY).map(|_| ep.grant_cookie(aperture, (0, 64), Rights::ALL, None).unwrap()).collect();
        assert!(cookies.iter().all(|cookie| ep.revoke_cookie(aperture, cookie)));
        assert!(!ep.revoke_cookie(aperture, &cookies[0]));
        {
            let wires: Vec<_> = (0..MANY).map(|_| arm()).collect();
            let (set, cell) = ep.make_set(&wires, wires.len(), Report::Poll, 0).unwrap();
            let others: Vec<_> = (0..crate::limits::MAX_APERTURES as u64 / 2).map(|_| open()).collect();
            others.into_iter().for_each(|other| ep.close_aperture(other));
            assert!(wires.iter().all(|wire| ep.disarm_wire(*wire)));
            assert!(cell.is_over() && ep.dissolve_set(set));
        }
        let cells: Vec<_> = (0..MANY).map(|_| ep.arm_wire(aperture, plain(0, 8)).unwrap().1).collect();
        ep.close_aperture(aperture);
        assert!(cells.iter().all(|cell| cell.is_over()));
        done.send(()).unwrap();
    });
    wait.recv_timeout(std::time::Duration::from_secs(200)).expect("it is done long before");
    work.join().unwrap();
}
