//! Whether shared memory works here: tried, not guessed.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::{Dial, Greeting, Listener, discovery_dir, is_asymmetric, listener_path};
use crate::Channel;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmProbe {
    /// A frame went through memory shared by way of a door; or why not.
    pub works: Result<(), String>,
    /// Only sleepers pay for barriers.
    pub asymmetric: bool,
}

/// Tries it, within this process.
pub fn probe() -> ShmProbe {
    ShmProbe { works: frame().map_err(|error| error.to_string()), asymmetric: is_asymmetric() }
}

fn frame() -> std::io::Result<()> {
    let nobody = |what: &str| std::io::Error::other(what.to_owned());
    let path = listener_path(&discovery_dir(), u64::from(std::process::id()), 0);
    let listener = Listener::bind(&path)?;
    let prove = |_: &[u8]| [0; 16];
    let bell =
        || -> std::io::Result<OwnedFd> { Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?) };
    let hello =
        Greeting { from: 1, to: 0, epoch: 1, answers: 0, window: 0, asymmetric: false, pool: 0, beacon: 0 };
    let dial = Dial::new(&path, bell()?.as_fd(), || (hello.to_bytes(prove), None))?;
    let incoming = listener.accept()?.ok_or_else(|| nobody("nobody came to the door"))?;
    let (_, handover) = incoming.poll_greeting(prove)?.ok_or_else(|| nobody("the visitor said nothing"))?;
    let mut there = incoming.accept(handover, &hello.to_bytes(prove), (bell()?.as_fd(), None), false)?;
    let (_, bell) = dial.poll_greeting(prove)?.ok_or_else(|| nobody("there was no answer"))?;
    let mut here = dial.establish(bell, false);
    let mut out = vec![0; there.max_frame()];
    here.push(b"through", b"").map_err(std::io::Error::other)?;
    match there.pop(&mut out) {
        Some(7) if &out[..7] == b"through" => Ok(()),
        other => Err(nobody(&format!("a frame was lost ({other:?})"))),
    }
}

#[cfg(test)]
mod tests {
    /// S-1: what works for the other tests works for the probe, and it leaves nothing behind.
    #[test]
    fn it_works_here() {
        assert_eq!(super::probe().works, Ok(()));
        let listener = super::listener_path(&super::discovery_dir(), u64::from(std::process::id()), 0);
        assert!(!listener.exists());
    }
}
