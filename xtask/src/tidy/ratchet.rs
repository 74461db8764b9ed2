//! The file of exceptions. An entry allows a number of violations, with a reason. An entry that is not
//! needed, or that allows more violations than there are, is an error: the file only shrinks.

use super::Report;
use super::tree::Tree;

pub const RATCHET: &str = "xtask/tidy-ratchet.txt";

/// Entries are about the length of a file or function, or about violations of these checks in one area.
pub const KINDS: [&str; 4] = ["circle", "continues", "impls", "width"];

const FORM: &str = "an entry is: path, path::function or kind:area; a number; the reason";

pub struct Entry {
    /// `path` or `path::function`; with a kind, the area.
    pub item: String,
    pub number: usize,
    line: usize,
    needed: bool,
}

/// The entries of one kind.
pub struct Ratchet {
    kind: Option<&'static str>,
    entries: Vec<Entry>,
}

/// An error, unless the entry of its area allows it.
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub text: String,
}

impl Ratchet {
    /// The entries for lengths. Malformed entries of any kind are reported here, once.
    pub fn of_lengths(tree: &Tree, report: &mut Report) -> Ratchet {
        Ratchet { kind: None, entries: read(tree, None, Some(report)) }
    }

    pub fn of_kind(tree: &Tree, kind: &'static str) -> Ratchet {
        Ratchet { kind: Some(kind), entries: read(tree, Some(kind), None) }
    }

    /// The number that `item` may have: that of its entry, or `max`. It has `found`, which is more than
    /// `max`.
    pub fn allowed(&mut self, item: &str, found: usize, max: usize, report: &mut Report) -> usize {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.item == item) else { return max };
        entry.needed = true;
        if entry.number > found {
            report.loose.push((entry.line, found));
            let name = named(self.kind, item);
            report.error(RATCHET, entry.line, format!("{name} has shrunk to {found}: lower its number"));
        }
        entry.number
    }

    /// Reports the violations of each area with more of them than its entry allows.
    pub fn judge(mut self, violations: Vec<Violation>, report: &mut Report) {
        let mut areas: Vec<(String, Vec<Violation>)> = Vec::new();
        for violation in violations {
            let area = area(&violation.path);
            match areas.iter_mut().find(|(name, _)| *name == area) {
                Some((_, list)) => list.push(violation),
                None => areas.push((area.to_owned(), vec![violation])),
            }
        }
        for (area, list) in areas {
            let allowed = self.allowed(&area, list.len(), 0, report);
            if allowed > 0 && list.len() > allowed {
                let name = named(self.kind, &area);
                report.error(RATCHET, 0, format!("{name} has {}, allowed are {allowed}:", list.len()));
            }
            for violation in list.iter() {
                let Violation { path, line, text } = violation;
                if list.len() > allowed {
                    report.error(path, *line, text);
                } else {
                    report.known(path, *line, text);
                }
            }
        }
        self.finish(report);
    }

    /// Reports the entries that were not needed.
    pub fn finish(self, report: &mut Report) {
        for left in self.entries.iter().filter(|entry| !entry.needed) {
            let name = named(self.kind, &left.item);
            report.loose.push((left.line, 0));
            report.error(RATCHET, left.line, format!("{name} needs no exception: remove the line"));
        }
    }
}

/// The text of the file with the numbers of the `loose` lines lowered. Lines with the number zero are
/// removed.
pub fn shrunk(text: &str, loose: &[(usize, usize)]) -> String {
    let lines = (1..).zip(text.split_inclusive('\n')).filter_map(|(line, entry)| {
        let Some((_, number)) = loose.iter().find(|(loose, _)| *loose == line) else {
            return Some(entry.to_owned());
        };
        let mut words = entry.splitn(3, ' ');
        let (item, _, reason) = (words.next()?, words.next()?, words.next()?);
        (*number > 0).then(|| format!("{item} {number} {reason}"))
    });
    lines.collect()
}

fn named(kind: Option<&str>, item: &str) -> String {
    kind.map_or_else(|| item.to_owned(), |kind| format!("{kind}:{item}"))
}

