//! Two pages per lane by which the lanes of one host find work and wake each other (S-37 … S-40).
//!
//! On the first page its owner says whether it sleeps: a counter, odd while it sleeps. Peers map that page
//! read-only. A peer that has sent something reads the counter, and rings if it is odd and not the one that
//! it rang for last. On the second page peers set a bit for each ring with frames. The owner polls the rings
//! whose bits it has seen, and clears the bit of a ring that has been idle, with the barrier that it uses
//! before it sleeps: however many peers there are, it looks at few rings, and writes one line when it sleeps.

#[cfg(not(loom))]
use std::io;
#[cfg(not(loom))]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::segment::{Lines, Word};
use crate::sync::{self, Mutex, Ordering, fence};
use crate::{Barrier, Segment};

/// Bytes of each page.
const PAGE: usize = 4096;
/// Lines of a page.
const LINES: usize = PAGE / 64;
/// The most rings of a lane: a bit of the page for each.
pub const MAX_RINGS: usize = 8 * PAGE;

/// The pages of one lane, as the lane itself sees them.
#[derive(Debug)]
pub struct LanePages {
    sleep: sync::Arc<Segment>,
    bits: sync::Arc<Segment>,
    sleep_lines: Lines,
    bit_lines: Lines,
    /// Numbers of rings that are taken. Locked when channels are opened and closed.
    taken: Mutex<Vec<bool>>,
}

impl LanePages {
    /// Creates the pages of a lane that is awake and has no rings.
    #[cfg(not(loom))]
    pub fn create() -> io::Result<Arc<LanePages>> {
        let sleep = Segment::create_for_readers(PAGE, c"tautline-pages")?;
        Ok(LanePages::over(sleep, Segment::create_named(PAGE, c"tautline-pages")?))
    }

    #[cfg(loom)]
    pub fn create() -> std::io::Result<Arc<LanePages>> {
        Ok(LanePages::over(Segment::create(PAGE)?, Segment::create(PAGE)?))
    }

    fn over(sleep: Segment, bits: Segment) -> Arc<LanePages> {
        let (sleep, bits) = (sync::Arc::new(sleep), sync::Arc::new(bits));
        Arc::new(LanePages {
            sleep_lines: Lines::new(&sleep, 0, LINES),
            bit_lines: Lines::new(&bits, 0, LINES),
            sleep,
            bits,
            taken: Mutex::new(Vec::new()),
        })
    }

    /// Returns the descriptors of the pages, to be handed to peers: the one that they may read, and the one
    /// that they may write.
    #[cfg(not(loom))]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.sleep.fd(), self.bits.fd()]
    }

    /// Announces that the lane is about to sleep. Then [`Barrier::heavy`], then check again, then sleep. One
    /// line is written.
    pub fn announce_sleep(&self) {
        let word = &self.sleep_lines.get(0)[0];
        word.store(word.load(Ordering::Relaxed).wrapping_add(1) | 1, Ordering::Relaxed);
    }

    /// Announces that the lane is awake.
    pub fn announce_wake(&self) {
        let word = &self.sleep_lines.get(0)[0];
        word.store(word.load(Ordering::Relaxed).wrapping_add(1) & !1, Ordering::Relaxed);
    }

    /// Returns 64 bits: those of the rings from number `64 * index` on.
    #[inline(always)]
    pub fn bits(&self, index: usize) -> u64 {
        self.bit_lines.get(index as u64 / 8)[index % 8].load(Ordering::Acquire)
    }

    /// Sets the bit of a ring: it is to be polled.
    #[inline]
    pub fn set(&self, number: u32) {
        let (index, mask) = place(number);
        if self.bits(index) & mask == 0 {
            self.bit_lines.get(index as u64 / 8)[index % 8].fetch_or(mask, Ordering::SeqCst);
        }
    }

    /// Clears the bit of a ring. Then [`Barrier::heavy`], then check the ring again: only if it is empty then
    /// it need not be polled any more.
    pub fn clear(&self, number: u32) {
        let (index, mask) = place(number);
        self.bit_lines.get(index as u64 / 8)[index % 8].fetch_and(!mask, Ordering::SeqCst);
    }

    /// Takes the lowest number that no ring has; none if there are too many rings.
    pub fn take_number(self: &Arc<LanePages>) -> Option<RingNumber> {
        let mut taken = self.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        if free == MAX_RINGS {
            return None;
        }
        if free == taken.len() {
            taken.push(true);
        }
        taken[free] = true;
        self.clear(free as u32);
        Some(RingNumber { pages: self.clone(), number: free as u32 })
    }
}

/// The word and the bit of a ring.
fn place(number: u32) -> (usize, u64) {
    (number as usize / 64, 1 << (number % 64))
}

