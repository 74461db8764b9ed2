//! Receives and messages in any sequence, posted, cancelled, probed and taken: they are matched as by two
//! plain lists.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_node::tags::matching::{Key, Matcher, Pattern};

fuzz_target!(|data: &[u8]| {
    let mut matcher = Matcher::<u32, u32>::new(data.len() as u64);
    let (mut posted, mut waiting) = (Vec::new(), Vec::new());
    for (number, step) in (0..).zip(data.chunks_exact(4)) {
        let [verb, context, source, tag] = [step[0] >> 4, step[1] & 1, step[2], step[3]];
        let key = Key { context: context.into(), source: source.into(), tag: tag.into() };
        let pattern = Pattern {
            context: key.context,
            source: (step[0] & 1 == 0).then_some(key.source),
            tag: (step[0] & 2 == 0).then_some(key.tag),
        };
        match verb {
            0..=5 => match posted.iter().position(|(pattern, ..): &(Pattern, _, _)| pattern.takes(key)) {
                Some(at) => assert_eq!(matcher.arrive(key), Some(posted.remove(at).1)),
                None => {
                    assert_eq!(matcher.arrive(key), None);
                    waiting.push((key, number, matcher.keep(key, number)));
                }
            },
            6..=12 => match waiting.iter().position(|(key, ..)| pattern.takes(*key)) {
                Some(at) => {
                    let (key, message, place) = waiting.remove(at);
                    assert_eq!(matcher.find(&pattern), Some(place));
                    assert_eq!(matcher.take(place), (key, message));
                }
                None => {
                    assert_eq!(matcher.find(&pattern), None);
                    posted.push((pattern, number, matcher.post(pattern, number)));
                }
            },
            13 if !posted.is_empty() => {
                let (_, receive, place) = posted.remove(usize::from(source) % posted.len());
                assert_eq!(matcher.cancel(place), receive);
            }
            14 if !waiting.is_empty() => {
                let (key, message, place) = waiting.remove(usize::from(source) % waiting.len());
                assert_eq!(matcher.take(place), (key, message));
            }
            _ => {
                let oldest = waiting.iter().find(|(key, ..)| pattern.takes(*key));
                let found = matcher.find(&pattern).map(|place| matcher.message(place));
                assert_eq!(found, oldest.map(|(key, message, _)| (*key, *message)));
            }
        }
        assert_eq!(matcher.len(), (posted.len(), waiting.len()));
    }
});