/// The unit that entries are about: a crate, another folder at the root, or a file there.
fn area(path: &str) -> &str {
    let skipped = if path.starts_with("crates/") { "crates/".len() } else { 0 };
    path[skipped..].find('/').map_or(path, |end| &path[..skipped + end])
}

fn read(tree: &Tree, kind: Option<&str>, mut report: Option<&mut Report>) -> Vec<Entry> {
    let text = tree.get(RATCHET).map_or("", |file| file.text.as_str());
    let mut entries = Vec::new();
    for (line, entry) in (1..).zip(text.lines()) {
        if entry.is_empty() || entry.starts_with('#') {
            continue;
        }
        let mut words = entry.splitn(3, ' ');
        let item = words.next().unwrap_or_default();
        let number = words.next().and_then(|number| number.parse().ok());
        let reason = words.next().map(str::trim).filter(|reason| !reason.is_empty());
        let of_kind =
            KINDS.iter().find_map(|kind| Some((*kind, item.strip_prefix(kind)?.strip_prefix(':')?)));
        let (found_kind, item) = of_kind.map_or((None, item), |(kind, area)| (Some(kind), area));
        let unknown_kind = found_kind.is_none() && item.contains(':') && !item.contains("::");
        match number.filter(|_| reason.is_some() && !unknown_kind) {
            Some(number) if found_kind == kind => {
                entries.push(Entry { item: item.to_owned(), number, line, needed: false });
            }
            Some(_) => {}
            None => {
                if let Some(report) = &mut report {
                    report.error(RATCHET, line, FORM);
                }
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, report_of};
    use super::*;

    /// A check that refuses every line that begins with `bad`.
    fn check(tree: &Tree, report: &mut Report) {
        let bad = tree.rust().flat_map(|file| {
            let lines = (1..).zip(file.text.lines()).filter(|(_, text)| text.starts_with("bad"));
            lines.map(|(line, _)| Violation { path: file.path.clone(), line, text: "bad".into() })
        });
        Ratchet::of_kind(tree, "width").judge(bad.collect(), report);
        Ratchet::of_lengths(tree, report).finish(report);
    }

    fn report_with(ratchet: &str) -> Report {
        let files =
            [("crates/a/src/lib.rs", "bad\nbad\n"), ("crates/b/src/lib.rs", "good\n"), (RATCHET, ratchet)];
        report_of(check, &files)
    }

    #[test]
    fn an_area_may_have_what_its_entry_says() {
        let report = report_with("width:crates/a 2 to be wrapped\n");
        assert_eq!(report.errors, [] as [&str; 0]);
        assert_eq!(report.known, ["crates/a/src/lib.rs:1: bad", "crates/a/src/lib.rs:2: bad"]);
    }

    #[test]
    fn more_than_that_is_an_error() {
        assert_eq!(report_with("").errors, ["crates/a/src/lib.rs:1: bad", "crates/a/src/lib.rs:2: bad"]);
        let errors = report_with("width:crates/a 1 to be wrapped\n").errors;
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].contains("width:crates/a has 2, allowed are 1"), "{errors:?}");
    }

    #[test]
    fn an_entry_that_allows_too_much_is_an_error() {
        assert_one(&report_with("width:crates/a 3 wide\n").errors, "width:crates/a has shrunk to 2: lower");
        let errors = report_with("width:crates/a 2 wide\nwidth:crates/b 1 wide\n").errors;
        assert_one(&errors, "width:crates/b needs no exception");
    }

    #[test]
    fn an_entry_without_a_number_a_reason_or_a_known_kind_is_an_error() {
        for bad in ["width:crates/a", "width:crates/a many wide", "wide:crates/a 2 wide", "width:crates/a 2 "]
        {
            let errors = report_with(&format!("{bad}\nwidth:crates/a 2 wide\n")).errors;
            assert_one(&errors, "an entry is");
        }
    }

    #[test]
    fn areas_are_crates_folders_and_files_at_the_root() {
        assert_eq!(area("crates/node/src/lib.rs"), "crates/node");
        assert_eq!(area("docs/decisions/one.md"), "docs");
        assert_eq!(area("README.md"), "README.md");
    }
}
