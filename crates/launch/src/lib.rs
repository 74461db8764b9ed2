//! How a process finds its job: which launcher started it, who the members are, and what their key is.
//!
//! What lives here: job files, the protocols of other launchers (PMI-1, PMI-2, PMIx), the exchange of
//! addresses and the job key through them, and which address and host this process is at. What does not: the
//! job itself, which is `tautline-node`'s, and starting processes, which is the command's.
//!
//! The rule numbers in comments (`J-1`, …) are those of `docs/PROTOCOL.md`.
#![deny(unsafe_code)]

mod address;
pub mod control;
mod environment;
mod exchange;
mod hex;
mod host;
pub mod job_file;
mod key_value;
pub mod launcher;
mod pmi1;
mod pmi2;
// Calls a C library, which it loads.
#[allow(unsafe_code)]
mod pmix;
mod sealed_key;
mod secret_file;

pub use address::{INTERFACE, announced, bind};
pub use environment::{JOB_FD, JOB_FILE, KEY_FILE, job_from_environment, launcher_of_environment};
pub use host::host_id;
pub use sealed_key::random_key;
pub use secret_file::{encode_key, parse_key};
