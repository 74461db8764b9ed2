//! The queues of an interface that one device uses: a socket on each, all with the same memory.
//!
//! The first socket sends; all of them receive. Each has its own chunks to receive into, equally many, in
//! order of their numbers.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::umem::{Chunk, ReceivedChunk, Umem};
use super::xsk::{Xsk, XskOptions, XskStatistics};

/// Sockets that share one memory.
#[derive(Debug)]
pub(crate) struct Queues {
    first: Xsk,
    others: Vec<Xsk>,
    /// Chunks of each queue.
    chunks_per_queue: u32,
    /// The queue that frames are taken from next; zero is the first.
    turn: usize,
    /// Whether the kernel has a chunk, by its number.
    with_kernel: Vec<bool>,
    /// Chunks of queues that no longer exist.
    spare: Vec<Chunk>,
}

/// Completion entries of a socket that never sends.
const RX_ONLY_COMPLETIONS: u32 = 64;

impl Queues {
    /// Opens a socket on one queue; `options.rx` is the number of chunks per queue.
    pub(crate) fn open(umem: &Arc<Umem>, options: XskOptions) -> Result<Queues, Errno> {
        let first = Xsk::open(umem, options, None)?;
        let with_kernel = vec![false; umem.chunk_count()];
        Ok(Queues {
            first,
            others: Vec::new(),
            chunks_per_queue: options.rx,
            turn: 0,
            with_kernel,
            spare: Vec::new(),
        })
    }

    /// Opens a socket on a further queue.
    pub(crate) fn add(&mut self, umem: &Arc<Umem>, options: XskOptions) -> Result<(), Errno> {
        let options = XskOptions { tx: RX_ONLY_COMPLETIONS, ..options };
        self.others.push(Xsk::open(umem, options, Some(self.first.fd()))?);
        Ok(())
    }

    /// Returns the socket that sends.
    #[inline]
    pub(crate) fn sender(&mut self) -> &mut Xsk {
        &mut self.first
    }

    /// Whether sent frames may have metadata for the card in front of them.
    pub(crate) fn has_tx_metadata(&self) -> bool {
        self.first.has_tx_metadata()
    }

    /// Returns the number of chunks per queue.
    pub(crate) fn chunks_per_queue(&self) -> usize {
        self.chunks_per_queue as usize
    }

    fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns the sockets' descriptors, in the order in which their queues were added.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.first.fd()).chain(self.others.iter().map(Xsk::fd))
    }

    fn all(&self) -> impl Iterator<Item = &Xsk> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn is_zero_copy(&self) -> bool {
        self.first.is_zero_copy()
    }

    /// Makes the caller of [`Queues::wake_rx`] poll the card, or the kernel again.
    pub(crate) fn prefer_busy_poll(&self, prefer: bool, time_us: u32, budget: u32) -> Result<(), Errno> {
        self.all().try_for_each(|xsk| xsk.prefer_busy_poll(prefer, time_us, budget))
    }

    /// Gives a chunk to the kernel, which sees it after the next [`Queues::submit_chunks`].
    #[inline]
    pub(crate) fn fill(&mut self, chunk: Chunk) {
        let queue = (chunk.0 / self.chunks_per_queue) as usize;
        let xsk = if queue == 0 { Some(&mut self.first) } else { self.others.get_mut(queue - 1) };
        match xsk {
            Some(xsk) => {
                self.with_kernel[chunk.0 as usize] = true;
                xsk.fill(chunk);
            }
            // An interface that came back with fewer queues leaves some chunks unused.
            None => self.spare.push(chunk),
        }
    }

    #[inline]
    pub(crate) fn submit_chunks(&mut self) {
        self.first.submit_chunks();
        self.others.iter_mut().for_each(Xsk::submit_chunks);
    }

    /// Whether a driver waits for a wake-up to use new chunks.
    #[inline]
    pub(crate) fn needs_rx_wakeup(&self) -> bool {
        self.first.needs_rx_wakeup() || self.others.iter().any(Xsk::needs_rx_wakeup)
    }

    /// Wakes the drivers' receive side, or polls the card on the caller's behalf.
    pub(crate) fn wake_rx(&self) {
        self.all().for_each(Xsk::wake_rx);
    }

    /// Whether a frame has arrived, by reading memory.
    #[inline]
    pub(crate) fn has_frames(&mut self) -> bool {
        self.first.has_frames() || self.others.iter_mut().any(Xsk::has_frames)
    }

    /// Takes the next frame, or part of one; empties one queue before the next.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<ReceivedChunk> {
        let taken = if self.others.is_empty() { self.first.take() } else { self.take_in_turn() };
        self.note(taken)
    }

    /// Takes the next part of a frame, which arrives by the same queue as its beginning.
    pub(crate) fn take_rest(&mut self) -> Option<ReceivedChunk> {
        let taken = self.at(self.turn).take();
        self.note(taken)
    }

    #[inline]
    fn note(&mut self, taken: Option<ReceivedChunk>) -> Option<ReceivedChunk> {
        let taken = taken?;
        self.with_kernel[taken.chunk.0 as usize] = false;
        Some(taken)
    }

    fn take_in_turn(&mut self) -> Option<ReceivedChunk> {
        for _ in 0..self.count() {
            if let Some(taken) = self.at(self.turn).take() {
                return Some(taken);
            }
            self.turn = (self.turn + 1) % self.count();
        }
        None
    }

    fn at(&mut self, queue: usize) -> &mut Xsk {
        match queue {
            0 => &mut self.first,
            queue => &mut self.others[queue - 1],
        }
    }

    /// Lets the kernel reuse the entries of frames that were taken.
    #[inline]
    pub(crate) fn release_taken(&mut self) {
        self.first.release_taken();
        self.others.iter_mut().for_each(Xsk::release_taken);
        if !self.others.is_empty() {
            // Another queue goes first next time.
            self.turn = (self.turn + 1) % self.count();
        }
    }

    pub(crate) fn statistics(&self) -> XskStatistics {
        let overflows = self.all().map(|xsk| xsk.statistics().overflows).sum();
        XskStatistics { overflows }
    }

    /// Closes all sockets, and takes back the kernel's chunks. Only for an interface that is gone: the kernel
    /// releases the memory before it reports the removal.
    pub(crate) fn close(self) -> Vec<Chunk> {
        let Queues { first, others, with_kernel, mut spare, .. } = self;
        drop((first, others));
        spare.extend(
            (0u32..)
                .zip(with_kernel)
                .filter(|(_, with_kernel)| *with_kernel)
                .map(|(number, _)| Chunk(number)),
        );
        spare
    }
}
