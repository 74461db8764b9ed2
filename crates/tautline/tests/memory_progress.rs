//! Memory operations make progress whatever their program does: it need not extract, and suspended handlers
//! block no others.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::pair::Pair;
use crate::common::{join, run, run_over};
use tautline::memory::{AsyncRemote, Cookie, Rights};
use tautline::{DeviceName, Endpoint, Error, Message, SendError, Short, queue, stream};

/// More puts than may be unanswered at a time.
const MANY: u64 = 3 * 4096;

/// a program that only puts, and never extracts, makes progress; also if it puts to itself.
#[test]
fn puts_without_extracting() {
    run(2, |job| {
        let pair = Pair::join(job);
        let own = pair.ep.aperture(64).unwrap();
        let myself = pair.ep.remote(&own.cookie(.., Rights::ALL).unwrap());
        for i in 1..=MANY {
            myself.put(0, &i.to_le_bytes()).unwrap();
        }
        myself.flush().unwrap().wait().unwrap();
        assert_eq!(own.read_u64(0).unwrap(), MANY);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"done");
            assert_eq!(aperture.read_u64(0).unwrap(), MANY);
        } else {
            let remote = pair.take_cookie();
            for i in 1..=MANY {
                remote.put(0, &i.to_le_bytes()).unwrap();
            }
            pair.say("done");
        }
        pair.close();
    });
}

/// N-13: operations on the memory of a program that computes are served at once: they ring for its watchdog.
/// A watchdog that is awake for another reason is not rung for; half of the operations ring at least.
#[test]
fn a_computing_owner_is_rung_for() {
    const OPERATIONS: u64 = 1_000;
    let done = AtomicBool::new(false);
    run_over(DeviceName::Shm, 2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            while !done.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(aperture.read_u64(0).unwrap(), OPERATIONS);
        } else {
            let remote = pair.take_cookie();
            let rings = || pair.ep.counters().local.rings;
            for i in 0..OPERATIONS {
                assert_eq!(remote.fetch_add(0, 1).unwrap().wait().unwrap(), i);
                if rings() < i.saturating_sub(20) / 2 {
                    break;
                }
            }
            done.store(true, Ordering::Release);
            println!("{} rings for {OPERATIONS} operations", rings());
            assert!(rings() >= OPERATIONS / 2, "the peer is not rung for");
        }
        pair.close();
    });
}

