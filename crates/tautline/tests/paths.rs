//! The same transfer over every path a machine may offer: with and without offloads, IPv6, and a faulty
//! network.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{config, jobs, jobs_at, join, pattern, run_jobs};
use tautline::node::device::fault::Faults;
use tautline::{Config, Endpoint, Job, Message, Security, Short};

/// Both sides send messages of many sizes, count those that arrive, and check every byte and the order.
fn transfer(jobs: Vec<Job>, config: &Config, scale: usize) {
    let sizes = [0usize, 1, 100, 1400, 9000, 70_000, 3, 200_000, 20, 1_000_000];
    run_jobs(jobs, |job| {
        let next = Rc::new(Cell::new(0));
        let (started, shorts) = (next.clone(), Rc::new(Cell::new(0u64)));
        let count = shorts.clone();
        let builder = Endpoint::builder()
            .on("data", move |mut msg: Message| {
                let started = started.clone();
                async move {
                    let i: u64 = msg.read().await?;
                    assert_eq!(started.replace(i + 1), i, "in order, each once");
                    let bytes = msg.read_to_end().await?;
                    assert!(bytes == pattern(sizes[i as usize % sizes.len()] / 8 * scale, i as usize), "{i}");
                    Ok(())
                }
            })
            .on_short("short", move |msg: Short<'_>| {
                assert_eq!(msg.data(), count.get().to_le_bytes());
                count.set(count.get() + 1);
            });
        let ep = join(builder.config(config.clone()), job);
        let (other, rounds) = (1 - ep.rank(), 2 * sizes.len());
        for i in 0..rounds {
            let bytes = pattern(sizes[i % sizes.len()] / 8 * scale, i);
            // Both sides send at once: a side that is blocked extracts.
            let mut out = loop {
                match ep.try_begin(other, "data", 8 + bytes.len() as u64) {
                    Ok(out) => break out,
                    Err(error) => assert!(error.is_would_block(), "{error}"),
                }
                ep.extract(usize::MAX).unwrap();
                ep.wait(Some(std::time::Duration::from_millis(1))).unwrap();
            };
            let whole = [&(i as u64).to_le_bytes()[..], &bytes].concat();
            let mut at = 0;
            while at < whole.len() {
                match out.try_piece(&whole[at..]) {
                    Ok(added) => at += added,
                    Err(error) => {
                        assert!(error.is_would_block(), "{error}");
                        ep.extract(usize::MAX).unwrap();
                        ep.wait(Some(std::time::Duration::from_millis(1))).unwrap();
                    }
                }
            }
            out.end().unwrap();
            ep.send(other, "short", &(i as u64).to_le_bytes()).unwrap();
        }
        ep.run_until(|| ep.handled() == 2 * rounds as u64).unwrap();
        assert_eq!(ep.poll_failure(), None);
        assert_eq!((next.get(), shorts.get()), (rounds as u64, rounds as u64));
        ep.close().unwrap();
    });
}

/// D: every combination of the two offloads.
#[test]
fn every_combination_of_offloads() {
    for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
        let config = config(|c| (c.gso, c.gro) = (gso, gro));
        transfer(jobs(2), &config, 8);
    }
}

#[test]
fn ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return tautline_skips::skip("ipv6", "this machine has no IPv6 loopback");
    }
    transfer(jobs_at("[::1]:0", 2), &Config::default(), 8);
    transfer(jobs_at("[::1]:0", 2), &config(|c| (c.gso, c.gro) = (false, false)), 1);
}

fn spoiled(seed: u64) -> Config {
    let faults = Faults::with(|faults| {
        (faults.loss, faults.duplicate) = (0.05, 0.05);
        (faults.reorder, faults.reorder_by) = (0.1, 16);
        (faults.corrupt, faults.corrupt_bits) = (0.02, 8);
    });
    config(|c| c.fault = Some((seed, faults)))
}

/// A network that loses, repeats, reorders and damages frames: every message arrives once, in order,
/// unaltered.
#[test]
fn lossy_network_fabric() {
    for seed in 1..4 {
        transfer(jobs(2), &spoiled(seed), 2);
    }
}

#[test]
fn lossy_network_sealed() {
    let mut config = spoiled(7);
    config.link.security = Security::Sealed;
    transfer(jobs(2), &config, 2);
}

/// Small messages may share frames while earlier ones are unacknowledged; nothing else changes.
#[test]
fn shared_frames() {
    transfer(jobs(2), &config(|c| c.share_frames = true), 8);
}

/// Without a watchdog a program that polls misses nothing.
#[test]
fn without_watchdog() {
    transfer(jobs(2), &config(|c| c.watchdog = None), 8);
}
