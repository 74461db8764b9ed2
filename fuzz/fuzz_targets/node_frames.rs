//! A node receives altered frames of a peer: messages of all kinds, requests to memory, and their answers.
//! Without tags, every byte reaches what is behind the link. Nothing may panic.
#![no_main]

mod nodes;

use libfuzzer_sys::fuzz_target;
use nodes::{Pair, Program};
use tautline::memory::Rights;
use tautline::{Borrowed, Endpoint, Message, Short};

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
    let bytes = [7; 3_000];
    while let Some(op) = program.byte() {
        let len = program.small() * 11;
        let [peer, _] = &pair.ends;
        match op % 12 {
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
