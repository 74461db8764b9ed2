//! All-to-all exchanges, also with neighbours only.

use crate::group::plan::{Block, Draft};

/// Messages of one member that are under way at once in each direction.
const WINDOW: usize = 32;

/// Each member sends to each other one, in an order that gives every member one sender at a time.
pub(in crate::group) fn pairwise(draft: &mut Draft, send: &[usize], receive: &[usize]) {
    let (me, members) = (draft.me, draft.members);
    let sent = draft.blocks(send.iter().copied());
    let received = draft.blocks(receive.iter().copied());
    draft.plan.input.extend(sent..sent + members as Block);
    draft.plan.output.extend(received..received + members as Block);
    // What a member sends to itself stays where it is.
    draft.plan.output[me] = sent + me as Block;
    let mut distance = 1;
    while distance < members {
        let end = (distance + WINDOW).min(members);
        for from in (distance..end).map(|d| draft.before(d)).collect::<Vec<_>>() {
            let block = received + from as Block;
            draft.receive(from, block..block + 1);
        }
        for to in (distance..end).map(|d| draft.after(d)).collect::<Vec<_>>() {
            let block = sent + to as Block;
            draft.send(to, block..block + 1);
        }
        draft.wait();
        distance = end;
    }
}

/// A message from each source and to each destination, with its length. Messages between the same two
/// members are matched in the order of both lists.
pub(in crate::group) fn neighbours(
    draft: &mut Draft,
    sources: &[(usize, usize)],
    destinations: &[(usize, usize)],
) {
    let received = draft.blocks(sources.iter().map(|(_, len)| *len));
    let sent = draft.blocks(destinations.iter().map(|(_, len)| *len));
    draft.plan.output.extend(received..sent);
    draft.plan.input.extend(sent..sent + destinations.len() as Block);
    exchange(draft, sources, destinations, received, |index| sent + index as Block);
}

/// As [`neighbours`], with the same `len` bytes to each destination.
pub(in crate::group) fn neighbours_gather(
    draft: &mut Draft,
    sources: &[(usize, usize)],
    destinations: &[usize],
    len: usize,
) {
    let received = draft.blocks(sources.iter().map(|(_, len)| *len));
    let sent = draft.block(len);
    draft.plan.output.extend(received..sent);
    draft.plan.input.push(sent);
    let destinations: Vec<_> = destinations.iter().map(|member| (*member, len)).collect();
    exchange(draft, sources, &destinations, received, |_| sent);
}

fn exchange(
    draft: &mut Draft,
    sources: &[(usize, usize)],
    destinations: &[(usize, usize)],
    received: Block,
    sent: impl Fn(usize) -> Block,
) {
    for ((from, _), block) in sources.iter().zip(received..) {
        draft.receive(*from, block..block + 1);
    }
    for (index, (to, _)) in destinations.iter().enumerate() {
        let block = sent(index);
        draft.send(*to, block..block + 1);
    }
}
