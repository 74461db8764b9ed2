//! Prefix reductions.

use crate::group::plan::{Draft, Into};

/// Recursive doubling: in round `k` each member sends the reduction of itself and the `2^k - 1` members
/// before it to the one `2^k` after it. Keeps the order of operands. Without `inclusive` the member's own
/// operand is left out, and the first member has no output.
pub(in crate::group) fn recursive_doubling(draft: &mut Draft, len: usize, inclusive: bool) {
    let (me, members) = (draft.me, draft.members);
    let (own, theirs) = (draft.block(len), draft.block(len));
    draft.plan.input.push(own);
    let mut before = None;
    let mut distance = 1;
    while distance < members {
        if me >= distance {
            draft.receive(me - distance, theirs..theirs + 1);
        }
        if me + distance < members {
            draft.send(me + distance, own..own + 1);
        }
        draft.wait();
        if me >= distance && len > 0 {
            if !inclusive {
                match before {
                    None => {
                        let block = draft.block(len);
                        draft.copy(theirs, block);
                        before = Some(block);
                    }
                    Some(block) => draft.fold(theirs, block, 1, Into::Upper),
                }
            }
            draft.fold(theirs, own, 1, Into::Upper);
        }
        distance *= 2;
    }
    match inclusive {
        true => draft.plan.output.push(own),
        false => draft.plan.output.extend(before),
    }
}
