//! Joining through a launcher's key-value space (J-12, J-13).
//!
//! Each process publishes a card: where it receives datagrams, on which host it is, and to which key the job
//! key can be sealed. After a fence everybody reads all cards. Then rank 0 publishes the job key, sealed to
//! each process, unless all have it from a file.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ring::error::Unspecified;
use tautline_node::limits::MAX_PEERS;
use tautline_node::link::JobKey;
use tautline_node::{HostId, Job, JoinError, Member, Rank};

use crate::host::host_id;
use crate::key_value::{Admitted, KeyValueSpace};
use crate::sealed_key::{self, Receiver, SEALED};
use crate::{KEY_FILE, address, hex, launcher};

/// Begins every card; another version is another word.
const VERSION: &str = "tautline-1";
/// Stands in a card for the key of a process that has the job key from a file.
const FROM_FILE: &str = "file";

/// What a process publishes of itself.
#[derive(Debug, PartialEq)]
struct Card {
    /// In the order in which they are tried (J-28).
    addrs: Vec<SocketAddr>,
    host: HostId,
    /// What the job key is sealed to; none if the process has it from a file.
    public: Option<[u8; 32]>,
}

impl Card {
    /// Without white space and semicolons, which launchers take for ends.
    fn write(&self) -> String {
        let key = self.public.map_or_else(|| FROM_FILE.to_owned(), |key| hex::encode(&key));
        let addrs: Vec<_> = self.addrs.iter().map(ToString::to_string).collect();
        format!("{VERSION},{},{:016x},{key}", addrs.join("+"), self.host.0)
    }

    fn parse(text: &str) -> Option<Card> {
        let mut fields = text.split(',');
        let (version, addrs, host, key) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let public = if key == FROM_FILE { None } else { Some(hex::decode(key)?) };
        let addrs = addrs.split('+').map(str::parse).collect::<Result<Vec<_>, _>>().ok()?;
        let card = Card { addrs, host: HostId(u64::from_be_bytes(hex::decode(host)?)), public };
        let good = card.member().is_some_and(|member| member.addr.port() != 0);
        (version == VERSION && fields.next().is_none() && good).then_some(card)
    }

    fn member(&self) -> Option<Member> {
        Member::at(&self.addrs).ok().map(|member| member.on_host(self.host))
    }
}

/// Joins a job of the processes that the launcher has admitted. `ips` are announced; `key` is from a file.
pub(crate) fn join(mut admitted: Admitted, ips: &[IpAddr], key: Option<JobKey>) -> Result<Job, JoinError> {
    let (rank, size) = (admitted.rank, admitted.size);
    if rank >= size || size as usize > MAX_PEERS {
        let why = format!("rank {rank} of {size}; a job has at most {MAX_PEERS} processes");
        return Err(JoinError::Launcher(why));
    }
    let (socket, addrs) = address::bind(ips, 1)
        .map(|mut bound| bound.remove(0))
        .map_err(|e| JoinError::Launcher(format!("no socket can be bound to the address {}: {e}", ips[0])))?;
    let receiver = key.is_none().then(Receiver::new).transpose().map_err(no_randomness)?;
    let own = Card { addrs, host: host_id()?, public: receiver.as_ref().map(|receiver| *receiver.public()) };
    let space = &mut *admitted.space;
    let told = |error: io::Error| JoinError::Launcher(error.to_string());
    space.put(&card_key(rank), &own.write()).map_err(told)?;
    space.fence().map_err(told)?;
    let (cards, context) = read_cards(space, size)?;
    check_cards(&cards, rank)?;
    let key = match (key, receiver) {
        (Some(key), _) => key_of_job(&key, &context),
        (None, Some(receiver)) => hand_over_key(space, rank, &cards, receiver, &context)?,
        (None, None) => unreachable!("a process without a key has a receiver"),
    };
    launcher::keep_or_finish(admitted.space).map_err(told)?;
    let members = cards.iter().filter_map(Card::member).collect();
    Ok(Job::new(rank, key, members).with_socket(socket))
}

fn card_key(rank: Rank) -> String {
    format!("tautline-card-{rank}")
}

fn sealed_key_of(rank: Rank) -> String {
    format!("tautline-key-{rank}")
}

fn no_randomness(_: Unspecified) -> JoinError {
    JoinError::System(io::Error::other("the system has no random bytes for keys"))
}

