//! The owner word: exclusive access to a value that one thread uses almost all the time.
//!
//! It has two modes. In the *biased* mode one thread, the favoured one, pays a store and three loads for
//! ownership, with no locked instruction and no fence. Another thread ends that mode: it locks the word,
//! makes every core that runs a thread of this process issue a barrier, and waits until the favoured thread
//! has released the value. From then on the word is an ordinary lock, which costs every thread one locked
//! instruction. A thread that has owned the value often in a row is favoured again. *Guests*, such as a
//! watchdog, do not interrupt such a row.
//!
//! Nobody is woken: a thread that finds the value taken tries again.

use std::ops::{Deref, DerefMut};

use crate::Barrier;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering, UnsafeCell, backoff};

/// Times in a row that a thread owns an ordinary lock before it is favoured.
const STREAK: u32 = if cfg!(loom) { 2 } else { 1000 };

/// Threads that may be favoured, each in its turn. Any further ones share an ordinary lock.
const CLAIMS: usize = 4;

/// The word is an ordinary lock, and free.
const FREE: usize = 0;
/// Added to the address of the thread that has locked the word. Without it the address is that of the
/// favoured thread.
const LOCKED: usize = 1;

/// What one thread writes to own the value while it is favoured. No other thread ever writes there: a thread
/// that is no longer favoured may be late to notice, and must not disturb its successor.
#[derive(Debug)]
#[repr(align(64))]
struct Claim {
    /// The thread; zero until there is one.
    thread: AtomicUsize,
    /// Not zero: it owns the value, or is about to check whether it may.
    owns: AtomicUsize,
}

/// A value with one owner at a time.
#[derive(Debug)]
pub struct Owned<T> {
    /// The claim of the thread that is or was favoured; changed by whoever has locked the word.
    favoured: AtomicPtr<Claim>,
    /// [`FREE`], the favoured thread, or the thread that has locked the word and [`LOCKED`].
    word: AtomicUsize,
    barrier: Barrier,
    claims: Box<[Claim; CLAIMS]>,
    /// Accessed by whoever has locked the word.
    usage: UnsafeCell<Usage>,
    value: UnsafeCell<T>,
}

/// Who has used the value lately. Guests do not count.
#[derive(Debug, Default)]
struct Usage {
    /// The last thread, and how often in a row; zero if there was none.
    last: usize,
    streak: u32,
}

// SAFETY: only the owner accesses the value, one thread at a time; so the value effectively moves between
// threads. The usage is accessed only by the thread that has locked the word.
unsafe impl<T: Send> Sync for Owned<T> {}
// SAFETY: an `Owned` may move wherever its value may.
unsafe impl<T: Send> Send for Owned<T> {}

/// Returns an even address that differs for all living threads, and is not zero.
#[inline(always)]
fn thread_address() -> usize {
    // A thread-local variable of a shared library takes a call to find.
    #[cfg(all(not(loom), not(miri), target_arch = "x86_64", target_os = "linux"))]
    {
        let address: usize;
        // SAFETY: the ABI has the address of the thread's control block there, which no other living thread
        // has; reading it changes nothing.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) address, options(pure, nomem, nostack, preserves_flags));
        }
        address
    }
    #[cfg(all(not(loom), any(miri, not(target_arch = "x86_64"), not(target_os = "linux"))))]
    {
        thread_local! {
            static ANCHOR: u16 = const { 0 };
        }
        ANCHOR.with(|thread| std::ptr::from_ref(thread).addr())
    }
    #[cfg(loom)]
    {
        loom::thread_local! {
            static ANCHOR: Box<u16> = Box::new(0);
        }
        ANCHOR.with(|thread| std::ptr::from_ref::<u16>(thread).addr())
    }
}

impl<T> Owned<T> {
    /// Wraps a value that nobody owns yet.
    pub fn new(value: T) -> Owned<T> {
        let claim = |_| Claim { thread: AtomicUsize::new(0), owns: AtomicUsize::new(0) };
        let claims = Box::new(std::array::from_fn(claim));
        Owned {
            favoured: AtomicPtr::new(std::ptr::from_ref(&claims[0]).cast_mut()),
            word: AtomicUsize::new(FREE),
            #[cfg(not(loom))]
            barrier: Barrier::between_threads(),
            #[cfg(loom)]
            barrier: Barrier::symmetric(),
            claims,
            usage: UnsafeCell::new(Usage::default()),
            value: UnsafeCell::new(value),
        }
    }

