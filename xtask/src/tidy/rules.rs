//! Numbered protocol rules: each is defined once in docs/PROTOCOL.md, cited by the code that implements it
//! and by a test that checks it. No other rule is cited.

use std::collections::BTreeMap;

use super::source::{Module, is_test_file, is_test_module, line_of, modules};
use super::tree::{File, Tree};
use super::{Report, layers};

const PROTOCOL: &str = "docs/PROTOCOL.md";

/// Wire, handshake, link, device, shared memory, node, messages, apertures, tripwires, tags (envelopes),
/// groups, multicast (R), members (B), job.
const FAMILIES: &str = "WHLDSNMATEGRBJ";

#[derive(Default)]
struct Rule {
    line: usize,
    in_code: bool,
    in_test: bool,
}

pub fn check(tree: &Tree, report: &mut Report) {
    let Some(protocol) = tree.get(PROTOCOL) else {
        report.error(PROTOCOL, 0, "is missing");
        return;
    };
    let mut rules = defined(&protocol.text, report);
    // The tests of this program cite rules of made-up trees.
    for file in tree.rust().filter(|file| !file.path.starts_with("xtask/")) {
        let tests = TestParts::of(file);
        for (at, id) in ids(&file.source.comments) {
            match rules.get_mut(id) {
                None => unknown(file, at, id, report),
                Some(rule) if tests.contain(at) => rule.in_test = true,
                Some(rule) => rule.in_code |= is_product_source(&file.path),
            }
        }
    }
    for page in tree.markdown().filter(|page| page.path.starts_with("docs/")) {
        for (at, id) in ids(&page.text).filter(|(_, id)| !rules.contains_key(*id)) {
            unknown(page, at, id, report);
        }
    }
    for (id, rule) in &rules {
        if !rule.in_code {
            report.error(PROTOCOL, rule.line, format!("{id} is not cited by any code in crates/*/src"));
        }
        if !rule.in_test {
            report.error(PROTOCOL, rule.line, format!("{id} is not cited by any test"));
        }
    }
}

fn unknown(file: &File, at: usize, id: &str, report: &mut Report) {
    report.error(&file.path, line_of(&file.text, at), format!("{id} is not a rule of {PROTOCOL}"));
}

fn defined<'a>(protocol: &'a str, report: &mut Report) -> BTreeMap<&'a str, Rule> {
    let mut rules: BTreeMap<&str, Rule> = BTreeMap::new();
    for (line, text) in (1..).zip(protocol.lines()) {
        let bare = text.trim_start().trim_start_matches(['#', '-', '*', ' ']);
        let marked = text.len() - bare.len();
        let Some(id) = id_at_start(bare).filter(|_| text[..marked].ends_with("**")) else { continue };
        if !FAMILIES.contains(&id[..1]) {
            report.error(PROTOCOL, line, format!("{id}: the letter must be one of {FAMILIES}"));
        }
        match rules.get(id) {
            Some(first) => {
                report.error(PROTOCOL, line, format!("{id} is already defined on line {}", first.line));
            }
            None => {
                rules.insert(id, Rule { line, ..Rule::default() });
            }
        }
    }
    if rules.is_empty() {
        report.error(
            PROTOCOL,
            0,
            "defines no rule (a heading or list item that begins with a number such as **L-17**)",
        );
    }
    rules
}

