use super::*;
use crate::sync::thread;

/// A frame that does not fit a line takes bytes.
const BYTES: Shape = Shape { lines: 4, span: 1, bytes: 512, max_frame: 64 };
/// A frame that does not fit a line takes two.
const LINES: Shape = Shape { lines: 4, span: 2, bytes: 512, max_frame: 64 };

fn ends(shape: Shape) -> (Sender, Receiver) {
    let segment = Arc::new(Segment::create(shape.size()).unwrap());
    (Sender::new(segment.clone(), 0, shape), Receiver::new(segment, 0, shape))
}

fn pop(receiver: &mut Receiver) -> Option<Vec<u8>> {
    let Peeked::Frame(len) = receiver.peek().unwrap()? else { return None };
    let mut out = vec![0; len];
    receiver.pop(&mut out);
    Some(out)
}

/// Runs all interleavings with at most `preemptions` involuntary switches; with more, a lap of the ring takes
/// hours.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// S-11: the receiver sees only whole frames, in order, also when lines and bytes are reused.
#[test]
fn loom_frames_are_whole_and_in_order() {
    whole_and_in_order(BYTES);
}

/// S-10, S-11: the same for frames of several lines.
#[test]
fn loom_lines_are_whole_and_in_order() {
    whole_and_in_order(LINES);
}

fn whole_and_in_order(shape: Shape) {
    model(3, move || {
        let (mut sender, mut receiver) = ends(shape);
        let thread = thread::spawn(move || {
            let mut sent = 0;
            for tries in 0..5_u8 {
                let long = [tries + 1; 64];
                let body: &[u8] = if sent == 1 { &long[..56] } else { &long[..8] };
                if sender.push(&[sent; 8], body).unwrap() {
                    sent += 1;
                }
            }
            sent
        });
        let mut got = 0;
        for _ in 0..4 {
            if let Some(frame) = pop(&mut receiver) {
                assert_eq!(frame[..8], [got; 8]);
                assert!(frame[8..].iter().all(|byte| *byte == frame[8]), "torn: {frame:?}");
                got += 1;
            }
        }
        let sent = thread.join().unwrap();
        while let Some(frame) = pop(&mut receiver) {
            assert_eq!(frame[..8], [got; 8]);
            got += 1;
        }
        assert_eq!(got, sent);
    });
}
