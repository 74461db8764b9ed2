//! A table whose entries are named by index and generation, so that an old name never finds a new entry.

/// The name of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Name {
    /// Returns it as one number, for tables of the program.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the name that [`Name::to_u64`] made a number of.
    pub(crate) fn from_u64(number: u64) -> Name {
        Name { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// An entry starts at a cache line: a small one is one line, and of a larger one the fields used most are.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slab<T> {
    /// Bytes of an entry.
    pub(super) const ENTRY_SIZE: usize = size_of::<Entry<T>>();

    /// Creates a table of at most `limit` entries.
    pub(crate) fn new(limit: usize) -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new(), limit }
    }

    pub(crate) fn insert(&mut self, value: T) -> Option<Name> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < self.limit => {
                self.entries.push(Entry { generation: 1, value: None });
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Some(Name { index, generation: entry.generation })
    }

    pub(crate) fn remove(&mut self, name: Name) -> Option<T> {
        let entry = self.entries.get_mut(name.index as usize).filter(|e| e.generation == name.generation)?;
        let value = entry.value.take()?;
        // Never zero, so that no name is the number zero.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.free.push(name.index);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, name: Name) -> Option<&T> {
        self.entries.get(name.index as usize).filter(|e| e.generation == name.generation)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut T> {
        self.entries.get_mut(name.index as usize).filter(|e| e.generation == name.generation)?.value.as_mut()
    }

    /// Returns the entry at an index, whatever its generation, with its name.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<(Name, &T)> {
        let Entry { generation, value } = self.entries.get(index as usize)?;
        Some((Name { index, generation: *generation }, value.as_ref()?))
    }

    /// As [`Slab::at`], mutably.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<(Name, &mut T)> {
        let Entry { generation, value } = self.entries.get_mut(index as usize)?;
        Some((Name { index, generation: *generation }, value.as_mut()?))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the names of all entries.
    pub(crate) fn names(&self) -> impl Iterator<Item = Name> {
        (0..self.entries.len() as u32).filter_map(|index| Some(self.at(index)?.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_finds_nothing() {
        let mut slab = Slab::new(2);
        let (a, b) = (slab.insert('a').unwrap(), slab.insert('b').unwrap());
        assert_eq!(slab.insert('c'), None);
        assert_eq!(slab.remove(a), Some('a'));
        let c = slab.insert('c').unwrap();
        assert_eq!((c.index, slab.get(a), slab.get(c), slab.get(b)), (a.index, None, Some(&'c'), Some(&'b')));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.len(), 2);
    }
}
