//! Who tells of the members: the launcher, in lines of a word and a rank on an inherited pipe (N-26), or the
//! other members ([`protocol`]).

pub(crate) mod protocol;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;

use tautline_node::{Down, HostId, Member, Members, Rank, SendError};

/// The thread does next to nothing.
const STACK: usize = 128 << 10;

/// Starts a thread that passes on the notices, until the launcher or the node is gone.
pub(crate) fn watch(members: Members, notices: OwnedFd) -> std::io::Result<()> {
    let lines = BufReader::new(File::from(notices)).lines();
    let passing = move || {
        for line in lines.map_while(Result::ok) {
            if pass_on(&members, &line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("members".into()).stack_size(STACK).spawn(passing).map(drop)
}

/// Passes on a notice. Words that a later launcher may have are ignored.
fn pass_on(members: &Members, line: &str) -> Result<(), SendError> {
    let mut words = line.split(' ');
    let (Some(word), Some(rank)) = (words.next(), words.next()) else { return Ok(()) };
    let Ok(rank) = rank.parse::<Rank>() else { return Ok(()) };
    match word {
        "died" => members.ended(rank, Down::Reported),
        "left" => members.ended(rank, Down::Closed),
        "started" => members.started(rank),
        "joined" => match words.next().and_then(parse_member) {
            Some(mut member) => {
                member.host = words.next().and_then(|host| u64::from_str_radix(host, 16).ok()).map(HostId);
                members.joined(rank, &member)
            }
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Reads the addresses of a member (J-28).
fn parse_member(text: &str) -> Option<Member> {
    let addrs = text.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().ok()?;
    Member::at(&addrs).ok()
}
