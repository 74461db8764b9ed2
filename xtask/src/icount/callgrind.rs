//! Reads the profiles that callgrind writes: instructions by function, and calls between functions.
//!
//! The format is described in the Valgrind manual, chapter "Callgrind Format Specification". Names are
//! written once, as `(7) name`, and later as `(7)`.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};

/// Crates that choose an implementation at run time, or that contain C or assembly.
const LIBRARIES: [&str; 8] =
    ["aegis", "aes", "blake3", "cpufeatures", "memchr", "polyval", "ring", "std_detect"];

/// What one run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// All instructions.
    pub total: u64,
    /// Instructions of Rust code in the program, without that of [`LIBRARIES`].
    pub own: u64,
    /// Calls from that code to anything else: libc, C, assembly, [`LIBRARIES`].
    pub library_calls: u64,
}

impl Cost {
    /// Reads the profile `text` of a run of which the code in the files with these names counts.
    pub fn read(text: &str, program: &[&str]) -> Result<Cost> {
        let mut cost = Cost::default();
        let [mut objects, mut functions] = [Names::default(), Names::default()];
        let mut caller = Symbol::default();
        let mut callee = Symbol::default();
        let mut is_inclusive = false;
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=').filter(|(key, _)| is_word(key)) {
                match key {
                    "ob" => caller.object = objects.resolve(value)?,
                    "fn" => caller.function = functions.resolve(value)?,
                    "cob" => callee.object = objects.resolve(value)?,
                    "cfn" => callee.function = functions.resolve(value)?,
                    "calls" => {
                        let count = value.split(' ').next().unwrap_or_default();
                        let count: u64 = count.parse().with_context(|| format!("not calls: `{line}`"))?;
                        // Without an object of its own, the callee is in the caller's.
                        let object = if callee.object.is_empty() { caller.object } else { callee.object };
                        let to = Symbol { object, function: callee.function };
                        if caller.is_own(program) && !to.is_own(program) {
                            cost.library_calls += count;
                        }
                        callee = Symbol::default();
                        is_inclusive = true;
                    }
                    _ => {}
                }
            } else if let Some(rest) = line.strip_prefix("totals: ") {
                cost.total = number(rest, line)?;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
                // The line after a call is the cost of the callee, which has lines of its own.
                if !std::mem::take(&mut is_inclusive) && caller.is_own(program) {
                    let (_, count) = line.split_once(' ').with_context(|| format!("no cost: `{line}`"))?;
                    cost.own += number(count, line)?;
                }
            }
        }
        if cost.total == 0 || cost.own == 0 || cost.own > cost.total {
            bail!("{} of {} instructions belong to {program:?}: not a profile of it", cost.own, cost.total);
        }
        Ok(cost)
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn number(text: &str, line: &str) -> Result<u64> {
    let first = text.split_ascii_whitespace().next().unwrap_or_default();
    first.parse().with_context(|| format!("not a count: `{line}`"))
}

/// Names by number.
#[derive(Default)]
struct Names<'a>(HashMap<&'a str, &'a str>);

impl<'a> Names<'a> {
    fn resolve(&mut self, value: &'a str) -> Result<&'a str> {
        let Some((id, rest)) = value.strip_prefix('(').and_then(|value| value.split_once(')')) else {
            return Ok(value);
        };
        if let Some(name) = rest.strip_prefix(' ') {
            self.0.insert(id, name);
        }
        self.0.get(id).copied().with_context(|| format!("({id}) has no name"))
    }
}

/// A function in an object.
#[derive(Clone, Copy, Default)]
struct Symbol<'a> {
    object: &'a str,
    function: &'a str,
}

impl Symbol<'_> {
    fn is_own(&self, program: &[&str]) -> bool {
        let in_program = self.object.rsplit('/').next().is_some_and(|object| program.contains(&object));
        // C functions and assembly have no path; exported functions have none, either.
        let is_rust = self.function.contains("::") || self.function.contains("MPI_");
        in_program && is_rust && !LIBRARIES.contains(&first_word(self.function))
    }
}

/// `polyval` in `<&polyval::Polyval as core::fmt::Debug>::fmt`.
fn first_word(function: &str) -> &str {
    let start = function.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '_');
    let end = start.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(start.len());
    &start[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
events: Ir

ob=(1) /lib/libc.so.6
fl=(1) memcpy.S
fn=(1) memcpy
0 40

ob=(2) /build/examples/icount
fl=(2) send.rs
fn=(2) tautline_link::send
10 5
fi=(3) core.rs
+2 7
cob=(1)
cfi=(1)
cfn=(1)
calls=3 0
* 40
cfi=(4) tag.c
cfn=(3) aegis_tag
calls=1 99
-1 200
cfn=(4) <icount::Wire as tautline_device::Datagram>::send
calls=2 9
-1 60

fn=(3)
99 150
cob=(1)
cfn=(1)
calls=5 0
99 10

fn=(5) <polyval::Polyval as core::clone::Clone>::clone
3 50

fn=(4)
9 60

totals: 312
";

    #[test]
    fn only_rust_code_of_the_program_is_own() {
        let cost = Cost::read(PROFILE, &["icount"]).unwrap();
        assert_eq!(cost, Cost { total: 312, own: 5 + 7 + 60, library_calls: 3 + 1 });
    }

    #[test]
    fn a_profile_of_something_else_is_an_error() {
        assert!(Cost::read(PROFILE, &["other"]).is_err());
        assert!(Cost::read("events: Ir\n", &["icount"]).is_err());
        assert!(Cost::read("ob=(1)\n", &["icount"]).is_err());
    }

    #[test]
    fn functions_begin_with_their_crate() {
        assert_eq!(first_word("ring::aead::seal"), "ring");
        assert_eq!(first_word("<&polyval::Polyval as core::fmt::Debug>::fmt"), "polyval");
        assert_eq!(first_word("<[tautline_node::Peer]>::iter"), "tautline_node");
        assert_eq!(first_word(""), "");
    }
}
