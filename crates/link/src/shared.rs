//! What the links of a lane share (L-45).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Config;

/// Quiet links for which heartbeats are sent as on any other idle link.
const FULL_PACE: u32 = 64;
/// The most times as rarely as that.
const MAX_PACE: u32 = 1_024;

/// What the links of a lane share: their configuration, and how many of them are quiet (L-45).
#[derive(Debug)]
pub struct Shared {
    config: Config,
    quiet: AtomicU32,
}

impl Shared {
    /// Returns how many times as rarely as on any other idle link heartbeats are sent on quiet ones.
    pub(crate) fn pace(&self) -> u16 {
        let quiet = self.quiet.load(Ordering::Relaxed);
        quiet.div_ceil(FULL_PACE).clamp(1, MAX_PACE) as u16
    }

    /// Returns how many links are quiet.
    pub fn quiet_links(&self) -> u32 {
        self.quiet.load(Ordering::Relaxed)
    }
}

/// Limits what a peer says of its pace.
pub(crate) fn accept_pace(told: u16) -> u16 {
    told.clamp(1, MAX_PACE as u16)
}

impl From<Config> for Shared {
    fn from(config: Config) -> Shared {
        Shared { config, quiet: AtomicU32::new(0) }
    }
}

impl From<Config> for Arc<Shared> {
    fn from(config: Config) -> Arc<Shared> {
        Arc::new(config.into())
    }
}

impl Deref for Shared {
    type Target = Config;

    #[inline]
    fn deref(&self) -> &Config {
        &self.config
    }
}

/// A link that is quiet, and counted as such until this is dropped.
#[derive(Debug)]
pub(crate) struct Quiet(Arc<Shared>);

impl Quiet {
    pub(crate) fn new(shared: &Arc<Shared>) -> Quiet {
        shared.quiet.fetch_add(1, Ordering::Relaxed);
        Quiet(shared.clone())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.quiet.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-45: up to 64 quiet links have heartbeats like others; more have as many together.
    #[test]
    fn heartbeats_do_not_grow_with_quiet_links() {
        let shared: Arc<Shared> = Config::default().into();
        let mut quiet = Vec::new();
        for (links, pace) in [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3), (6_400, 100)] {
            quiet.resize_with(links, || Quiet::new(&shared));
            assert_eq!((shared.quiet_links(), shared.pace()), (links as u32, pace));
        }
        quiet.resize_with(200_000, || Quiet::new(&shared));
        assert_eq!(shared.pace(), 1_024);
        quiet.clear();
        assert_eq!((shared.quiet_links(), shared.pace()), (0, 1));
        assert_eq!([0, 1, 5, 2_000].map(accept_pace), [1, 1, 5, 1_024]);
    }
}
