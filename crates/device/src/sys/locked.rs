//! How much memory may be pinned.

use rustix::process::{Resource, getrlimit};

/// Bytes that all processes of this user may pin together, unless they are privileged; `None` for any number.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}
