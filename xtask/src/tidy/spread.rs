//! The methods of a type are in few files, and no file consists only of methods of a type from another file.

use std::collections::BTreeMap;

use super::imports::{Crate, Module};
use super::items::Kind;
use super::ratchet::{Ratchet, Violation};
use super::tree::Tree;
use super::{Report, layers};

/// The number of files that may contain inherent impl blocks of one type.
const IMPL_FILES_MAX: usize = 6;

pub fn check(tree: &Tree, report: &mut Report) {
    let (mut spread, mut continued) = (Vec::new(), Vec::new());
    let crates = layers::LAYERS.iter().map(|layer| format!("crates/{}/src/", layer.folder));
    for source in crates.chain(["xtask/src/".to_owned()]) {
        let all = Crate::load(tree, &source);
        spread.extend(spread_types(&all));
        continued.extend((0..all.modules.len()).filter_map(|at| continuation(&all, at)));
    }
    Ratchet::of_kind(tree, "impls").judge(spread, report);
    Ratchet::of_kind(tree, "continues").judge(continued, report);
}

/// A violation for each file above the limit.
fn spread_types(all: &Crate<'_>) -> Vec<Violation> {
    let mut files: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
    for (at, module) in all.modules.iter().enumerate() {
        for name in inherent(module) {
            let Some(definition) = all.definition_of(at, name) else { continue };
            let list = files.entry((definition, name)).or_default();
            if list.last() != Some(&at) {
                list.push(at);
            }
        }
    }
    let too_many = files.into_iter().filter(|(_, list)| list.len() > IMPL_FILES_MAX);
    let violations = too_many.flat_map(|((_, name), list)| {
        let text = format!(
            "impl blocks of {name} are in {} files, at most {IMPL_FILES_MAX} are allowed",
            list.len()
        );
        let beyond = list.into_iter().skip(IMPL_FILES_MAX);
        beyond.map(move |at| violation(&all.modules[at], text.clone())).collect::<Vec<_>>()
    });
    violations.collect()
}

/// A violation if the file defines nothing and has methods of a type that is defined elsewhere.
fn continuation(all: &Crate<'_>, at: usize) -> Option<Violation> {
    let module = &all.modules[at];
    let own = [Kind::Type, Kind::Function, Kind::Macro];
    if module.items.iter().any(|item| own.contains(&item.kind)) {
        return None;
    }
    let name = inherent(module).next()?;
    Some(violation(module, format!("this file only continues {name}")))
}

fn inherent<'a>(module: &Module<'a>) -> impl Iterator<Item = &'a str> {
    module.items.iter().filter(|item| item.kind == Kind::Inherent).map(|item| item.name)
}

fn violation(module: &Module<'_>, text: String) -> Violation {
    Violation { path: module.file.path.clone(), line: 0, text }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    /// A type, and `more` further files with methods of it.
    fn link_in(more: usize) -> Vec<(String, String)> {
        let mut files =
            vec![("crates/link/src/link.rs".to_owned(), "pub struct Link;\nimpl Link {}".to_owned())];
        for i in 0..more {
            let text = format!("use crate::link::Link;\nimpl Link {{}}\nimpl Link {{}}\nstruct Own{i};");
            files.push((format!("crates/link/src/verb{i}.rs"), text));
        }
        files
    }

    fn errors(files: &[(String, String)]) -> Vec<String> {
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        errors_of(check, &files)
    }

    #[test]
    fn a_type_may_be_implemented_in_six_files() {
        assert_eq!(errors(&link_in(5)), [] as [&str; 0]);
        assert_one(&errors(&link_in(6)), "verb5.rs: impl blocks of Link are in 7 files, at most 6");
        assert_eq!(errors(&link_in(8)).len(), 3);
    }

    #[test]
    fn types_of_one_name_are_told_apart() {
        let mut files = link_in(5);
        files.push(("crates/link/src/a.rs".into(), "struct Link;\nimpl Link {}".into()));
        files.push(("crates/node/src/link.rs".into(), "struct Link;\nimpl Link {}".into()));
        assert_eq!(errors(&files), [] as [&str; 0]);
    }

    #[test]
    fn a_file_that_only_continues_a_type_is_caught() {
        let file = |text: &str| {
            let mut files = link_in(0);
            files.push(("crates/link/src/send.rs".into(), format!("use crate::link::Link;\n{text}")));
            errors(&files)
        };
        let only = "const MAX: u8 = 1;\nimpl Link { fn a() {} }\nmod tests { fn t() {} }";
        assert_one(&file(only), "crates/link/src/send.rs: this file only continues Link");
        assert_eq!(file("impl Link { fn a() {} }\nfn helper() {}"), [] as [&str; 0]);
        assert_eq!(file("impl Link { fn a() {} }\nenum State { A }"), [] as [&str; 0]);
        assert_eq!(file("impl std::fmt::Debug for Link {}"), [] as [&str; 0]);
    }
}
