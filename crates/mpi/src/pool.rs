//! Objects behind handles. A handle is an index and a generation, so that a stale one is recognized. An
//! object lives on as long as an operation holds it, after its handle was freed.

use std::sync::{Arc, PoisonError, RwLock};

use crate::handle::FIRST_DYNAMIC;

const INDEX_BITS: u32 = 18;
/// Handles fit in 26 bits: the ABI of MPICH uses higher values for its predefined handles.
const GENERATION_BITS: u32 = 7;

struct Entry<T> {
    generation: usize,
    object: Option<Arc<T>>,
}

struct Entries<T> {
    all: Vec<Entry<T>>,
    free: Vec<usize>,
}

/// The objects of one kind.
pub struct Pool<T> {
    entries: RwLock<Entries<T>>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool::new()
    }
}

impl<T> Pool<T> {
    /// An empty pool.
    pub const fn new() -> Pool<T> {
        Pool { entries: RwLock::new(Entries { all: Vec::new(), free: Vec::new() }) }
    }

    /// Adds an object and returns its handle; `None` if there are too many.
    pub fn insert(&self, object: Arc<T>) -> Option<usize> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let index = match entries.free.pop() {
            Some(index) => index,
            None if entries.all.len() < 1 << INDEX_BITS => {
                entries.all.push(Entry { generation: 0, object: None });
                entries.all.len() - 1
            }
            None => return None,
        };
        let entry = &mut entries.all[index];
        entry.object = Some(object);
        Some(FIRST_DYNAMIC + (entry.generation << INDEX_BITS | index))
    }

    /// The object of a handle, unless it was freed.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = split(handle)?;
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.all.get(index)?;
        if entry.generation == generation { entry.object.clone() } else { None }
    }

    /// Frees a handle and returns its object, unless that was freed before.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = split(handle)?;
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.all.get_mut(index).filter(|entry| entry.generation == generation)?;
        let object = entry.object.take()?;
        entry.generation = (generation + 1) % (1 << GENERATION_BITS);
        entries.free.push(index);
        Some(object)
    }

    /// The number of live handles.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.all.len() - entries.free.len()
    }
}

fn split(handle: usize) -> Option<(usize, usize)> {
    let value = handle.checked_sub(FIRST_DYNAMIC)?;
    Some((value & ((1 << INDEX_BITS) - 1), value >> INDEX_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_handle_is_recognized_and_its_object_lives_on() {
        let pool = Pool::new();
        let first = pool.insert(Arc::new(1)).unwrap();
        let held = pool.get(first).unwrap();
        assert_eq!(pool.remove(first).as_deref(), Some(&1));
        assert_eq!((pool.get(first), pool.remove(first), *held), (None, None, 1));
        let second = pool.insert(Arc::new(2)).unwrap();
        assert_ne!(first, second);
        assert_eq!((pool.get(second).as_deref(), pool.len()), (Some(&2), 1));
    }

    #[test]
    fn predefined_and_foreign_values_are_no_handles() {
        let pool = Pool::new();
        pool.insert(Arc::new(0)).unwrap();
        for value in [0, 0x101, FIRST_DYNAMIC - 1, FIRST_DYNAMIC + 1, usize::MAX] {
            assert_eq!(pool.get(value), None);
        }
    }

    #[test]
    fn handles_stay_below_the_predefined_ones_of_mpich() {
        let pool = Pool::new();
        for round in 0..300 {
            let handle = pool.insert(Arc::new(round)).unwrap();
            assert!((FIRST_DYNAMIC..0x400_0000).contains(&handle), "{handle:#x}");
            pool.remove(handle).unwrap();
        }
    }
}
