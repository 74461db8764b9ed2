//! Whether shared memory works here, found out by trying it.

use super::{
    Accepted, Contribution, Dial, Greeting, LanePages, Listener, Refusal, discovery_dir, is_asymmetric,
    listener_path,
};
use crate::Channel;

/// The result of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmProbe {
    /// Whether a frame went through shared memory, or why not.
    pub works: Result<(), String>,
    /// The kernel supports asymmetric barriers.
    pub asymmetric: bool,
}

/// Sends a frame through shared memory within this process.
pub fn probe() -> ShmProbe {
    ShmProbe { works: frame().map_err(|error| error.to_string()), asymmetric: is_asymmetric() }
}

fn frame() -> std::io::Result<()> {
    let failed = |what: &str| std::io::Error::other(what.to_owned());
    let path = listener_path(&discovery_dir(), u64::from(std::process::id()), 0);
    let listener = Listener::bind(&path)?;
    let prove = |_: &[u8]| [0; 16];
    let contribute = || {
        let number = LanePages::create()?.take_number().ok_or_else(|| failed("there are too many rings"))?;
        let (from, to, epoch, answers, window, beacon, ring) = (1, 0, 1, 0, 0, 0, number.get());
        let hello = Greeting { from, to, epoch, answers, window, pool: 0, beacon, ring, asymmetric: false };
        Ok((hello.to_bytes(prove), Contribution { pool: None, number }))
    };
    let dial = Dial::new(&path, contribute)?;
    let (incoming, handover) = loop {
        let incoming = match listener.accept(|error| Refusal::of(error).to_bytes(prove)) {
            Accepted::Connection(incoming) => incoming,
            Accepted::None => return Err(failed("no connection with a greeting arrived")),
            Accepted::Refused(error) | Accepted::Waiting(error) => return Err(error),
        };
        // Other processes connect to see whether the listener's process lives, and say nothing.
        if let Ok(Some((_, handover))) = incoming.poll_greeting(prove) {
            break (incoming, handover);
        }
    };
    let (answer, own) = contribute()?;
    let mut there = incoming.accept(handover, &answer, own, false)?;
    let (_, handles) = dial.poll_greeting(prove)?.ok_or_else(|| failed("no answer arrived"))?;
    let mut here = dial.establish(handles, false);
    let mut out = vec![0; there.max_frame()];
    here.push(b"through", b"").map_err(std::io::Error::other)?;
    match there.pop(&mut out) {
        Some(7) if &out[..7] == b"through" => Ok(()),
        other => Err(failed(&format!("a frame was lost ({other:?})"))),
    }
}

#[cfg(test)]
mod tests {
    /// S-1: shared memory works wherever the other tests work, and the probe leaves nothing behind.
    #[test]
    fn the_probe_works_and_leaves_nothing_behind() {
        assert_eq!(super::probe().works, Ok(()));
        let listener = super::listener_path(&super::discovery_dir(), u64::from(std::process::id()), 0);
        assert!(!listener.exists());
    }
}
