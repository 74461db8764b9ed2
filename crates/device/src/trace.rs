//! A wrapper that passes every frame of a device to a sink.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use crate::wrap::{RouteBook, forward};
use crate::{Datagram, DeviceEvent, RouteId, RxBatch, SlotId};

/// What the sink gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent<'a> {
    /// A frame was queued.
    Sent {
        /// The destination.
        to: Option<SocketAddr>,
        /// The frame.
        bytes: &'a [u8],
    },
    /// A frame was received.
    Received {
        /// The source.
        from: Option<SocketAddr>,
        /// The frame.
        bytes: &'a [u8],
    },
    /// The device reported an event.
    Noticed(&'a DeviceEvent),
}

/// A device whose frames are passed to `sink`, each once, when it is queued or received.
#[derive(Debug)]
pub struct Trace<D, S> {
    inner: D,
    sink: S,
    routes: RouteBook,
}

impl<D: Datagram, S: FnMut(TraceEvent<'_>) + Send> Trace<D, S> {
    /// Wraps a device.
    pub fn new(inner: D, sink: S) -> Trace<D, S> {
        Trace { inner, sink, routes: RouteBook::default() }
    }
}

impl<D: Datagram, S: FnMut(TraceEvent<'_>) + Send> Datagram for Trace<D, S> {
    forward!();

    fn want_sources(&mut self, wanted: bool) {
        self.inner.want_sources(wanted);
    }

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        let route = self.inner.route(to)?;
        self.routes.note(route, to);
        Ok(route)
    }

    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        let bytes = self.inner.arena_ref().bytes(slot, range.clone());
        (self.sink)(TraceEvent::Sent { to: self.routes.get(route), bytes });
        self.inner.send(route, slot, range);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        let got = self.inner.recv(batch)?;
        for frame in batch.frames() {
            (self.sink)(TraceEvent::Received { from: batch.source(*frame), bytes: batch.bytes(*frame) });
        }
        Ok(got)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let event = self.inner.poll_event()?;
        (self.sink)(TraceEvent::Noticed(&event));
        Some(event)
    }
}

/// Bytes of a frame that are printed.
const SHOWN: usize = 16;

/// Returns a sink that writes one line per frame: seconds since its creation, direction, address, length, the
/// first bytes. It stops at the first error.
pub fn lines<W: Write + Send>(mut out: W) -> impl FnMut(TraceEvent<'_>) + Send {
    let start = Instant::now();
    let mut failed = false;
    move |event| {
        if !failed {
            failed = line(&mut out, start.elapsed().as_secs_f64(), &event).is_err();
        }
    }
}

fn line(out: &mut impl Write, seconds: f64, event: &TraceEvent<'_>) -> io::Result<()> {
    let (arrow, address, bytes) = match event {
        TraceEvent::Sent { to, bytes } => ('>', to, bytes),
        TraceEvent::Received { from, bytes } => ('<', from, bytes),
        TraceEvent::Noticed(event) => return writeln!(out, "{seconds:.6} ! {event:?}"),
    };
    write!(out, "{seconds:.6} {arrow} ")?;
    match address {
        Some(address) => write!(out, "{address}")?,
        None => write!(out, "?")?,
    }
    write!(out, " {} B", bytes.len())?;
    for byte in bytes.iter().take(SHOWN) {
        write!(out, " {byte:02x}")?;
    }
    writeln!(out, "{}", if bytes.len() > SHOWN { " …" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_the_frame() {
        let mut out = Vec::new();
        let to = Some(SocketAddr::from(([127, 0, 0, 1], 9)));
        line(&mut out, 1.5, &TraceEvent::Sent { to, bytes: &[1, 2, 255] }).unwrap();
        line(&mut out, 2.0, &TraceEvent::Received { from: None, bytes: &[0; 17] }).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first, "1.500000 > 127.0.0.1:9 3 B 01 02 ff");
        assert!(second.starts_with("2.000000 < ? 17 B 00") && second.ends_with("00 …\n"));
    }
}
