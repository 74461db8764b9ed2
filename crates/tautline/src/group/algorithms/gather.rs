//! Gathers.

use crate::group::plan::{Block, Draft, low_bit};

/// A binomial tree, for parts of equal size.
pub(in crate::group) fn binomial(draft: &mut Draft, root: usize, len: usize) {
    let (members, relative) = (draft.members, draft.before(root));
    let first = draft.blocks(vec![len; members]);
    draft.plan.input.push(first + relative as Block);
    let part =
        |from: usize, count: usize| first + from as Block..first + (from + count).min(members) as Block;
    let bit = low_bit(relative, members);
    let mut half = 1;
    while half < bit {
        if relative + half < members {
            draft.receive((relative + half + root) % members, part(relative + half, half));
        }
        half *= 2;
    }
    draft.wait();
    if relative > 0 {
        draft.send((relative - bit + root) % members, part(relative, bit));
    } else {
        draft
            .plan
            .output
            .extend((0..members).map(|member| first + ((member + members - root) % members) as Block));
    }
}

/// Each member sends to the root, for parts of any sizes: `lens` at the root, `len` for this member.
pub(in crate::group) fn linear(draft: &mut Draft, root: usize, lens: &[usize], len: usize) {
    if draft.me != root {
        let block = draft.block(len);
        draft.plan.input.push(block);
        return draft.send(root, block..block + 1);
    }
    let first = draft.blocks(lens.iter().copied());
    draft.plan.input.push(first + root as Block);
    draft.plan.output.extend(first..first + lens.len() as Block);
    for distance in 1..draft.members {
        let from = draft.after(distance);
        draft.receive(from, first + from as Block..first + from as Block + 1);
    }
}
