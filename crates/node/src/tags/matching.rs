//! Which message goes to which receive (E-1, E-2).
//!
//! Both queues in one type: receives that wait for messages, and messages that wait for receives. It keeps
//! tokens of its caller and knows no buffers, peers or protocol.

use super::lists::{By, Entries, Index};

pub use super::lists::Key;

/// The messages that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The context.
    pub context: u32,
    /// The sender's number; none for any sender.
    pub source: Option<u32>,
    /// The tag; none for any tag.
    pub tag: Option<u32>,
}

impl Pattern {
    /// Returns whether a message matches.
    #[inline]
    pub fn takes(&self, key: Key) -> bool {
        self.context == key.context
            && self.source.is_none_or(|source| source == key.source)
            && self.tag.is_none_or(|tag| tag == key.tag)
    }

    fn by(&self) -> By {
        match (self.source, self.tag) {
            (Some(_), Some(_)) => By::All,
            (None, Some(_)) => By::ContextAndTag,
            (Some(_), None) => By::ContextAndSource,
            (None, None) => By::Context,
        }
    }

    /// The key of a message that it takes; what may be anything is zero.
    #[inline]
    fn key(&self) -> Key {
        Key {
            context: self.context,
            source: self.source.unwrap_or_default(),
            tag: self.tag.unwrap_or_default(),
        }
    }
}

/// A receive that waits, until it is matched or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Posted(u32);

/// A message that waits, until it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting(u32);

#[derive(Clone, Copy, Debug)]
struct Posting<R> {
    order: u64,
    by: By,
    receive: R,
}

/// Receives that wait and messages that wait. A message never waits while a receive that takes it does.
///
/// For a new receive, call [`Matcher::find`]; if it returns nothing, [`Matcher::post`]. For a new message,
/// call [`Matcher::arrive`]; if it returns nothing, [`Matcher::keep`].
#[derive(Debug)]
pub struct Matcher<R, M> {
    posted: Entries<Posting<R>, 1>,
    /// One index for each set of wildcards, in the order of the constants below.
    patterns: [Index<0>; 4],
    /// The number of the next receive.
    order: u64,
    /// Receives that wait, by a hash of their context.
    contexts_posted: [u32; CONTEXT_PLACES],
    /// The only receive that waits, which is in no index: programs that receive one message at a time need
    /// none.
    alone: Option<u32>,
    waiting: Entries<M, 2>,
    exact: Index<0>,
    contexts: Index<1>,
}

/// Places of the table of contexts.
const CONTEXT_PLACES: usize = 64;

#[inline]
fn context_place(context: u32) -> usize {
    // Contexts of a group differ in their last bits, and those of groups in a few more.
    (context ^ context >> 6 ^ context >> 12) as usize % CONTEXT_PLACES
}

const PATTERNS: [By; 4] = [By::All, By::ContextAndTag, By::ContextAndSource, By::Context];

impl<R: Copy, M: Copy> Matcher<R, M> {
    /// Bytes of a message that waits, without its places in the tables.
    pub const MESSAGE_SIZE: usize = Entries::<M, 2>::ENTRY_SIZE;

    /// Creates empty queues. A peer that does not know `seed` cannot make matching slow.
    pub fn new(seed: u64) -> Matcher<R, M> {
        Matcher {
            posted: Entries::new(),
            patterns: PATTERNS.map(|by| Index::new(by, seed)),
            order: 0,
            contexts_posted: [0; CONTEXT_PLACES],
            alone: None,
            waiting: Entries::new(),
            exact: Index::new(By::All, seed),
            contexts: Index::new(By::Context, seed),
        }
    }

