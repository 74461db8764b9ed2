//! Goodput over a path of 1 Gb/s and 50 µs at given loss rates, windows and recovery policies. It runs on the
//! virtual clock, so that the table is the same everywhere and can be kept as a golden file.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tautline::{Clock, Config, Endpoint, Environment, Job, Member, Message};
use tautline_link::{JobKey, RecoveryPolicy};

use crate::Nanos;
use crate::device::{SharedNet, SimDevice, lock};
use crate::net::{Net, PathOptions, What, address};
use crate::places::Places;

/// Loss rates of the table, in millionths, the same in both directions.
pub const LOSSES_PPM: [u32; 8] = [0, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000];
/// Windows of the table: bytes of the receiver's buffer, of which a sender uses three quarters.
pub const WINDOWS: [usize; 3] = [32 * 1024, 128 * 1024, 512 * 1024];
/// Recovery policies of the table.
pub const POLICIES: [RecoveryPolicy; 2] = [RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::GoBackN];

/// Lengths of the pauses of the table.
pub const PAUSES: [Nanos; 4] = [1_000_000, 2_000_000, 4_000_000, 10_000_000];

/// The largest frame on the path.
const MAX_FRAME: usize = 1_472;
/// Bytes of a message.
const MESSAGE: usize = 64 * 1024;
/// Bytes in all.
const TOTAL: u64 = 8 * 1024 * 1024;
/// No measurement takes longer than this.
const LONGEST: Nanos = 600_000_000_000;

/// The whole table as text.
pub fn table() -> String {
    let mut text =
        String::from("goodput in Mb/s over 1 Gb/s, 50 us one way, 64 KiB messages, 8 MiB in all\n");
    let _ = write!(text, "{:<17} {:>8}", "policy", "buffer");
    for loss in LOSSES_PPM {
        let _ = write!(text, " {:>7}%", f64::from(loss) / 10_000.0);
    }
    text.push('\n');
    for policy in POLICIES {
        for window in WINDOWS {
            let _ = write!(text, "{:<17} {:>5}KiB", policy.name(), window / 1024);
            for loss in LOSSES_PPM {
                let _ = write!(text, " {:>8.1}", measure(policy, window, loss));
            }
            text.push('\n');
        }
    }
    text.push_str("\nthe same without loss, selective-repeat, 512 KiB, while a process pauses every 25 ms\n");
    let _ = writeln!(
        text,
        "{:<10} {:>8} {:>8} {:>8} {:>10} {:>8}",
        "pauses", "ms", "Mb/s", "pauses", "timeouts", "resent"
    );
    for (node, name) in [(0, "sender"), (1, "receiver")] {
        for length in PAUSES {
            let pauses = Some(Pauses { node, length });
            let Some(took) = transfer(RecoveryPolicy::SelectiveRepeat, WINDOWS[2], 0, pauses) else {
                continue;
            };
            let ms = length / 1_000_000;
            let Transfer { mbps, pauses, timeouts, resent } = took;
            let _ = writeln!(text, "{name:<10} {ms:>8} {mbps:>8.1} {pauses:>8} {timeouts:>10} {resent:>8}");
        }
    }
    text
}

/// Megabits of payload per second of virtual time from one node to another.
pub fn measure(policy: RecoveryPolicy, window: usize, loss_ppm: u32) -> f64 {
    transfer(policy, window, loss_ppm, None).map_or(0.0, |transfer| transfer.mbps)
}

/// One of the two processes does not run for a while, again and again, as on a machine with other work.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The process: 0 sends, 1 receives.
    pub node: u32,
    /// How long it does not run.
    pub length: Nanos,
}

/// Time from the start of one pause to that of the next.
const PAUSE_EVERY: Nanos = 25_000_000;

/// What a transfer took.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Megabits of payload per second.
    pub mbps: f64,
    /// Pauses while it went on.
    pub pauses: u64,
    /// Expirations of retransmission timers.
    pub timeouts: u64,
    /// Slots that were sent again.
    pub resent: u64,
}