/// The number of a ring among those of its lane; free again when this is dropped.
#[derive(Debug)]
pub struct RingNumber {
    pages: Arc<LanePages>,
    number: u32,
}

impl RingNumber {
    /// Returns the number.
    pub fn get(&self) -> u32 {
        self.number
    }

    /// Returns the pages of the lane.
    pub fn pages(&self) -> &Arc<LanePages> {
        &self.pages
    }

    /// Sets the ring's bit, so that its lane polls it.
    #[inline]
    pub fn set(&self) {
        self.pages.set(self.number);
    }

    /// Returns how a peer in this process announces its frames.
    pub fn peer_pages(&self) -> PeerPages {
        PeerPages::over(&self.pages.sleep, &self.pages.bits, self.number)
    }
}

impl Drop for RingNumber {
    fn drop(&mut self) {
        // The bit is cleared when the number is taken again: a forked child has no such memory.
        let mut taken = self.pages.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        taken[self.number as usize] = false;
    }
}

/// The pages of a peer's lane, as one that sends to it sees them.
#[derive(Debug)]
pub struct PeerPages {
    /// The word in which the lane says whether it sleeps.
    sleep: Word,
    /// The word of the ring's bit, and the bit.
    bits: Word,
    mask: u64,
    /// The count for which this side rang last.
    rung_for: u64,
}

