//! Entries in lists by key, each list in the order in which entries were added.
//!
//! An [`Index`] finds the list of a key through a hash table of list heads. The links lie in the entries, so
//! that an entry costs its own size and at most 4 B of each table. Nothing here knows what entries mean.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// Lists for each place in an index's table, on average and at most.
const LOAD: usize = 2;

/// What a message is matched by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The context: messages of different contexts never match each other's receives.
    pub context: u32,
    /// The sender's number.
    pub source: u32,
    /// The sender's tag.
    pub tag: u32,
}

/// The fields of a key that an index goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    All,
    ContextAndTag,
    ContextAndSource,
    Context,
}

impl By {
    /// The key without the fields that do not count.
    #[inline]
    pub(super) fn reduce(self, key: Key) -> Key {
        match self {
            By::All => key,
            By::ContextAndTag => Key { source: 0, ..key },
            By::ContextAndSource => Key { tag: 0, ..key },
            By::Context => Key { source: 0, tag: 0, ..key },
        }
    }
}

/// Where an entry is in one of its lists, which is a circle: `prev` of the first entry is the last one.
#[derive(Clone, Copy, Debug)]
struct Links {
    next: u32,
    prev: u32,
    /// In the first entry of a list, the first entry of the next list at the same place of the table.
    chain: u32,
}

const UNLINKED: Links = Links { next: NONE, prev: NONE, chain: NONE };

#[derive(Debug)]
struct Entry<V, const LISTS: usize> {
    links: [Links; LISTS],
    key: Key,
    value: V,
}

/// Entries, each of which may be in `LISTS` lists at once. Freed entries are used again.
#[derive(Debug)]
pub(super) struct Entries<V, const LISTS: usize> {
    all: Vec<Entry<V, LISTS>>,
    /// The first free entry; the next one is in `next` of its first links.
    free: u32,
    len: usize,
}

impl<V: Copy, const LISTS: usize> Entries<V, LISTS> {
    /// Bytes of an entry.
    pub(super) const ENTRY_SIZE: usize = size_of::<Entry<V, LISTS>>();

