//! Why AF_XDP cannot be used: one variant per cause, with a message that says what to do about it.

use std::fmt;
use std::io;

use super::config::Mode;
use crate::sys::Errno;

/// Why AF_XDP cannot be used. `Display` is a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The names of missing privileges.
    Privileges(Vec<&'static str>),
    /// Privileges are missing because this process gave them up.
    PrivilegesDropped,
    /// This process has the privileges, but they have no effect; why.
    PrivilegesIneffective(String),
    /// Another program is attached to the interface.
    Occupied {
        /// The interface.
        interface: String,
        /// The program's id.
        program: u32,
        /// The program's name and owner, as far as they are known.
        owner: String,
    },
    /// No usable interface has the address.
    Interface(String),
    /// Memory could not be allocated, or not be pinned.
    Memory(String),
    /// Every queue is taken.
    Queues(String),
    /// No mode works: the modes that were tried, and the system's errors.
    Modes(Vec<(Mode, String)>),
    /// Any other error of the system.
    System(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Privileges(missing) => {
                let list = missing.join(",");
                write!(
                    f,
                    "this process lacks {list}; to grant: sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock=ep PROGRAM (the last one is needed only to pin more memory than RLIMIT_MEMLOCK)"
                )
            }
            Unavailable::PrivilegesDropped => f.write_str(
                "this process gave up its privileges after opening the interface, as configured, and cannot open it again",
            ),
            Unavailable::Occupied { interface, program, owner } => {
                write!(
                    f,
                    "another XDP program is attached to {interface}: id {program}, {owner}; to use the interface, end the processes that hold the program, or if there are none: ip link set dev {interface} xdp off"
                )
            }
            Unavailable::Interface(why)
            | Unavailable::Memory(why)
            | Unavailable::Queues(why)
            | Unavailable::PrivilegesIneffective(why)
            | Unavailable::System(why) => f.write_str(why),
            Unavailable::Modes(tried) => {
                f.write_str("no mode works here:")?;
                tried.iter().try_for_each(|(mode, why)| write!(f, " {}: {why};", mode.name()))
            }
        }
    }
}

impl std::error::Error for Unavailable {}

impl Unavailable {
    /// Adds the processes that hold the attached program. Not done from the start, because it searches all
    /// processes.
    pub(super) fn with_holders(self) -> Unavailable {
        match self {
            Unavailable::Occupied { interface, program, owner } => {
                let holders = holders(program);
                let held = if holders.is_empty() {
                    owner
                } else {
                    format!("{owner}; held by {}", holders.join(", "))
                };
                Unavailable::Occupied { interface, program, owner: held }
            }
            other => other,
        }
    }

    /// Replaces "privileges are missing" for a process that dropped them: granting them again is no advice
    /// for it.
    pub(super) fn after_dropping_privileges(self, dropped: bool) -> Unavailable {
        match self {
            Unavailable::Privileges(_) if dropped => Unavailable::PrivilegesDropped,
            other => other,
        }
    }

    /// Whether no other mode can help.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Unavailable::Occupied { .. }
                | Unavailable::Queues(_)
                | Unavailable::Memory(_)
                | Unavailable::Privileges(_)
                | Unavailable::PrivilegesDropped
                | Unavailable::PrivilegesIneffective(_)
        )
    }
}

impl From<Unavailable> for io::Error {
    fn from(why: Unavailable) -> io::Error {
        let kind = match why {
            Unavailable::Privileges(_)
            | Unavailable::PrivilegesDropped
            | Unavailable::PrivilegesIneffective(_) => io::ErrorKind::PermissionDenied,
            Unavailable::Occupied { .. } | Unavailable::Queues(_) => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, why)
    }
}

/// The error for a system call that failed.
pub(super) fn system(what: &str, errno: Errno) -> Unavailable {
    Unavailable::System(format!("the system refused {what}: {errno}"))
}

/// The error for a program that was not loaded: the system's error, and the verifier's message if there is
/// one.
pub(super) fn unloaded(what: &str, (errno, log): &(Errno, String)) -> Unavailable {
    let log = if log.is_empty() { String::new() } else { format!(" ({log})") };
    Unavailable::System(format!("the system refused {what}: {errno}{log}"))
}

/// The most processes, and descriptors of each, that are searched for the holders of a program.
const SEARCH_MAX: usize = 4_096;

/// Returns the processes that hold a program, or a link to it, as far as this process may inspect them.
fn holders(program: u32) -> Vec<String> {
    let line = format!("prog_id:\t{program}");
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter(|p| p.file_name().to_string_lossy().parse::<u32>().is_ok());
    numbers
        .take(SEARCH_MAX)
        .filter(|process| {
            let descriptors =
                std::fs::read_dir(process.path().join("fdinfo")).into_iter().flatten().flatten();
            descriptors.take(SEARCH_MAX).any(|descriptor| {
                std::fs::read_to_string(descriptor.path())
                    .is_ok_and(|text| text.lines().any(|l| l.trim_end() == line))
            })
        })
        .map(|process| {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("process {} ({})", process.file_name().to_string_lossy(), name.trim())
        })
        .collect()
}
