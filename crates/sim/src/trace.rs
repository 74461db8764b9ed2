//! A readable trace of a run, and a capture of its network.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use tautline_device::pcap::Capture;
use tautline_wire::frame::flags;
use tautline_wire::{Frame, Handshake};

use crate::Nanos;

/// Where the trace of a run goes.
pub struct Trace {
    text: Option<Box<dyn Write + Send>>,
    capture: Option<Capture<Box<dyn Write + Send>>>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

impl Trace {
    /// Writes a line per frame and event to `text`, and the frames that arrived to `capture`, a file that
    /// Wireshark opens.
    pub fn new(
        text: Option<Box<dyn Write + Send>>,
        capture: Option<Box<dyn Write + Send>>,
    ) -> std::io::Result<Trace> {
        Ok(Trace { text, capture: capture.map(Capture::new).transpose()? })
    }

    pub(crate) fn frame(
        &mut self,
        at: Nanos,
        (from, to): (u32, u32),
        addresses: (SocketAddr, SocketAddr),
        bytes: &[u8],
        verdict: &str,
    ) {
        if let Some(text) = &mut self.text {
            let what = describe(bytes);
            // A trace that cannot be written is no reason to stop the run.
            let _ = writeln!(text, "{} {from} → {to} {:5} B {what} {verdict}", time(at), bytes.len());
        }
        if let Some(capture) = self.capture.as_mut().filter(|_| verdict.is_empty()) {
            capture.packet(Duration::from_nanos(at), addresses.0, addresses.1, bytes);
        }
    }

    pub(crate) fn line(&mut self, at: Nanos, line: &str) {
        if let Some(text) = &mut self.text {
            let _ = writeln!(text, "{} {line}", time(at));
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some(capture) = &mut self.capture {
            let _ = capture.finish();
        }
        if let Some(text) = &mut self.text {
            let _ = text.flush();
        }
    }
}

/// Seconds with nanoseconds.
pub(crate) fn time(at: Nanos) -> String {
    format!("{}.{:09}", at / 1_000_000_000, at % 1_000_000_000)
}

fn describe(bytes: &[u8]) -> String {
    if let Ok(shake) = Handshake::parse(bytes) {
        return format!("{:?} epoch {:016x} channel {:08x}", shake.kind, shake.epoch, shake.channel);
    }
    let Ok(frame) = Frame::parse(bytes) else { return "damaged".to_owned() };
    let h = frame.header;
    let slot = if h.flags & flags::SLOT != 0 { format!("slot {} ", h.slot.0) } else { String::new() };
    let ask = if h.flags & flags::ACK_REQUESTED != 0 { "ask " } else { "" };
    format!(
        "{:?} channel {:08x} packet {} {slot}ack {} credit {} echo {} {ask}payload {}",
        h.kind,
        h.channel,
        h.packet,
        h.ack.0,
        h.credit.0,
        h.echo,
        frame.payload().len()
    )
}
