//! Which file of a crate uses which other one. Paths that begin with `crate`, `super` or `self`, in use
//! declarations and elsewhere, are followed through re-exports to the file that defines what they name. What
//! only a compiler can resolve is missing: methods, and what macros expand to. Tests are ignored.

use std::collections::BTreeSet;

use super::items::{Item, Kind, items};
use super::source::{is_test_file, modules, word_at};
use super::tree::{File, Tree};

/// The length of a chain of re-exports that is followed.
const HOPS_MAX: usize = 8;

/// A file of a crate, with its place in the tree of modules.
pub struct Module<'a> {
    pub file: &'a File,
    /// Empty for the root of the crate.
    pub path: Vec<&'a str>,
    pub items: Vec<Item<'a>>,
    imports: Vec<Import<'a>>,
}

/// One name that a use declaration brings into scope.
struct Import<'a> {
    /// As written, `crate` or `super` first.
    path: Vec<&'a str>,
    /// The last part of the path, unless it is renamed; `*` for everything.
    name: &'a str,
    /// How many inline modules it is in.
    depth: usize,
}

/// The modules of one crate that have a file of their own.
pub struct Crate<'a> {
    pub modules: Vec<Module<'a>>,
}

impl<'a> Crate<'a> {
    /// The crate whose sources are below `folder`, such as `crates/link/src/`.
    pub fn load(tree: &'a Tree, folder: &str) -> Crate<'a> {
        let files = tree.rust().filter(|file| !is_test_file(&file.path));
        let modules = files.filter_map(|file| {
            let inside = file.path.strip_prefix(folder)?.strip_suffix(".rs")?;
            let mut path: Vec<&str> = inside.split('/').collect();
            if matches!(path.last(), Some(&"mod")) || matches!(path[..], ["lib" | "main"]) {
                path.pop();
            }
            let items = items(&file.source.code);
            let imports = items.iter().filter(|item| item.kind == Kind::Use);
            let imports = imports.filter(|item| !is_for_tests(file, item.at)).flat_map(|item| {
                let mut list = Vec::new();
                flatten(item.name, &mut Vec::new(), item.depth, &mut list);
                list
            });
            Some(Module { file, path, imports: imports.collect(), items })
        });
        Crate { modules: modules.collect() }
    }

    /// The other files that a file uses, as indices of [`Crate::modules`].
    pub fn uses_of(&self, at: usize) -> BTreeSet<usize> {
        let module = &self.modules[at];
        let mut used = BTreeSet::new();
        for import in &module.imports {
            let Some(path) = self.absolute(module, import.depth, &import.path) else { continue };
            let qualified = match self.exact(&path) {
                Some(_) if import.name != "*" => qualified_by(module.file, import.name),
                _ => Vec::new(),
            };
            if qualified.is_empty() {
                used.extend(self.resolve(&path, import.name == "*", 0));
            }
            for rest in qualified {
                used.extend(self.resolve(&[&path[..], &rest[..]].concat(), false, 0));
            }
        }
        for (depth, path) in written_out(module.file) {
            let path = self.absolute(module, depth, &path);
            used.extend(path.and_then(|path| self.resolve(&path, false, 0)));
        }
        used.remove(&at);
        used
    }

    /// The file that defines the type which the file at `at` calls `name`, if that can be found out.
    pub fn definition_of(&self, at: usize, name: &str) -> Option<usize> {
        if self.defines(at, name) {
            return Some(at);
        }
        let module = &self.modules[at];
        let import = module.imports.iter().find(|import| import.name == name);
        let path = import.and_then(|import| self.absolute(module, import.depth, &import.path));
        if let Some(found) = path.and_then(|path| self.resolve(&path, false, 0)) {
            return Some(found);
        }
        let mut all = (0..self.modules.len()).filter(|at| self.defines(*at, name));
        let first = all.next()?;
        // Which of several it is cannot be found out.
        all.next().is_none().then_some(first)
    }

    fn defines(&self, at: usize, name: &str) -> bool {
        let definitions = [Kind::Type, Kind::Function, Kind::Macro, Kind::Other];
        self.modules[at].items.iter().any(|item| item.name == name && definitions.contains(&item.kind))
    }

    fn exact(&self, path: &[&str]) -> Option<usize> {
        self.modules.iter().position(|module| module.path == path)
    }

    /// A path from the root of the crate; `None` for one that leads out of the crate.
    fn absolute<'b>(&self, module: &Module<'b>, depth: usize, path: &[&'b str]) -> Option<Vec<&'b str>> {
        let (first, rest) = path.split_first()?;
        // Inline modules have no file, so their names do not matter.
        let mut base = module.path.clone();
        base.extend(std::iter::repeat_n("", depth));
        match *first {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&base[..], rest].concat()),
            "super" => {
                base.pop()?;
                let mut rest = rest;
                while let Some(("super", after)) = rest.split_first().map(|(first, after)| (*first, after)) {
                    base.pop()?;
                    rest = after;
                }
                base.retain(|part| !part.is_empty());
                Some([&base[..], rest].concat())
            }
            first => {
                let child = [&module.path[..], &[first]].concat();
                self.exact(&child).map(|_| [&module.path[..], path].concat())
            }
        }
    }

