//! House rules as checks over the whole tree, one module each. A check reads a [`Tree`] and writes into a [`Report`];
//! it neither prints nor stops, so that one run shows everything there is to mend.

mod dead;
mod deps;
mod guarantees;
mod layers;
mod leftovers;
mod length;
mod rules;
mod source;
#[cfg(test)]
mod testing;
mod tree;
mod unsafety;

use std::path::Path;

use anyhow::{Result, bail};
use tree::Tree;

/// What the checks found; an error fails the run, a warning is only shown.
#[derive(Default)]
pub struct Report {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Report {
    /// `line` counts from one; zero means the file as a whole.
    fn error(&mut self, path: &str, line: usize, text: impl AsRef<str>) {
        self.errors.push(placed(path, line, text.as_ref()));
    }

    fn warn(&mut self, path: &str, line: usize, text: impl AsRef<str>) {
        self.warnings.push(placed(path, line, text.as_ref()));
    }
}

fn placed(path: &str, line: usize, text: &str) -> String {
    if line == 0 { format!("{path}: {text}") } else { format!("{path}:{line}: {text}") }
}

type Check = fn(&Tree, &mut Report);

const CHECKS: &[(&str, Check)] = &[
    ("dependencies", deps::check),
    ("unsafe", unsafety::check),
    ("length", length::check),
    ("dead files", dead::check),
    ("rules", rules::check),
    ("guarantees", guarantees::check),
    ("leftovers", leftovers::check),
];

/// Runs every check below `root`, prints what was found, and fails when any of it is an error.
pub fn run(root: &Path) -> Result<()> {
    let tree = Tree::load(root)?;
    let mut errors = 0;
    for (name, check) in CHECKS {
        let mut report = Report::default();
        check(&tree, &mut report);
        for warning in &report.warnings {
            println!("warning ({name}): {warning}");
        }
        for error in &report.errors {
            println!("error ({name}): {error}");
        }
        errors += report.errors.len();
    }
    if errors > 0 {
        bail!("tidy found {errors} things to mend");
    }
    println!("tidy: {} files, {} checks, nothing to mend", tree.files().count(), CHECKS.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_fails_on_an_error_of_any_check() {
        let temp = testing::TempTree::new(&[("crates/stray/src/lib.rs", "fn a() {}\t\n")]);
        let error = run(temp.root()).unwrap_err().to_string();
        assert!(error.contains("things to mend"), "{error}");
    }

    #[test]
    fn places_carry_a_line_when_there_is_one() {
        let mut report = Report::default();
        report.error("a.rs", 3, "bad");
        report.warn("b.rs", 0, "long");
        assert_eq!((report.errors, report.warnings), (vec!["a.rs:3: bad".into()], vec!["b.rs: long".into()]));
    }
}
