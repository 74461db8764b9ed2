//! All-gathers, for parts of any sizes that all members know.

use crate::group::plan::{Block, Draft};

/// Bruck's algorithm: log2(n) rounds for any number of members, each doubling what is known.
pub(in crate::group) fn bruck(draft: &mut Draft, lens: &[usize]) {
    let (me, members) = (draft.me, draft.members);
    // Block `i` is that of the member `i` after this one.
    let first = draft.blocks((0..members).map(|i| lens[(me + i) % members]));
    draft.plan.input.push(first);
    draft.plan.output.extend((0..members).map(|member| first + ((member + members - me) % members) as Block));
    let mut distance = 1;
    while distance < members {
        let count = distance.min(members - distance) as Block;
        let start = first + distance as Block;
        draft.receive(draft.after(distance), start..start + count);
        draft.send(draft.before(distance), first..first + count);
        draft.wait();
        distance *= 2;
    }
}

/// A ring: n - 1 rounds, each member sends to the next one and each part goes along each edge once.
pub(in crate::group) fn ring(draft: &mut Draft, lens: &[usize]) {
    let (me, members) = (draft.me, draft.members);
    let first = draft.blocks(lens.iter().copied());
    draft.plan.input.push(first + me as Block);
    draft.plan.output.extend(first..first + members as Block);
    ring_of(draft, me, first);
}

/// The steps of a ring. This member has block `own` of those from `first` on, and the next member the next.
pub(super) fn ring_of(draft: &mut Draft, own: usize, first: Block) {
    let members = draft.members;
    let block = |back: usize| first + ((own + members - back) % members) as Block;
    for round in 0..members - 1 {
        let (sent, received) = (block(round), block(round + 1));
        draft.receive(draft.before(1), received..received + 1);
        draft.send(draft.after(1), sent..sent + 1);
        draft.wait();
    }
}
