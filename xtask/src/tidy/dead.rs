//! Dead files: modules that are not declared, pages that are not linked, examples that are not mentioned. And
//! dead links.

use std::collections::BTreeSet;

use super::source::{line_of, modules};
use super::tree::{File, Tree, folder, normalized};
use super::{Report, layers};

pub fn check(tree: &Tree, report: &mut Report) {
    check_modules(tree, report);
    check_pages(tree, report);
    check_examples(tree, report);
}

fn check_modules(tree: &Tree, report: &mut Report) {
    let roots = tree.rust().filter(|file| is_crate_root(&file.path));
    let mut reached: BTreeSet<String> = roots.map(|file| file.path.clone()).collect();
    let mut open: Vec<String> = reached.iter().cloned().collect();
    while let Some(path) = open.pop() {
        let Some(file) = tree.get(&path) else { continue };
        open.extend(declared(file).into_iter().filter(|path| reached.insert(path.clone())));
    }
    for file in tree.rust() {
        if in_sources(&file.path).is_some() && !reached.contains(&file.path) {
            report.error(&file.path, 0, "no `mod` declares this file");
        }
    }
}

/// The part of `path` below a `src` folder of a crate.
fn in_sources(path: &str) -> Option<&str> {
    let inside_crate = match layers::folder_of(path) {
        Some(folder) => path.strip_prefix("crates/")?.strip_prefix(folder)?,
        None => path.strip_prefix("xtask")?,
    };
    inside_crate.strip_prefix("/src/")
}

fn is_crate_root(path: &str) -> bool {
    let Some(inside) = in_sources(path) else { return false };
    let binary = inside
        .strip_prefix("bin/")
        .is_some_and(|binary| !binary.contains('/') || binary.ends_with("/main.rs"));
    binary || matches!(inside, "lib.rs" | "main.rs")
}

/// The paths at which modules that `file` declares or includes may be; not all of them exist.
fn declared(file: &File) -> Vec<String> {
    let code = &file.source.code;
    let modules = modules(code);
    let here = folder(&file.path);
    let name = file.path.strip_prefix(here).unwrap_or_default().trim_start_matches('/');
    let owns_folder = name == "mod.rs" || is_crate_root(&file.path);
    let below = if owns_folder { here.to_owned() } else { file.path.trim_end_matches(".rs").to_owned() };
    let mut paths = Vec::new();
    for module in modules.iter().filter(|module| module.body.is_none()) {
        if let Some(path) = path_attribute(file, module.at) {
            paths.extend(normalized(&format!("{here}/{path}")));
            continue;
        }
        let around = |outer: &&super::source::Module<'_>| {
            outer.body.is_some_and(|(open, close)| open < module.at && module.at < close)
        };
        let mut place = below.clone();
        for outer in modules.iter().filter(around) {
            place = format!("{place}/{}", outer.name);
        }
        paths.push(format!("{place}/{}.rs", module.name));
        paths.push(format!("{place}/{}/mod.rs", module.name));
    }
    for (at, found) in code.match_indices("include!(") {
        let path = quoted(&file.text[at + found.len()..]);
        paths.extend(path.and_then(|path| normalized(&format!("{here}/{path}"))));
    }
    paths
}

/// The value of a `#[path = "…"]` on the module at `at`.
fn path_attribute(file: &File, at: usize) -> Option<&str> {
    let code = &file.source.code;
    let begin = code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
    let attribute = begin + code[begin..at].find("#[path")?;
    quoted(&file.text[attribute..at])
}

fn quoted(text: &str) -> Option<&str> {
    text.split('"').nth(1)
}

fn check_pages(tree: &Tree, report: &mut Report) {
    let mut linked = BTreeSet::new();
    for file in tree.markdown() {
        for (at, target) in links(&file.text) {
            let Some(path) = normalized(&format!("{}/{target}", folder(&file.path))) else { continue };
            if !tree.has(&path) {
                report.error(
                    &file.path,
                    line_of(&file.text, at),
                    format!("links to {target}, which does not exist"),
                );
            }
            if path != file.path {
                linked.insert(path);
            }
        }
    }
    for page in tree.markdown() {
        if page.path.starts_with("docs/") && !linked.contains(&page.path) {
            report.error(&page.path, 0, "no other page links to this one");
        }
    }
}

