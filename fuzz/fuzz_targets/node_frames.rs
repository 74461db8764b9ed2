//! A node receives altered frames of a peer: messages of all kinds, requests to memory, and their answers,
//! tagged messages, multicasts. Without tags of frames, every byte reaches what is behind the link. Nothing
//! may panic.
#![no_main]

mod nodes;

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nodes::{Pair, Program};
use tautline_node::multicast::{MIN_WINDOW, MulticastOptions, Shape};
use tautline_node::tags::Buffer;
use tautline::memory::Rights;
use tautline::{Borrowed, Endpoint, Message, Short};

const GROUP: u32 = 7;

fuzz_target!(|data: &[u8]| {
    let build = |_| {
        Endpoint::builder()
            .on("long", |mut message: Message| async move {
                let _ = message.read_to_end().await?;
                Ok(())
            })
            .on("pieces", |mut message: Message| async move {
                let mut piece = [0; 100];
                while message.remaining() >= 100 {
                    message.read_into(&mut piece).await?;
                }
                Ok(())
            })
            .on_short("short", |_: Short<'_>| {})
            .on_loan("lent", |message: Borrowed| message.for_each_part(|_| {}))
    };
    let mut program = Program::new(data);
    let mut pair = Pair::new(build, false);
    let aperture = pair.ends[1].aperture(4_096).unwrap();
    let cookie = aperture.cookie(64..4_000, Rights::ALL).unwrap();
    let mine = pair.ends[0].aperture(4_096).unwrap();
    let answered = mine.cookie(.., Rights::ALL).unwrap();
    let mut outgoing = None;
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    let options = MulticastOptions { shape: Shape::Binomial, window: MIN_WINDOW, roots: 1 };
    for (me, end) in pair.ends.iter().enumerate() {
        end.node().multicast().open(GROUP, &[0, 1], me, options).unwrap();
    }
    let bytes = [7; 3_000];
    while let Some(op) = program.byte() {
        let len = program.small() * 11;
        let [peer, _] = &pair.ends;
        match op % 18 {
            0 => drop(peer.try_send(1, "short", &bytes[..len.min(1_000)])),
            1 => drop(peer.try_send(1, "long", &bytes[..len])),
            2 => outgoing = peer.try_begin(1, "pieces", 3_000).ok(),
            3 => {
                if let Some(out) = &mut outgoing {
                    let _ = tautline::Outgoing::try_piece(out, &bytes[..len]);
                }
            }
            4 => drop(peer.try_loan(1, len).map(|loan| loan.try_send("lent").is_ok())),
            5 => drop(peer.remote(&cookie).try_put(len as u64, &bytes[..program.small()])),
            6 => drop(peer.remote(&cookie).get(len as u64, program.small())),
            7 => drop(peer.remote(&cookie).fetch_add(len as u64 & !7, program.word())),
            // Rank 1 asks, and gets altered answers.
            8 => drop(pair.ends[1].remote(&answered).get(len as u64, program.small() * 8)),
            9 => {
                pair.hold();
                pair.alter(&mut program);
            }
            10 => {
                let frame = program.bytes(len).to_vec();
                pair.deliver(frame);
            }
            11 => sends.extend(peer.tags(1).start_send(1, len as u32 % 3, bytes[..len].to_vec())),
            // Long enough to be announced, and received in parts.
            12 => sends.extend(peer.tags(1).start_send(1, 1, vec![7; 60 * len])),
            13 => {
                let tag = (len % 4 > 0).then_some(len as u32 % 3);
                receives.extend(pair.ends[1].tags(1).start_receive(None, tag, vec![0; 30 * len]));
            }
            14 => {
                receives.retain_mut(|receive| !matches!(receive.poll(), Ok(Some(_))));
                sends.retain_mut(|send| !matches!(send.poll(), Ok(Some(_))));
                receives.truncate(program.small());
            }
            15 => drop(peer.node().multicast().start_send(GROUP, Arc::new(vec![7; 20 * len]))),
            16 => {
                let room = Buffer::Whole(vec![0; len]);
                drop(pair.ends[1].node().multicast().start_receive(GROUP, None, room));
            }
            _ => {
                pair.release();
                pair.advance(1 + (len as u64) * 10_000);
                continue;
            }
        }
        // What the peer sends stays where it can be altered.
        let _ = pair.ends[0].node().progress_woken();
        pair.hold();
    }
    pair.release();
    (0..4).for_each(|_| pair.advance(1_000_000));
});
