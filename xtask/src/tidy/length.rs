//! Files and functions that a reader can hold in mind. Exceptions stand in a ratchet file, each with its length and
//! its reason; an exception that is no longer needed, or looser than need be, is an error, so the list only shrinks.

use super::Report;
use super::source::functions;
use super::tree::{File, Tree};

const RATCHET: &str = "xtask/tidy-ratchet.txt";
const FILE_LINES_TO_WARN: usize = 500;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 100;

pub fn check(tree: &Tree, report: &mut Report) {
    let mut exceptions = exceptions(tree, report);
    for file in tree.rust() {
        let lines = file.text.lines().count();
        judge(&file.path, lines, FILE_LINES_MAX, (&file.path, 0), &mut exceptions, report);
        if lines > FILE_LINES_TO_WARN && lines <= FILE_LINES_MAX {
            report.warn(&file.path, 0, format!("{lines} lines: which noun is hiding in it?"));
        }
        check_functions(file, &mut exceptions, report);
    }
    for left in exceptions.iter().filter(|exception| !exception.needed) {
        report.error(RATCHET, left.line, format!("{} needs no exception: take the line out", left.item));
    }
}

/// Functions of one name in one file share an exception; the longest of them counts.
fn check_functions(file: &File, exceptions: &mut [Exception], report: &mut Report) {
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
        judge(&item, lines, FUNCTION_LINES_MAX, (&file.path, line), exceptions, report);
    }
}

struct Exception {
    /// A path, or `path::function`.
    item: String,
    lines: usize,
    line: usize,
    needed: bool,
}

fn judge(
    item: &str,
    lines: usize,
    max: usize,
    place: (&str, usize),
    exceptions: &mut [Exception],
    report: &mut Report,
) {
    if lines <= max {
        return;
    }
    let exception = exceptions.iter_mut().find(|exception| exception.item == item);
    let allowed = exception.map_or(max, |exception| {
        exception.needed = true;
        if exception.lines > lines {
            let text = format!("{item} has shrunk to {lines} lines: lower its number");
            report.error(RATCHET, exception.line, text);
        }
        exception.lines
    });
    if lines > allowed {
        report.error(place.0, place.1, format!("{item} has {lines} lines, allowed are {allowed}"));
    }
}

fn exceptions(tree: &Tree, report: &mut Report) -> Vec<Exception> {
    let text = tree.get(RATCHET).map_or("", |file| file.text.as_str());
    let mut exceptions = Vec::new();
    for (line, entry) in (1..).zip(text.lines()) {
        if entry.is_empty() || entry.starts_with('#') {
            continue;
        }
        let mut words = entry.splitn(3, ' ');
        let item = words.next().unwrap_or_default().to_owned();
        let lines = words.next().and_then(|lines| lines.parse().ok());
        match (lines, words.next().map(str::trim)) {
            (Some(lines), Some(reason)) if !reason.is_empty() => {
                exceptions.push(Exception { item, lines, line, needed: false });
            }
            _ => report.error(RATCHET, line, "an exception is: path or path::function, lines, reason"),
        }
    }
    exceptions
}

#[cfg(test)]
mod tests {
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
    fn a_long_file_warns_and_a_longer_one_fails() {
        let text = file_of(501);
        let report = report_of(check, &[("a.rs", text.as_str())]);
        assert_eq!(report.errors, [] as [&str; 0]);
        assert_one(&report.warnings, "501 lines");
        assert_one(&errors_with(&file_of(601), ""), "a.rs has 601 lines, allowed are 600");
    }

    #[test]
    fn a_long_function_fails_and_braces_in_text_do_not_hide_it() {
        assert_one(&errors_with(&function_of(101), ""), "a.rs::long has 101 lines, allowed are 100");
        let text = function_of(101).replacen("step();", "let a = \"}\"; // }", 1);
        assert_one(&errors_with(&text, ""), "a.rs::long has 101 lines");
    }

    #[test]
    fn an_exception_with_a_reason_holds_exactly() {
        assert_eq!(errors_with(&function_of(120), "a.rs::long 120 one table\n"), [] as [&str; 0]);
        assert_one(
            &errors_with(&function_of(121), "a.rs::long 120 one table\n"),
            "121 lines, allowed are 120",
        );
        assert_one(&errors_with(&function_of(119), "a.rs::long 120 one table\n"), "lower its number");
    }

    #[test]
    fn an_exception_that_is_not_needed_or_not_explained_is_caught() {
        assert_one(&errors_with(&function_of(99), "a.rs::long 120 one table\n"), "take the line out");
        assert_one(&errors_with("", "gone.rs 700 generated\n"), "gone.rs needs no exception");
        assert_one(&errors_with("", "a.rs 700\n"), "an exception is");
    }
}
