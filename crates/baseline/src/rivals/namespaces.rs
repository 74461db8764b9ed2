//! Two network namespaces: how a program is started in either, and the options that Open MPI needs for them.
//!
//! Open MPI gets a daemon of its own in the second namespace, which a script starts instead of `ssh`.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::child::TempDir;

/// The namespaces of two processes, and their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// The processes whose network namespaces the two join.
    pub processes: [u32; 2],
    /// The addresses there.
    pub addresses: [IpAddr; 2],
    /// The interface there, of the same name in both.
    pub interface: String,
}

impl Namespaces {
    /// A program in the first namespace, with a host name of its own, since Open MPI distinguishes nodes by
    /// their names.
    pub(super) fn node(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.namespace(0)).args(["unshare", "--uts", "sh", "-c"]);
        command.args(["hostname tautline-a && exec \"$@\"", "sh"]).arg(program);
        command
    }

    /// A program, the next argument, in a namespace.
    pub(super) fn enter(&self, side: usize) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.namespace(side));
        command
    }

    fn namespace(&self, side: usize) -> String {
        format!("--net=/proc/{}/ns/net", self.processes[side])
    }

    /// Adds the options that `mpirun` needs.
    pub(super) fn options(&self, command: &mut Command, folder: &TempDir) -> Result<(), String> {
        let agent = folder.path().join("agent");
        // Called with the host, which is known, and a command line for a shell there.
        let script = format!(
            "#!/bin/sh\nshift\nexport line=\"$*\"\n\
             exec nsenter {} unshare --uts sh -c 'hostname tautline-b && eval \"$line\"'\n",
            self.namespace(1)
        );
        fs::write(&agent, script).map_err(|e| e.to_string())?;
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o700)).map_err(|e| e.to_string())?;
        let hosts = self.addresses.map(|address| format!("{address}:1")).join(",");
        command.args(["--host", &hosts, "-n", "2", "--map-by", "node"]);
        let agent = agent.to_string_lossy();
        for (name, value) in [
            ("plm_rsh_agent", &*agent),
            ("oob_tcp_if_include", &self.interface),
            ("btl_tcp_if_include", &self.interface),
        ] {
            command.args(["--mca", name, value]);
        }
        Ok(())
    }
}
