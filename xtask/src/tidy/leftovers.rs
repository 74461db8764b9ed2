//! What must not be committed: unfinished code, debugging output, trailing white space, paths of one machine.

use super::Report;
use super::tree::{File, Tree};

// In two halves, so that this file does not contain them.
const MARKS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

const UNFINISHED: [(&str, &str); 4] = [
    ("todo!(", "unfinished"),
    ("unimplemented!(", "unfinished"),
    ("dbg!(", "debugging"),
    ("#[ignore]", "an ignored test must give its reason: #[ignore = \"…\"]"),
];

pub fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        // Inputs of fuzz targets are data.
        if file.path.starts_with("fuzz/corpus/") {
            continue;
        }
        check_text(file, report);
        for (line, text) in (1..).zip(file.source.code.lines()) {
            for (found, why) in UNFINISHED {
                if contains_apart(text, found, is_word) {
                    report.error(&file.path, line, format!("{found} {why}"));
                }
            }
        }
    }
}

fn check_text(file: &File, report: &mut Report) {
    let mut error = |line, text: &str| report.error(&file.path, line, text);
    for (line, text) in (1..).zip(file.text.split('\n')) {
        if text.ends_with('\r') {
            error(line, "ends in CR LF");
        } else if text.ends_with(char::is_whitespace) {
            error(line, "trailing white space");
        }
        if file.path.ends_with(".rs") && text.contains('\t') {
            error(line, "a tab");
        }
        for mark in MARKS.iter().filter(|mark| contains_apart(text, mark, char::is_alphanumeric)) {
            error(line, &format!("{mark}: do it, or open an issue"));
        }
        for path in MACHINE_PATHS.iter().filter(|path| contains_path(text, path)) {
            error(line, &format!("{path} is a path of one machine"));
        }
    }
}

/// Whether `text` contains `found`, and not only as part of a longer word.
fn contains_apart(text: &str, found: &str, joins: fn(char) -> bool) -> bool {
    text.match_indices(found).any(|(at, _)| {
        let after = &text[at + found.len()..];
        let ends_open = found.ends_with(joins) && after.starts_with(joins);
        !text[..at].ends_with(joins) && !ends_open
    })
}

/// Whether `text` contains an absolute path that begins with `path`.
fn contains_path(text: &str, path: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '~' | '}' | ')');
    text.match_indices(path).any(|(at, _)| !text[..at].ends_with(joins))
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    fn errors_in(path: &str, text: &str) -> Vec<String> {
        errors_of(check, &[(path, text)])
    }

    #[test]
    fn clean_files_pass() {
        let text = "// why `todo!()` is bad\nfn a() { my_todo!(); }\n#[ignore = \"needs root\"]\nlet t = \"a.XXXXXX\";\n";
        assert_eq!(errors_in("a.rs", text), [] as [&str; 0]);
        assert_eq!(
            errors_in("a.md", "see crates/node/work/ and https://example.org/home/\n"),
            [] as [&str; 0]
        );
        assert_eq!(errors_in("Makefile", "all:\n\ttrue\n"), [] as [&str; 0]);
    }

    #[test]
    fn unfinished_code_is_caught() {
        assert_one(&errors_in("a.rs", "fn a() { todo!() }\n"), "a.rs:1: todo!(");
        assert_one(&errors_in("a.rs", "\nfn a() { unimplemented!(\"x\") }\n"), "a.rs:2: unimplemented!(");
        assert_one(&errors_in("a.rs", "let a = dbg!(b);\n"), "debugging");
        assert_one(&errors_in("a.rs", "#[test]\n#[ignore]\nfn a() {}\n"), "must give its reason");
    }

    #[test]
    fn marks_are_caught_in_any_text() {
        for mark in MARKS {
            assert_one(&errors_in("a.md", &format!("{mark}: later\n")), mark);
            assert_one(&errors_in("a.rs", &format!("// {mark} later\n")), mark);
        }
    }

    #[test]
    fn white_space_is_caught() {
        assert_one(&errors_in("a.md", "end \n"), "trailing white space");
        assert_one(&errors_in("a.md", "end\r\n"), "CR LF");
        assert_one(&errors_in("a.rs", "\tlet a;\n"), "a tab");
    }

    #[test]
    fn paths_of_one_machine_are_caught_and_corpora_are_not_read() {
        for path in MACHINE_PATHS {
            assert_one(&errors_in("a.toml", &format!("a = \"{path}x\"\n")), "of one machine");
            assert_eq!(errors_in("fuzz/corpus/a/b", path), [] as [&str; 0]);
        }
    }
}
