//! Makes the files of `crates/mpi` that follow from its tables: the headers, the exported functions, the
//! constants, and the page that lists what is implemented. The files are committed, so that a build needs
//! nothing but cargo; a test checks that they are current.

mod constants;
mod exports;
mod fortran;
mod fortran_header;
mod header;
mod kinds;
mod page;
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use table::Table;

/// The folder of the core's functions, one file per chapter of the standard.
const API: &str = "crates/mpi/src/api";

/// Writes the files that differ and names them.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in generated(root)? {
        let place = root.join(path);
        if std::fs::read_to_string(&place).is_ok_and(|old| old == text) {
            continue;
        }
        std::fs::write(&place, text).with_context(|| format!("could not write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Fails if a generated file differs from what its tables say.
#[cfg(test)]
fn check(root: &Path) -> Result<()> {
    for (path, text) in generated(root)? {
        if !std::fs::read_to_string(root.join(path)).is_ok_and(|old| old == text) {
            bail!("{path} is not current: run `cargo xtask mpi`");
        }
    }
    Ok(())
}

fn generated(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path)).with_context(|| format!("could not read {path}"))
    };
    let table =
        Table::parse(&read("crates/mpi/table/functions.txt")?, &read("crates/mpi/table/constants.txt")?)?;
    let implemented = implemented(&root.join(API))?;
    for name in &implemented {
        if !table.functions.iter().any(|function| function.core_name() == *name) {
            bail!("{API} has a public function {name}, which crates/mpi/table/functions.txt does not list");
        }
    }
    Ok(vec![
        ("crates/mpi/include/mpi.h", header::text(&table)?),
        ("crates/mpi/include/mpif.h", fortran_header::include(&table)),
        ("crates/mpi/include/mpi.f90", fortran_header::module(&table)),
        ("crates/mpi/abi/src/fortran/exports.rs", fortran::text(&table, &implemented)?),
        ("crates/mpi/mpich/src/values.rs", constants::mpich(&table)),
        ("crates/mpi/src/constants.rs", constants::core(&table)),
        ("crates/mpi/src/exports.rs", exports::text(&table, &implemented)?),
        ("docs/MPI-FUNCTIONS.md", page::text(&table, &implemented)),
    ])
}

/// The names of the core's public functions.
fn implemented(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))? {
        let text = std::fs::read_to_string(entry?.path())?;
        for line in text.lines().map(str::trim_start) {
            let line = line.strip_prefix("pub unsafe fn ").or_else(|| line.strip_prefix("pub fn "));
            // A line of a macro may name several functions.
            let list = line.and_then(|line| line.split(['(', '<', ':']).next()).unwrap_or_default();
            let found = list.split(", ").filter(|name| !name.is_empty() && !name.starts_with('$'));
            names.extend(found.map(str::to_owned));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    #[test]
    fn the_generated_files_are_current() {
        check(&run::root()).unwrap();
    }

    #[test]
    fn there_are_664_functions() {
        let read = |path: &str| std::fs::read_to_string(run::root().join(path)).unwrap();
        let table =
            Table::parse(&read("crates/mpi/table/functions.txt"), &read("crates/mpi/table/constants.txt"))
                .unwrap();
        let names: BTreeSet<String> = table.exports().map(|(function, wide)| function.c_name(wide)).collect();
        assert_eq!((names.len(), table.exports().count()), (664, 664));
        assert_eq!(names.iter().filter(|name| name.starts_with("MPI_T_")).count(), 51);
        assert_eq!(names.iter().filter(|name| name.ends_with("_c")).count(), 161);
    }
}
