//! What a rank calls and how long it takes, on request: two lines for each call (`TAUTLINE_MPI_TRACE`), and
//! a table at `MPI_Finalize` of time per function and bytes per peer (`TAUTLINE_MPI_SUMMARY`).
//!
//! A process that asks for neither pays one load per message, or none ([`short`](crate::short));
//! [`call`](crate::call::call) looks at the phase of the library anyway.

use std::collections::BTreeMap;
use std::ffi::{OsString, c_int};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::constants::{ERR_OTHER, SUCCESS};
use crate::error::{self, Error, Result};
use crate::objects::lock;

/// Where lines go.
enum Place {
    Stderr,
    File(Mutex<File>),
}

impl Place {
    /// What a variable asks for: `1` for standard error, else the name of a file, which gets the rank as its
    /// extension.
    fn named(variable: &str, rank: u32) -> Result<Option<Place>> {
        let Some(name) = std::env::var_os(variable).filter(|name| !name.is_empty() && name != "0") else {
            return Ok(None);
        };
        if name == "1" {
            return Ok(Some(Place::Stderr));
        }
        let mut path = OsString::from(&name);
        path.push(format!(".{rank}"));
        match File::create(&path) {
            Ok(file) => Ok(Some(Place::File(Mutex::new(file)))),
            Err(error) => {
                let path = path.to_string_lossy();
                Err(Error::new(
                    ERR_OTHER,
                    format!("{variable} names a file that cannot be made: {path}: {error}"),
                ))
            }
        }
    }

    /// Writes whole lines at once.
    fn write(&self, text: &str) {
        // Nobody can be told of a failure.
        let _ = match self {
            Place::Stderr => std::io::stderr().write_all(text.as_bytes()),
            Place::File(file) => lock(file).write_all(text.as_bytes()),
        };
    }
}

/// Messages and bytes to and from one rank of the job.
#[derive(Default)]
struct Traffic {
    sent: [AtomicU64; 2],
    received: [AtomicU64; 2],
}

struct Trace {
    rank: u32,
    begin: Instant,
    lines: Option<Place>,
    table: Option<Place>,
    functions: Mutex<BTreeMap<&'static str, (u64, Duration)>>,
    peers: Vec<Traffic>,
}

static TRACE: OnceLock<Trace> = OnceLock::new();
static COUNTS_MESSAGES: AtomicBool = AtomicBool::new(false);

/// Reads the variables; says whether calls are to be told of.
pub fn start(rank: u32, size: u32) -> Result<bool> {
    let lines = Place::named("TAUTLINE_MPI_TRACE", rank)?;
    let table = Place::named("TAUTLINE_MPI_SUMMARY", rank)?;
    if lines.is_none() && table.is_none() {
        return Ok(false);
    }
    COUNTS_MESSAGES.store(table.is_some(), Ordering::Relaxed);
    let peers = (0..size).map(|_| Traffic::default()).collect();
    let trace = Trace { rank, begin: Instant::now(), lines, table, functions: Mutex::default(), peers };
    Ok(TRACE.set(trace).is_ok())
}

/// Notes that a call begins.
#[cold]
pub fn enter(name: &str) -> Option<Instant> {
    let trace = TRACE.get()?;
    let now = Instant::now();
    if let Some(lines) = &trace.lines {
        let at = (now - trace.begin).as_secs_f64();
        lines.write(&format!("rank {} {at:.6} > {name}\n", trace.rank));
    }
    Some(now)
}

/// Notes that a call ends.
#[cold]
pub fn leave(name: &'static str, began: Instant, code: c_int) {
    let (Some(trace), now) = (TRACE.get(), Instant::now()) else { return };
    let took = now - began;
    if let Some(lines) = &trace.lines {
        let (at, us) = ((now - trace.begin).as_secs_f64(), took.as_secs_f64() * 1e6);
        let failed = match error::name(code) {
            _ if code == SUCCESS => String::new(),
            Some(class) => format!(" {class}"),
            None => format!(" error {code}"),
        };
        lines.write(&format!("rank {} {at:.6} < {name} {us:.1} us{failed}\n", trace.rank));
    }
    if trace.table.is_some() {
        let mut functions = lock(&trace.functions);
        let entry = functions.entry(name).or_default();
        *entry = (entry.0 + 1, entry.1 + took);
    }
}

