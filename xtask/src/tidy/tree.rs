//! The tree to check: every text file that git tracks or would track, read once.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::source::Source;

pub struct File {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    pub text: String,
    /// Code and comments; empty unless this is Rust.
    pub source: Source,
}

pub struct Tree {
    /// Sorted by path.
    files: Vec<File>,
}

impl Tree {
    pub fn load(root: &Path) -> Result<Tree> {
        let mut paths = match tracked(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            let place = root.join(&path);
            // The target of a symbolic link is read under its own path.
            if !fs::symlink_metadata(&place).is_ok_and(|data| data.is_file()) {
                continue;
            }
            let bytes = fs::read(&place).with_context(|| format!("could not read {path}"))?;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            if text.contains('\0') {
                continue;
            }
            let source = if path.ends_with(".rs") { Source::split(&text) } else { Source::default() };
            files.push(File { path, text, source });
        }
        Ok(Tree { files })
    }

    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.path.ends_with(".rs"))
    }

    pub fn markdown(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.path.ends_with(".md"))
    }

    pub fn get(&self, path: &str) -> Option<&File> {
        let at = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        Some(&self.files[at])
    }

    /// Whether `path` is a file, or a folder that contains one.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = |file: &File| file.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        path.is_empty() || self.get(path).is_some() || self.files().any(inside)
    }
}

/// The files that git tracks, and new ones that it does not ignore; `None` without git.
fn tracked(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let list = String::from_utf8(output.stdout).ok()?;
    let paths = list.split_terminator('\0').map(str::to_owned).collect();
    output.status.success().then_some(paths)
}

/// Every file below the root, without `.git` and `target`.
fn walked(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let place = root.join(&folder);
        for entry in fs::read_dir(&place).with_context(|| format!("could not list {}", place.display()))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            match entry.file_type()? {
                kind if kind.is_dir() && name != ".git" && name != "target" => folders.push(path),
                kind if kind.is_file() => paths.push(path),
                _ => {}
            }
        }
    }
    Ok(paths)
}

/// `path` without `.` and `..`; `None` if it leaves the root.
pub fn normalized(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The folder of `path`, empty for the root.
pub fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempTree;
    use super::*;

    #[test]
    fn text_is_read_and_binaries_and_built_files_are_not() {
        let temp = TempTree::new(&[("a.rs", "fn a() {}"), ("target/b.rs", ""), ("data.bin", "a\0b")]);
        let tree = temp.load();
        assert_eq!(tree.files().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a.rs"]);
        assert!(tree.get("a.rs").is_some_and(|file| file.source.code.contains("fn a")));
    }

    #[test]
    fn a_folder_exists_if_it_contains_a_file() {
        let tree = TempTree::new(&[("docs/decisions/one.md", "")]).load();
        assert!(tree.has("docs/decisions/") && tree.has("docs") && !tree.has("doc"));
    }

    #[test]
    fn paths_are_normalized_and_stay_inside() {
        assert_eq!(normalized("docs/../README.md").as_deref(), Some("README.md"));
        assert_eq!(normalized("docs/../../x"), None);
    }
}
