//! Limits on the length of functions and files.
//!
//! The limit on files is high: it must not be a reason to move half of a type to another file
//! ([`super::spread`]). From half of it on there is a warning.

use super::Report;
use super::ratchet::Ratchet;
use super::source::functions;
use super::tree::{File, Tree};

const FILE_LINES_TO_WARN: usize = 500;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 100;

pub fn check(tree: &Tree, report: &mut Report) {
    let mut ratchet = Ratchet::of_lengths(tree, report);
    for file in tree.rust().filter(|file| !is_generated(file)) {
        let lines = file.text.lines().count();
        judge(&file.path, lines, FILE_LINES_MAX, (&file.path, 0), &mut ratchet, report);
        if lines > FILE_LINES_TO_WARN && lines <= FILE_LINES_MAX {
            report.warn(&file.path, 0, format!("{lines} lines: does it define more than one thing?"));
        }
        check_functions(file, &mut ratchet, report);
    }
    ratchet.finish(report);
}

/// Files that `cargo xtask mpi` writes, which are as long as their tables. A test in xtask/src/mpi.rs checks
/// that they are what the tables say.
const GENERATED: [&str; 4] = [
    "crates/mpi/abi/src/fortran/exports.rs",
    "crates/mpi/mpich/src/values.rs",
    "crates/mpi/src/constants.rs",
    "crates/mpi/src/exports.rs",
];

fn is_generated(file: &File) -> bool {
    GENERATED.contains(&file.path.as_str())
}

/// Functions of one name in one file share an exception, which must allow the longest of them.
fn check_functions(file: &File, ratchet: &mut Ratchet, report: &mut Report) {
    let mut longest: Vec<(&str, usize, usize)> = Vec::new();
    for function in functions(&file.source.code) {
        let lines = function.lines();
        match longest.iter_mut().find(|(name, ..)| *name == function.name) {
            Some(entry) if entry.1 < lines => *entry = (function.name, lines, function.first_line),
            Some(_) => {}
            None => longest.push((function.name, lines, function.first_line)),
        }
    }
    for (name, lines, line) in longest {
        let item = format!("{}::{name}", file.path);
        judge(&item, lines, FUNCTION_LINES_MAX, (&file.path, line), ratchet, report);
    }
}

fn judge(
    item: &str,
    lines: usize,
    max: usize,
    place: (&str, usize),
    ratchet: &mut Ratchet,
    report: &mut Report,
) {
    if lines <= max {
        return;
    }
    let allowed = ratchet.allowed(item, lines, max, report);
    if lines > allowed {
        report.error(place.0, place.1, format!("{item} has {lines} lines, allowed are {allowed}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::ratchet::RATCHET;
    use super::super::testing::{assert_one, errors_of, report_of};
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    fn file_of(lines: usize) -> String {
        "// line\n".repeat(lines)
    }

    fn errors_with(text: &str, ratchet: &str) -> Vec<String> {
        errors_of(check, &[("a.rs", text), (RATCHET, ratchet)])
    }

    #[test]
    fn what_fits_passes() {
        assert_eq!(errors_with(&function_of(100), "# none\n"), [] as [&str; 0]);
        assert_eq!(errors_with(&file_of(600), ""), [] as [&str; 0]);
    }

    #[test]
    fn a_long_file_is_a_warning_and_a_longer_one_an_error() {
        let text = file_of(501);
        let report = report_of(check, &[("a.rs", text.as_str())]);
        assert_eq!(report.errors, [] as [&str; 0]);
        assert_one(&report.warnings, "501 lines");
        assert_one(&errors_with(&file_of(601), ""), "a.rs has 601 lines, allowed are 600");
    }

    #[test]
    fn a_long_function_is_an_error_even_with_braces_in_its_text() {
        assert_one(&errors_with(&function_of(101), ""), "a.rs::long has 101 lines, allowed are 100");
        let text = function_of(101).replacen("step();", "let a = \"}\"; // }", 1);
        assert_one(&errors_with(&text, ""), "a.rs::long has 101 lines");
    }

    #[test]
    fn generated_files_may_be_longer() {
        let text = file_of(700);
        assert_eq!(errors_of(check, &[(GENERATED[0], text.as_str())]), [] as [&str; 0]);
        assert_one(&errors_with(&text, ""), "a.rs has 700 lines");
    }

    #[test]
    fn an_exception_allows_exactly_its_number() {
        assert_eq!(errors_with(&function_of(120), "a.rs::long 120 one table\n"), [] as [&str; 0]);
        assert_one(
            &errors_with(&function_of(121), "a.rs::long 120 one table\n"),
            "121 lines, allowed are 120",
        );
        assert_one(&errors_with(&function_of(119), "a.rs::long 120 one table\n"), "lower its number");
    }

    #[test]
    fn an_exception_without_need_or_reason_is_an_error() {
        assert_one(&errors_with(&function_of(99), "a.rs::long 120 one table\n"), "remove the line");
        assert_one(&errors_with("", "gone.rs 1700 generated\n"), "gone.rs needs no exception");
        assert_one(&errors_with("", "a.rs 700\n"), "an entry is");
    }
}