fn count(peer: u32, bytes: u64, of: impl Fn(&Traffic) -> &[AtomicU64; 2]) {
    let traffic = TRACE.get().and_then(|trace| trace.peers.get(peer as usize));
    if let Some([messages, all]) = traffic.map(of) {
        messages.fetch_add(1, Ordering::Relaxed);
        all.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Counts a message to a rank of the job.
#[inline]
pub fn sent(to: u32, bytes: u64) {
    if COUNTS_MESSAGES.load(Ordering::Relaxed) {
        count(to, bytes, |traffic| &traffic.sent);
    }
}

/// Counts a message from a rank of the job.
#[inline]
pub fn received(from: u32, bytes: u64) {
    if COUNTS_MESSAGES.load(Ordering::Relaxed) {
        count(from, bytes, |traffic| &traffic.received);
    }
}

/// Writes the table, if it is asked for.
pub fn finish() {
    if let Some((trace, table)) = TRACE.get().and_then(|trace| Some((trace, trace.table.as_ref()?))) {
        table.write(&trace.text(trace.begin.elapsed()));
    }
}

impl Trace {
    fn text(&self, ran: Duration) -> String {
        let functions = lock(&self.functions);
        let inside: Duration = functions.values().map(|(_, time)| *time).sum();
        let mut out = format!(
            "rank {}: {:.3} s in MPI of {:.3} s between MPI_Init and MPI_Finalize\n",
            self.rank,
            inside.as_secs_f64(),
            ran.as_secs_f64()
        );
        let mut rows: Vec<_> = functions.iter().collect();
        rows.sort_by_key(|(name, (_, time))| (std::cmp::Reverse(*time), **name));
        let _ = writeln!(out, "  {:<32} {:>10} {:>12} {:>12}", "function", "calls", "total ms", "mean us");
        for (name, (calls, time)) in rows {
            let (ms, mean) = (time.as_secs_f64() * 1e3, time.as_secs_f64() * 1e6 / *calls as f64);
            let _ = writeln!(out, "  {name:<32} {calls:>10} {ms:>12.3} {mean:>12.2}");
        }
        let _ = writeln!(
            out,
            "  {:<8} {:>12} {:>16} {:>12} {:>16}",
            "peer", "messages to", "bytes to", "from", "bytes from"
        );
        for (peer, traffic) in self.peers.iter().enumerate() {
            let [sent, bytes] = traffic.sent.each_ref().map(|count| count.load(Ordering::Relaxed));
            let [received, from] = traffic.received.each_ref().map(|count| count.load(Ordering::Relaxed));
            if sent + received > 0 {
                let _ = writeln!(out, "  {peer:<8} {sent:>12} {bytes:>16} {received:>12} {from:>16}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_functions_by_time_and_peers_with_messages() {
        let peers = (0..3).map(|_| Traffic::default()).collect();
        let trace = Trace {
            rank: 1,
            begin: Instant::now(),
            lines: None,
            table: None,
            functions: Mutex::default(),
            peers,
        };
        lock(&trace.functions).insert("MPI_Send", (2, Duration::from_micros(10)));
        lock(&trace.functions).insert("MPI_Wait", (1, Duration::from_millis(3)));
        trace.peers[2].sent[0].store(2, Ordering::Relaxed);
        trace.peers[2].sent[1].store(640, Ordering::Relaxed);
        let text = trace.text(Duration::from_secs(1));
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[2], ["MPI_Wait", "1", "3.000", "3000.00"], "{text}");
        assert_eq!(words[3], ["MPI_Send", "2", "0.010", "5.00"], "{text}");
        assert_eq!(words[5], ["2", "2", "640", "0", "0"], "{text}");
        assert_eq!(words.len(), 6, "{text}");
    }
}
