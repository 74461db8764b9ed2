//! Scatters.

use crate::group::plan::{Block, Draft, low_bit};

/// A binomial tree, for parts of equal size.
pub(in crate::group) fn binomial(draft: &mut Draft, root: usize, len: usize) {
    let members = draft.members;
    let first = draft.blocks(vec![len; members]);
    if draft.me == root {
        draft
            .plan
            .input
            .extend((0..members).map(|member| first + ((member + members - root) % members) as Block));
    }
    draft.plan.output.push(first + draft.before(root) as Block);
    tree(draft, root, first);
}

/// The steps of a binomial scatter. Blocks from `first` on are those of the members from the root on, in a
/// circle.
pub(super) fn tree(draft: &mut Draft, root: usize, first: Block) {
    let (members, relative) = (draft.members, draft.before(root));
    let bit = low_bit(relative, members);
    let part =
        |from: usize, count: usize| first + from as Block..first + (from + count).min(members) as Block;
    if relative > 0 {
        draft.receive((relative - bit + root) % members, part(relative, bit));
        draft.wait();
    }
    let mut half = bit / 2;
    while half > 0 {
        if relative + half < members {
            draft.send((relative + half + root) % members, part(relative + half, half));
        }
        half /= 2;
    }
}

/// The root sends to each member, for parts of any sizes: `lens` at the root, `len` for this member.
pub(in crate::group) fn linear(draft: &mut Draft, root: usize, lens: &[usize], len: usize) {
    if draft.me != root {
        let block = draft.block(len);
        draft.plan.output.push(block);
        draft.receive(root, block..block + 1);
        return;
    }
    let first = draft.blocks(lens.iter().copied());
    draft.plan.input.extend(first..first + lens.len() as Block);
    draft.plan.output.push(first + root as Block);
    for distance in 1..draft.members {
        let to = draft.after(distance);
        draft.send(to, first + to as Block..first + to as Block + 1);
    }
}
