//! docs/GUARANTEES.md is a table of promises. Its last column names the tests of each as `path::test`. Every
//! promise has a test, and every test that is named exists.

use super::Report;
use super::source::functions;
use super::tree::{File, Tree};

const GUARANTEES: &str = "docs/GUARANTEES.md";

pub fn check(tree: &Tree, report: &mut Report) {
    let Some(page) = tree.get(GUARANTEES) else {
        report.error(GUARANTEES, 0, "is missing");
        return;
    };
    let rows = promises(&page.text);
    if rows.is_empty() {
        report.error(GUARANTEES, 0, "has no table whose last column is called test");
    }
    for (line, tests) in rows {
        let mut named =
            tests.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).peekable();
        if named.peek().is_none() {
            report.error(GUARANTEES, line, "this promise names no test as `path::test`");
        }
        for (path, name) in named {
            if let Err(why) = find_test(tree, path, name) {
                report.error(GUARANTEES, line, why);
            }
        }
    }
}

/// The last cells, with their lines, of the tables whose last column is called test.
fn promises(text: &str) -> Vec<(usize, String)> {
    let mut rows = Vec::new();
    let mut heading: Option<String> = None;
    for (line, row) in (1..).zip(text.lines()) {
        let Some(cell) = last_cell(row) else {
            heading = None;
            continue;
        };
        match &heading {
            None => heading = Some(cell.to_lowercase()),
            Some(heading) if heading.contains("test") && !is_rule(&cell) => rows.push((line, cell)),
            Some(_) => {}
        }
    }
    rows
}

fn last_cell(row: &str) -> Option<String> {
    let row = row.trim().strip_prefix('|')?;
    let row = row.strip_suffix('|').unwrap_or(row).replace("\\|", "/");
    row.rsplit('|').next().map(|cell| cell.trim().to_owned())
}

fn is_rule(cell: &str) -> bool {
    cell.starts_with(['-', ':']) && cell.chars().all(|c| matches!(c, '-' | ':'))
}

fn find_test(tree: &Tree, path: &str, name: &str) -> Result<(), String> {
    let file = tree.get(path).ok_or_else(|| format!("{path} does not exist"))?;
    let name = name.rsplit("::").next().unwrap_or(name);
    let functions = functions(&file.source.code);
    let mut same_name = functions.iter().filter(|function| function.name == name).peekable();
    if same_name.peek().is_none() {
        return Err(format!("{path} has no function {name}"));
    }
    // The functions of a conformance suite become tests where the suite is instantiated.
    if path.contains("conformance") || same_name.any(|function| is_test(file, function.at)) {
        Ok(())
    } else {
        Err(format!("{name} in {path} is not a test"))
    }
}

/// Whether the attributes before the function at `at` make it a test.
fn is_test(file: &File, at: usize) -> bool {
    let before = &file.source.code[..at];
    let begin = before.rfind([';', '{', '}']).map_or(0, |end| end + 1);
    before[begin..].contains("test]") || before[begin..].contains("test(")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    const TESTS: (&str, &str) = (
        "crates/link/tests/order.rs",
        "#[test]\n#[should_panic]\n// why\nfn in_order() {}\nfn helper() {}\n",
    );

    fn errors_with(last_cell: &str) -> Vec<String> {
        let page =
            format!("# G\n\n| promise | a \\| b | test |\n|---|---|:--|\n| order | x | {last_cell} |\n");
        errors_of(check, &[(GUARANTEES, page.as_str()), TESTS])
    }

    #[test]
    fn a_promise_with_its_test_passes() {
        assert_eq!(errors_with("`crates/link/tests/order.rs::in_order`, all seeds"), [] as [&str; 0]);
    }

    #[test]
    fn a_promise_without_a_test_is_caught() {
        assert_one(&errors_with("by design"), "docs/GUARANTEES.md:5: this promise names no test");
    }

    #[test]
    fn a_test_that_does_not_exist_is_caught() {
        assert_one(&errors_with("`crates/link/tests/gone.rs::in_order`"), "gone.rs does not exist");
        assert_one(&errors_with("`crates/link/tests/order.rs::in_orde`"), "has no function in_orde");
        assert_one(
            &errors_with("`crates/link/tests/order.rs::helper`"),
            "helper in crates/link/tests/order.rs is not a test",
        );
    }

    #[test]
    fn other_tables_are_ignored_but_one_of_promises_must_exist() {
        let page = "| a | b |\n|---|---|\n| c | d |\n";
        assert_one(&errors_of(check, &[(GUARANTEES, page)]), "has no table");
        assert_one(&errors_of(check, &[("a.rs", "")]), "docs/GUARANTEES.md: is missing");
    }
}
