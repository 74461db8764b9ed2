//! The suite for channels (D-7).

use super::pattern;
use crate::{Channel, PushError};

/// The two ends of a channel.
pub enum Ends {
    /// What is pushed to the first is popped from the second.
    Pair(Box<dyn Channel>, Box<dyn Channel>),
    /// What is pushed is popped from the same object.
    Loop(Box<dyn Channel>),
}

impl Ends {
    fn push_end(&mut self) -> &mut dyn Channel {
        match self {
            Ends::Pair(first, _) | Ends::Loop(first) => &mut **first,
        }
    }

    fn pop_end(&mut self) -> &mut dyn Channel {
        match self {
            Ends::Pair(_, second) | Ends::Loop(second) => &mut **second,
        }
    }

    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        let pushed = self.push_end().push(head, body);
        self.push_end().flush();
        pushed
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let mut out = vec![0; self.pop_end().max_frame()];
        let len = self.pop_end().pop(&mut out)?;
        out.truncate(len);
        Some(out)
    }
}

/// Checks a channel against D-7; `make` creates a new one each time, with room for at least two frames of 8
/// bytes.
///
/// # Panics
/// If the channel violates the rule.
pub fn channel_suite(make: impl Fn() -> Ends) {
    a_new_channel_is_usable(make());
    frames_arrive_in_order(make());
    a_full_channel_refuses(make());
    long_frames_are_refused(make());
    frames_survive_a_close(make());
}

fn a_new_channel_is_usable(mut ends: Ends) {
    let first = ends.push_end();
    assert!(
        !first.name().is_empty() && first.max_frame() > 0 && first.room() > 0,
        "D-7: a new channel has a name and room"
    );
    assert!(!first.is_finished(), "D-7: a new channel is not finished");
    assert_eq!(ends.pop(), None, "D-7: a new channel is empty");
}

fn frames_arrive_in_order(mut ends: Ends) {
    let max = ends.push_end().max_frame();
    let (mut pushed, mut popped) = (0, 0);
    for round in 0..200 {
        // As many as fit, of all sizes, split anywhere between the parts.
        for _ in 0..=round % 7 {
            let frame = pattern(pushed * 131 % (max + 1), pushed);
            let (head, body) = frame.split_at(frame.len() * (pushed % 5) / 4);
            match ends.push(head, body) {
                Ok(()) => pushed += 1,
                Err(error) => assert_eq!(
                    error,
                    PushError::Full,
                    "D-7: a valid frame is refused only if the channel is full"
                ),
            }
        }
        while popped < pushed && (round % 3 != 0 || pushed - popped > 2) {
            let want = pattern(popped * 131 % (max + 1), popped);
            assert_eq!(ends.pop(), Some(want), "D-7: frame {popped} in order, once, unaltered");
            popped += 1;
        }
    }
    while popped < pushed {
        assert_eq!(ends.pop(), Some(pattern(popped * 131 % (max + 1), popped)), "D-7: the rest arrives, too");
        popped += 1;
    }
    assert_eq!(ends.pop(), None, "D-7: nothing arrives twice");
}

fn a_full_channel_refuses(mut ends: Ends) {
    let max = ends.push_end().max_frame();
    let room = ends.push_end().room();
    for i in 0..room {
        assert_eq!(ends.push(&pattern(max, i), &[]), Ok(()), "D-7: as many largest frames as `room` says");
    }
    // There may be more room than promised, but not infinitely more.
    let mut pushed = room;
    let refusal = (0..room * 4 + 4_096).find_map(|_| {
        let result = ends.push(&pattern(max, pushed), &[]);
        pushed += usize::from(result.is_ok());
        result.err()
    });
    assert_eq!(refusal, Some(PushError::Full), "D-7: a full channel refuses");
    assert_eq!(ends.push_end().room(), 0, "D-7: a full channel has no room");
    for i in 0..pushed {
        assert_eq!(ends.pop(), Some(pattern(max, i)), "D-7: a refused push changes nothing");
    }
    assert_eq!(ends.pop(), None, "D-7: a refused frame was not pushed");
    assert!(ends.push_end().room() > 0, "D-7: popping makes room");
    assert_eq!(ends.push(b"again", b""), Ok(()), "D-7: and then pushing works again");
    assert_eq!(ends.pop().as_deref(), Some(&b"again"[..]));
}

fn long_frames_are_refused(mut ends: Ends) {
    let max = ends.push_end().max_frame();
    assert_eq!(ends.push(&vec![1; max], &[2]), Err(PushError::TooLong), "D-7: too long is refused");
    assert_eq!(ends.push(&[], &vec![1; max + 1]), Err(PushError::TooLong), "D-7: too long is refused");
    assert_eq!(ends.pop(), None, "D-7: a refused frame was not pushed");
    assert_eq!(ends.push(&[1], &vec![1; max - 1]), Ok(()), "D-7: the largest frame passes");
    assert_eq!(ends.pop(), Some(vec![1; max]));
}

fn frames_survive_a_close(mut ends: Ends) {
    assert_eq!(ends.push(b"one", b""), Ok(()));
    assert_eq!(ends.push(b"t", b"wo"), Ok(()));
    ends.push_end().close();
    assert_eq!(ends.push(b"three", b""), Err(PushError::Closed), "D-7: nothing is pushed after the close");
    assert!(!ends.pop_end().is_finished(), "D-7: not finished while frames are left");
    assert_eq!(ends.pop().as_deref(), Some(&b"one"[..]), "D-7: what was pushed is still popped");
    assert!(!ends.pop_end().is_finished(), "D-7: not finished while frames are left");
    assert_eq!(ends.pop().as_deref(), Some(&b"two"[..]), "D-7: what was pushed is still popped");
    assert!(ends.pop_end().is_finished(), "D-7: finished when closed and empty");
    assert_eq!(ends.pop(), None);
    ends.push_end().close();
    assert!(ends.pop_end().is_finished(), "D-7: closing twice has no effect");
}