/// All cards, and their text, which keys are bound to.
fn read_cards(space: &mut dyn KeyValueSpace, size: u32) -> Result<(Vec<Card>, String), JoinError> {
    let (mut cards, mut context) = (Vec::with_capacity(size as usize), String::new());
    for rank in 0..size {
        let text = space.get(rank, &card_key(rank)).map_err(|error| {
            JoinError::Launcher(format!(
                "rank {rank} published no address; is it a Tautline program? {error}"
            ))
        })?;
        let card = Card::parse(&text).ok_or_else(|| {
            JoinError::Launcher(format!(
                "rank {rank} published \"{text}\", which this version of Tautline does not understand; build all ranks with the same version"
            ))
        })?;
        cards.push(card);
        context.push_str(&text);
        context.push('\n');
    }
    Ok((cards, context))
}

/// Checks that all ranks get the key in the same way, and that others can be reached.
fn check_cards(cards: &[Card], rank: Rank) -> Result<(), JoinError> {
    let own = &cards[rank as usize];
    for (other, card) in cards.iter().enumerate() {
        if card.public.is_none() != own.public.is_none() {
            let (with, without) =
                if own.public.is_none() { (rank as usize, other) } else { (other, rank as usize) };
            return Err(JoinError::Launcher(format!(
                "rank {with} has {KEY_FILE} set and rank {without} has not; set it for all ranks or for none"
            )));
        }
        if card.host != own.host
            && let Some(addr) = card.addrs.iter().find(|addr| addr.ip().is_loopback())
        {
            return Err(JoinError::Launcher(format!(
                "rank {other} is on another host and announces the address {}; does its host have a network? {} names the one to use",
                addr.ip(),
                crate::INTERFACE
            )));
        }
    }
    Ok(())
}

/// The key of a job whose processes have `key` from a file: jobs that share a file have different keys.
fn key_of_job(key: &JobKey, context: &str) -> JobKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&key.prove("job key, first half", context.as_bytes()));
    bytes[16..].copy_from_slice(&key.prove("job key, second half", context.as_bytes()));
    JobKey::new(bytes)
}

