//! Reductions whose result is scattered.

use crate::group::plan::{Block, Draft, Into};

/// Each member sends each other one its part, and reduces what it receives in the order of the members. Every
/// byte is sent once.
pub(in crate::group) fn direct(draft: &mut Draft, lens: &[usize]) {
    let (me, members) = (draft.me, draft.members);
    let own = draft.blocks(lens.iter().copied());
    draft.plan.input.extend(own..own + members as Block);
    let theirs = draft.blocks((0..members).map(|member| if member == me { 0 } else { lens[me] }));
    for distance in 1..members {
        let from = draft.before(distance);
        let block = theirs + from as Block;
        draft.receive(from, block..block + 1);
    }
    for distance in 1..members {
        let to = draft.after(distance);
        let block = own + to as Block;
        draft.send(to, block..block + 1);
    }
    draft.wait();
    let operand = |member: usize| if member == me { own + me as Block } else { theirs + member as Block };
    for member in 1..members {
        draft.fold(operand(member - 1), operand(member), 1, Into::Upper);
    }
    draft.plan.output.push(operand(members - 1));
}
