//! Open MPI between two network namespaces: its own daemon in the second one, started by a script in place of `ssh`.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::child::TempDir;

/// The namespaces of two processes, and their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Whose network namespaces the two ranks shall be in.
    pub processes: [u32; 2],
    /// The addresses there.
    pub addresses: [IpAddr; 2],
    /// The interface there, of the same name in both.
    pub interface: String,
}

impl Apart {
    /// What `mpirun`, which must itself be started in the first namespace, needs to be told.
    pub(super) fn options(&self, command: &mut Command, folder: &TempDir) -> Result<(), String> {
        let agent = folder.path().join("agent");
        // Open MPI tells nodes apart by their names, so that each has one of its own.
        let script = format!(
            "#!/bin/sh\nshift\nexec nsenter --net=/proc/{}/ns/net unshare --uts sh -c \
             'hostname tautline-b; exec sh -c \"$*\"' sh \"$@\"\n",
            self.processes[1]
        );
        fs::write(&agent, script).map_err(|e| e.to_string())?;
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o700)).map_err(|e| e.to_string())?;
        let hosts = self.addresses.map(|address| format!("{address}:1")).join(",");
        command.args(["--host", &hosts, "-n", "2", "--map-by", "node"]);
        for (name, value) in [
            ("plm_rsh_agent", agent.to_string_lossy().as_ref()),
            ("oob_tcp_if_include", &self.interface),
            ("btl_tcp_if_include", &self.interface),
        ] {
            command.args(["--mca", name, value]);
        }
        Ok(())
    }
}
