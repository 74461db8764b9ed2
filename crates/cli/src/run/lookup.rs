//! Finds the program before anything is started, so that a mistake is reported once and not N times.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Returns the file of a program's name.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    let path = Path::new(name);
    if name.as_bytes().contains(&b'/') {
        return check(path).map(|()| path.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&folders).map(|f| f.join(name)).find(|f| check(f).is_ok()) {
        return Ok(found);
    }
    let shown = path.display();
    if path.is_file() {
        bail!("there is no program {shown} in PATH\nthere is one in this directory; run: ./{shown}");
    }
    bail!("there is no program {shown} in PATH\ngive its path, for example: target/release/{shown}");
}

/// The same, of a program that is started in `dir`.
pub fn find_in(dir: &Path, name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') { find(dir.join(name).as_os_str()) } else { find(name) }
}

fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    match path.metadata() {
        Err(e) => bail!("cannot start {shown}: {e}\ncheck the path; is it built?"),
        Ok(meta) if meta.is_dir() => {
            bail!("cannot start {shown}: it is a directory\ngive the program's file")
        }
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
            bail!("cannot start {shown}: it is not executable\nrun: chmod +x {shown}")
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_mistakes_explained() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        for (name, word) in [("no-such-program", "PATH"), ("/no/such", "is it built"), ("/tmp", "directory")]
        {
            let error = find(OsStr::new(name)).unwrap_err().to_string();
            assert!(error.contains(word) && error.lines().count() == 2, "{error}");
        }
    }
}
