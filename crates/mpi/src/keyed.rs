//! The attributes of one object in the order in which they were set: those of `MPI_COMM_SELF` are deleted in
//! reverse order. There are few of them.

use std::ffi::c_int;
use std::sync::Arc;

use crate::attribute::Keyval;

/// Values by attribute key.
pub struct Keyed<V>(Vec<(c_int, (Arc<Keyval>, V))>);

impl<V> Default for Keyed<V> {
    fn default() -> Self {
        Keyed(Vec::new())
    }
}

impl<V> Keyed<V> {
    /// The entry of a key.
    pub fn get(&self, key: &c_int) -> Option<&(Arc<Keyval>, V)> {
        self.0.iter().find(|(have, _)| have == key).map(|(_, entry)| entry)
    }

    /// Sets the entry of a key, which is the last one then.
    pub fn insert(&mut self, key: c_int, entry: (Arc<Keyval>, V)) {
        entry.0.hold();
        self.remove(&key);
        self.0.push((key, entry));
    }

    /// Removes the entry of a key.
    pub fn remove(&mut self, key: &c_int) {
        if let Some(at) = self.0.iter().position(|(have, _)| have == key) {
            let (_, (keyval, _)) = self.0.remove(at);
            keyval.release();
        }
    }

    /// The entry that was set last.
    pub fn last_key_value(&self) -> Option<(&c_int, &(Arc<Keyval>, V))> {
        self.0.last().map(|(key, entry)| (key, entry))
    }

    /// The entries in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&c_int, &(Arc<Keyval>, V))> {
        self.0.iter().map(|(key, entry)| (key, entry))
    }
}

impl<V> Drop for Keyed<V> {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, (keyval, _))| keyval.release());
    }
}
