//! The house rules as checks of the whole tree, one module each. A check reads a [`Tree`] and adds to a
//! [`Report`]. It does not stop at the first error: one run shows all.

mod circles;
mod dead;
mod deps;
mod guarantees;
mod imports;
mod items;
mod layers;
mod leftovers;
mod length;
mod ratchet;
mod rules;
mod source;
mod spread;
#[cfg(test)]
mod testing;
mod tree;
mod unsafety;
mod width;

use std::path::Path;

use anyhow::{Result, bail};
use tree::Tree;

/// What the checks found. An error fails the run, a warning is only shown.
#[derive(Default)]
pub struct Report {
    errors: Vec<String>,
    warnings: Vec<String>,
    /// What the ratchet file allows; shown if asked for.
    known: Vec<String>,
    /// Lines of the ratchet file whose number is too high, with the right number. Each is an error, too.
    loose: Vec<(usize, usize)>,
}

impl Report {
    /// `line` counts from one; zero means the file as a whole.
    fn error(&mut self, path: &str, line: usize, text: impl AsRef<str>) {
        self.errors.push(placed(path, line, text.as_ref()));
    }

    fn known(&mut self, path: &str, line: usize, text: impl AsRef<str>) {
        self.known.push(placed(path, line, text.as_ref()));
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
    ("spread", spread::check),
    ("circles", circles::check),
    ("width", width::check),
    ("dead files", dead::check),
    ("rules", rules::check),
    ("guarantees", guarantees::check),
    ("leftovers", leftovers::check),
];

/// What is shown of the findings.
#[derive(Clone, Copy, PartialEq)]
pub enum Show {
    /// Errors and warnings.
    New,
    /// The exceptions in the ratchet file, too.
    All,
}

/// Runs every check below `root`, prints what was found, and fails if any of it is an error.
pub fn run(root: &Path, show: Show) -> Result<()> {
    let tree = Tree::load(root)?;
    let (mut errors, mut known) = (0, 0);
    for (name, check) in CHECKS {
        let mut report = Report::default();
        check(&tree, &mut report);
        for warning in &report.warnings {
            println!("warning ({name}): {warning}");
        }
        for allowed in report.known.iter().filter(|_| show == Show::All) {
            println!("known ({name}): {allowed}");
        }
        for error in &report.errors {
            println!("error ({name}): {error}");
        }
        errors += report.errors.len();
        known += report.known.len();
    }
    if errors > 0 {
        bail!("tidy found {errors} errors");
    }
    let files = tree.files().count();
    println!(
        "tidy: {files} files, {} checks, no errors; {known} exceptions in {}",
        CHECKS.len(),
        ratchet::RATCHET
    );
    Ok(())
}

/// Lowers the numbers in the ratchet file that are too high, and removes the lines that are not needed.
pub fn shrink(root: &Path) -> Result<()> {
    let tree = Tree::load(root)?;
    let mut report = Report::default();
    CHECKS.iter().for_each(|(_, check)| check(&tree, &mut report));
    let Some(file) = tree.get(ratchet::RATCHET) else { bail!("there is no {}", ratchet::RATCHET) };
    let text = ratchet::shrunk(&file.text, &report.loose);
    std::fs::write(root.join(ratchet::RATCHET), text)?;
    println!("lowered or removed {} lines of {}", report.loose.len(), ratchet::RATCHET);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_fails_on_an_error_of_any_check() {
        let temp = testing::TempTree::new(&[("crates/stray/src/lib.rs", "fn a() {}\t\n")]);
        let error = run(temp.root(), Show::New).unwrap_err().to_string();
        assert!(error.contains("tidy found"), "{error}");
    }

    #[test]
    fn what_is_too_loose_can_be_shrunk() {
        let temp = testing::TempTree::new(&[
            ("rustfmt.toml", "max_width = 10\n"),
            ("a.rs", "// too wide for it\n"),
            (ratchet::RATCHET, "# head\nwidth:a.rs 3 old\nwidth:b.rs 1 old\n"),
        ]);
        shrink(temp.root()).unwrap();
        let text = std::fs::read_to_string(temp.root().join(ratchet::RATCHET)).unwrap();
        assert_eq!(text, "# head\nwidth:a.rs 1 old\n");
    }

    #[test]
    fn places_carry_a_line_when_there_is_one() {
        let mut report = Report::default();
        report.error("a.rs", 3, "bad");
        report.warn("b.rs", 0, "long");
        assert_eq!((report.errors, report.warnings), (vec!["a.rs:3: bad".into()], vec!["b.rs: long".into()]));
    }
}
