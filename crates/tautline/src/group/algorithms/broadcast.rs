//! Broadcasts.

use super::{all_gather, scatter};
use crate::group::plan::{Draft, cut, low_bit};

/// A binomial tree: log2(n) messages one after the other, each with all bytes.
pub(in crate::group) fn binomial(draft: &mut Draft, root: usize, len: usize) {
    let block = draft.block(len);
    let all = block..block + 1;
    if draft.me == root {
        draft.plan.input.push(block);
    }
    draft.plan.output.push(block);
    let relative = draft.before(root);
    let bit = low_bit(relative, draft.members);
    if relative > 0 {
        draft.receive((relative - bit + root) % draft.members, all.clone());
        draft.wait();
    }
    let mut half = bit / 2;
    while half > 0 {
        if relative + half < draft.members {
            draft.send((relative + half + root) % draft.members, all.clone());
        }
        half /= 2;
    }
}

/// A scatter along a binomial tree, then an all-gather around a ring: each member receives the bytes about
/// twice, whatever the number of members.
pub(in crate::group) fn scatter_all_gather(draft: &mut Draft, root: usize, len: usize) {
    let (members, relative) = (draft.members, draft.before(root));
    let first = draft.blocks(cut(len, 1, members));
    if draft.me == root {
        draft.plan.input.extend(first..first + members as u32);
    }
    draft.plan.output.extend(first..first + members as u32);
    scatter::tree(draft, root, first);
    draft.wait();
    all_gather::ring_of(draft, relative, first);
}
