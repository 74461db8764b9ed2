//! A member on the same host that is going to die, and what its survivor checks. Its messages carry the start
//! time of their stream and are numbered within it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tautline::{Builder, Config, Down, Endpoint, Error, Event, Message, Rank, SendError};

use super::launch::{Launcher, Process, again, now};
use super::pattern;

/// The environment variable for what the victim is to do.
const ROLE: &str = "TAUTLINE_TEST_ROLE";

/// Sizes of the messages that are sent in turn: in one line, beside it, in several frames.
const SIZES: [usize; 6] = [16, 40, 300, 5_000, 60_000, 24];

pub const SURVIVOR: Rank = 0;
pub const VICTIM: Rank = 1;

/// For each rank: the stream of the last message, and the number of its whole messages.
pub type Received = Rc<RefCell<Vec<(u64, u64)>>>;

/// A builder whose handler checks that nothing is torn, repeated, reordered or left out.
pub fn listener(ranks: usize, config: Config) -> (Builder, Received) {
    let received: Received = Rc::new(RefCell::new(vec![(0, 0); ranks]));
    let for_handler = received.clone();
    let builder =
        Endpoint::builder().config(config).on("data", move |msg: Message| check(msg, for_handler.clone()));
    (builder, received)
}

async fn check(mut msg: Message, received: Received) -> tautline::Result<()> {
    let from = msg.from();
    let bytes = msg.read_to_end().await?;
    let (mut stream, mut due) = received.borrow()[from as usize];
    let said = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    if said != stream {
        assert!(said > stream, "from {from}: an old stream");
        (stream, due) = (said, 0);
    }
    assert!(bytes == message(stream, due), "message {due} of {from}: {} bytes", bytes.len());
    received.borrow_mut()[from as usize] = (stream, due + 1);
    Ok(())
}

