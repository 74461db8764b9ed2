//! Who may be a root: the first member of a group grants it to a limited number at once.

use std::collections::VecDeque;

/// What the first member of a group keeps.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// The roots, those that were let first first, and whether they were asked to stop.
    active: VecDeque<(u32, bool)>,
    waiting: VecDeque<u32>,
}

/// What the first member tells another one, or itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Grant,
    Recall,
}

impl Keeper {
    /// A member asks to be a root. False if it is one, or has asked.
    pub(super) fn request(&mut self, root: u32, limit: usize, mut tell: impl FnMut(u32, Word)) -> bool {
        if self.waiting.contains(&root) || self.active.iter().any(|(active, _)| *active == root) {
            return false;
        }
        if self.active.len() < limit {
            self.active.push_back((root, false));
            tell(root, Word::Grant);
        } else {
            self.waiting.push_back(root);
            self.recall(&mut tell);
        }
        true
    }

    /// A root has stopped. False if it was none.
    pub(super) fn release(&mut self, root: u32, mut tell: impl FnMut(u32, Word)) -> bool {
        let Some(at) = self.active.iter().position(|(active, _)| *active == root) else { return false };
        self.active.remove(at);
        if let Some(next) = self.waiting.pop_front() {
            self.active.push_back((next, false));
            tell(next, Word::Grant);
            self.recall(&mut tell);
        }
        true
    }

    /// The members that are roots, or wait to be.
    pub(super) fn known(&self) -> impl Iterator<Item = u32> {
        self.active.iter().map(|(root, _)| *root).chain(self.waiting.iter().copied())
    }

    /// Asks as many roots to stop as members wait.
    fn recall(&mut self, tell: &mut impl FnMut(u32, Word)) {
        let asked = self.active.iter().filter(|(_, asked)| *asked).count();
        let more = self.waiting.len().saturating_sub(asked);
        for (root, asked) in self.active.iter_mut().filter(|(_, asked)| !*asked).take(more) {
            *asked = true;
            tell(*root, Word::Recall);
        }
    }
}

/// Whether this member may be a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// Every member may always be.
    Always,
    No,
    Asked,
    Held,
    /// It is to stop after the message that it is sending.
    Recalled,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// never more roots than the limit, nobody is passed over, and no root is asked to stop twice.
    #[test]
    fn grants_are_limited_and_in_order() {
        let mut keeper = Keeper::default();
        let mut told = Vec::new();
        for root in 0..5 {
            assert!(keeper.request(root, 2, |to, word| told.push((to, word))));
        }
        assert!(!keeper.request(4, 2, |_, _| {}), "asked twice");
        let expected = [(0, Word::Grant), (1, Word::Grant), (0, Word::Recall), (1, Word::Recall)];
        assert_eq!(std::mem::take(&mut told), expected);
        assert!(keeper.release(1, |to, word| told.push((to, word))));
        assert!(!keeper.release(1, |_, _| {}), "it was no root any longer");
        assert!(keeper.release(0, |to, word| told.push((to, word))));
        let expected = [(2, Word::Grant), (2, Word::Recall), (3, Word::Grant)];
        assert_eq!(std::mem::take(&mut told), expected);
        assert!(keeper.release(2, |to, word| told.push((to, word))));
        assert_eq!(told, [(4, Word::Grant)]);
    }
}
