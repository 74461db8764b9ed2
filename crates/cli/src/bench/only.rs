//! `--only latency,64,tautline`: selects cells.

use std::str::FromStr;

use super::case::System;
use super::plan::{Cell, Test};

/// Words of three kinds; of each kind that is given, one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    tests: Vec<Test>,
    systems: Vec<String>,
    bytes: Vec<usize>,
    /// Further words, of which the same holds.
    and: Option<Box<Only>>,
}

/// What a cell may be called beside its system's name.
const VARIANTS: [&str; 18] = [
    "polled",
    "blocking",
    "spin",
    "spin-then-park",
    "park",
    "open",
    "fabric",
    "sealed",
    "idle",
    "burner",
    "one-core",
    "shm",
    "memory",
    "xdp",
    "busy-poll",
    "many",
    "collectives",
    "mpi",
];
const RIVALS: [&str; 14] = [
    "rivals",
    "openmpi",
    "openmpi-tcp",
    "mpich",
    "tautline-mpi",
    "tautline-mpi-udp",
    "ucx",
    "ucx-tcp",
    "ucx-perftest",
    "zeromq",
    "iceoryx2",
    "iceoryx2-loan",
    "tarpc",
    "tarpc-unix",
];
const SYSTEMS: [&str; 57] = [
    "pipe",
    "fifo",
    "sysv",
    "semaphores",
    "unix",
    "tcp",
    "tcp-nagle",
    "tcp-bare",
    "tcp-bare-nagle",
    "udp",
    "udp-busy",
    "udp-gso",
    "udp-mmsg",
    "udp-packed",
    "frames",
    "frames+flow",
    "line",
    "hand-over",
    "write-flag-copy",
    "pipelined",
    "memcpy",
    "non-temporal",
    "slot",
    "readv",
    "pinned",
    "two-copy-stream",
    "two-copy-in-place",
    "two-copy-unread",
    "udp-gso-in-place",
    "udp-gso-unread",
    "loans",
    "single-copy",
    "ring",
    "xdp-generic",
    "xdp-native",
    "tautline",
    "tautline-batch",
    "tautline-in-place",
    "tautline-unread",
    "tautline-scattered",
    "tautline-go-back-n",
    "put",
    "put-one",
    "put-early",
    "put-in-place",
    "put-unread",
    "mapped",
    "queue",
    "stream",
    "rpc",
    "rpc-typed",
    "tag",
    "tag-queues",
    "server",
    "server-asleep",
    "disjoint",
    "overlapping",
];

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Only, String> {
        let mut only = Only::default();
        // Without words everything is selected.
        for word in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            if let Some(test) = Test::ALL.into_iter().find(|test| test.name() == word) {
                only.tests.push(test);
            } else if [&SYSTEMS[..], &VARIANTS, &RIVALS].concat().contains(&word) {
                only.systems.push(word.to_owned());
            } else if let Some(bytes) = parse_bytes(word) {
                only.bytes.push(bytes);
            } else {
                let tests: Vec<_> = Test::ALL.iter().map(|test| test.name()).collect();
                return Err(format!(
                    "\"{word}\" is none of the tests ({}), systems ({}), rivals ({}), variants ({}) or sizes (8, 64K, 1M)",
                    tests.join(", "),
                    SYSTEMS.join(", "),
                    RIVALS.join(", "),
                    VARIANTS.join(", ")
                ));
            }
        }
        Ok(only)
    }
}

fn parse_bytes(word: &str) -> Option<usize> {
    let upper = word.to_ascii_uppercase();
    let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &upper[digits.len()..] {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        _ => return None,
    };
    digits.parse::<usize>().ok().map(|number| number * unit)
}

impl Only {
    /// Whether nothing was selected, which selects everything.
    pub fn is_everything(&self) -> bool {
        self.tests.is_empty() && self.systems.is_empty() && self.bytes.is_empty()
    }

    /// Whether rivals were requested by name.
    pub fn names_rivals(&self) -> bool {
        self.systems.iter().any(|word| word == "mpi" || RIVALS.contains(&word.as_str()))
    }

