use std::collections::VecDeque;

use super::*;
use crate::sync::Ordering;

const SHAPE: Shape = Shape { lines: 16, span: 4, bytes: 4096, max_frame: 512 };

fn ends(shape: Shape) -> (Sender, Receiver) {
    let segment = Arc::new(Segment::create(shape.size()).unwrap());
    (Sender::new(segment.clone(), 0, shape), Receiver::new(segment, 0, shape))
}

fn pop(receiver: &mut Receiver) -> Option<Vec<u8>> {
    match receiver.peek().unwrap()? {
        Peeked::End => None,
        Peeked::Frame(len) => {
            let mut out = vec![0; len];
            receiver.pop(&mut out);
            Some(out)
        }
    }
}

/// S-3, S-10: the ring behaves as a `VecDeque`, over many laps of both rings.
#[test]
fn behaves_like_a_queue() {
    let (mut sender, mut receiver) = ends(SHAPE);
    let mut oracle: VecDeque<Vec<u8>> = VecDeque::new();
    let mut state = 11_u64;
    for step in 0..200_000_u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let len = match state >> 61 {
            0 => (state >> 33) as usize % 513,
            1 => (state >> 33) as usize % 70,
            _ => (state >> 33) as usize % 240,
        };
        let frame: Vec<u8> = (0..len).map(|i| (i as u32 * 7 + step) as u8).collect();
        if state >> 40 & 1 == 0 {
            let room = sender.room().unwrap();
            let (head, body) = frame.split_at(len.min(8));
            match sender.push(head, body).unwrap() {
                true => oracle.push_back(frame),
                false => assert_eq!(room, 0, "refused although there was room"),
            }
        } else {
            assert_eq!(pop(&mut receiver), oracle.pop_front());
        }
    }
}

/// S-12: a full ring refuses frames, and accepts them again when the receiver has published its progress,
/// which it does by itself.
#[test]
fn a_full_ring_refuses_until_frames_are_taken() {
    let (mut sender, mut receiver) = ends(Shape { lines: 8, span: 1, ..SHAPE });
    let mut sent = 0;
    while sender.push(&[1; 8], &[2; 504]).unwrap() {
        sent += 1;
    }
    assert!((1..8).contains(&sent) && sender.room() == Ok(0));
    let mut got = 0;
    while sender.room() == Ok(0) {
        assert_eq!(pop(&mut receiver).unwrap().len(), 512);
        got += 1;
    }
    assert!(got <= sent / 2, "{got} of {sent} were taken before there was room");
    sender.end();
    assert!(!sender.push(b"late", &[]).unwrap());
    while pop(&mut receiver).is_some() {}
    assert_eq!(receiver.peek(), Ok(Some(Peeked::End)));
}

/// S-2: an impossible length, and consumption of what was never sent, are detected.
#[test]
fn corruption_is_detected() {
    let segment = Arc::new(Segment::create(SHAPE.size()).unwrap());
    let mut sender = Sender::new(segment.clone(), 0, SHAPE);
    let mut receiver = Receiver::new(segment.clone(), 0, SHAPE);
    segment.word(HEAD * LINE).store(1 | 513 << 32, Ordering::Relaxed);
    assert_eq!(receiver.peek(), Err(Corrupt));
    // A frame that begins at the start of the ring is possible; one that reaches beyond its end is not, and
    // neither is one of a single line that begins anywhere.
    let flagged = |len: u64| 1 | len << 32 | u64::from(WRAPPED) << 32;
    segment.word(HEAD * LINE).store(flagged(512), Ordering::Relaxed);
    assert_eq!(receiver.peek(), Ok(Some(Peeked::Frame(512))));
    for len in [513, 40, 200] {
        segment.word(HEAD * LINE).store(flagged(len), Ordering::Relaxed);
        assert_eq!(receiver.peek(), Err(Corrupt), "{len}");
    }
    receiver.bytes = 4096 - 64;
    segment.word(HEAD * LINE).store(1 | 400 << 32, Ordering::Relaxed);
    assert_eq!(receiver.peek(), Err(Corrupt));
    segment.word(CONSUMED as usize * LINE).store(5, Ordering::Relaxed);
    assert_eq!(sender.room(), Err(Corrupt));
}