    pub(super) fn new() -> Entries<V, LISTS> {
        Entries { all: Vec::new(), free: NONE, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that all entries take.
    pub(super) fn memory(&self) -> usize {
        self.all.capacity() * Self::ENTRY_SIZE
    }

    #[inline]
    pub(super) fn add(&mut self, key: Key, value: V) -> u32 {
        self.len += 1;
        let entry = Entry { links: [UNLINKED; LISTS], key, value };
        if self.free == NONE {
            return self.grow(entry);
        }
        let at = self.free;
        let place = &mut self.all[at as usize];
        self.free = place.links[0].next;
        *place = entry;
        at
    }

    #[cold]
    fn grow(&mut self, entry: Entry<V, LISTS>) -> u32 {
        // By an eighth, not twofold: the room that is not used counts, too.
        if self.all.len() == self.all.capacity() {
            self.all.reserve_exact((self.all.len() / 8).max(64));
        }
        self.all.push(entry);
        self.all.len() as u32 - 1
    }

    /// Frees an entry that is in no list.
    #[inline]
    pub(super) fn free(&mut self, at: u32) -> (Key, V) {
        self.len -= 1;
        let entry = &mut self.all[at as usize];
        entry.links[0].next = self.free;
        self.free = at;
        (entry.key, entry.value)
    }

    #[inline]
    pub(super) fn key(&self, at: u32) -> Key {
        self.all[at as usize].key
    }

    #[inline]
    pub(super) fn value(&self, at: u32) -> V {
        self.all[at as usize].value
    }

    #[inline]
    fn links(&mut self, at: u32, list: usize) -> &mut Links {
        &mut self.all[at as usize].links[list]
    }
}

/// Finds the first entry of each list by key. It uses the links number `LIST` of the entries.
#[derive(Debug)]
pub(super) struct Index<const LIST: usize> {
    by: By,
    /// Mixed into the hash, so that a peer cannot choose keys that collide.
    seed: u64,
    /// First entries of lists, at the places that their keys hash to. The length is a power of two.
    table: Vec<u32>,
    lists: usize,
}

impl<const LIST: usize> Index<LIST> {
    pub(super) fn new(by: By, seed: u64) -> Index<LIST> {
        Index { by, seed, table: Vec::new(), lists: 0 }
    }

    /// Bytes that the table takes.
    pub(super) fn memory(&self) -> usize {
        self.table.capacity() * size_of::<u32>()
    }

    #[inline]
    fn place(&self, key: Key) -> usize {
        /// The golden ratio times 2⁶⁴: odd, and its bits have no pattern.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |state: u64, word: u64| {
            let product = u128::from(state ^ word) * u128::from(SPREAD);
            product as u64 ^ (product >> 64) as u64
        };
        let hash = fold(self.seed, u64::from(key.context) << 32 | u64::from(key.source));
        fold(hash, key.tag.into()) as usize & (self.table.len() - 1)
    }

    /// Returns the first entry of the list of a key.
    #[inline]
    pub(super) fn first<V: Copy, const LISTS: usize>(
        &self,
        entries: &Entries<V, LISTS>,
        key: Key,
    ) -> Option<u32> {
        if self.lists == 0 {
            return None;
        }
        let key = self.by.reduce(key);
        let mut at = self.table[self.place(key)];
        while at != NONE {
            let entry = &entries.all[at as usize];
            if self.by.reduce(entry.key) == key {
                return Some(at);
            }
            at = entry.links[LIST].chain;
        }
        None
    }

    /// Returns the entries of the list of a key, in order.
    pub(super) fn iter<'a, V: Copy, const LISTS: usize>(
        &self,
        entries: &'a Entries<V, LISTS>,
        key: Key,
    ) -> impl Iterator<Item = u32> + 'a {
        let first = self.first(entries, key);
        std::iter::successors(first, move |at| {
            let next = entries.all[*at as usize].links[LIST].next;
            (Some(next) != first).then_some(next)
        })
    }

    /// Returns all entries, in any order.
    pub(super) fn all<V: Copy, const LISTS: usize>(&self, entries: &Entries<V, LISTS>) -> Vec<u32> {
        let mut all = Vec::with_capacity(entries.len());
        for mut first in self.table.iter().copied() {
            while first != NONE {
                all.extend(self.iter(entries, entries.key(first)));
                first = entries.all[first as usize].links[LIST].chain;
            }
        }
        all
    }

    /// Adds an entry to the end of its list.
    #[inline]
    pub(super) fn push<V: Copy, const LISTS: usize>(&mut self, entries: &mut Entries<V, LISTS>, at: u32) {
        let key = entries.key(at);
        match self.first(entries, key) {
            Some(first) => {
                let last = std::mem::replace(&mut entries.links(first, LIST).prev, at);
                entries.links(last, LIST).next = at;
                *entries.links(at, LIST) = Links { next: first, prev: last, chain: NONE };
            }
            None => self.begin(entries, at, key),
        }
    }

    /// Begins the list of a key.
    fn begin<V: Copy, const LISTS: usize>(&mut self, entries: &mut Entries<V, LISTS>, at: u32, key: Key) {
        if self.lists >= LOAD * self.table.len() {
            self.grow(entries);
        }
        self.lists += 1;
        let place = self.place(self.by.reduce(key));
        *entries.links(at, LIST) = Links { next: at, prev: at, chain: self.table[place] };
        self.table[place] = at;
    }

    #[cold]
    fn grow<V: Copy, const LISTS: usize>(&mut self, entries: &mut Entries<V, LISTS>) {
        let more = (2 * self.table.len()).max(16);
        let old = std::mem::replace(&mut self.table, vec![NONE; more]);
        for mut at in old {
            while at != NONE {
                let place = self.place(self.by.reduce(entries.key(at)));
                let chain = std::mem::replace(&mut entries.links(at, LIST).chain, self.table[place]);
                self.table[place] = at;
                at = chain;
            }
        }
    }

    /// Takes an entry out of its list.
    #[inline]
    pub(super) fn remove<V: Copy, const LISTS: usize>(&mut self, entries: &mut Entries<V, LISTS>, at: u32) {
        let Links { next, prev, chain } = *entries.links(at, LIST);
        let place = self.place(self.by.reduce(entries.key(at)));
        // If it is the first of its list, the table leads to it, or another first entry does.
        let (mut before, mut head) = (NONE, self.table[place]);
        while head != NONE && head != at {
            (before, head) = (head, entries.links(head, LIST).chain);
        }
        if head == at {
            let instead = if next == at {
                self.lists -= 1;
                chain
            } else {
                entries.links(next, LIST).chain = chain;
                next
            };
            match before {
                NONE => self.table[place] = instead,
                before => entries.links(before, LIST).chain = instead,
            }
        }
        entries.links(prev, LIST).next = next;
        entries.links(next, LIST).prev = prev;
    }
}
