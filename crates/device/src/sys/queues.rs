//! The queues of one interface that one device has: a socket on each, all with the same memory.
//!
//! The first one sends; all receive. Each has chunks of its own to receive into, as many as the others: which, their numbers say.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::umem::{Chunk, ReceivedChunk, Umem};
use super::xsk::{Xsk, XskOptions, XskStatistics};

/// Sockets with one memory.
#[derive(Debug)]
pub(crate) struct Queues {
    first: Xsk,
    others: Vec<Xsk>,
    /// Chunks of each.
    chunks_per_queue: u32,
    /// The queue that frames are taken from now: zero is the first.
    turn: usize,
    /// Chunks that the kernel has, by number.
    away: Vec<bool>,
    /// Chunks of queues that there are no more.
    spare: Vec<Chunk>,
}

/// Completion entries of a socket that never sends.
const RX_ONLY_COMPLETIONS: u32 = 64;

impl Queues {
    /// A socket on one queue; `options.rx` chunks are for each queue.
    pub(crate) fn open(umem: &Arc<Umem>, options: XskOptions) -> Result<Queues, Errno> {
        let first = Xsk::open(umem, options, None)?;
        let away = vec![false; umem.chunk_count()];
        Ok(Queues {
            first,
            others: Vec::new(),
            chunks_per_queue: options.rx,
            turn: 0,
            away,
            spare: Vec::new(),
        })
    }

    /// One more.
    pub(crate) fn add(&mut self, umem: &Arc<Umem>, options: XskOptions) -> Result<(), Errno> {
        let options = XskOptions { tx: RX_ONLY_COMPLETIONS, ..options };
        self.others.push(Xsk::open(umem, options, Some(self.first.fd()))?);
        Ok(())
    }

    /// The socket that sends.
    #[inline]
    pub(crate) fn sender(&mut self) -> &mut Xsk {
        &mut self.first
    }

    /// Whether frames that are sent may have orders to the card in front of them.
    pub(crate) fn has_tx_metadata(&self) -> bool {
        self.first.has_tx_metadata()
    }

    /// Chunks of each queue.
    pub(crate) fn chunks_per_queue(&self) -> usize {
        self.chunks_per_queue as usize
    }

    fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The sockets' descriptors, in the order in which their queues were added.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.first.fd()).chain(self.others.iter().map(Xsk::fd))
    }

    fn all(&self) -> impl Iterator<Item = &Xsk> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn is_zero_copy(&self) -> bool {
        self.first.is_zero_copy()
    }

    /// Lets the caller of [`Queues::wake_rx`] drive the card, or the kernel again.
    pub(crate) fn prefer_busy_poll(&self, prefer: bool, time_us: u32, budget: u32) -> Result<(), Errno> {
        self.all().try_for_each(|xsk| xsk.prefer_busy_poll(prefer, time_us, budget))
    }

    /// Gives a chunk to the kernel, to be seen with the next [`Queues::submit_chunks`].
    #[inline]
    pub(crate) fn fill(&mut self, chunk: Chunk) {
        let queue = (chunk.0 / self.chunks_per_queue) as usize;
        let xsk = if queue == 0 { Some(&mut self.first) } else { self.others.get_mut(queue - 1) };
        match xsk {
            Some(xsk) => {
                self.away[chunk.0 as usize] = true;
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

    /// Whether a driver sleeps until it is told of new chunks.
    #[inline]
    pub(crate) fn needs_rx_wakeup(&self) -> bool {
        self.first.needs_rx_wakeup() || self.others.iter().any(Xsk::needs_rx_wakeup)
    }

    /// Wakes the receiving side, or polls the card for us.
    pub(crate) fn wake_rx(&self) {
        self.all().for_each(Xsk::wake_rx);
    }

    /// Whether something has arrived, by a look at memory.
    #[inline]
    pub(crate) fn has_frames(&mut self) -> bool {
        self.first.has_frames() || self.others.iter_mut().any(Xsk::has_frames)
    }

    /// The next frame, or part of one: what is left of a queue's before another's.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<ReceivedChunk> {
        let taken = if self.others.is_empty() { self.first.take() } else { self.take_in_turn() };
        self.note(taken)
    }

    /// The rest of a frame comes by the same queue as its beginning.
    pub(crate) fn take_rest(&mut self) -> Option<ReceivedChunk> {
        let taken = self.at(self.turn).take();
        self.note(taken)
    }

    #[inline]
    fn note(&mut self, taken: Option<ReceivedChunk>) -> Option<ReceivedChunk> {
        let taken = taken?;
        self.away[taken.chunk.0 as usize] = false;
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

    /// What was taken may be overwritten.
    #[inline]
    pub(crate) fn release_taken(&mut self) {
        self.first.release_taken();
        self.others.iter_mut().for_each(Xsk::release_taken);
        if !self.others.is_empty() {
            // The others go first next time.
            self.turn = (self.turn + 1) % self.count();
        }
    }

    pub(crate) fn statistics(&self) -> XskStatistics {
        let overflows = self.all().map(|xsk| xsk.statistics().overflows).sum();
        XskStatistics { overflows }
    }

    /// Closes all of it, and takes back what the kernel had. Only for an interface that is gone: the kernel has let go of the memory before it
    /// says so.
    pub(crate) fn close(self) -> Vec<Chunk> {
        let Queues { first, others, away, mut spare, .. } = self;
        drop((first, others));
        spare.extend((0u32..).zip(away).filter(|(_, away)| *away).map(|(number, _)| Chunk(number)));
        spare
    }
}
