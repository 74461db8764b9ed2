//! Small made-up trees for the tests of the checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Report;
use super::tree::{Tree, folder};

/// A temporary folder, removed when dropped.
pub struct TempTree {
    root: PathBuf,
}

impl TempTree {
    pub fn new(files: &[(&str, &str)]) -> TempTree {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("tautline-tidy-{}-{number}", std::process::id()));
        for (path, text) in files {
            fs::create_dir_all(root.join(folder(path))).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        TempTree { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn load(&self) -> Tree {
        Tree::load(&self.root).unwrap()
    }
}

impl Drop for TempTree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

/// The errors that `check` finds in a tree of these files.
pub fn errors_of(check: fn(&Tree, &mut Report), files: &[(&str, &str)]) -> Vec<String> {
    report_of(check, files).errors
}

pub fn report_of(check: fn(&Tree, &mut Report), files: &[(&str, &str)]) -> Report {
    let mut report = Report::default();
    check(&TempTree::new(files).load(), &mut report);
    report
}

/// Asserts that there is exactly one error, and that it contains `expected`.
#[track_caller]
pub fn assert_one(errors: &[String], expected: &str) {
    assert!(
        errors.len() == 1 && errors[0].contains(expected),
        "expected one `{expected}`, found {errors:#?}"
    );
}