    /// Becomes the owner; waits until the present owner is done. The first thread that calls this is favoured
    /// from then on. If another thread has called this since the calling thread last did, `changed` is called
    /// first, with a number that differs for all living threads.
    ///
    /// # Panics
    /// If this thread is the owner already.
    #[inline]
    pub fn own(&self, changed: impl FnOnce(&mut T, usize)) -> Owner<'_, T> {
        let thread = thread_address();
        let claim = self.favoured();
        if claim.thread.load(Ordering::Relaxed) == thread
            && let Some(owner) = self.own_as_favoured(claim, thread)
        {
            return owner;
        }
        self.own_slowly(thread, changed)
    }

    /// Becomes the owner for a moment, without a claim to be favoured.
    pub fn own_as_guest(&self) -> Owner<'_, T> {
        self.lock(thread_address())
    }

    /// Whether the word is an ordinary lock.
    pub fn is_shared(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word == FREE || word & LOCKED != 0
    }

    /// The claim of the thread that is or was favoured.
    #[inline(always)]
    fn favoured(&self) -> &Claim {
        // SAFETY: it always points to one of the claims, which live as long as self and are never moved.
        unsafe { &*self.favoured.load(Ordering::Relaxed) }
    }

    /// Becomes the owner on the thread whose claim this is, if it is favoured.
    #[inline(always)]
    fn own_as_favoured<'a>(&'a self, claim: &'a Claim, thread: usize) -> Option<Owner<'a, T>> {
        // Without this check, a thread that is the owner could become the owner twice.
        assert!(claim.owns.load(Ordering::Relaxed) == 0, "this thread is the owner already");
        claim.owns.store(1, Ordering::Relaxed);
        self.barrier.light();
        if self.word.load(Ordering::Acquire) == thread {
            return Some(Owner { of: self, word: &claim.owns });
        }
        claim.owns.store(0, Ordering::Release);
        None
    }

    #[cold]
    fn own_slowly(&self, thread: usize, changed: impl FnOnce(&mut T, usize)) -> Owner<'_, T> {
        let mut owner = self.lock(thread);
        // SAFETY: this thread has locked the word, and no reference to the usage outlives this function.
        let usage = unsafe { self.usage.get_mut() };
        let first = usage.last == 0;
        if usage.last == thread {
            usage.streak = usage.streak.saturating_add(1);
        } else {
            *usage = Usage { last: thread, streak: 1 };
            changed(&mut owner, thread);
        }
        if (first || usage.streak >= STREAK)
            && let Some(claim) = self.claim(thread)
        {
            usage.streak = STREAK;
            // Ownership moves from the word to the claim: whoever locks the word from now on waits for it.
            claim.owns.store(1, Ordering::Relaxed);
            self.favoured.store(std::ptr::from_ref(claim).cast_mut(), Ordering::Relaxed);
            self.word.store(thread, Ordering::Release);
            owner.word = &claim.owns;
        }
        owner
    }

    /// Locks the word. Waits for the thread that has locked it, or for the favoured one.
    fn lock(&self, thread: usize) -> Owner<'_, T> {
        let mut tries = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let locked = thread | LOCKED;
            assert!(word != locked, "this thread is the owner already");
            if word & LOCKED != 0
                || self.word.compare_exchange(word, locked, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                backoff(tries);
                tries += 1;
                continue;
            }
            if word != FREE {
                self.wait_for_favoured(word);
            }
            return Owner { of: self, word: &self.word };
        }
    }

    /// The word was biased, and this thread has locked it.
    #[cold]
    fn wait_for_favoured(&self, thread: usize) {
        let claim = self.favoured();
        debug_assert_eq!(claim.thread.load(Ordering::Relaxed), thread);
        self.barrier.heavy();
        let mut tries = 0;
        while claim.owns.load(Ordering::Acquire) != 0 {
            backoff(tries);
            tries += 1;
        }
    }

    /// The claim of this thread, which has locked the word; a new one if there is one left.
    fn claim(&self, thread: usize) -> Option<&Claim> {
        let of = |claim: &&Claim| [0, thread].contains(&claim.thread.load(Ordering::Relaxed));
        let claim = self.claims.iter().find(of)?;
        claim.thread.store(thread, Ordering::Relaxed);
        Some(claim)
    }
}

/// Access to the value. Dropping it releases the value.
#[derive(Debug)]
pub struct Owner<'a, T> {
    of: &'a Owned<T>,
    /// What says that the value is owned: the favoured thread's claim, or the word.
    word: &'a AtomicUsize,
}

impl<T> Deref for Owner<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only owner, so no exclusive reference to the value exists elsewhere.
        unsafe { self.of.value.get_ref() }
    }
}

impl<T> DerefMut for Owner<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only owner, and it is borrowed exclusively.
        unsafe { self.of.value.get_mut() }
    }
}

