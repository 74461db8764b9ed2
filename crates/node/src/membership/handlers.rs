//! Names of handlers: what this node announces, what its program sends to, and what each peer has announced
//! (M-1, M-2).

use std::collections::HashMap;

/// A handler's name as this node knows it; see [`crate::Endpoint::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(crate) u32);

/// Set in an announced number: the handler takes only messages that fit one frame (M-2).
pub(crate) const SHORT_ONLY: u16 = 1 << 15;
/// The number of a handler that the peer has not announced.
pub(crate) const UNKNOWN: u16 = u16::MAX;

/// The names that a node announces and sends to.
#[derive(Debug)]
pub(crate) struct HandlerNames {
    /// What peers may send to, each with whether it takes only short messages. The place is the number.
    announced: Vec<(String, bool)>,
    /// What the program sends to, by key.
    keys: Vec<String>,
    by_name: HashMap<String, Key>,
    /// Handlers whose messages are not reported as undelivered (N-24).
    unreported: Vec<Key>,
}

impl HandlerNames {
    pub(crate) fn new(announced: Vec<(String, bool)>) -> HandlerNames {
        HandlerNames { announced, keys: Vec::new(), by_name: HashMap::new(), unreported: Vec::new() }
    }

    /// What peers are told: number and name of each handler.
    pub(crate) fn announced(&self) -> impl Iterator<Item = (u16, &str)> {
        let number = |at: usize, short: bool| at as u16 | if short { SHORT_ONLY } else { 0 };
        self.announced.iter().enumerate().map(move |(at, (name, short))| (number(at, *short), name.as_str()))
    }

    /// The key of a name, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<Key> {
        self.by_name.get(name).copied()
    }

    /// The name of a key.
    pub(crate) fn name(&self, key: Key) -> Option<&str> {
        self.keys.get(key.0 as usize).map(String::as_str)
    }

    /// Gives a name a new key.
    pub(crate) fn insert(&mut self, name: &str) -> Key {
        let key = Key(self.keys.len() as u32);
        self.keys.push(name.to_owned());
        self.by_name.insert(name.to_owned(), key);
        key
    }

    /// Messages to this handler are not reported as undelivered from now on.
    pub(crate) fn leave_unreported(&mut self, key: Key) {
        if !self.unreported.contains(&key) {
            self.unreported.push(key);
        }
    }

    /// Whether messages to a handler, by its number at a peer, are reported as undelivered.
    pub(crate) fn is_reported(&self, number: u16, peer: &PeerHandlers) -> bool {
        !self.unreported.iter().any(|key| peer.number(*key) & !SHORT_ONLY == number)
    }
}

/// The handlers that one peer has announced on its channel.
#[derive(Debug, Default)]
pub(crate) struct PeerHandlers {
    /// By name, in order.
    table: Vec<(Box<str>, u16)>,
    /// By key.
    numbers: Vec<u16>,
}

impl PeerHandlers {
    /// The peer's number for a key, [`SHORT_ONLY`] included; [`UNKNOWN`] if it has announced none.
    #[inline]
    pub(crate) fn number(&self, key: Key) -> u16 {
        self.numbers.get(key.0 as usize).copied().unwrap_or(UNKNOWN)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Enters a handler of the peer.
    pub(crate) fn learn(&mut self, name: &str, number: u16, names: &HandlerNames) {
        match self.find(name) {
            Ok(at) => self.table[at].1 = number,
            Err(at) => self.table.insert(at, (name.into(), number)),
        }
        if let Some(key) = names.find(name) {
            self.set(key, number);
        }
    }

    /// This node has a new key for a name.
    pub(crate) fn add_key(&mut self, key: Key, name: &str) {
        self.set(key, self.find(name).map_or(UNKNOWN, |at| self.table[at].1));
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.table.binary_search_by(|(entered, _)| (**entered).cmp(name))
    }

    /// All handlers of the peer have been entered.
    pub(crate) fn complete(&mut self) {
        self.table.shrink_to_fit();
    }

    fn set(&mut self, key: Key, number: u16) {
        let at = key.0 as usize;
        if self.numbers.len() <= at {
            self.numbers.reserve_exact(at + 1 - self.numbers.len());
            self.numbers.resize(at + 1, UNKNOWN);
        }
        self.numbers[at] = number;
    }

    /// A new channel begins: the peer announces its handlers anew.
    pub(crate) fn reset(&mut self) {
        self.table.clear();
        self.numbers.fill(UNKNOWN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M-1: a key finds the peer's number, whichever of the two is known first, and none on a new channel.
    #[test]
    fn keys_and_announcements_meet() {
        let mut names = HandlerNames::new(vec![("a".into(), false), ("b".into(), true)]);
        assert_eq!(names.announced().collect::<Vec<_>>(), [(0, "a"), (1 | SHORT_ONLY, "b")]);
        let mut peer = PeerHandlers::default();
        let x = names.insert("x");
        peer.add_key(x, "x");
        assert_eq!(peer.number(x), UNKNOWN);
        peer.learn("x", 7, &names);
        peer.learn("y", 8 | SHORT_ONLY, &names);
        let y = names.insert("y");
        peer.add_key(y, "y");
        assert_eq!((peer.number(x), peer.number(y), peer.len()), (7, 8 | SHORT_ONLY, 2));
        peer.reset();
        assert_eq!((peer.number(x), peer.number(y), peer.len()), (UNKNOWN, UNKNOWN, 0));
    }
}