/// The targets of links to files: `[text](target)` and `[name]: target`, without fragment.
fn links(text: &str) -> Vec<(usize, &str)> {
    let inline = text.match_indices("](").filter_map(|(at, found)| {
        let target = text[at + found.len()..].split([')', ' ', '\n']).next()?;
        Some((at, target))
    });
    let references = text.match_indices("]: ").filter_map(|(at, found)| {
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let target = text[at + found.len()..].split_ascii_whitespace().next()?;
        text[line..].starts_with('[').then_some((at, target))
    });
    let files =
        inline.chain(references).map(|(at, target)| (at, target.split('#').next().unwrap_or_default()));
    files
        .filter(|(_, target)| !target.is_empty() && !target.contains("://") && !target.contains(':'))
        .collect()
}

fn check_examples(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        let Some(inside) = in_examples(&file.path) else { continue };
        let stem = inside.split(['/', '.']).next().unwrap_or(inside);
        let names = [format!("examples/{inside}"), format!("examples/{stem}"), format!("--example {stem}")];
        let mentions = |page: &File| names.iter().any(|name| mentions(&page.text, name));
        let pages = tree.markdown().filter(|page| page.path.starts_with("docs/") || !page.path.contains('/'));
        if !pages.into_iter().any(mentions) {
            report.error(&file.path, 0, "neither the README nor the docs mention this example");
        }
    }
}

/// Whether `text` contains `name`, and not only as the start of a longer name.
fn mentions(text: &str, name: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    text.match_indices(name).any(|(at, _)| !text[at + name.len()..].starts_with(goes_on))
}

fn in_examples(path: &str) -> Option<&str> {
    let inside_crate =
        layers::folder_of(path).and_then(|folder| path.strip_prefix(&format!("crates/{folder}/")));
    inside_crate.unwrap_or(path).strip_prefix("examples/")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    #[test]
    fn modules_that_are_declared_pass() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "mod send;\nmod deep { mod inner; }\n#[path = \"odd_name.rs\"]\nmod odd;",
            ),
            ("crates/a/src/send.rs", "mod timer;\n#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/send/timer.rs", ""),
            ("crates/a/src/send/tests/mod.rs", "mod long;"),
            ("crates/a/src/send/tests/long.rs", ""),
            ("crates/a/src/deep/inner.rs", "include!(\"../table.rs\");"),
            ("crates/a/src/table.rs", ""),
            ("crates/a/src/odd_name.rs", ""),
            ("crates/a/src/bin/tool.rs", "mod help;"),
            ("crates/a/src/bin/help.rs", ""),
            ("crates/a/build.rs", ""),
        ];
        assert_eq!(errors_of(check, &files), [] as [&str; 0]);
    }

    #[test]
    fn a_module_that_is_not_declared_is_caught() {
        let files = [
            ("crates/a/src/lib.rs", "// mod old;\nconst A: &str = \"mod old;\";"),
            ("crates/a/src/old.rs", ""),
        ];
        assert_one(&errors_of(check, &files), "crates/a/src/old.rs: no `mod` declares");
    }

    #[test]
    fn modules_that_only_declare_each_other_are_caught() {
        let files = [
            ("crates/a/src/lib.rs", ""),
            ("crates/a/src/x.rs", "mod y;"),
            ("crates/a/src/x/y.rs", "#[path = \"../x.rs\"] mod x;"),
        ];
        assert_eq!(errors_of(check, &files).len(), 2);
    }

    #[test]
    fn linked_pages_pass_and_a_page_that_only_links_itself_is_caught() {
        let good = [
            ("README.md", "[p](docs/P.md#top) [web](https://a.b/c)\n[q]: docs/Q.md\n"),
            ("docs/P.md", ""),
            ("docs/Q.md", "[up](../README.md)"),
        ];
        assert_eq!(errors_of(check, &good), [] as [&str; 0]);
        assert_one(&errors_of(check, &[("docs/P.md", "[me](P.md)")]), "docs/P.md: no other page");
    }

    #[test]
    fn a_dead_link_is_caught() {
        assert_one(
            &errors_of(check, &[("README.md", "\n[p](docs/P.md)")]),
            "README.md:2: links to docs/P.md",
        );
    }

    #[test]
    fn examples_must_be_mentioned_by_their_whole_name() {
        let example = ("crates/a/examples/hello.rs", "");
        assert_eq!(errors_of(check, &[example, ("README.md", "`--example hello`")]), [] as [&str; 0]);
        assert_eq!(
            errors_of(check, &[example, ("docs/A.md", "examples/hello.rs"), ("README.md", "[a](docs/A.md)")]),
            [] as [&str; 0]
        );
        assert_one(
            &errors_of(check, &[example, ("README.md", "--example hello_world")]),
            "neither the README nor the docs",
        );
        assert_one(
            &errors_of(check, &[("examples/hello/main.rs", ""), ("README.md", "")]),
            "neither the README nor the docs",
        );
    }
}
