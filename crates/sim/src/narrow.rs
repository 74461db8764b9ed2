//! A path becomes narrower: messages that fitted one frame are still accepted (L-19, L-21, L-31).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tautline::{Clock, Config, Endpoint, Environment, Event, Job, Member, Short};
use tautline_link::JobKey;

use crate::Nanos;
use crate::device::{SharedNet, SimDevice, lock};
use crate::net::{Net, PathOptions, What, address};
use crate::places::Places;

const WIDE: usize = 8_000;
const NARROW: usize = 1_300;
const MESSAGES: usize = 40;
const LONGEST: Nanos = 60_000_000_000;

type Got = Rc<RefCell<Vec<Vec<u8>>>>;

fn message(number: usize) -> Vec<u8> {
    (0..7_000 + number).map(|at| (at + number) as u8).collect()
}

fn join(net: &SharedNet, rank: u32, got: &Got) -> Endpoint {
    let job = Job::new(rank, JobKey::new([9; 32]), (0..2).map(|n| Member::new(address(n))).collect());
    let device = SimDevice::plug(net, rank, u64::from(rank) + 1, 256, WIDE);
    let clock = Clock::Virtual(lock(net).clock());
    let got = got.clone();
    Endpoint::builder()
        .config(Config::default())
        .on_short("short", move |m: Short<'_>| got.borrow_mut().push(m.data().to_vec()))
        .join_in(&job, Environment::new(Box::new(device), clock, [rank as u8 + 1; 32]))
        .expect("a simulated node joins")
}

/// Sends short messages of nearly a frame; after some of them the path carries less, and reports that or does
/// not. Returns the limits that the sender was told.
fn run(reports_mtu: bool) -> Vec<usize> {
    let options =
        PathOptions { mbps: 1_000, delay_ns: 50_000, queue_bytes: 1 << 20, ..PathOptions::default() };
    let net: SharedNet = Arc::new(Mutex::new(Net::new(Places::single(2), 1, options, WIDE, 512 * 1024)));
    let got = Got::default();
    let nodes = [join(&net, 0, &got), join(&net, 1, &got)];
    let (mut sent, mut limits) = (0, Vec::new());
    (0..2).for_each(|node| lock(&net).wake(node, 0));
    while got.borrow().len() < MESSAGES {
        let Some((now, What::Run { node })) = lock(&net).advance() else { panic!("nothing is left to do") };
        assert!(now < LONGEST, "{} of {sent} messages arrived", got.borrow().len());
        let ep = &nodes[node as usize];
        while ep.extract(usize::MAX).unwrap() > 0 {}
        if node == 0 {
            while let Some(event) = ep.poll_event() {
                if let Event::PathChanged { max_frame, .. } = event {
                    limits.push(max_frame);
                }
            }
            if got.borrow().len() >= MESSAGES / 4 {
                lock(&net).paths.change_all(|path| {
                    (path.mtu, path.reports_mtu) = (NARROW, reports_mtu);
                });
            }
            // A few at a time, so that most are sent when the path is narrow already.
            while sent < MESSAGES && sent < got.borrow().len() + 3 {
                match ep.try_send(1, "short", &message(sent)) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        assert!(error.is_would_block(), "{error}");
                        break;
                    }
                }
            }
        }
        let deadline = ep.node().next_deadline().ok().flatten();
        let retry = if node == 0 && sent < MESSAGES { now + 1_000_000 } else { Nanos::MAX };
        let mut net = lock(&net);
        net.ports[node as usize].not_before = now + 1_000;
        net.wake(node, deadline.unwrap_or(Nanos::MAX).min(retry));
    }
    assert!(got.borrow().iter().enumerate().all(|(number, bytes)| *bytes == message(number)));
    limits
}

/// The path reports that it is narrower, or drops frames that are too long.
#[test]
fn short_messages_stay_short_on_a_narrower_path() {
    assert_eq!(run(true), [NARROW]);
    assert_eq!(run(false), [tautline_wire::frame::BASE_FRAME]);
}
