//! Requests, answers and cancellations of calls with any bytes, from a peer that speaks the rest of the
//! protocol: services and calls end with an answer or an error. Nothing may panic.
#![no_main]

mod nodes;

use libfuzzer_sys::fuzz_target;
use nodes::{Pair, Program};
use tautline::Endpoint;
use tautline::rpc::{Answer, Rpc};

/// The handlers of calls, and services of all kinds.
const NAMES: [&str; 6] =
    ["tautline.rpc.answer", "tautline.rpc.answer.long", "tautline.rpc.cancel", "raw", "bytes", "typed"];

type Typed = (String, Vec<u32>, Option<(u64, bool)>);

fuzz_target!(|data: &[u8]| {
    let rpcs = [Rpc::new(), Rpc::new()];
    let build = |rank: u32| {
        let rpc = &rpcs[rank as usize];
        Endpoint::builder()
            .with(rpc)
            .with(rpc.serve_raw("raw", |_, request: &[u8], answer: &mut Answer| {
                answer.extend_from_slice(request);
            }))
            .with(rpc.serve_bytes("bytes", |_, request| async move { Ok(request) }))
            .with(rpc.serve("typed", |_, request: Typed| async move { Ok::<_, String>(request) }))
    };
    let mut program = Program::new(data);
    let mut pair = Pair::new(build, false);
    let key = |end: &Endpoint, name: &str| end.node().key(name).unwrap();
    let keys = NAMES.map(|name| key(&pair.ends[0], name));
    let (mut typed, mut raw) = (Vec::new(), Vec::new());
    let limit = Some(std::time::Duration::from_secs(600));
    while let Some(op) = program.byte() {
        match op % 10 {
            // Rank 1 calls, and rank 0 forges the answer, whose number is known.
            6 => {
                let request: Typed = ("x".into(), vec![1, 2], None);
                if let Ok(call) = rpcs[1].call_timeout::<_, Typed>(&pair.ends[1], 0, "typed", &request, limit)
                {
                    typed.push(call);
                }
            }
            7 => {
                if let Ok(call) = rpcs[1].call_raw_timeout(&pair.ends[1], 0, "raw", b"request", limit) {
                    raw.push(call);
                }
            }
            8 => drop(if op & 64 == 0 { typed.pop().map(drop) } else { raw.pop().map(drop) }),
            9 => pair.advance(1 + program.small() as u64 * 100_000),
            name => {
                let mut bytes = Vec::new();
                // A small number of a call, or any word; then a status or a limit; then the rest.
                for _ in 0..2 {
                    let kind = program.small();
                    let word = if kind < 224 { u64::from(kind as u8 % 32) } else { program.word() };
                    bytes.extend(word.to_le_bytes());
                }
                let len = program.small() * 4;
                bytes.extend_from_slice(program.bytes(len));
                bytes.truncate(
                    bytes.len() - if op & 128 == 0 { 0 } else { program.small() % 17 }.min(bytes.len()),
                );
                let _ = pair.ends[0].node().try_send(1, keys[usize::from(name)], &bytes);
            }
        }
        if op & 32 != 0 {
            pair.advance(100_000);
        }
    }
    (0..8).for_each(|_| pair.advance(1_000_000));
});