/// when answers are queued behind messages that nobody extracts, a put does not wait for ever but
/// fails, and succeeds after extraction. A queue extracts by itself.
#[test]
fn puts_whose_answers_are_behind_messages() {
    for (device, fenced) in
        [(DeviceName::Udp, false), (DeviceName::Shm, false), (DeviceName::Udp, true), (DeviceName::Shm, true)]
    {
        let (full, polls) = (AtomicBool::new(false), AtomicU64::new(0));
        run_over(device, 2, |job| {
            let pair = Pair::join(job);
            if pair.ep.rank() == 0 {
                let aperture = pair.ep.aperture(64).unwrap();
                let (mut entries, ring) = queue::pair(&pair.ep, 1 << 16).unwrap();
                pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
                pair.give(&ring);
                // As many messages as the network takes, until it has taken none for a while in which the
                // other node polled it.
                let (mut vain, mut polled) = (0, 0);
                while vain < 100 {
                    match pair.ep.try_send(1, "mail", &[7; 100]) {
                        Ok(()) => vain = 0,
                        Err(Error::Send(SendError::WouldBlock)) => {
                            let before = std::mem::replace(&mut polled, polls.load(Ordering::SeqCst));
                            vain += u32::from(polled > before);
                            pair.ep.progress().unwrap();
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                full.store(true, Ordering::SeqCst);
                for i in 0..100u64 {
                    assert_eq!(entries.pop().unwrap().as_deref(), Some(&i.to_le_bytes()[..]));
                }
                pair.ep.run_until(|| pair.mail.borrow().iter().any(|m| m == b"done")).unwrap();
                pair.mail.borrow_mut().clear();
                assert_eq!(aperture.read_u64(0).unwrap(), MANY);
            } else {
                let remote = pair.take_cookie();
                let ring = *pair.take_cookie().cookie();
                pair.mail.borrow_mut().clear();
                while !full.load(Ordering::SeqCst) {
                    // Polls the network and runs no handler.
                    pair.ep.progress().unwrap();
                    polls.fetch_add(1, Ordering::SeqCst);
                }
                let mut refused = 0;
                // Nothing passes a fence before the gets are complete.
                let _held = fenced.then(|| (remote.get(0, 8).unwrap(), remote.fence().unwrap()));
                for i in 1..=MANY {
                    while let Err(error) = remote.put(0, &i.to_le_bytes()) {
                        assert!(matches!(error, Error::Send(SendError::Unextracted(0))), "{error}");
                        assert!(error.to_string().contains("extract"), "{error}");
                        refused += 1;
                        pair.ep.extract(usize::MAX).unwrap();
                        pair.ep.wait(Some(Duration::from_millis(1))).unwrap();
                    }
                }
                assert!(refused > 0, "no answer was behind messages");
                let mut entries = queue::Sender::new(&pair.ep, &ring).unwrap();
                for i in 0..100u64 {
                    entries.push(&i.to_le_bytes()).unwrap();
                }
                pair.say("done");
                pair.ep.run_until(|| pair.mail.borrow().iter().any(|m| m == b"over")).unwrap();
                pair.mail.borrow_mut().retain(|m| m == b"over");
            }
            pair.close();
        });
    }
}

/// handlers that put, get, swap, push and write block no others while the other node serves nothing.
#[test]
fn waiting_handlers_block_no_others() {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let (tell, go_on) = mpsc::channel::<()>();
        let (tell, go_on) = (std::sync::Mutex::new(tell), std::sync::Mutex::new(go_on));
        run_over(device, 3, |job| {
            let rank = job.rank;
            match rank {
                0 => stands_still(job, &go_on.lock().unwrap()),
                1 => works(job),
                _ => asks(job, &tell.lock().unwrap()),
            }
        });
    }
}

const LONG: usize = 1 << 20;

/// Owns memory, but for a while neither polls nor has a watchdog.
fn stands_still(job: tautline::Job, go_on: &mpsc::Receiver<()>) {
    // Long time limits: nothing arrives from it meanwhile.
    let config = crate::common::config(|c| {
        c.watchdog = None;
        c.link.silence = 30_000_000_000;
    });
    let over = Rc::new(Cell::new(0));
    let overs = over.clone();
    let builder =
        Endpoint::builder().config(config).on_short("over", move |_: Short<'_>| overs.set(overs.get() + 1));
    let ep = join(builder, job);
    let aperture = ep.aperture(LONG).unwrap();
    let (mut entries, ring) = queue::pair(&ep, 2 * LONG).unwrap();
    let (mut reader, stream) = stream::pair(&ep, 2 * LONG).unwrap();
    let cookies = [aperture.cookie(.., Rights::ALL).unwrap(), ring, stream];
    for cookie in cookies {
        ep.send(1, "work", &cookie.to_bytes()).unwrap();
    }
    go_on.recv_timeout(Duration::from_secs(20)).expect("handlers stopped their node");
    for _ in 0..5 {
        assert_eq!(entries.pop().unwrap().unwrap(), vec![3; LONG / 2]);
    }
    let mut all = vec![0; LONG];
    for _ in 0..5 {
        reader.read_exact(&mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 4));
    }
    ep.run_until(|| over.get() == 2).unwrap();
    assert_eq!(aperture.read_u64(0).unwrap(), 5 * 8);
    ep.close().unwrap();
}

/// What one handler does with the memory of the node that serves nothing.
async fn work(mut message: Message, turn: u32, done: Rc<Cell<u32>>) -> tautline::Result<()> {
    let bytes = message.read_to_end().await?;
    let cookie = Cookie::from_bytes(bytes.as_slice().try_into().expect("a cookie"));
    let ep = message.endpoint();
    match turn {
        0 => {
            let remote: AsyncRemote = ep.remote(&cookie);
            for round in 0..5u8 {
                remote.put(64, &vec![round; LONG - 64]).await?;
                remote.put_list(&[(8, &[round]), (16, &[round; 8])]).await?;
                remote.put_pieces(24, &[&[round], &[round]]).await?;
                remote.fill(26, 4, |room| room.fill(round)).await?;
                assert_eq!(remote.get(24, 6).await?, [round; 6]);
                assert_eq!(remote.get_list(&[(8, 1), (16, 1)]).await?, [round; 2]);
                assert_eq!(remote.fetch_add(0, 8).await?, u64::from(round) * 8);
                assert_eq!(remote.swap(48, 1).await?, 0);
                assert_eq!(remote.compare_swap(48, 1, 0).await?, 1);
                let mine = ep.aperture(64)?;
                remote.get_into(24, &mine, 0..4).await?;
                remote.get_list_into(&mine, &[(24, 8..9), (26, 9..10)]).await?;
                remote.put_from(32, &mine, 0..8).await?;
                remote.put_notice(40, &[1], 5).await?;
                remote.fence().await?;
                remote.flush().await?;
                ep.send_out_of_band(0, b"so far").await?;
            }
        }
        1 => {
            let mut entries = queue::AsyncSender::new(&ep, &cookie).await?;
            for _ in 0..5 {
                entries.push_pieces(&[&[3; LONG / 4], &[3; LONG / 4]]).await?;
            }
            entries.end()?;
        }
        _ => {
            let mut writer = stream::AsyncWriter::new(&ep, &cookie).await?;
            for _ in 0..5 {
                writer.write_all(&vec![4; LONG]).await?;
            }
            writer.close()?;
        }
    }
    done.set(done.get() + 1);
    Ok(())
}

fn works(job: tautline::Job) {
    let (turns, done) = (Cell::new(0), Rc::new(Cell::new(0)));
    let finished = done.clone();
    let pings = Rc::new(Cell::new(0));
    let ping = pings.clone();
    let builder = Endpoint::builder()
        .config(crate::common::config(|c| c.link.silence = 30_000_000_000))
        .on("work", move |message: Message| work(message, turns.replace(turns.get() + 1), finished.clone()))
        .on_short("ping", move |m: Short<'_>| {
            ping.set(ping.get() + 1);
            m.endpoint().try_send(2, "pong", &[]).unwrap();
        });
    let ep = join(builder, job);
    ep.run_until(|| done.get() == 3).unwrap();
    assert!(ep.poll_failure().is_none());
    ep.run_until(|| pings.get() == 50).unwrap();
    ep.send(0, "over", &[]).unwrap();
    ep.close().unwrap();
}

/// Gets answers from the working node, and only then lets the stalled one continue.
fn asks(job: tautline::Job, tell: &mpsc::Sender<()>) {
    let pongs = Rc::new(Cell::new(0));
    let pong = pongs.clone();
    let builder = Endpoint::builder()
        .config(crate::common::config(|c| c.link.silence = 30_000_000_000))
        .on_short("pong", move |_: Short<'_>| pong.set(pong.get() + 1));
    let ep = join(builder, job);
    for i in 1..=50 {
        ep.send(1, "ping", &[]).unwrap();
        ep.run_until(|| pongs.get() == i).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    tell.send(()).unwrap();
    ep.send(0, "over", &[]).unwrap();
    ep.close().unwrap();
}
