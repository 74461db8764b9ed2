//! D-7.

use super::pattern;
use crate::{Channel, PushError};

/// The two ends of a channel.
pub enum Ends {
    /// What is pushed at the first is popped at the second.
    Pair(Box<dyn Channel>, Box<dyn Channel>),
    /// What is pushed is popped at the same object.
    Loop(Box<dyn Channel>),
}

impl Ends {
    fn near(&mut self) -> &mut dyn Channel {
        match self {
            Ends::Pair(near, _) | Ends::Loop(near) => &mut **near,
        }
    }

    fn far(&mut self) -> &mut dyn Channel {
        match self {
            Ends::Pair(_, far) | Ends::Loop(far) => &mut **far,
        }
    }

    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        let pushed = self.near().push(head, body);
        self.near().flush();
        pushed
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let mut out = vec![0; self.far().max_frame()];
        let len = self.far().pop(&mut out)?;
        out.truncate(len);
        Some(out)
    }
}

/// Holds a channel to D-7; `make` makes a fresh one each time, with room for at least two frames of 8 bytes.
///
/// # Panics
/// If the channel breaks its promise.
pub fn channel_suite(make: impl Fn() -> Ends) {
    says_what_it_is(make());
    in_order_and_unaltered(make());
    full_is_refused(make());
    too_long_is_refused(make());
    close_lets_the_rest_out(make());
}

fn says_what_it_is(mut ends: Ends) {
    let near = ends.near();
    assert!(!near.name().is_empty() && near.max_frame() > 0 && near.room() > 0, "D-7: a channel is of use");
    assert!(!near.is_finished(), "D-7: a fresh channel is not finished");
    assert_eq!(ends.pop(), None, "D-7: a fresh channel is empty");
}

fn in_order_and_unaltered(mut ends: Ends) {
    let max = ends.near().max_frame();
    let (mut pushed, mut popped) = (0, 0);
    for round in 0..200 {
        // As many as fit, of sizes from nothing to all, split anywhere between the parts.
        for _ in 0..=round % 7 {
            let frame = pattern(pushed * 131 % (max + 1), pushed);
            let (head, body) = frame.split_at(frame.len() * (pushed % 5) / 4);
            match ends.push(head, body) {
                Ok(()) => pushed += 1,
                Err(error) => assert_eq!(error, PushError::Full, "D-7: only fullness refuses a fair frame"),
            }
        }
        while popped < pushed && (round % 3 != 0 || pushed - popped > 2) {
            let want = pattern(popped * 131 % (max + 1), popped);
            assert_eq!(ends.pop(), Some(want), "D-7: frame {popped} in order, once, unaltered");
            popped += 1;
        }
    }
    while popped < pushed {
        assert_eq!(ends.pop(), Some(pattern(popped * 131 % (max + 1), popped)), "D-7: the rest comes too");
        popped += 1;
    }
    assert_eq!(ends.pop(), None, "D-7: nothing comes twice");
}

fn full_is_refused(mut ends: Ends) {
    let max = ends.near().max_frame();
    let room = ends.near().room();
    for i in 0..room {
        assert_eq!(ends.push(&pattern(max, i), &[]), Ok(()), "D-7: room says how many largest frames fit");
    }
    // There may be a little room beyond what was promised, but not without end.
    let mut pushed = room;
    let refusal = (0..room * 4 + 4_096).find_map(|_| {
        let result = ends.push(&pattern(max, pushed), &[]);
        pushed += usize::from(result.is_ok());
        result.err()
    });
    assert_eq!(refusal, Some(PushError::Full), "D-7: a full channel refuses");
    assert_eq!(ends.near().room(), 0, "D-7: a full channel has no room");
    for i in 0..pushed {
        assert_eq!(ends.pop(), Some(pattern(max, i)), "D-7: a refused push leaves nothing behind");
    }
    assert_eq!(ends.pop(), None, "D-7: a refused frame was not pushed");
    assert!(ends.near().room() > 0, "D-7: popping makes room");
    assert_eq!(ends.push(b"again", b""), Ok(()), "D-7: and then pushing works again");
    assert_eq!(ends.pop().as_deref(), Some(&b"again"[..]));
}

fn too_long_is_refused(mut ends: Ends) {
    let max = ends.near().max_frame();
    assert_eq!(ends.push(&vec![1; max], &[2]), Err(PushError::TooLong), "D-7: too long is refused");
    assert_eq!(ends.push(&[], &vec![1; max + 1]), Err(PushError::TooLong), "D-7: too long is refused");
    assert_eq!(ends.pop(), None, "D-7: a refused frame was not pushed");
    assert_eq!(ends.push(&[1], &vec![1; max - 1]), Ok(()), "D-7: the largest frame passes");
    assert_eq!(ends.pop(), Some(vec![1; max]));
}

fn close_lets_the_rest_out(mut ends: Ends) {
    assert_eq!(ends.push(b"one", b""), Ok(()));
    assert_eq!(ends.push(b"t", b"wo"), Ok(()));
    ends.near().close();
    assert_eq!(ends.push(b"three", b""), Err(PushError::Closed), "D-7: nothing is pushed after the close");
    assert!(!ends.far().is_finished(), "D-7: not finished while frames are left");
    assert_eq!(ends.pop().as_deref(), Some(&b"one"[..]), "D-7: what was pushed is still popped");
    assert!(!ends.far().is_finished(), "D-7: not finished while frames are left");
    assert_eq!(ends.pop().as_deref(), Some(&b"two"[..]), "D-7: what was pushed is still popped");
    assert!(ends.far().is_finished(), "D-7: finished when closed and empty");
    assert_eq!(ends.pop(), None);
    ends.near().close();
    assert!(ends.far().is_finished(), "D-7: closing twice is closing once");
}
