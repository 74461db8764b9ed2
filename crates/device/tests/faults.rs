//! The fault wrapper applies the faults that it was configured with, and the same ones for the same seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tautline_device::fault::{Delay, Fault, Faults};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::{Datagram, HEADROOM, RxBatch};

const FRAMES: u32 = 4_000;
const LEN: usize = 32;

fn open() -> Udp {
    Udp::open(UdpConfig::with(|config| config.tx_slots = 256)).unwrap()
}

/// Returns a frame that contains its number in every word.
fn frame(number: u32) -> [u8; LEN] {
    std::array::from_fn(|i| number.to_le_bytes()[i % 4])
}

fn number(bytes: &[u8]) -> Option<u32> {
    let number = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    (bytes == frame(number)).then_some(number)
}

/// Sends numbered frames from one device to the other. Returns what arrived, corrupted frames as `None`.
fn transfer(a: &mut dyn Datagram, b: &mut dyn Datagram) -> Vec<Option<u32>> {
    let route = a.route(b.local_addr()).unwrap();
    let mut batch = RxBatch::new(32);
    let mut got = Vec::new();
    let mut poll = |a: &mut dyn Datagram, got: &mut Vec<_>| {
        a.flush();
        b.recv(&mut batch).unwrap();
        got.extend(batch.frames().iter().map(|frame| number(batch.bytes(*frame))));
    };
    for i in 0..FRAMES {
        let slot = a.arena().take().unwrap();
        a.arena().payload_mut(slot)[..LEN].copy_from_slice(&frame(i));
        a.send(route, slot, HEADROOM..HEADROOM + LEN);
        poll(a, &mut got);
        a.arena().give(slot);
    }
    // Held frames are released by further polls.
    (0..500).for_each(|_| poll(a, &mut got));
    assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is kept");
    got
}

/// Runs with the faults at the sender, or at the receiver.
fn run(seed: u64, faults: Faults, sending: bool) -> Vec<Option<u32>> {
    let none = Faults::default();
    if sending {
        transfer(&mut Fault::new(open(), seed, faults, none), &mut open())
    } else {
        transfer(&mut open(), &mut Fault::new(open(), seed, none, faults))
    }
}

fn is_about(value: usize, share: f64) -> bool {
    let want = share * f64::from(FRAMES);
    (value as f64 - want).abs() < 5.0 * (want * (1.0 - share)).sqrt() + 1.0
}

#[test]
fn loss_is_the_share_asked_for_and_the_same_for_a_seed() {
    let faults = Faults::with(|faults| faults.loss = 0.1);
    for sending in [true, false] {
        let first = run(42, faults, sending);
        assert!(is_about(FRAMES as usize - first.len(), 0.1), "{} arrived", first.len());
        assert!(first.iter().all(Option::is_some));
        assert_eq!(first, run(42, faults, sending), "the same seed, the same frames");
        assert_ne!(first, run(43, faults, sending), "another seed, other frames");
    }
}

#[test]
fn other_faults_do_not_change_which_frames_are_lost() {
    let faults = Faults::with(|faults| faults.loss = 0.1);
    let mut more = faults;
    (more.corrupt, more.corrupt_bits, more.duplicate) = (0.5, 9, 0.2);
    let lost = |got: Vec<Option<u32>>| {
        let mut got: Vec<_> = got.into_iter().flatten().collect();
        got.sort_unstable();
        got.dedup();
        got
    };
    let (all, some) = (lost(run(7, faults, true)), lost(run(7, more, true)));
    assert!(some.iter().all(|number| all.binary_search(number).is_ok()));
}

#[test]
fn duplicates_come_twice() {
    for sending in [true, false] {
        let mut got: Vec<_> = run(1, Faults::with(|faults| faults.duplicate = 0.3), sending);
        assert!(is_about(got.len() - FRAMES as usize, 0.3), "{} arrived", got.len());
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), FRAMES as usize, "every frame arrived");
    }
}

#[test]
fn corruption_is_the_share_asked_for() {
    for sending in [true, false] {
        let got = run(9, Faults::with(|faults| (faults.corrupt, faults.corrupt_bits) = (0.25, 5)), sending);
        assert_eq!(got.len(), FRAMES as usize);
        assert!(is_about(got.iter().filter(|frame| frame.is_none()).count(), 0.25));
    }
}

#[test]
fn reordering_is_bounded_and_loses_nothing() {
    let by = 8;
    for sending in [true, false] {
        let got: Vec<_> =
            run(3, Faults::with(|faults| (faults.reorder, faults.reorder_by) = (0.2, by)), sending);
        let got: Vec<_> = got.into_iter().map(Option::unwrap).collect();
        let mut sorted = got.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..FRAMES), "all arrived, once");
        let late = got.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(late > FRAMES as usize / 20, "{late} arrived late");
        let mut newest = 0;
        for number in got {
            newest = newest.max(number);
            assert!(newest - number <= by + 1, "{number} arrived after {newest}");
        }
    }
}

#[test]
fn delay_in_polls_and_by_a_clock() {
    for sending in [true, false] {
        let got = run(5, Faults::with(|faults| faults.delay = Delay::Polls(3, 20)), sending);
        assert_eq!(got.len(), FRAMES as usize);
    }
    let clock = Arc::new(AtomicU64::new(0));
    let reading = Arc::clone(&clock);
    let now = Box::new(move || Duration::from_micros(reading.load(Ordering::Relaxed)));
    let delay = Delay::Time(Duration::from_micros(100), Duration::from_micros(200));
    let faults = Faults::with(|faults| faults.delay = delay);
    let mut a = Fault::with_clock(open(), 1, faults, Faults::default(), now);
    let mut b = open();
    let route = a.route(b.local_addr()).unwrap();
    let slot = a.arena().take().unwrap();
    a.send(route, slot, HEADROOM..HEADROOM + 8);
    a.flush();
    a.arena().give(slot);
    let mut batch = RxBatch::new(4);
    let mut comes_at = |time| {
        clock.store(time, Ordering::Relaxed);
        a.flush();
        (0..100).any(|_| b.recv(&mut batch).unwrap() > 0)
    };
    assert!(!comes_at(99), "not before its time");
    assert!(comes_at(201), "after its time");
    assert_eq!(a.fault_counters().0.delayed, 1);
    assert_eq!(a.arena_ref().available(), a.arena_ref().capacity());
}