impl<T> Drop for Owner<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn own<T>(owned: &Owned<T>) -> Owner<'_, T> {
        owned.own(|_, _| ())
    }

    fn visit<T: Send>(owned: &Owned<T>) {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(own(owned)));
        });
    }

    #[test]
    fn owners_exclude_each_other() {
        let counter = Owned::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut owner = own(&counter);
                        let seen = *owner;
                        std::hint::black_box(seen);
                        *owner = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*own(&counter), 60_000);
    }

    /// A thread never owns the value twice at a time.
    #[test]
    #[should_panic = "the owner already"]
    fn owning_twice_panics() {
        let owned = Owned::new(1);
        let _first = own(&owned);
        let _second = own(&owned);
    }

    /// The same for an ordinary lock.
    #[test]
    #[should_panic = "the owner already"]
    fn owning_a_shared_value_twice_panics() {
        let owned = Owned::new(1);
        drop(own(&owned));
        visit(&owned);
        assert!(owned.is_shared());
        let _first = own(&owned);
        let _second = own(&owned);
    }

    /// N-20: another thread ends the bias, a guest does not, and a thread that stays alone is favoured again.
    #[test]
    fn the_bias_follows_the_use() {
        let owned = Owned::new(0u64);
        drop(own(&owned));
        assert!(!owned.is_shared(), "the first thread is favoured");
        drop(owned.own_as_guest());
        drop(own(&owned));
        assert!(!owned.is_shared(), "guests do not count");
        visit(&owned);
        assert!(owned.is_shared(), "several threads use it");
        for turn in 1..STREAK {
            drop(own(&owned));
            assert!(owned.is_shared(), "{turn}");
            if turn == STREAK / 2 {
                drop(owned.own_as_guest());
            }
        }
        drop(own(&owned));
        assert!(!owned.is_shared(), "one thread uses it");
    }

    /// N-20: each thread is told when another one has used the value since; guests are not seen.
    #[test]
    fn threads_are_told_of_each_other() {
        let owned = Owned::new(Vec::new());
        let note = |calls: &mut Vec<usize>, thread: usize| calls.push(thread);
        drop(owned.own(note));
        drop(owned.own(note));
        drop(owned.own_as_guest());
        drop(owned.own(note));
        let me = thread_address();
        assert_eq!(*owned.own(note), [me]);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(owned.own(note));
                drop(owned.own(note));
                tell.send(thread_address()).unwrap();
            });
        });
        let other = told.recv().unwrap();
        assert_eq!(*owned.own(note), [me, other, me]);
    }

    /// More threads than claims come and go: the later ones use an ordinary lock.
    #[test]
    fn claims_run_out() {
        let owned = Owned::new(0u64);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let hold: Vec<mpsc::Sender<()>> = (0..CLAIMS + 2)
                .map(|_| {
                    let (go, wait) = mpsc::channel();
                    let (owned, tell) = (&owned, tell.clone());
                    scope.spawn(move || {
                        (0..=STREAK).for_each(|_| *own(owned) += 1);
                        tell.send(owned.is_shared()).unwrap();
                        // Its address stays its own until all have been favoured.
                        let _ = wait.recv();
                    });
                    let shared = told.recv().unwrap();
                    assert_eq!(*owned.own_as_guest() % u64::from(STREAK + 1), 0);
                    (go, shared)
                })
                .enumerate()
                .map(|(number, (go, shared))| {
                    assert_eq!(shared, number >= CLAIMS, "{number}");
                    go
                })
                .collect();
            drop(hold);
        });
    }

    #[test]
    fn released_on_panic() {
        let value = Owned::new(1);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _owner = own(&value);
            panic!("while owning");
        }));
        assert!(result.is_err());
        assert_eq!(*own(&value), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    fn own<T>(owned: &Owned<T>) -> Owner<'_, T> {
        owned.own(|_, _| ())
    }

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.max_branches = 20_000;
        model.check(run);
    }

    /// N-5: program and watchdog never access the value at once, and each sees the changes of the other.
    #[test]
    fn loom_owners_exclude_each_other() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            *own(&value) += 1;
            let dog = {
                let value = value.clone();
                thread::spawn(move || *value.own_as_guest() += 1)
            };
            *own(&value) += 1;
            dog.join().unwrap();
            assert_eq!(*own(&value), 3);
        });
    }

    /// N-5: the same for two other threads.
    #[test]
    fn loom_other_threads_exclude_each_other() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            let other = value.clone();
            let thread = thread::spawn(move || *other.own_as_guest() += 1);
            *value.own_as_guest() += 1;
            thread.join().unwrap();
            assert_eq!(*value.own_as_guest(), 2);
        });
    }

    /// N-6: the same while the bias ends and another thread is favoured.
    #[test]
    fn loom_the_bias_changes_hands() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            *own(&value) += 1;
            let other = {
                let value = value.clone();
                thread::spawn(move || (0..3).for_each(|_| *own(&value) += 1))
            };
            *own(&value) += 1;
            other.join().unwrap();
            assert_eq!(*value.own_as_guest(), 5);
        });
    }

    /// N-6: the same with a guest.
    #[test]
    fn loom_the_bias_changes_hands_beside_a_guest() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            *own(&value) += 1;
            let guest = {
                let value = value.clone();
                thread::spawn(move || *value.own_as_guest() += 1)
            };
            let other = {
                let value = value.clone();
                thread::spawn(move || *own(&value) += 1)
            };
            guest.join().unwrap();
            *own(&value) += 1;
            other.join().unwrap();
            assert_eq!(*value.own_as_guest(), 4);
        });
    }
}