impl PeerPages {
    /// Maps the pages of a peer, in which our ring has a number.
    ///
    /// # Errors
    /// If they are no sealed pages, or there is no such number.
    #[cfg(not(loom))]
    pub fn attach(sleep: OwnedFd, bits: OwnedFd, number: u32) -> io::Result<PeerPages> {
        if number as usize >= MAX_RINGS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no ring can have this number"));
        }
        let mut sleep = Segment::attach_read_only(sleep, PAGE, true)?;
        sleep.close_fd();
        Ok(PeerPages::over(&Arc::new(sleep), &Arc::new(Segment::attach_sparse(bits, PAGE)?), number))
    }

    fn over(sleep: &sync::Arc<Segment>, bits: &sync::Arc<Segment>, number: u32) -> PeerPages {
        let (index, mask) = place(number);
        PeerPages { sleep: Word::new(sleep, 0), bits: Word::new(bits, 8 * index), mask, rung_for: 0 }
    }

    /// After a frame was pushed: sees to it that the peer's lane polls the ring. Returns whether the lane
    /// sleeps and must be rung for, once per sleep.
    #[inline(always)]
    pub fn announce_frames(&mut self, barrier: Barrier) -> bool {
        barrier.light();
        if self.bits.get().load(Ordering::Relaxed) & self.mask == 0 {
            self.set_bit();
        }
        self.is_to_be_rung()
    }

    #[cold]
    fn set_bit(&self) {
        self.bits.get().fetch_or(self.mask, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// After something else was done that the peer may wait for: returns whether its lane sleeps and must be
    /// rung for, once per sleep.
    #[inline(always)]
    pub fn must_ring(&mut self, barrier: Barrier) -> bool {
        barrier.light();
        self.is_to_be_rung()
    }

    #[inline(always)]
    fn is_to_be_rung(&mut self) -> bool {
        let count = self.sleep.get().load(Ordering::Relaxed);
        count & 1 != 0 && self.is_new_sleep(count)
    }

    #[cold]
    fn is_new_sleep(&mut self, count: u64) -> bool {
        std::mem::replace(&mut self.rung_for, count) != count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn attached(number: &RingNumber) -> PeerPages {
        let [sleep, bits] = number.pages.fds().map(|fd| fd.try_clone_to_owned().unwrap());
        PeerPages::attach(sleep, bits, number.get()).unwrap()
    }

    /// S-37, S-38: a sender sets its bit and no other, and rings once per sleep.
    #[test]
    fn senders_set_their_bits_and_ring_once() {
        let pages = LanePages::create().unwrap();
        let numbers: Vec<_> = (0..70).map(|_| pages.take_number().unwrap()).collect();
        let mut peers: Vec<_> = numbers.iter().map(attached).collect();
        let light = Barrier::symmetric();
        assert!(!peers[3].announce_frames(light) && !peers[66].announce_frames(light));
        assert_eq!([pages.bits(0), pages.bits(1)], [1 << 3, 1 << 2]);
        pages.clear(66);
        assert_eq!([pages.bits(0), pages.bits(1)], [1 << 3, 0]);
        for _ in 0..3 {
            pages.announce_sleep();
            for peer in &mut peers[..2] {
                assert!(peer.announce_frames(light), "the first time");
                assert!(!peer.announce_frames(light) && !peer.must_ring(light), "once");
            }
            pages.announce_wake();
            assert!(!peers[0].must_ring(light) && !peers[2].must_ring(light), "it is awake");
        }
        drop(numbers);
        let again = [(); 4].map(|()| pages.take_number().unwrap());
        assert_eq!(again.each_ref().map(RingNumber::get), [0, 1, 2, 3]);
        assert_eq!(pages.bits(0), 0, "whoever had the number before");
    }

    /// S-37: no peer can write the page on which a lane says whether it sleeps.
    #[test]
    fn peers_cannot_write_the_first_page() {
        let pages = LanePages::create().unwrap();
        let [sleep, bits] = pages.fds().map(|fd| fd.try_clone_to_owned().unwrap());
        assert!(Segment::attach(sleep.try_clone().unwrap(), PAGE).is_err());
        assert!(rustix::io::write(&sleep, b"x").is_err());
        assert!(Segment::attach(bits.try_clone().unwrap(), PAGE).is_ok());
        assert!(PeerPages::attach(sleep, bits, MAX_RINGS as u32).is_err());
    }

    /// S-37: a lane that sleeps and wakes writes one line, however many rings it has.
    #[test]
    fn sleeping_writes_one_line() {
        let pages = LanePages::create().unwrap();
        let numbers: Vec<_> = (0..1_000).map(|_| pages.take_number().unwrap()).collect();
        numbers.iter().for_each(RingNumber::set);
        let words = || -> Vec<u64> {
            let read = |lines: &Lines| {
                (0..512).map(|i| lines.get(i / 8)[i as usize % 8].load(Ordering::Relaxed)).collect()
            };
            let (first, second): (Vec<u64>, Vec<u64>) = (read(&pages.sleep_lines), read(&pages.bit_lines));
            first.into_iter().chain(second).collect()
        };
        let before = words();
        pages.announce_sleep();
        let asleep = words();
        let written: Vec<usize> = (0..before.len()).filter(|i| before[*i] != asleep[*i]).collect();
        assert_eq!(written, [0]);
        pages.announce_wake();
        assert_eq!(words()[1..], before[1..]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::ring::{Peeked, Receiver, Sender, Shape};
    use crate::sync::thread;

    const SHAPE: Shape = Shape { lines: 4, span: 1, bytes: 512, max_frame: 64 };

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(run);
    }

    fn pop(receiver: &mut Receiver) -> bool {
        let Ok(Some(Peeked::Frame(len))) = receiver.peek() else { return false };
        receiver.pop(&mut vec![0; len]);
        true
    }

    /// S-14, S-38, S-39: a lane that clears the bit of an idle ring, announces its sleep, checks the ring
    /// once more and finds nothing is rung for, and finds the bit then. So is one that sleeps twice.
    #[test]
    fn loom_no_frame_is_slept_through() {
        model(|| {
            let segment = sync::Arc::new(Segment::create(SHAPE.size()).unwrap());
            let mut sender = Sender::new(segment.clone(), 0, SHAPE);
            let mut receiver = Receiver::new(segment, 0, SHAPE);
            let pages = LanePages::create().unwrap();
            let number = pages.take_number().unwrap();
            number.set();
            let mut peer = number.peer_pages();
            let bell = Arc::new(Mutex::new(0));
            let rung = bell.clone();
            let barrier = Barrier::symmetric();
            let thread = thread::spawn(move || {
                for i in 0..2_u8 {
                    assert!(sender.push(&[i; 8], &[]).unwrap());
                    if peer.announce_frames(barrier) {
                        *rung.lock().unwrap() += 1;
                    }
                }
            });
            let (mut got, mut taken, mut sleeps, mut polled) = (0, 0, false, true);
            for _ in 0..2 {
                pages.announce_sleep();
                pages.clear(number.get());
                barrier.heavy();
                let empty = receiver.is_empty();
                polled = !empty;
                sleeps = empty && pages.bits(0) == 0;
                let rings = *bell.lock().unwrap();
                if sleeps && rings == taken {
                    break;
                }
                taken = rings;
                sleeps = false;
                pages.announce_wake();
                // Its bit, or that it was not empty, tells that the ring is to be polled.
                if polled || pages.bits(0) != 0 {
                    polled = true;
                    number.set();
                    while pop(&mut receiver) {
                        got += 1;
                    }
                }
            }
            thread.join().unwrap();
            if sleeps && got < 2 {
                assert!(*bell.lock().unwrap() > taken, "asleep with {got} of 2 taken");
                assert_ne!(pages.bits(0), 0, "woken, and the ring is not polled");
            }
            if !sleeps && got < 2 {
                assert!(polled || pages.bits(0) != 0, "awake, and the ring is not polled");
            }
        });
    }
}