/// Rank 0 makes the job key and publishes it, sealed to each of the others.
fn hand_over_key(
    space: &mut dyn KeyValueSpace,
    rank: Rank,
    cards: &[Card],
    receiver: Receiver,
    context: &str,
) -> Result<JobKey, JoinError> {
    let told = |error: io::Error| JoinError::Launcher(error.to_string());
    let made = (rank == 0).then(sealed_key::random_key).transpose()?;
    if let Some(key) = &made {
        for (to, card) in (0..).zip(cards).skip(1) {
            let public = card.public.as_ref().expect("all cards have one, which was checked");
            let sealed = sealed_key::seal(key, public, context.as_bytes())
                .map_err(|_| JoinError::Launcher(format!("rank {to} published a key that is not valid")))?;
            space.put(&sealed_key_of(to), &hex::encode(&sealed)).map_err(told)?;
        }
    }
    space.fence().map_err(told)?;
    if let Some(key) = made {
        return Ok(key);
    }
    let sealed = space.get(0, &sealed_key_of(rank)).map_err(told)?;
    let opened =
        hex::decode::<SEALED>(&sealed).and_then(|sealed| receiver.open(&sealed, context.as_bytes()).ok());
    opened.ok_or_else(|| {
        JoinError::Launcher(
            "the job key of rank 0 was altered, or the ranks have read different addresses".into(),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Barrier, Mutex};

    use super::*;

    /// A space for threads.
    struct Shared {
        values: Arc<Mutex<HashMap<String, String>>>,
        barrier: Arc<Barrier>,
        /// Changes what is published under a key.
        alter: fn(&str, String) -> String,
    }

    impl KeyValueSpace for Shared {
        fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
            assert!(
                key.len() <= 64 && value.len() <= 1024 && !value.contains([' ', ';', '=', '\n']),
                "{value}"
            );
            self.values.lock().unwrap().insert(key.to_owned(), (self.alter)(key, value.to_owned()));
            Ok(())
        }

        fn fence(&mut self) -> io::Result<()> {
            self.barrier.wait();
            Ok(())
        }

        fn get(&mut self, _: Rank, key: &str) -> io::Result<String> {
            self.values.lock().unwrap().get(key).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn finish(self: Box<Self>) -> io::Result<()> {
            Ok(())
        }

        fn abort(&mut self, _: i32) -> io::Result<()> {
            unreachable!("no test asks for it")
        }

        fn program_index(&mut self) -> Option<u32> {
            None
        }

        fn universe_size(&mut self) -> Option<u32> {
            None
        }
    }

    type Published = HashMap<String, String>;

    fn join_all(
        size: u32,
        key: impl Fn(Rank) -> Option<JobKey>,
        alter: fn(&str, String) -> String,
    ) -> (Vec<Result<Job, JoinError>>, Published) {
        let values = Arc::new(Mutex::new(HashMap::new()));
        let barrier = Arc::new(Barrier::new(size as usize));
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let space = Box::new(Shared { values: values.clone(), barrier: barrier.clone(), alter });
                let key = key(rank);
                let localhost = "127.0.0.1".parse().unwrap();
                std::thread::spawn(move || join(Admitted { rank, size, space }, &[localhost], key))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let values = values.lock().unwrap().clone();
        (joined, values)
    }

    /// J-12, J-13: all ranks come to the same job, and the key is not among what was published.
    #[test]
    fn all_ranks_join_one_job() {
        let (jobs, published) = join_all(5, |_| None, |_, value| value);
        let jobs: Vec<_> = jobs.into_iter().map(Result::unwrap).collect();
        for (rank, job) in jobs.iter().enumerate() {
            assert_eq!((job.rank as usize, job.size(), &job.members), (rank, 5, &jobs[0].members));
            assert_eq!(job.key.bytes(), jobs[0].key.bytes());
            assert!(job.socket.is_some() && job.members[rank].host.is_some());
        }
        let key = hex::encode(jobs[0].key.bytes());
        assert!(published.values().all(|value| !value.contains(&key)));
        assert_eq!(published.len(), 9, "five cards and four sealed keys");
        let (again, _) = join_all(2, |_| None, |_, value| value);
        assert_ne!(again[0].as_ref().unwrap().key.bytes(), jobs[0].key.bytes());
    }

    /// J-13: with a key file nothing is sealed, and jobs with the same file have different keys.
    #[test]
    fn jobs_with_one_key_file_have_different_keys() {
        let key = |_| Some(JobKey::new([7; 32]));
        let (first, published) = join_all(2, key, |_, value| value);
        let (second, _) = join_all(2, key, |_, value| value);
        assert_eq!(published.len(), 2, "{published:?}");
        let keys = [&first[0], &first[1], &second[0]].map(|job| *job.as_ref().unwrap().key.bytes());
        assert!(keys[0] == keys[1] && keys[0] != keys[2] && keys[0] != [7; 32]);
    }

    /// J-12, J-13: what does not fit together is named.
    #[test]
    fn mistakes_are_named() {
        let mixed = |rank| (rank == 1).then(|| JobKey::new([7; 32]));
        let said = |joined: Vec<Result<Job, JoinError>>| {
            joined
                .into_iter()
                .map(|job| job.err().map_or_else(String::new, |e| e.to_string()))
                .collect::<Vec<_>>()
        };
        for text in said(join_all(2, mixed, |_, value| value).0) {
            assert!(text.contains("rank 1 has TAUTLINE_KEY_FILE set and rank 0 has not"), "{text}");
        }
        let altered = |key: &str, mut value: String| {
            if key == "tautline-key-1" {
                let last = value.pop();
                value.push(if last == Some('0') { '1' } else { '0' });
            }
            value
        };
        let texts = said(join_all(2, |_| None, altered).0);
        assert!(texts[0].is_empty() && texts[1].contains("was altered"), "{texts:?}");
        let newer = |_: &str, value: String| value.replacen("tautline-1", "tautline-2", 1);
        assert!(said(join_all(2, |_| None, newer).0)[0].contains("the same version"));
        let elsewhere = |key: &str, value: String| {
            let mut fields: Vec<_> = value.split(',').collect();
            if key == "tautline-card-1" {
                fields[2] = "0000000000000001";
            }
            fields.join(",")
        };
        let texts = said(join_all(2, |_| None, elsewhere).0);
        assert!(
            texts[0].contains("rank 1 is on another host") && texts[0].contains("TAUTLINE_INTERFACE"),
            "{texts:?}"
        );
    }

    /// J-12: cards read back as written, and nothing else is a card.
    #[test]
    fn cards_are_checked() {
        let addrs: Vec<_> = (1..=8).map(|n| format!("[2001:db8::{n}]:7000").parse().unwrap()).collect();
        let card =
            |addrs: &[SocketAddr]| Card { addrs: addrs.to_vec(), host: HostId(1), public: Some([9; 32]) };
        let all = card(&addrs);
        // J-28, and what launchers take as a value.
        assert!(all.write().len() <= 1024 && !all.write().contains([' ', ';', '=', '\n']));
        assert_eq!(Card::parse(&all.write()), Some(all));
        let card = card(&addrs[..1]);
        let text = card.write();
        assert_eq!(Card::parse(&text), Some(card));
        for wrong in [
            "",
            "tautline-1",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text},"),
            &text.replace(":7000", ":0"),
            &text.replace(":7000", ":7000+"),
            &text.replace(":7000", ":7000+[2001:db8::1]:7000"),
            &text.replace(":7000", ":7000+[2001:db8::2]:7001"),
        ] {
            assert_eq!(Card::parse(wrong), None, "{wrong}");
        }
    }
}
