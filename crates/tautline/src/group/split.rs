//! New groups out of a group, by colour and key.

use super::collective::Collective;
use super::context::Id;
use super::{Call, Choices, Group, groups};
use crate::error::Result;

/// Bytes of what each member tells the others: whether it has a colour, the colour, the key, and an id.
const ENTRY: usize = 20;

/// A split under way. Made by [`Group::start_split`].
#[derive(Debug)]
#[must_use = "a split ends when it is waited for"]
pub struct Splitting {
    parent: Group,
    collective: Collective,
    entry: [u8; ENTRY],
    id: Id,
    choices: Choices,
}

impl Splitting {
    pub(super) fn start(
        parent: &Group,
        colour: Option<u32>,
        key: i64,
        choices: Choices,
    ) -> Result<Splitting> {
        let (tags, own) = (&parent.0.tags, parent.0.members[parent.0.me]);
        // Everybody offers an id, and the first member's is taken (G-2).
        let id = groups(tags).give_id(own, tags.node().size())?;
        let mut entry = [0; ENTRY];
        entry[0] = colour.is_some().into();
        entry[4..8].copy_from_slice(&colour.unwrap_or_default().to_le_bytes());
        entry[8..16].copy_from_slice(&key.to_le_bytes());
        entry[16..].copy_from_slice(&id.to_bytes());
        let collective = parent.start(&Call::AllGather { len: ENTRY }, entry.to_vec())?;
        Ok(Splitting { parent: parent.clone(), collective, entry, id, choices })
    }

    /// Makes progress; whether it has ended, well or not. Never blocks.
    pub fn test(&self) -> bool {
        self.collective.test()
    }

    /// Waits for its end, and returns this member's new group, if it has one.
    pub fn wait(self) -> Result<Option<Group>> {
        let Splitting { parent, collective, entry, id, choices } = self;
        let made = collective.wait().and_then(|entries| make(&parent, &entries, &entry, choices));
        if !made.as_ref().is_ok_and(|group| group.as_ref().is_some_and(|group| group.0.own_id)) {
            groups(&parent.0.tags).return_id(id);
        }
        made
    }
}

/// The group of those whose colour is that of `own`.
fn make(parent: &Group, entries: &[u8], own: &[u8; ENTRY], choices: Choices) -> Result<Option<Group>> {
    let mut members = Vec::new();
    for (number, other) in entries.chunks_exact(ENTRY).enumerate() {
        let key = other[8..16].try_into().map_or(0, i64::from_le_bytes);
        if other[0] != 0 && other[..8] == own[..8] {
            members.push((key, number));
        }
    }
    members.sort_unstable();
    let Some((_, first)) = members.first() else { return Ok(None) };
    let bytes = &entries[first * ENTRY + 16..(first + 1) * ENTRY];
    let id = Id::from_bytes(bytes, parent.0.members[*first], parent.0.tags.node().size())?;
    let ranks = members.iter().map(|(_, number)| parent.0.members[*number]).collect();
    Group::agreed(&parent.0.tags, ranks, id, choices).map(Some)
}