    /// The file that defines what `path` names; `None` if that is in another crate.
    fn resolve(&self, path: &[&str], all_of_it: bool, hops: usize) -> Option<usize> {
        let (inside, at) = (0..=path.len()).rev().find_map(|len| Some((len, self.exact(&path[..len])?)))?;
        let Some(name) = path.get(inside).filter(|_| !all_of_it) else { return Some(at) };
        if hops == HOPS_MAX || self.defines(at, name) {
            return Some(at);
        }
        let module = &self.modules[at];
        if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
            let path = self.absolute(module, import.depth, &import.path)?;
            return self.resolve(&path, false, hops + 1);
        }
        let globs = module.imports.iter().filter(|import| import.name == "*");
        let mut targets = globs.filter_map(|import| {
            let path = self.absolute(module, import.depth, &import.path)?;
            self.resolve(&path, true, hops + 1)
        });
        Some(targets.find(|target| self.defines(*target, name)).unwrap_or(at))
    }
}

/// Whether the attributes before the item at `at` say that only tests have it.
fn is_for_tests(file: &File, at: usize) -> bool {
    let before = &file.source.code[..at];
    let begin = before.rfind([';', '{', '}']).map_or(0, |end| end + 1);
    before[begin..].contains("cfg(test)")
}

/// Splits `a::{b, c::D as E}` into its imports.
fn flatten<'a>(tree: &'a str, before: &mut Vec<&'a str>, depth: usize, imports: &mut Vec<Import<'a>>) {
    let tree = tree.trim();
    let length = before.len();
    let (path, group) = match tree.split_once('{') {
        Some((path, group)) => (path.trim().trim_end_matches("::"), group.strip_suffix('}')),
        None => (tree, None),
    };
    let (path, renamed) = match path.split_once(" as ") {
        Some((path, name)) => (path, Some(name.trim())),
        None => (path, None),
    };
    before.extend(path.split("::").map(str::trim).filter(|part| !part.is_empty()));
    if let Some(group) = group {
        for part in split_at_commas(group) {
            flatten(part, before, depth, imports);
        }
    } else if let Some(&last) = before.last() {
        let self_of_group = last == "self" && before.len() > 1;
        let path = if self_of_group || last == "*" { &before[..before.len() - 1] } else { &before[..] };
        let own = if last == "*" { "*" } else { path.last().copied().unwrap_or_default() };
        imports.push(Import { path: path.to_vec(), name: renamed.unwrap_or(own), depth });
    }
    before.truncate(length);
}

fn split_at_commas(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// The paths that follow `name::` in a file.
fn qualified_by<'a>(file: &'a File, name: &str) -> Vec<Vec<&'a str>> {
    let paths = places(file, name).filter_map(|(_, at)| {
        let path = path_at(&file.source.code, at);
        (path.len() > 1).then(|| path[1..].to_vec())
    });
    paths.collect()
}

/// The paths outside of use declarations that begin with `crate`, `super` or `self`, with the number of
/// inline modules around them.
fn written_out(file: &File) -> Vec<(usize, Vec<&str>)> {
    let firsts = ["crate", "super", "self"].into_iter();
    let paths = firsts
        .flat_map(|first| places(file, first).map(|(depth, at)| (depth, path_at(&file.source.code, at))));
    paths.filter(|(_, path)| path.len() > 1).collect()
}

/// Where `name` begins a path in a file, outside of use declarations and tests: the number of inline modules
/// around it, and its offset.
fn places(file: &File, name: &str) -> impl Iterator<Item = (usize, usize)> {
    let code = &file.source.code;
    let modules = modules(code);
    let starts = code.match_indices(name).map(|(at, _)| at).collect::<Vec<_>>().into_iter();
    let len = name.len();
    starts.filter_map(move |at| {
        let whole = word_at(code, at).len() == len
            && !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if !whole || code[..at].trim_end().ends_with("::") || is_in_use(code, at) {
            return None;
        }
        let around =
            modules.iter().filter(|module| module.body.is_some_and(|(open, close)| open < at && at < close));
        let mut depth = 0;
        for module in around {
            if super::source::is_test_module(module.name) {
                return None;
            }
            depth += 1;
        }
        Some((depth, at))
    })
}

