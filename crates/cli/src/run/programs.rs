//! The programs of a job: one, or several separated by `:`, each with its own number of processes.

use std::ffi::OsString;

use anyhow::{Result, bail};
use tautline::node::limits::MAX_PEERS;

/// A program with its arguments, and how many processes run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub count: usize,
    /// The program and its arguments.
    pub words: Vec<OsString>,
}

/// Takes `PROGRAM ARGS : -n N PROGRAM ARGS : …` apart. `n` is the count of the first program; without it,
/// `fill` says how many processes there are if the number is not given.
pub fn parse(n: Option<usize>, words: &[OsString], fill: Option<usize>) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for (index, part) in words.split(|word| word == ":").enumerate() {
        let (count, words) = match (index, part.split_first()) {
            (0, _) => (n.or(fill), part),
            (_, Some((flag, rest))) if flag == "-n" => match rest.split_first() {
                Some((count, rest)) => (count.to_str().and_then(|count| count.parse().ok()), rest),
                None => (None, rest),
            },
            _ => (None, part),
        };
        let Some(count) = count else {
            if index == 0 {
                bail!("how many processes?\ngive -n, for example: tautline run -n 2 ./program");
            }
            bail!(
                "after a colon there must be -n, a number and a program\nfor example: tautline run -n 1 ./a : -n 7 ./b"
            );
        };
        if words.is_empty() {
            bail!(
                "there is no program before or after a colon\nfor example: tautline run -n 1 ./a : -n 7 ./b"
            );
        }
        programs.push(Program { count, words: words.to_vec() });
    }
    check_count(&programs)?;
    Ok(programs)
}

fn check_count(programs: &[Program]) -> Result<()> {
    if programs.iter().any(|program| program.count == 0) {
        bail!(
            "a job needs at least one process\ngive -n 1 or more, for example: tautline run -n 2 ./program"
        );
    }
    let n = programs.iter().fold(0, |n: usize, program| n.saturating_add(program.count));
    if n > MAX_PEERS {
        bail!("{n} processes are more than the {MAX_PEERS} that a job may have\ngive a smaller -n");
    }
    Ok(())
}

/// The program of each rank.
pub fn by_rank(programs: &[Program]) -> impl Iterator<Item = &Program> {
    programs.iter().flat_map(|program| std::iter::repeat_n(program, program.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(n: Option<usize>, line: &str) -> Result<Vec<(usize, String)>> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let shown = |program: Program| {
            let words: Vec<_> =
                program.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            (program.count, words.join(" "))
        };
        Ok(parse(n, &words, None)?.into_iter().map(shown).collect())
    }

    #[test]
    fn programs_are_separated_by_colons() {
        assert_eq!(parsed(Some(3), "a -x : y").err().map(|_| ()), Some(()), "a count is missing");
        assert_eq!(parsed(Some(3), "a -n 4").unwrap(), [(3, "a -n 4".into())]);
        assert_eq!(parsed(Some(1), "a x : -n 7 b -n 2").unwrap(), [(1, "a x".into()), (7, "b -n 2".into())]);
    }

    #[test]
    fn mistakes_are_explained() {
        for (n, line, word) in [
            (None, "a", "how many"),
            (Some(0), "a", "at least one"),
            (Some(1), "a : -n 0 b", "at least one"),
            (Some(1), "a : -n x b", "after a colon"),
            (Some(1), "a : -n", "after a colon"),
            (Some(1), "a : b", "after a colon"),
            (Some(1), "a : -n 2", "no program"),
            (Some(1), ": -n 2 b", "no program"),
            (Some(1), "a : -n 18446744073709551615 b", "more than"),
        ] {
            let error = parsed(n, line).unwrap_err().to_string();
            assert!(error.contains(word) && error.lines().count() == 2, "{line}: {error}");
        }
    }
}
