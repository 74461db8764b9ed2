//! Barriers.

use crate::group::plan::Draft;

/// Dissemination: in round `k` each member signals the one `2^k` after it, and waits for the one `2^k` before
/// it. log2(n) rounds.
pub(in crate::group) fn dissemination(draft: &mut Draft) {
    let mut distance = 1;
    while distance < draft.members {
        draft.await_signal(draft.before(distance));
        draft.signal(draft.after(distance));
        draft.wait();
        distance *= 2;
    }
}
