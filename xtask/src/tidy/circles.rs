//! Files of a crate do not import each other, directly or through others. A module and its children may. The
//! modules next to each other in a folder, each with all that it contains, do not import each other either.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Report;
use super::imports::{Crate, Module};
use super::ratchet::{Ratchet, Violation};
use super::tree::Tree;

const CRATES: [&str; 4] = ["node", "tautline", "link", "device"];

pub fn check(tree: &Tree, report: &mut Report) {
    let mut violations = Vec::new();
    for folder in CRATES {
        let source = format!("crates/{folder}/src/");
        let all = Crate::load(tree, &source);
        let edges: Vec<BTreeSet<usize>> = (0..all.modules.len()).map(|at| edges_of(&all, at)).collect();
        for (at, module) in all.modules.iter().enumerate() {
            let Some(circle) = shortest_circle(&edges, at) else { continue };
            let names = circle.iter().map(|at| all.modules[*at].file.path.trim_start_matches(&source));
            let path = names.collect::<Vec<_>>().join(" → ");
            let text = format!("imports in a circle: {path}");
            violations.push(Violation { path: module.file.path.clone(), line: 0, text });
        }
        for siblings in siblings_of(&all, &edges).values() {
            violations.extend(siblings.circle().map(|circle| {
                let text = format!("modules import each other in a circle: {circle}");
                Violation { path: source.clone(), line: 0, text }
            }));
        }
    }
    Ratchet::of_kind(tree, "circle").judge(violations, report);
}

fn edges_of(all: &Crate<'_>, at: usize) -> BTreeSet<usize> {
    let mut used = all.uses_of(at);
    used.retain(|other| !are_nested(&all.modules[at], &all.modules[*other]));
    used
}

fn are_nested(one: &Module<'_>, other: &Module<'_>) -> bool {
    one.path.starts_with(&other.path) || other.path.starts_with(&one.path)
}

/// The modules of one folder, each with all that it contains.
#[derive(Default)]
struct Siblings<'a> {
    names: Vec<&'a str>,
    edges: Vec<BTreeSet<usize>>,
}

impl<'a> Siblings<'a> {
    fn at(&mut self, name: &'a str) -> usize {
        self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.edges.push(BTreeSet::new());
            self.names.len() - 1
        })
    }

    /// One of the shortest circles, if there is any.
    fn circle(&self) -> Option<String> {
        let circles = (0..self.names.len()).filter_map(|at| shortest_circle(&self.edges, at));
        let names = |circle: Vec<usize>| circle.iter().map(|at| self.names[*at]).collect::<Vec<_>>();
        circles.min_by_key(Vec::len).map(|circle| names(circle).join(" → "))
    }
}

/// The siblings of each folder, by the folder's path.
fn siblings_of<'a>(all: &Crate<'a>, edges: &[BTreeSet<usize>]) -> BTreeMap<Vec<&'a str>, Siblings<'a>> {
    let mut folders: BTreeMap<Vec<&str>, Siblings<'_>> = BTreeMap::new();
    for (from, used) in edges.iter().enumerate() {
        for to in used {
            let (one, other) = (&all.modules[from].path, &all.modules[*to].path);
            let common = one.iter().zip(other).take_while(|(one, other)| one == other).count();
            let siblings = folders.entry(one[..common].to_vec()).or_default();
            let (one, other) = (siblings.at(one[common]), siblings.at(other[common]));
            siblings.edges[one].insert(other);
        }
    }
    folders
}

/// The shortest circle of edges through `start`, which is its first and last element.
fn shortest_circle(edges: &[BTreeSet<usize>], start: usize) -> Option<Vec<usize>> {
    let mut reached_from = vec![None; edges.len()];
    let mut open = VecDeque::from([start]);
    while let Some(at) = open.pop_front() {
        for &next in &edges[at] {
            if next == start {
                let mut circle = vec![start, at];
                while let Some(before) = reached_from[circle[circle.len() - 1]] {
                    circle.push(before);
                }
                circle.reverse();
                return Some(circle);
            }
            if reached_from[next].is_none() {
                reached_from[next] = Some(at);
                open.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::errors_of;
    use super::*;

    #[test]
    fn files_that_use_each_other_are_caught_with_the_path() {
        let files = [
            ("crates/link/src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("crates/link/src/a.rs", "use crate::b::B; pub struct A;"),
            ("crates/link/src/b.rs", "use crate::c::C; pub struct B;"),
            ("crates/link/src/c.rs", "pub struct C; fn f(_: crate::a::A) {}"),
            ("crates/link/src/d.rs", "use crate::{a::A, b::B};"),
        ];
        let errors = errors_of(check, &files);
        assert_eq!(errors.len(), 4, "one for each file, and one for the modules: {errors:?}");
        assert_eq!(errors[0], "crates/link/src/a.rs: imports in a circle: a.rs → b.rs → c.rs → a.rs");
    }

    #[test]
    fn a_module_and_its_children_may_use_each_other() {
        let files = [
            ("crates/node/src/lib.rs", "mod a;\npub use a::A;\npub type Rank = u32;"),
            ("crates/node/src/a/mod.rs", "mod b;\nuse b::B;\npub struct A;\nuse crate::Rank;"),
            ("crates/node/src/a/b.rs", "use super::A;\npub struct B(crate::Rank);"),
        ];
        assert_eq!(errors_of(check, &files), [] as [&str; 0]);
    }

    #[test]
    fn modules_that_use_each_other_are_caught() {
        let files = [
            ("crates/node/src/lib.rs", "mod a; mod b; pub use b::two::Two;"),
            ("crates/node/src/a/mod.rs", "mod one; mod other; pub use other::Other;"),
            ("crates/node/src/a/one.rs", "use crate::Two; pub struct One;"),
            ("crates/node/src/a/other.rs", "pub struct Other;"),
            ("crates/node/src/b/mod.rs", "pub mod two; mod last; use crate::a::Other;"),
            ("crates/node/src/b/two.rs", "pub struct Two;"),
            ("crates/node/src/b/last.rs", "use super::two::Two;"),
        ];
        assert_eq!(
            errors_of(check, &files),
            ["crates/node/src/: modules import each other in a circle: a → b → a"]
        );
    }

    #[test]
    fn other_crates_and_tests_are_not_looked_at() {
        let circle = |folder: &str| {
            let files = [
                (format!("crates/{folder}/a.rs"), "use super::b::B; pub struct A;"),
                (format!("crates/{folder}/b.rs"), "use super::a::A; pub struct B;"),
            ];
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            errors_of(check, &files).len()
        };
        assert_eq!(circle("device/src/sys"), 3);
        assert_eq!(circle("device/src/tests"), 0);
        assert_eq!(circle("device/tests"), 0);
        assert_eq!(circle("cli/src"), 0);
    }
}
