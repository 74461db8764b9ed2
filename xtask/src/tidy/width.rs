//! Comments and pages are at most as wide as the code. rustfmt does not check that.

use super::Report;
use super::ratchet::{Ratchet, Violation};
use super::tree::{File, Tree};

/// The default of rustfmt.
const WIDTH_DEFAULT: usize = 100;

pub fn check(tree: &Tree, report: &mut Report) {
    let width = max_width(tree);
    let mut violations = Vec::new();
    for file in tree.rust() {
        violations.extend(wide(file, width, comments(file)));
    }
    for page in tree.markdown() {
        violations.extend(wide(page, width, prose(&page.text)));
    }
    Ratchet::of_kind(tree, "width").judge(violations, report);
}

fn max_width(tree: &Tree) -> usize {
    let config = tree.get("rustfmt.toml").and_then(|file| file.text.parse::<toml::Table>().ok());
    let width = config.and_then(|config| config.get("max_width")?.as_integer());
    width.and_then(|width| usize::try_from(width).ok()).unwrap_or(WIDTH_DEFAULT)
}

fn wide<'a>(file: &File, width: usize, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Violation> {
    let too_wide = lines.filter_map(|(line, text)| {
        let wide = width_of(text);
        let text = format!("{wide} characters, at most {width} are allowed");
        (wide > width).then(|| Violation { path: file.path.clone(), line, text })
    });
    too_wide.collect()
}

/// The lines with a comment, without rows of tables.
fn comments(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(file.text.lines().zip(file.source.comments.lines()));
    lines.filter_map(|(line, (text, comment))| {
        let said = comment.trim().trim_start_matches(['/', '!']).trim_start();
        (!said.is_empty() && !said.starts_with('|')).then_some((line, text))
    })
}

/// The lines of a page, without tables and code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let start = line.trim_start();
        let fence = start.starts_with("```");
        in_code ^= fence;
        !in_code && !fence && !start.starts_with('|')
    })
}

/// The width of a line in characters. URLs and the targets of links cannot be wrapped: a line with a URL has
/// no width, and targets of links do not count.
fn width_of(line: &str) -> usize {
    if line.contains("://") {
        return 0;
    }
    let mut width = line.chars().count();
    for (at, found) in line.match_indices("](") {
        let target = &line[at + found.len()..];
        width -= target[..target.find(')').unwrap_or(target.len())].chars().count();
    }
    width
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    fn errors_in(path: &str, text: &str) -> Vec<String> {
        errors_of(check, &[("rustfmt.toml", "max_width = 30\n"), (path, text)])
    }

    const FITS: &str = "// thirty characters, which fit";

    #[test]
    fn comments_that_are_too_wide_are_caught() {
        let exact = &FITS[..30];
        assert_eq!(errors_in("a.rs", exact), [] as [&str; 0]);
        assert_one(&errors_in("a.rs", &format!("\n{exact}s")), "a.rs:2: 31 characters, at most 30");
        for wide in [
            "/// a doc comment of many words",
            "    //! and one that is indented",
            "let a = 1; // behind a statement",
        ] {
            assert_one(&errors_in("a.rs", wide), "characters, at most 30");
        }
        assert_eq!(errors_in("a.rs", "// ünïcödé is coünted in chärs"), [] as [&str; 0]);
    }

    #[test]
    fn code_addresses_and_tables_may_be_wide() {
        for free in [
            "let a = \"a string that is longer than the width\";",
            "/// <https://example.org/a/very/long/address>",
            "/// | a row | of a table | cannot be wrapped |",
        ] {
            assert_eq!(errors_in("a.rs", free), [] as [&str; 0], "{free}");
        }
    }

    #[test]
    fn pages_are_wrapped_too() {
        assert_one(&errors_in("a.md", "# A\n\nA paragraph that goes on and on."), "a.md:3: 32 characters");
        for free in [
            "| a row of a table | cannot be wrapped |",
            "```\nsome output that is as wide as it is\n```",
            "[a link](docs/decisions/0001-to-a-long-name.md)",
            "see https://example.org/a/very/long/address",
        ] {
            assert_eq!(errors_in("a.md", free), [] as [&str; 0], "{free}");
        }
    }

    #[test]
    fn without_a_width_that_of_rustfmt_holds() {
        let line = |width: usize| format!("// {}\n", "x".repeat(width - 3));
        assert_eq!(errors_of(check, &[("a.rs", line(100).as_str())]), [] as [&str; 0]);
        assert_one(&errors_of(check, &[("a.rs", line(101).as_str())]), "101 characters, at most 100");
    }
}
