//! Messages between real endpoints over UDP on loopback.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{await_event, join, pattern, run, run_over};
use tautline::{DeviceName, Endpoint, Event, Message, Short};

/// M-3, M-4: messages of many sizes arrive whole and in order, whatever their pieces.
#[test]
fn sizes_and_pieces() {
    let sizes = [0usize, 1, 7, 8, 64, 1000, 1400, 1472, 4096, 8192, 10_000, 65_536, 1_000_000, 5_000_000];
    run(2, |job| {
        let got = Rc::new(RefCell::new(Vec::new()));
        let sink = got.clone();
        let ep = join(
            Endpoint::builder().on("data", move |mut msg: Message| {
                let sink = sink.clone();
                async move {
                    let mut bytes = vec![0; msg.len() as usize];
                    for part in bytes.chunks_mut(777) {
                        msg.read_into(part).await?;
                    }
                    sink.borrow_mut().push(bytes);
                    Ok(())
                }
            }),
            job,
        );
        let data = |size: usize| (0..size).map(|i| (i * 7 + size) as u8).collect::<Vec<u8>>();
        if ep.rank() == 0 {
            for size in sizes {
                let bytes = data(size);
                let mut out = ep.begin(1, "data", size as u64).unwrap();
                for part in bytes.chunks(1000) {
                    out.piece(part).unwrap();
                }
                out.end().unwrap();
                ep.send(1, "data", &bytes).unwrap();
            }
        } else {
            ep.serve(2 * sizes.len() as u64).unwrap();
            let got = got.borrow();
            for (i, size) in sizes.iter().enumerate() {
                assert!(got[2 * i] == data(*size), "pieces, {size}");
                assert!(got[2 * i + 1] == data(*size), "whole, {size}");
            }
        }
        ep.close().unwrap();
    });
}

#[test]
fn ping_pong_of_short_messages() {
    run(2, |job| {
        let count = Rc::new(Cell::new(0u64));
        let seen = count.clone();
        let ep = join(
            Endpoint::builder().on_short("ping", move |msg: Short<'_>| {
                assert_eq!(msg.data(), seen.get().to_le_bytes());
                seen.set(seen.get() + 1);
            }),
            job,
        );
        let ping = ep.handler("ping").unwrap();
        let other = 1 - ep.rank();
        let rounds = 2000u64;
        for i in 0..rounds {
            if ep.rank() == 0 {
                ep.send(other, ping, &i.to_le_bytes()).unwrap();
            }
            ep.run_until(|| count.get() > i).unwrap();
            if ep.rank() == 1 {
                ep.send(other, ping, &i.to_le_bytes()).unwrap();
            }
        }
        ep.close().unwrap();
    });
}

/// M-11: a receiver that has the whole message and closes does not fail the sender, which is about to end it.
#[test]
fn a_message_complete_before_its_end() {
    const SIZE: usize = 800_000;
    let barrier = std::sync::Barrier::new(2);
    run_over(DeviceName::Shm, 2, |job| {
        let ep = join(
            Endpoint::builder().on("data", |mut m: Message| async move {
                assert_eq!(m.read_to_end().await?, pattern(SIZE, 3));
                Ok(())
            }),
            job,
        );
        if ep.rank() == 0 {
            ep.serve(1).unwrap();
            assert_eq!(ep.poll_failure(), None);
            ep.close().unwrap();
            barrier.wait();
        } else {
            let mut message = ep.begin(0, "data", SIZE as u64).unwrap();
            message.piece(&pattern(SIZE, 3)).unwrap();
            barrier.wait();
            await_event(&ep, |event| matches!(event, Event::PeerDown { peer: 0, .. }));
            message.end().unwrap();
            ep.close().unwrap();
        }
    });
}