/// S-35: a sender whose receiver keeps up uses the first part of the ring of bytes only, whatever the sizes
/// of its frames; one whose receiver does not keep up uses all of it.
#[test]
fn little_of_the_ring_is_used_if_that_suffices() {
    const LONG: Shape = Shape { lines: 128, span: 4, bytes: 64 << 10, max_frame: 4 << 10 };
    let segment = Arc::new(Segment::create(LONG.size()).unwrap());
    let (mut sender, mut receiver) =
        (Sender::new(segment.clone(), 0, LONG), Receiver::new(segment.clone(), 0, LONG));
    let bytes = (HEAD + LONG.lines) * LINE;
    let used =
        || (bytes..LONG.size()).step_by(8).rev().find(|at| segment.word(*at).load(Ordering::Relaxed) != 0);
    for i in 0..10_000 {
        assert!(sender.push(&[7; 8], &vec![9; 1_000 + i % 100]).unwrap());
        assert_eq!(pop(&mut receiver).unwrap().len(), 1_008 + i % 100);
    }
    assert!(used().unwrap() < bytes + LONG.first_bytes(), "a receiver that keeps up");
    let mut sent = 0;
    for _ in 0..8 {
        sent = 0;
        while sender.push(&[7; 8], &[9; 1_000]).unwrap() {
            sent += 1;
        }
        for _ in 0..sent {
            assert_eq!(pop(&mut receiver).unwrap().len(), 1_008);
        }
        assert!(pop(&mut receiver).is_none());
    }
    assert!(sent >= LONG.bytes / 1_024 - 4, "{sent} frames were in flight");
    assert!(used().unwrap() >= bytes + LONG.bytes / 2);
}

/// S-3: bytes left from the last lap are not taken for a frame, whatever they are.
#[test]
fn bytes_of_the_last_lap_are_no_frame() {
    let (mut sender, mut receiver) = ends(SHAPE);
    let forged = (u64::from(2_u32) | 8 << 32).to_le_bytes();
    for round in 0..200 {
        // In bytes, in one line, in several.
        let body = forged.repeat([60, 5, 20, 12][round % 4]);
        assert!(sender.push(&forged, &body).unwrap());
        assert!(pop(&mut receiver).is_some());
        assert!(receiver.is_empty());
    }
}

/// S-10, S-11: a frame of several lines exists when its last line is written, and not before.
#[test]
fn several_lines_are_one_frame() {
    let segment = Arc::new(Segment::create(SHAPE.size()).unwrap());
    let words = Lines::new(&segment, HEAD * LINE, SHAPE.lines);
    let (mut sender, mut receiver) =
        (Sender::new(segment.clone(), 0, SHAPE), Receiver::new(segment, 0, SHAPE));
    let mut written = 0;
    let body: [u8; 192] = std::array::from_fn(|i| i as u8);
    for round in 0..50_u64 {
        assert!(sender.push_long([round], &body[..100 + round as usize]).unwrap());
        let lines = (8 + 100 + round as usize).div_ceil(LINE_DATA) as u64;
        written += lines;
        let last = &words.get(written - 1)[0];
        let word = last.swap(0, Ordering::Relaxed);
        assert!(receiver.is_empty() && receiver.peek() == Ok(None));
        let mut frames = [InlineFrame::EMPTY; 2];
        assert_eq!(receiver.pop_inline(&mut frames, usize::MAX, |_| true), (0, false));
        last.store(word, Ordering::Relaxed);
        assert_eq!(receiver.pop_inline(&mut frames, usize::MAX, |first| first != round as u8), (0, true));
        assert_eq!(receiver.pop_inline(&mut frames, usize::MAX, |first| first == round as u8), (1, false));
        assert_eq!(frames[0].frame()[..8], round.to_le_bytes());
        assert_eq!(frames[0].frame()[8..], body[..100 + round as usize]);
        assert_eq!((sender.sent(), receiver.taken()), (round + 1, round + 1));
        assert!((2..=4).contains(&lines));
    }
}

/// S-3: inline frames are taken in batches: at most as many as there is room for, none after the limit, none
/// behind a frame that takes bytes.
#[test]
fn inline_frames_are_taken_in_batches() {
    let (mut sender, mut receiver) = ends(SHAPE);
    for len in [8, 40, 60, 0, 300, 1] {
        assert!(sender.push(&[len as u8; 8], &vec![1; len]).unwrap());
    }
    let mut frames = [InlineFrame::EMPTY; 3];
    assert_eq!(receiver.pop_inline(&mut frames, 17, |_| true), (2, true));
    assert_eq!([frames[0].frame().len(), frames[1].frame().len()], [16, 48]);
    assert_eq!(receiver.pop_inline(&mut frames, usize::MAX, |_| true), (2, true));
    assert_eq!([frames[0].frame().len(), frames[1].frame().len()], [68, 8]);
    assert_eq!(receiver.pop_inline(&mut frames, usize::MAX, |_| true), (0, true));
    assert_eq!(pop(&mut receiver).unwrap().len(), 308);
    assert_eq!(receiver.pop_inline(&mut frames, usize::MAX, |_| true), (1, false));
}