    /// Returns how many receives wait, and how many messages.
    pub fn len(&self) -> (usize, usize) {
        (self.posted.len(), self.waiting.len())
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Returns the bytes that messages take which wait, or have waited.
    pub fn message_memory(&self) -> usize {
        self.waiting.memory() + self.exact.memory() + self.contexts.memory()
    }

    /// Returns whether a receive of a pattern would take the next message that matches it: no other receive
    /// of its context waits, and no message that it takes. It may be false for no reason.
    #[inline]
    pub fn takes_next(&self, pattern: &Pattern) -> bool {
        self.contexts_posted[context_place(pattern.context)] == 0 && self.find(pattern).is_none()
    }

    /// Returns whether a receive of a context may wait. It may be true for no reason.
    #[inline]
    pub fn has_posted(&self, context: u32) -> bool {
        self.contexts_posted[context_place(context)] > 0
    }

    /// Adds a receive behind all others.
    #[inline]
    pub fn post(&mut self, pattern: Pattern, receive: R) -> Posted {
        let by = pattern.by();
        self.order += 1;
        let is_first = self.posted.len() == 0;
        self.contexts_posted[context_place(pattern.context)] += 1;
        let at = self.posted.add(pattern.key(), Posting { order: self.order, by, receive });
        if is_first {
            self.alone = Some(at);
        } else {
            self.index(at, by);
        }
        Posted(at)
    }

    /// Puts a receive in its index, after the one that was alone.
    fn index(&mut self, at: u32, by: By) {
        if let Some(first) = self.alone.take() {
            let by = self.posted.value(first).by;
            self.patterns[by as usize].push(&mut self.posted, first);
        }
        self.patterns[by as usize].push(&mut self.posted, at);
    }

    /// Returns the key of a receive that waits; what it does not name is zero.
    pub fn posted_key(&self, Posted(at): Posted) -> Key {
        self.posted.key(at)
    }

    /// Removes a receive that waits.
    #[inline]
    pub fn cancel(&mut self, Posted(at): Posted) -> R {
        if self.alone == Some(at) {
            self.alone = None;
        } else {
            let by = self.posted.value(at).by;
            self.patterns[by as usize].remove(&mut self.posted, at);
        }
        let (key, posting) = self.posted.free(at);
        self.contexts_posted[context_place(key.context)] -= 1;
        posting.receive
    }

    /// Removes and returns the oldest receive that takes a message (E-1).
    #[inline]
    pub fn arrive(&mut self, key: Key) -> Option<R> {
        if let Some(at) = self.alone {
            let takes = self.posted.value(at).by.reduce(key) == self.posted.key(at);
            return takes.then(|| self.cancel(Posted(at)));
        }
        if self.posted.len() == 0 {
            return None;
        }
        self.arrive_among(key)
    }

    fn arrive_among(&mut self, key: Key) -> Option<R> {
        let Matcher { posted, patterns, .. } = self;
        let firsts = patterns.iter().filter_map(|index| index.first(posted, key));
        let oldest = firsts.min_by_key(|at| posted.value(*at).order)?;
        Some(self.cancel(Posted(oldest)))
    }

    /// Adds a message behind all others. No receive takes it.
    #[inline]
    pub fn keep(&mut self, key: Key, message: M) -> Waiting {
        let at = self.waiting.add(key, message);
        self.exact.push(&mut self.waiting, at);
        self.contexts.push(&mut self.waiting, at);
        Waiting(at)
    }

    /// Returns the oldest message that a receive takes (E-2). The cost of an exact pattern, and of one with
    /// both wildcards, does not depend on how many messages wait; with one wildcard, messages of the context
    /// that arrived earlier are passed over.
    #[inline]
    pub fn find(&self, pattern: &Pattern) -> Option<Waiting> {
        if self.waiting.len() == 0 {
            return None;
        }
        let key = pattern.key();
        let found = match pattern.by() {
            By::All => self.exact.first(&self.waiting, key),
            By::Context => self.contexts.first(&self.waiting, key),
            By::ContextAndTag | By::ContextAndSource => {
                let mut all = self.contexts.iter(&self.waiting, key);
                all.find(|at| pattern.takes(self.waiting.key(*at)))
            }
        };
        found.map(Waiting)
    }

    /// Returns all messages of a sender, in any order.
    pub fn all_from(&self, source: u32) -> Vec<Waiting> {
        let mut all = self.exact.all(&self.waiting);
        all.retain(|at| self.waiting.key(*at).source == source);
        all.into_iter().map(Waiting).collect()
    }

    /// Returns a message that waits.
    #[inline]
    pub fn message(&self, Waiting(at): Waiting) -> (Key, M) {
        (self.waiting.key(at), self.waiting.value(at))
    }

    /// Removes a message.
    #[inline]
    pub fn take(&mut self, Waiting(at): Waiting) -> (Key, M) {
        self.exact.remove(&mut self.waiting, at);
        self.contexts.remove(&mut self.waiting, at);
        self.waiting.free(at)
    }
}
