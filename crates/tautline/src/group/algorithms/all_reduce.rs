//! Reductions to all members.

use super::all_gather;
use crate::group::plan::{Block, Draft, cut};

/// Members beyond the largest power of two are paired with their neighbours, of which one takes part in the
/// rounds for both.
struct Pairs {
    /// Members in the rounds.
    power: usize,
    /// Members that another one takes part for.
    rest: usize,
}

impl Pairs {
    fn new(members: usize) -> Pairs {
        let power = 1 << members.ilog2();
        Pairs { power, rest: members - power }
    }

    /// The number of a member in the rounds.
    fn number(&self, member: usize) -> Option<usize> {
        match member < 2 * self.rest {
            true => (member % 2 == 1).then_some(member / 2),
            false => Some(member - self.rest),
        }
    }

    /// The member with a number.
    fn member(&self, number: usize) -> usize {
        if number < self.rest { 2 * number + 1 } else { number + self.rest }
    }

    /// Combines the operands of a pair in its member with a number.
    fn before(&self, draft: &mut Draft, own: Block, theirs: Block, count: Block) {
        if draft.me >= 2 * self.rest {
            return;
        }
        if draft.me.is_multiple_of(2) {
            draft.send(draft.me + 1, own..own + count);
        } else {
            draft.receive(draft.me - 1, theirs..theirs + count);
            draft.wait();
            draft.fold_from(draft.me - 1, own, theirs, count);
        }
    }

    /// Gives the result to the member without a number.
    fn after(&self, draft: &mut Draft, own: Block, count: Block) {
        if draft.me >= 2 * self.rest {
            return;
        }
        draft.wait();
        if draft.me.is_multiple_of(2) {
            draft.receive(draft.me + 1, own..own + count);
        } else {
            draft.send(draft.me - 1, own..own + count);
        }
    }
}

/// Recursive doubling: log2(n) rounds in which pairs exchange all they have. Keeps the order of operands, and
/// all members compute the same.
pub(in crate::group) fn recursive_doubling(draft: &mut Draft, len: usize) {
    let pairs = Pairs::new(draft.members);
    let (own, theirs) = (draft.block(len), draft.block(len));
    draft.plan.input.push(own);
    draft.plan.output.push(own);
    pairs.before(draft, own, theirs, 1);
    if let Some(number) = pairs.number(draft.me) {
        let mut distance = 1;
        while distance < pairs.power {
            let peer = pairs.member(number ^ distance);
            draft.receive(peer, theirs..theirs + 1);
            draft.send(peer, own..own + 1);
            draft.wait();
            draft.fold_from(peer, own, theirs, 1);
            distance *= 2;
        }
    }
    pairs.after(draft, own, 1);
}

/// Rabenseifner's algorithm: a reduce-scatter by recursive halving, then an all-gather by recursive doubling.
/// Each member sends about twice the bytes. Does not keep the order of operands.
pub(in crate::group) fn halving_doubling(draft: &mut Draft, len: usize, unit: usize) {
    let pairs = Pairs::new(draft.members);
    let power = pairs.power as Block;
    let sizes = cut(len, unit, pairs.power);
    let (own, theirs) = (draft.blocks(sizes.clone()), draft.blocks(sizes));
    draft.plan.input.extend(own..own + power);
    draft.plan.output.extend(own..own + power);
    pairs.before(draft, own, theirs, power);
    if let Some(number) = pairs.number(draft.me) {
        let number = number as Block;
        // Before each round of halving this member has the blocks from `start` on, twice `half` of them.
        let mut half = power / 2;
        while half > 0 {
            let start = number / (2 * half) * (2 * half);
            let upper = number & half != 0;
            let (kept, given) = if upper { (start + half, start) } else { (start, start + half) };
            let peer = pairs.member((number ^ half) as usize);
            draft.receive(peer, theirs + kept..theirs + kept + half);
            draft.send(peer, own + given..own + given + half);
            draft.wait();
            draft.fold_from(peer, own + kept, theirs + kept, half);
            half /= 2;
        }
        let mut half = 1;
        while half < power {
            let start = number / half * half;
            let peer = pairs.member((number ^ half) as usize);
            let other = start ^ half;
            draft.receive(peer, own + other..own + other + half);
            draft.send(peer, own + start..own + start + half);
            draft.wait();
            half *= 2;
        }
    }
    pairs.after(draft, own, power);
}

/// A ring: a reduce-scatter and an all-gather, n - 1 rounds each. Each member sends twice the bytes, for any
/// number of members. Does not keep the order of operands.
pub(in crate::group) fn ring(draft: &mut Draft, len: usize, unit: usize) {
    let (me, members) = (draft.me, draft.members);
    let sizes = cut(len, unit, members);
    let own = draft.blocks(sizes.clone());
    draft.plan.input.extend(own..own + members as Block);
    draft.plan.output.extend(own..own + members as Block);
    // Blocks have at most three sizes, and one that is received is reduced before the next comes.
    let mut scratch: Vec<(usize, Block)> = Vec::new();
    let mut scratch_for = |draft: &mut Draft, size: usize| match scratch.iter().find(|(of, _)| *of == size) {
        Some((_, block)) => *block,
        None => {
            let block = draft.block(size);
            scratch.push((size, block));
            block
        }
    };
    for round in 0..members - 1 {
        let sent = own + ((me + members - round) % members) as Block;
        let number = (me + members - round - 1) % members;
        let (received, theirs) = (own + number as Block, scratch_for(draft, sizes[number]));
        draft.receive(draft.before(1), theirs..theirs + 1);
        draft.send(draft.after(1), sent..sent + 1);
        draft.wait();
        draft.fold_from(draft.before(1), received, theirs, 1);
    }
    // This member has the result of the block after its own.
    all_gather::ring_of(draft, (me + 1) % members, own);
}
