//! Whoever waits for memory in vain is told so, and nobody waits for what only extraction could bring.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use common::pair::Pair;
use common::run;
use tautline::memory::Rights;
use tautline::{Error, SendError};

/// More puts than may be unanswered.
const MANY: u64 = 3 * 4096;

/// a program that only puts, and never extracts, comes to its end.
#[test]
fn puts_without_extracting() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.hear(), b"done");
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

/// To oneself.
#[test]
fn puts_to_oneself() {
    run(2, |job| {
        let pair = Pair::join(job);
        let aperture = pair.ep.aperture(64).unwrap();
        let remote = pair.ep.remote(&aperture.cookie(.., Rights::ALL).unwrap());
        for i in 1..=MANY {
            remote.put(0, &i.to_le_bytes()).unwrap();
        }
        remote.flush().unwrap().wait().unwrap();
        assert_eq!(aperture.read_u64(0).unwrap(), MANY);
        pair.close();
    });
}

/// Answers stand behind messages.
#[test]
fn puts_behind_messages() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            let mut sent = 0;
            loop {
                match pair.ep.try_send(1, "mail", &[7; 100]) {
                    Ok(()) => sent += 1,
                    Err(Error::Send(SendError::WouldBlock)) => {
                        pair.ep.progress().unwrap();
                        if aperture.read_u64(0).unwrap() > 0 {
                            break;
                        }
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            println!("{sent} sent");
            pair.ep.run_until(|| pair.mail.borrow().iter().any(|m| m == b"done")).unwrap();
            pair.mail.borrow_mut().clear();
            assert_eq!(aperture.read_u64(0).unwrap(), MANY);
        } else {
            let remote = pair.take_cookie();
            std::thread::sleep(std::time::Duration::from_millis(500));
            for i in 1..=MANY {
                remote.put(0, &i.to_le_bytes()).unwrap();
            }
            pair.say("done");
            pair.ep.run_until(|| pair.mail.borrow().iter().any(|m| m == b"over")).unwrap();
            pair.mail.borrow_mut().retain(|m| m == b"over");
        }
        pair.close();
    });
}