    /// Returns a feature that was requested by name and is not in this build.
    pub fn needs_feature(&self) -> Option<&'static str> {
        let absent = [("iceoryx2", tautline_baseline::ICEORYX2), ("tarpc", tautline_baseline::TARPC)];
        let requested = |name: &str| self.systems.iter().any(|word| word.starts_with(name));
        absent.into_iter().find(|(name, here)| here.is_none() && requested(name)).map(|(name, _)| name)
    }

    /// What these words and others both select.
    pub fn and(self, other: &Only) -> Only {
        Only { and: Some(Box::new(other.clone())), ..self }
    }

    /// Whether this cell was requested.
    pub fn wants(&self, cell: &Cell) -> bool {
        let called = |word: &String| {
            let system = cell.system;
            [cell.name(), system.name(), system.policy(), cell.load.name()].contains(&word.as_str())
                || system.security() == Some(word)
                || (word == "shm" && (system.device() == "shm" || system.is_host_rival()))
                || (word == "rivals" && system.is_rival())
                || (word == "mpi" && matches!(system, System::Rival { other, .. } if other.is_mpi()))
                || (word == "memory" && matches!(system, System::Memory { .. }))
                || (word == "many" && matches!(cell.test, Test::Many(_)))
                || (word == "collectives" && matches!(cell.test, Test::Many(one) if one.is_collective()))
                || (word == "xdp" && system.device().starts_with("xdp"))
        };
        // Jobs take long: they are measured if they are named, or with everything.
        let names_jobs =
            || self.systems.iter().any(|word| ["many", "collectives", "mpi"].contains(&word.as_str()));
        let job = matches!(cell.test, Test::Many(_)) && !self.is_everything();
        if job && !self.tests.contains(&cell.test) && !names_jobs() {
            return false;
        }
        (self.tests.is_empty() || self.tests.contains(&cell.test))
            && (self.systems.is_empty() || self.systems.iter().any(called))
            && (self.bytes.is_empty() || self.bytes.contains(&cell.bytes))
            && self.and.as_ref().is_none_or(|other| other.wants(cell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Extent, Here, cells};

    #[test]
    fn words_of_every_kind_are_parsed() {
        let only: Only = "latency,64,64K,tautline".parse().unwrap();
        assert_eq!(
            (only.tests.as_slice(), only.bytes.as_slice()),
            ([Test::Latency].as_slice(), [64, 65_536].as_slice())
        );
        let wanted = cells(Extent::Quick, false, &only, &Here::default());
        assert!(!wanted.is_empty() && wanted.iter().all(|cell| cell.test == Test::Latency));
        assert!(
            wanted.iter().any(|cell| cell.system.name() == "udp"),
            "the limit of a selected cell is selected too"
        );
        assert!(wanted.iter().all(|cell| cell.system.name() != "pipe"));
        let shared = cells(Extent::Quick, false, &"shm".parse().unwrap(), &Here::default());
        for name in [
            "tautline",
            "tautline-batch",
            "line",
            "hand-over",
            "write-flag-copy",
            "two-copy-stream",
            "loans",
            "single-copy",
            "ring",
        ] {
            assert!(shared.iter().any(|cell| cell.name() == name), "{name}");
        }
        assert!(shared.iter().all(|cell| cell.system.device() != "udp"));
        let jobs = |words: &str| {
            let cells = cells(Extent::Full, false, &words.parse().unwrap(), &Here::default());
            cells.iter().filter(|cell| matches!(cell.test, Test::Many(_))).count()
        };
        assert!(jobs("") == jobs("many") && jobs("many") > jobs("collectives") && jobs("scan,8") > 0);
        assert_eq!((jobs("shm"), jobs("8,64K"), jobs("latency,tautline")), (0, 0, 0));
        assert_eq!("".parse(), Ok(Only::default()));
        assert!("latency,,8".parse::<Only>().is_err());
        assert!("nonsense".parse::<Only>().unwrap_err().contains("latency"));
    }
}
