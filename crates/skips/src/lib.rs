//! What tests tell `cargo xtask`: that they were skipped, and why; and how much they did. The test harness
//! counts a skipped test as passed and hides what it printed, so skips go around the harness: to standard
//! error, and to a file that `cargo xtask test` reads. So do counts, which `cargo xtask soak` reads.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;

/// Names the file that skips are appended to, a line each.
pub const FILE: &str = "TAUTLINE_SKIPS";

/// Reports that `test`, in the file of the caller, was skipped as a whole or in part, and what it lacked.
///
/// xtask/expected-skips.txt says where that is expected. Elsewhere the run fails.
#[track_caller]
pub fn skip(test: &str, why: impl Display) {
    let line = line(Location::caller().file(), test, &why.to_string());
    // The macros that print are captured; this is not.
    let _ = std::io::stderr().write_all(format!("SKIPPED {line}").as_bytes());
    append(std::env::var_os(FILE), &line);
}

fn append(path: Option<OsString>, line: &str) {
    let Some(path) = path else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    // One call: other tests append at the same time.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("could not write to {}: {error}", path.display()));
}

/// Names the file that counts are appended to, a line each.
pub const COUNTS: &str = "TAUTLINE_COUNTS";
/// The variable with the seed of the tests whose size can be set.
pub const SEED: &str = "TAUTLINE_SEED";

/// The number in an environment variable, or `usual` without it.
///
/// # Panics
///
/// If the variable is no number: a long run with the usual number would go unnoticed.
pub fn number(variable: &str, usual: u64) -> u64 {
    let Some(text) = std::env::var_os(variable) else { return usual };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{variable} is {text:?}, which is no number"))
}

/// Tells how much a test did. Called when the test has counted and checked it, not before.
pub fn did(count: u64) {
    append(std::env::var_os(COUNTS), &format!("{count}\n"));
}

fn line(file: &str, test: &str, why: &str) -> String {
    let why: Vec<_> = why.split_whitespace().collect();
    format!("{file}::{test}: {}\n", why.join(" "))
}

/// Why this process lacks what tests of network namespaces, AF_XDP and ownership need; `None` if it is root
/// of the machine.
pub fn lacks_root() -> Option<&'static str> {
    const NET_AND_SYS_ADMIN: u64 = 1 << 12 | 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let user = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1));
    let capabilities = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
    let namespace = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if user != Some("0") {
        Some("it needs root")
    } else if capabilities & NET_AND_SYS_ADMIN != NET_AND_SYS_ADMIN {
        Some("it needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN")
    } else if namespace.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"] {
        Some("it needs root outside of a user namespace")
    } else {
        None
    }
}

/// Like [`lacks_root`], for tests that create network namespaces with `ip`.
pub fn lacks_namespaces() -> Option<&'static str> {
    let installed = std::process::Command::new("ip").arg("-V").output().is_ok();
    lacks_root().or((!installed).then_some("ip (iproute2) is not installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_one_line() {
        assert_eq!(line("tests/a.rs", "b", "no\n  tshark\n"), "tests/a.rs::b: no tshark\n");
    }

    #[test]
    fn numbers_are_usual_or_set() {
        assert_eq!(number("TAUTLINE_NOT_SET", 7), 7);
        assert!(std::panic::catch_unwind(|| number("PATH", 7)).is_err());
    }

    #[test]
    fn ordinary_users_lack_root() {
        let id = std::process::Command::new("id").arg("-u").output().unwrap();
        assert!(id.stdout == b"0\n" || lacks_root() == Some("it needs root"));
    }
}
