//! iceoryx2 as a transport with a copy at each end, and its loans without any. Only with the feature
//! `iceoryx2`.

use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections as _;
use iceoryx2::prelude::{
    BackpressureStrategy, Config, LogLevel, Node, NodeBuilder, Path, SemanticString as _, ipc, set_log_level,
};
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut::SampleMut;

use crate::content::Pattern;
use crate::shm::SharedMapping;
use crate::transport::{Kind, SMALL_WINDOW, Setup, Side, SpinLimit, Transport};

/// Bytes of messages in progress, beside the least and the greatest number.
const UNDER_WAY: usize = 1 << 20;

type Service = ipc::Service;

/// One side: its publisher and its subscriber. They go first, and their files with them; then the folder can.
pub(crate) struct Iceoryx2 {
    into: Publisher<Service, [u8], ()>,
    from: Subscriber<Service, [u8], ()>,
    _node: Node<Service>,
    _folder: Folder,
}

/// The folder of a pair, without its files: the side that goes last removes it.
struct Folder(PathBuf);

impl Folder {
    fn remove_if_empty(path: &std::path::Path) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                Folder::remove_if_empty(&entry.path());
            }
        }
        let _ = std::fs::remove_dir(path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        Folder::remove_if_empty(&self.0);
    }
}

impl Iceoryx2 {
    /// Opens one side for messages of up to `bytes` bytes.
    pub(crate) fn open(setup: &mut Setup<'_>, bytes: usize) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        set_log_level(LogLevel::Fatal);
        let ours = u64::from(std::process::id()) << 32 | u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let theirs = u64::from_le_bytes(setup.exchange(&ours.to_le_bytes())?);
        let number = if setup.side == Side::A { ours } else { theirs };
        // The usual folder may be another user's, and keeps what is in it.
        let folder = Folder(std::env::temp_dir().join(format!("tautline-baseline-iceoryx2-{number:x}")));
        let mut config = Config::default();
        config.global.set_root_path(&Path::new(folder.0.as_os_str().as_encoded_bytes()).map_err(other)?);
        let node = NodeBuilder::new().config(&config).create::<Service>().map_err(other)?;
        let slots = (UNDER_WAY / bytes.max(1)).clamp(2, SMALL_WINDOW);
        let service = |direction: &str| {
            let name = format!("tautline-baseline/{number:x}/{direction}");
            node.service_builder(&name.as_str().try_into().map_err(other)?)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .subscriber_max_buffer_size(slots)
                .enable_safe_overflow(false)
                .open_or_create()
                .map_err(other)
        };
        let (there, back) = (service("a-to-b")?, service("b-to-a")?);
        let (out, inward) = if setup.side == Side::A { (there, back) } else { (back, there) };
        let into = out
            .publisher_builder()
            .initial_max_slice_len(bytes.max(8))
            .max_loaned_samples(2)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .map_err(other)?;
        let from = inward.subscriber_builder().create().map_err(other)?;
        // A sender that sends more than fits before the other side has polled sends to nobody. So first all
        // ports are made, then both publishers learn of their subscribers, then both subscribers poll.
        setup.barrier()?;
        into.update_connections().map_err(other)?;
        setup.barrier()?;
        from.update_connections().map_err(other)?;
        setup.barrier()?;
        Ok(Self { into, from, _node: node, _folder: folder })
    }

    fn wait(&self) -> io::Result<Sample<Service, [u8], ()>> {
        let mut spin_limit = SpinLimit::new();
        loop {
            match self.from.receive().map_err(other)? {
                Some(sample) => return Ok(sample),
                None => spin_limit.spin()?,
            }
        }
    }

    fn filled(
        &self,
        pattern: &Pattern,
        number: u64,
        bytes: usize,
    ) -> io::Result<SampleMut<Service, [u8], ()>> {
        let mut sample = self.into.loan_slice_uninit(bytes).map_err(other)?;
        let room: &mut [MaybeUninit<u8>] = sample.payload_mut();
        room.fill(MaybeUninit::new(0));
        // SAFETY: every byte has just been written.
        let mut sample = unsafe { sample.assume_init() };
        pattern.write(number, sample.payload_mut());
        Ok(sample)
    }
}

fn other(error: impl Debug) -> io::Error {
    io::Error::other(format!("iceoryx2: {error:?}"))
}

impl Transport for Iceoryx2 {
    fn name(&self) -> &'static str {
        Kind::Iceoryx2.name()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sample = self.into.loan_slice_uninit(bytes.len()).map_err(other)?;
        sample.write_from_slice(bytes).send().map_err(other)?;
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let sample = self.wait()?;
        let payload = sample.payload();
        let len = payload.len();
        buf.get_mut(..len).ok_or_else(|| other("a longer message"))?.copy_from_slice(payload);
        Ok(len)
    }
}

/// Sends a loan back and forth; returns the round trips in nanoseconds on side A, nothing on side B. A
/// message is filled before its time begins and read after its time has ended, on both sides.
///
/// # Errors
/// Whatever iceoryx2 reports, and [`io::ErrorKind::InvalidData`] if a message is not what was sent.
pub fn loan_ping_pong(setup: &mut Setup<'_>, bytes: usize, warm_up: u64, count: u64) -> io::Result<Vec<u64>> {
    let pair = Iceoryx2::open(setup, bytes)?;
    // Says that the other side has filled its next message, or else the time would be that of the slower
    // side.
    let [into, from] = SharedMapping::pair(setup, 1, 0)?;
    let pattern = Pattern::new(bytes);
    let mut round_trips = Vec::with_capacity(count as usize);
    let mut next = Some(pair.filled(&pattern, 0, bytes)?);
    for number in 0..warm_up + count {
        into.lines()[0].flag.store(number + 1, Ordering::Release);
        from.lines()[0].wait_for(number + 1)?;
        let started = Instant::now();
        let filled = next.take().ok_or_else(|| other("no message is filled"))?;
        let came = if setup.side == Side::A {
            filled.send().map_err(other)?;
            let came = pair.wait()?;
            if number >= warm_up {
                round_trips.push(started.elapsed().as_nanos() as u64);
            }
            came
        } else {
            let came = pair.wait()?;
            filled.send().map_err(other)?;
            came
        };
        pattern.check(number, came.payload())?;
        drop(came);
        if number + 1 < warm_up + count {
            next = Some(pair.filled(&pattern, number + 1, bytes)?);
        }
    }
    // The last message must not be freed before it was read.
    setup.barrier()?;
    Ok(round_trips)
}