/// Sends `TOTAL` bytes from one node to another. `None` if they do not arrive.
pub fn transfer(
    policy: RecoveryPolicy,
    window: usize,
    loss_ppm: u32,
    pauses: Option<Pauses>,
) -> Option<Transfer> {
    let options = PathOptions {
        mbps: 1_000,
        delay_ns: 50_000,
        queue_bytes: 1 << 20,
        loss_ppm,
        ..PathOptions::default()
    };
    let net: SharedNet = Arc::new(Mutex::new(Net::new(
        Places::single(2),
        u64::from(loss_ppm) + 1,
        options,
        MAX_FRAME,
        window,
    )));
    let got = Rc::new(Cell::new(0));
    let nodes = [join(&net, 0, policy, &got), join(&net, 1, policy, &got)];
    let piece = vec![7; MESSAGE];
    let mut sending: Option<(tautline::Outgoing, usize)> = None;
    let mut begun = 0;
    let mut first: Option<Nanos> = None;
    // The end of the pause that a time is in, if it is in one.
    let paused_until = |node: u32, now: Nanos, first: Option<Nanos>| {
        let pauses = pauses.filter(|pauses| pauses.node == node)?;
        let since = now.checked_sub(first? + PAUSE_EVERY)?;
        let into = since % PAUSE_EVERY;
        (into < pauses.length).then(|| now - into + pauses.length)
    };
    (0..2).for_each(|node| lock(&net).wake(node, 0));
    while got.get() < TOTAL {
        let (now, What::Run { node }) = lock(&net).advance()? else { return None };
        if now > LONGEST {
            return None;
        }
        if let Some(end) = paused_until(node, now, first) {
            let mut net = lock(&net);
            net.ports[node as usize].not_before = end;
            net.wake(node, end);
            continue;
        }
        let ep = &nodes[node as usize];
        while ep.extract(usize::MAX).unwrap_or(0) > 0 {}
        if node == 0 {
            send(ep, &piece, &mut sending, &mut begun);
            if begun > 0 {
                first.get_or_insert(now);
            }
        }
        let deadline = ep.node().next_deadline().ok().flatten();
        let retry = if node == 0 && first.is_none() { now + 1_000_000 } else { Nanos::MAX };
        let mut net = lock(&net);
        net.ports[node as usize].not_before = now + 1_000;
        net.wake(node, deadline.unwrap_or(Nanos::MAX).min(retry));
    }
    let took = lock(&net).now() - first?;
    let links = nodes.each_ref().map(|node| node.node().counters().links);
    Some(Transfer {
        mbps: TOTAL as f64 * 8_000.0 / took as f64,
        pauses: pauses.map_or(0, |_| took / PAUSE_EVERY),
        timeouts: links.iter().map(|link| link.timeouts).sum(),
        resent: links.iter().map(|link| link.slots_resent).sum(),
    })
}

/// Nanoseconds of virtual time that one message of `bytes` bytes takes on an idle path without loss, from its
/// first byte at its sender to its last at its handler.
pub fn one_way(bytes: usize) -> Option<Nanos> {
    let options =
        PathOptions { mbps: 1_000, delay_ns: 50_000, queue_bytes: 1 << 20, ..PathOptions::default() };
    let net: SharedNet = Arc::new(Mutex::new(Net::new(Places::single(2), 1, options, MAX_FRAME, WINDOWS[2])));
    let got = Rc::new(Cell::new(0));
    let policy = RecoveryPolicy::SelectiveRepeat;
    let nodes = [join(&net, 0, policy, &got), join(&net, 1, policy, &got)];
    let piece = vec![7; bytes];
    // The first message opens the channel; the second is measured after everything that followed from the
    // first has ended.
    let (mut begun, mut quiet_at) = (0, Nanos::MAX);
    let mut began_at = 0;
    (0..2).for_each(|node| lock(&net).wake(node, 0));
    while got.get() < 2 * bytes as u64 {
        let Some((now, What::Run { node })) = lock(&net).advance() else { return None };
        if now > LONGEST {
            return None;
        }
        let ep = &nodes[node as usize];
        while ep.extract(usize::MAX).unwrap_or(0) > 0 {}
        if got.get() == bytes as u64 {
            quiet_at = quiet_at.min(now + 20_000_000);
        }
        if node == 0
            && (begun == 0 || begun == 1 && now >= quiet_at)
            && let Ok(mut out) = ep.try_begin(1, "bulk", bytes as u64)
        {
            began_at = now;
            begun += 1;
            out.piece(&piece).ok()?;
            out.end().ok()?;
        }
        let deadline = ep.node().next_deadline().ok().flatten();
        let retry = if node == 0 && begun < 2 { now + 1_000_000 } else { Nanos::MAX };
        let mut net = lock(&net);
        net.ports[node as usize].not_before = now + 1_000;
        net.wake(node, deadline.unwrap_or(Nanos::MAX).min(retry));
    }
    Some(lock(&net).now() - began_at)
}

/// Sends as much as there is room for.
fn send(ep: &Endpoint, piece: &[u8], sending: &mut Option<(tautline::Outgoing, usize)>, begun: &mut u64) {
    loop {
        if sending.is_none() {
            if *begun * MESSAGE as u64 >= TOTAL {
                return;
            }
            let Ok(out) = ep.try_begin(1, "bulk", MESSAGE as u64) else { return };
            *begun += 1;
            *sending = Some((out, 0));
        }
        let Some((out, at)) = sending else { return };
        let Ok(added) = out.try_piece(&piece[*at..]) else { return };
        *at += added;
        if *at == MESSAGE {
            let ended = sending.take().map(|(out, _)| out.end());
            debug_assert!(matches!(ended, Some(Ok(()))));
        }
    }
}

fn join(net: &SharedNet, rank: u32, policy: RecoveryPolicy, got: &Rc<Cell<u64>>) -> Endpoint {
    let job = Job::new(rank, JobKey::new([9; 32]), (0..2).map(|n| Member::new(address(n))).collect());
    let mut config = Config::default();
    config.link.recovery = policy;
    // Small messages and large windows need more than the default.
    config.link.credit_slots = 1_024;
    let device = SimDevice::plug(net, rank, u64::from(rank) + 1, 1_024, MAX_FRAME);
    let clock = Clock::Virtual(lock(net).clock());
    let got = got.clone();
    let bulk = move |mut message: Message| {
        let got = got.clone();
        async move {
            while message.remaining() > 0 {
                let read = message.read_with(usize::MAX, |_| {}).await?;
                got.set(got.get() + read as u64);
            }
            Ok(())
        }
    };
    Endpoint::builder()
        .config(config)
        .on("bulk", bulk)
        .join_in(&job, Environment::new(Box::new(device), clock, [rank as u8 + 1; 32]))
        .expect("a simulated node joins")
}
