//! Files of a crate do not import each other, directly or through others. A module and its children may.

use std::collections::{BTreeSet, VecDeque};

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
        assert_eq!(errors.len(), 3, "{errors:?}");
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
    fn other_crates_and_tests_are_not_looked_at() {
        let circle = |folder: &str| {
            let files = [
                (format!("crates/{folder}/a.rs"), "use super::b::B; pub struct A;"),
                (format!("crates/{folder}/b.rs"), "use super::a::A; pub struct B;"),
            ];
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            errors_of(check, &files).len()
        };
        assert_eq!(circle("device/src/sys"), 2);
        assert_eq!(circle("device/src/tests"), 0);
        assert_eq!(circle("device/tests"), 0);
        assert_eq!(circle("cli/src"), 0);
    }
}
