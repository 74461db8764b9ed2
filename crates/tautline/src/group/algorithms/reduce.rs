//! Reductions to one member.

use crate::group::plan::{Block, Draft, Into, low_bit};

/// A binomial tree. Operands are combined in the order of the members counted from `first`, which then has
/// the result; if that is not the root, it sends the result there.
pub(in crate::group) fn binomial(draft: &mut Draft, root: usize, len: usize, commutative: bool) {
    let first = if commutative { root } else { 0 };
    let (members, relative) = (draft.members, draft.before(first));
    let own = draft.block(len);
    draft.plan.input.push(own);
    let bit = low_bit(relative, members);
    let children: Vec<usize> = std::iter::successors(Some(1), |half| Some(half * 2))
        .take_while(|half| *half < bit && relative + half < members)
        .collect();
    let theirs = draft.blocks(vec![len; children.len()]);
    for (half, block) in children.iter().zip(theirs..) {
        draft.receive((relative + half + first) % members, block..block + 1);
    }
    draft.wait();
    for block in theirs..theirs + children.len() as Block {
        draft.fold(own, block, 1, Into::Lower);
    }
    if relative > 0 {
        draft.send((relative - bit + first) % members, own..own + 1);
    }
    if draft.me == root {
        if root != first {
            draft.wait();
            let result = draft.block(len);
            draft.receive(first, result..result + 1);
            draft.plan.output.push(result);
        } else {
            draft.plan.output.push(own);
        }
    } else if relative == 0 {
        draft.send(root, own..own + 1);
    }
}