/// Whether the statement around `at` is a use declaration.
fn is_in_use(code: &str, at: usize) -> bool {
    let mut before = &code[..at];
    // A brace after `::` belongs to a use declaration; any other brace ends the search.
    loop {
        let begin = before.rfind([';', '{', '}']).map_or(0, |end| end + 1);
        let words = before[begin..].split_ascii_whitespace();
        if words.clone().any(|word| word == "use") {
            return true;
        }
        let in_group = begin > 0 && before[..begin].ends_with('{') && before[..begin - 1].ends_with("::");
        if !in_group {
            return false;
        }
        before = &before[..begin - 1];
    }
}

/// The path that begins at `at`: `crate`, `a`, `B`.
fn path_at(code: &str, at: usize) -> Vec<&str> {
    let mut path = vec![word_at(code, at)];
    let mut rest = &code[at + path[0].len()..];
    while let Some(next) = rest.strip_prefix("::") {
        let word = word_at(next, 0);
        if word.is_empty() {
            break;
        }
        path.push(word);
        rest = &next[word.len()..];
    }
    path
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempTree;
    use super::*;

    /// The files below `crates/a/src/` that the first file uses.
    fn used(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let tree = TempTree::new(&files).load();
        let all = Crate::load(&tree, "crates/a/src/");
        let first = all.modules.iter().position(|module| module.file.path == files[0].0).unwrap();
        let used = all.uses_of(first).into_iter();
        used.map(|at| all.modules[at].file.path.trim_start_matches("crates/a/src/").to_owned()).collect()
    }

    #[test]
    fn use_declarations_lead_to_the_file_that_defines() {
        let b = ("b.rs", "pub struct B;\npub fn make() {}");
        let c = ("c/mod.rs", "mod d;\npub use d::D;\npub const C: u8 = 0;");
        let d = ("c/d.rs", "pub struct D;");
        assert_eq!(used(&[("a.rs", "use crate::b::{B, make as m};"), b, c, d]), ["b.rs"]);
        assert_eq!(
            used(&[("a.rs", "use crate::{b::B, c::{self, D}};\nfn f() { c::C }"), b, c, d]),
            ["b.rs", "c/d.rs", "c/mod.rs"]
        );
        assert_eq!(used(&[("c/d.rs", "use super::super::b::*;"), b, ("c/mod.rs", "mod d;")]), ["b.rs"]);
        assert_eq!(used(&[("a.rs", "use std::fmt;\nuse other::b::B;"), b]), [] as [&str; 0]);
    }

    #[test]
    fn paths_in_expressions_count() {
        let b = ("b.rs", "pub struct B;");
        assert_eq!(used(&[("a.rs", "fn f() { crate::b::B::new() }"), b]), ["b.rs"]);
        assert_eq!(used(&[("a.rs", "mod inner { fn f(x: super::super::b::B) {} }"), b]), ["b.rs"]);
        assert_eq!(used(&[("a.rs", "// crate::b::B\nconst S: &str = \"crate::b::B\";"), b]), [] as [&str; 0]);
    }

    #[test]
    fn re_exports_are_followed_and_may_lead_out() {
        let root = ("lib.rs", "mod a; mod b;\npub use b::*;\npub use elsewhere::E;");
        let b = ("b.rs", "pub struct B;");
        assert_eq!(used(&[("a.rs", "use crate::B;"), root, b]), ["b.rs"]);
        assert_eq!(used(&[("a.rs", "use crate::E;"), root, b]), [] as [&str; 0]);
    }

    #[test]
    fn tests_do_not_count() {
        let b = ("b.rs", "pub struct B;");
        assert_eq!(
            used(&[("a.rs", "mod tests { use crate::b::B;\nfn f() { crate::b::B } }"), b]),
            [] as [&str; 0]
        );
        assert_eq!(used(&[("a.rs", "#[cfg(test)]\nuse crate::b::B;"), b]), [] as [&str; 0]);
    }

    #[test]
    fn types_are_found_where_they_are_defined() {
        let files = [
            ("crates/a/src/link.rs", "pub struct Link; pub struct Piece;"),
            ("crates/a/src/send.rs", "use crate::link::Link; impl Link {}"),
            ("crates/a/src/other.rs", "struct Piece;"),
        ];
        let tree = TempTree::new(&files).load();
        let all = Crate::load(&tree, "crates/a/src/");
        let at = |path: &str| all.modules.iter().position(|module| module.file.path.ends_with(path));
        assert_eq!(all.definition_of(at("send.rs").unwrap(), "Link"), at("link.rs"));
        assert_eq!(all.definition_of(at("send.rs").unwrap(), "Piece"), None);
        assert_eq!(all.definition_of(at("other.rs").unwrap(), "Piece"), at("other.rs"));
    }
}