/// The message with a number.
pub fn message(stream: u64, number: u64) -> Vec<u8> {
    let size = SIZES[number as usize % SIZES.len()];
    let mut bytes = pattern(size, number as usize);
    bytes[..8].copy_from_slice(&stream.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Extracts until `peer` is up.
pub fn await_up(ep: &Endpoint, peer: Rank) {
    super::await_event(ep, |event| matches!(event, Event::PeerUp { peer: p, .. } if *p == peer));
}

/// Extracts until `done` returns true.
pub fn until(ep: &Endpoint, mut done: impl FnMut() -> bool) {
    while !done() {
        ep.extract(usize::MAX).unwrap();
        ep.wait(Some(Duration::from_millis(5))).unwrap();
    }
}

/// Extracts until `peer` is down, and returns why. Only messages that were cut off may fail.
pub fn await_down(ep: &Endpoint, peer: Rank) -> Down {
    let event =
        super::await_event(ep, |event| matches!(event, Event::PeerDown { peer: p, .. } if *p == peer));
    finish_down(ep, &event)
}

/// The same with waits that only the death, or a message, can end.
pub fn await_down_untimed(ep: &Endpoint, peer: Rank) -> Down {
    loop {
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            if matches!(event, Event::PeerDown { peer: p, .. } if p == peer) {
                return finish_down(ep, &event);
            }
        }
        ep.wait(None).unwrap();
    }
}

fn finish_down(ep: &Endpoint, event: &Event) -> Down {
    while ep.extract(usize::MAX).unwrap() > 0 {}
    check_failures(ep);
    let Event::PeerDown { why, .. } = event else { unreachable!("it was asked for") };
    *why
}

pub fn check_failures(ep: &Endpoint) {
    while let Some(failure) = ep.poll_failure() {
        assert!(!failure.panicked && failure.reason.contains("is gone"), "{failure:?}");
    }
}

/// Starts the victim of rank `rank` in the role `role`, as the test `victim_member`.
pub fn start(launcher: &Launcher, rank: Rank, role: &str) -> Process {
    let mut command = again("victim_member");
    command.env(ROLE, role);
    launcher.start(rank, command)
}

/// What the victim does until it is killed.
pub fn live() {
    let role = std::env::var(ROLE).unwrap();
    let size = if role == "crowd" { 3 } else { 2 };
    let mut config = Config::default();
    if role == "lend" || role == "offer" {
        // Half of its long messages are copied by their receiver.
        config.single_copy = Some(50_000);
    }
    if role == "mute" {
        config.watchdog = None;
    }
    let (builder, _) = listener(size, config);
    let ep = builder.join().unwrap();
    match role.as_str() {
        "crowd" => return crowd(&ep),
        // Can be dialled, and never answers.
        "mute" => {
            println!("@mute");
            std::thread::sleep(Duration::from_secs(600));
        }
        "dial" => {
            ep.connect(SURVIVOR).unwrap();
            println!("@dialled");
        }
        "full" => hoard(&ep),
        _ => {}
    }
    let stream = now();
    ep.send(SURVIVOR, "data", &message(stream, 0)).unwrap();
    match role.as_str() {
        "talk" | "full" => talk(&ep, stream),
        "lend" => lend(&ep, stream),
        "lent" => lent(&ep),
        "offer" => offer(&ep, stream),
        "listen" | "dial" => loop {
            ep.extract(usize::MAX).unwrap();
            ep.wait(None).unwrap();
        },
        // Is up and extracts nothing.
        "stalled" => std::thread::sleep(Duration::from_secs(600)),
        "some" => some(&ep, stream),
        "fork" => fork(),
        "exec" => exec(),
        "close" => ep.close().unwrap(),
        other => panic!("no role {other}"),
    }
}

/// Has no free descriptor for a while, during which it makes progress.
fn hoard(ep: &Endpoint) {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = Some(64);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let hoard: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    println!("@full");
    let start = now();
    while now() - start < 300_000_000 {
        ep.extract(usize::MAX).unwrap();
        ep.wait(Some(Duration::from_millis(1))).unwrap();
    }
    drop(hoard);
    println!("@alive");
}

/// Sends all the time, and extracts.
fn talk(ep: &Endpoint, stream: u64) {
    for number in 1.. {
        ep.send(SURVIVOR, "data", &message(stream, number)).unwrap();
        while ep.extract(usize::MAX).unwrap() > 0 {}
    }
}

/// Lends every other message, sends the rest, and extracts.
fn lend(ep: &Endpoint, stream: u64) {
    for number in 1.. {
        let bytes = message(stream, number);
        if (number / SIZES.len() as u64).is_multiple_of(2) {
            let mut loan = ep.loan(SURVIVOR, bytes.len()).unwrap();
            assert!(loan.is_shared());
            loan.copy_from_slice(&bytes);
            loan.send("data").unwrap();
        } else {
            ep.send(SURVIVOR, "data", &bytes).unwrap();
        }
        while ep.extract(usize::MAX).unwrap() > 0 {}
    }
}

/// Messages that [`lent`] lends.
pub const LENT: usize = 20;

/// A message that [`lent`] lends.
pub fn lent_message(number: usize) -> Vec<u8> {
    pattern(40_000 + number, number)
}

/// Lends some messages, and waits for its death.
fn lent(ep: &Endpoint) {
    for number in 0..LENT {
        let bytes = lent_message(number);
        let mut loan = ep.loan(SURVIVOR, bytes.len()).unwrap();
        assert!(loan.is_shared());
        loan.copy_from_slice(&bytes);
        loan.send("kept").unwrap();
    }
    println!("@lent");
    std::thread::sleep(Duration::from_secs(600));
}

/// Waits until its messages are read in its memory, which nobody does after a while.
fn offer(ep: &Endpoint, stream: u64) {
    (1..4).for_each(|number| ep.send(SURVIVOR, "data", &message(stream, number)).unwrap());
    println!("@offers");
    // The survivor may still be extracting; it stops before this many messages.
    for number in 4.. {
        ep.send(SURVIVOR, "data", &message(stream, number)).unwrap();
    }
}

/// Talks with both others, whatever happens to them.
fn crowd(ep: &Endpoint) {
    let others: Vec<Rank> = (0..3).filter(|r| *r != ep.rank()).collect();
    let mut next = [None; 3];
    others.iter().for_each(|peer| ep.connect(*peer).unwrap());
    loop {
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            match event {
                Event::PeerUp { peer, .. } => next[peer as usize] = Some((now(), 0)),
                Event::PeerDown { peer, .. } => {
                    next[peer as usize] = None;
                    ep.connect(peer).unwrap();
                }
                _ => {}
            }
        }
        check_failures(ep);
        for peer in &others {
            let Some((stream, number)) = &mut next[*peer as usize] else { continue };
            let bytes = message(*stream, *number);
            let sent = match ep.try_send(*peer, "data", &bytes) {
                Err(Error::Send(SendError::TooLongForHandler(_))) => ep.send(*peer, "data", &bytes),
                other => other,
            };
            *number += u64::from(sent.is_ok());
        }
        ep.wait(Some(Duration::from_micros(200))).unwrap();
    }
}

/// Sends some messages, prints how many, and waits for its death. It sends none of several frames: they wait
/// for windows, which nobody grants meanwhile.
fn some(ep: &Endpoint, stream: u64) {
    let mut sent = 1;
    for i in 1..40 {
        for number in 0..4 {
            ep.send(SURVIVOR, "data", &message(stream + i, number)).unwrap();
            sent += 1;
        }
    }
    println!("@sent {sent}");
    std::thread::sleep(Duration::from_secs(600));
}

/// Forks a child that lives on, and waits for its own death.
fn fork() {
    // SAFETY: the child only sleeps, and leaves by _exit or is killed.
    match unsafe { libc::fork() } {
        0 => {
            std::thread::sleep(Duration::from_secs(60));
            // SAFETY: leaves at once, without the parent's destructors.
            unsafe { libc::_exit(0) }
        }
        pid => println!("@child {pid}"),
    }
    std::thread::sleep(Duration::from_secs(600));
}

/// Becomes another program, which lives on.
fn exec() {
    use std::os::unix::process::CommandExt;
    println!("@exec");
    let error = std::process::Command::new("sleep").arg("600").exec();
    panic!("{error}");
}
