//! Our own MPI, installed in a folder of its own for the time of a run, so that it is measured as the others
//! are: the same programs, built by its `mpicc` and started by its `mpiexec`.

use std::path::PathBuf;

use crate::mpi;

/// The folder; removed at the end.
pub struct Installed(PathBuf);

impl Installed {
    /// Installs it, if its libraries were built; else the reason why not.
    pub fn new() -> Result<Installed, String> {
        let folder = std::env::temp_dir().join(format!("tautline-bench-mpi-{}", std::process::id()));
        let installed = Installed(folder);
        // Without the module for Fortran, which nothing here uses.
        let _ =
            mpi::install_quietly(&installed.0).map_err(|error| format!("{error:#}").replace('\n', "; "))?;
        tautline_baseline::rivals::set_tautline_mpi(installed.0.clone());
        Ok(installed)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