/// Every rule number in `text`, with its offset.
fn ids(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices('-').filter_map(move |(dash, _)| {
        let at = dash.checked_sub(1).filter(|at| text.is_char_boundary(*at))?;
        let id = id_at_start(&text[at..])?;
        let joined = text[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-'));
        (!joined && FAMILIES.contains(&id[..1])).then_some((at, id))
    })
}

/// The capital, dash and number that `text` begins with.
fn id_at_start(text: &str) -> Option<&str> {
    let number = text.strip_prefix(|c: char| c.is_ascii_uppercase())?.strip_prefix('-')?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    let goes_on = number[digits..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    (digits > 0 && !goes_on).then(|| &text[..2 + digits])
}

fn is_product_source(path: &str) -> bool {
    let inside = layers::folder_of(path).and_then(|folder| path.strip_prefix(&format!("crates/{folder}/")));
    inside.is_some_and(|inside| inside.starts_with("src/"))
}

/// Which parts of a file are tests.
enum TestParts<'a> {
    All,
    Modules(Vec<Module<'a>>),
}

impl TestParts<'_> {
    fn of(file: &File) -> TestParts<'_> {
        let path = &file.path;
        let code = &file.source.code;
        let integration = path.starts_with("tests/") || (path.contains("/tests/") && !path.contains("/src/"));
        if integration {
            // A helper without a test checks no rule.
            let has_test = code.contains("#[test]") || code.contains("conformance!");
            return if has_test { TestParts::All } else { TestParts::Modules(Vec::new()) };
        }
        if path.starts_with("crates/sim/") || is_test_file(path) {
            return TestParts::All;
        }
        let mut modules = modules(code);
        modules.retain(|module| is_test_module(module.name));
        TestParts::Modules(modules)
    }

    fn contain(&self, at: usize) -> bool {
        match self {
            TestParts::All => true,
            TestParts::Modules(modules) => {
                modules.iter().any(|module| module.body.is_some_and(|(open, close)| open < at && at < close))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    const RULES: (&str, &str) = (PROTOCOL, "# P\n\n- **L-1** Order.\n\n### **W-2** Sizes. See L-1.\n");
    const BOTH_IN_CODE: (&str, &str) = ("crates/link/src/lib.rs", "//! L-1, W-2\nconst A: &str = \"L-9\";\n");

    #[test]
    fn rules_cited_by_code_and_tests_pass() {
        let test = ("crates/link/tests/order.rs", "/// Holds L-1 and W-2.\n#[test]\nfn a() {}\n");
        assert_eq!(errors_of(check, &[RULES, BOTH_IN_CODE, test]), [] as [&str; 0]);
        let inline = ("crates/wire/src/a.rs", "mod tests {\n// L-1 W-2\n}\n");
        assert_eq!(errors_of(check, &[RULES, BOTH_IN_CODE, inline]), [] as [&str; 0]);
        let sim = ("crates/sim/src/check.rs", "// L-1 W-2\n");
        assert_eq!(errors_of(check, &[RULES, BOTH_IN_CODE, sim]), [] as [&str; 0]);
    }

    #[test]
    fn a_rule_without_code_is_caught() {
        let code = ("crates/link/src/lib.rs", "//! L-1\n");
        let test = ("crates/link/src/tests.rs", "// L-1 W-2\n");
        assert_one(
            &errors_of(check, &[RULES, code, test]),
            "docs/PROTOCOL.md:5: W-2 is not cited by any code",
        );
    }

    #[test]
    fn a_rule_without_a_test_is_caught() {
        let helper = ("crates/link/tests/common/mod.rs", "// W-2\n");
        let test = ("crates/link/tests/order.rs", "// L-1\n#[test]\nfn a() {}\n");
        let errors = errors_of(check, &[RULES, BOTH_IN_CODE, helper, test]);
        assert_one(&errors, "W-2 is not cited by any test");
    }

    #[test]
    fn a_citation_of_nothing_is_caught_in_code_and_docs() {
        let test = ("crates/sim/src/lib.rs", "// L-1 W-2\n// and L-3\n");
        assert_one(
            &errors_of(check, &[RULES, BOTH_IN_CODE, test]),
            "crates/sim/src/lib.rs:2: L-3 is not a rule",
        );
        let test = ("crates/sim/src/lib.rs", "// L-1 W-2\n");
        let page = ("docs/GUARANTEES.md", "by N-4\n");
        assert_one(&errors_of(check, &[RULES, BOTH_IN_CODE, test, page]), "docs/GUARANTEES.md:1: N-4");
    }

    #[test]
    fn duplicates_and_foreign_letters_are_caught() {
        let sim = ("crates/sim/src/lib.rs", "// L-1\n");
        let code = ("crates/link/src/lib.rs", "// L-1\n");
        let twice = errors_of(check, &[(PROTOCOL, "- **L-1** a\n- **L-1** b\n"), sim, code]);
        assert_one(&twice, "L-1 is already defined on line 1");
        let foreign = errors_of(check, &[(PROTOCOL, "- **L-1** a\n- **Q-1** b\n"), sim, code]);
        assert!(foreign[0].contains("must be one of"), "{foreign:?}");
    }

    #[test]
    fn a_missing_or_empty_protocol_is_caught() {
        assert_one(&errors_of(check, &[("a.rs", "")]), "docs/PROTOCOL.md: is missing");
        assert_one(&errors_of(check, &[(PROTOCOL, "words\n")]), "defines no rule");
    }

    #[test]
    fn only_whole_numbers_are_citations() {
        let found: Vec<_> =
            ids("L-17, (W-2) AES-128 x-L-3 L-4a L-5_b é-1 L- L-17.").map(|(_, id)| id).collect();
        assert_eq!(found, ["L-17", "W-2", "L-17"]);
    }
}
