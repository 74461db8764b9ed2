//! Agreement among the members that are left, and the group of them (G-9 … G-12).
//!
//! The lowest member that is not known to be lost coordinates: it collects a report of each other member,
//! decides, and sends the decision to all. Who takes a decision sends it on to all before it returns. If the
//! coordinator is lost, members report to the next one, and from then on take no decision that an earlier
//! coordinator made. A decision that arrives in place of a report shows what its sender has decided; the
//! coordinator makes the latest of them its own. So it decides only when it knows of each other member that
//! it is lost, or undecided, or what it has decided.

use std::sync::atomic::Ordering;

use tautline_node::PeerState;

use super::context::Id;
use super::failure::Cause;
use super::{Group, Inner, groups};
use crate::SendError;
use crate::error::{Error, Result};
use crate::tags::{ANY, Receive, Request};

/// Set in the tags of agreements. Reports, decisions and signs of life have a tag each.
const AGREEMENT: u32 = 1 << 30;

/// Agreements whose late decisions are dropped when another one begins.
const FORMER: u32 = 8;

/// What members agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decision {
    /// The coordinator that sent it last.
    by: u32,
    value: u64,
    /// An id for a group of those that are left, of the first of them.
    id: [u8; 4],
    /// Who was lost, by number.
    lost: Vec<bool>,
}

const HEAD: usize = 16;

impl Decision {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.lost.len());
        bytes.extend_from_slice(&self.by.to_le_bytes());
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.value.to_le_bytes());
        bytes.extend(self.lost.iter().map(|lost| u8::from(*lost)));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Decision> {
        let (by, rest) = bytes.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (value, lost) = rest.split_first_chunk()?;
        let (by, value) = (u32::from_le_bytes(*by), u64::from_le_bytes(*value));
        Some(Decision { by, id: *id, value, lost: lost.iter().map(|lost| *lost != 0).collect() })
    }
}

/// An agreement under way at one member.
struct Agreement<'a> {
    group: &'a Inner,
    tag: u32,
    value: u64,
    id: Id,
    lost: Vec<bool>,
    /// Takes the next decision.
    decided: Receive,
    /// The last coordinator of the decision that each member has sent.
    decisive: Vec<Option<u32>>,
    /// The decisions that arrived, one for each last coordinator.
    known: Vec<Decision>,
}

impl Agreement<'_> {
    fn tag(&self, of: u32) -> u32 {
        self.tag | of
    }

    const REPORT: u32 = 0;
    const DECISION: u32 = 1;
    /// Never sent: a receive of it ends when the member is lost.
    const LIFE: u32 = 2;

    fn listen(group: &Inner, tag: u32) -> Result<Receive> {
        let room = vec![0; HEAD + group.members.len()];
        group.collective.start_receive(ANY, tag | Agreement::DECISION, room)
    }

    /// Takes the decisions that are here.
    fn take_decisions(&mut self) -> Result<()> {
        while self.decided.test()? {
            let next = Agreement::listen(self.group, self.tag)?;
            let (status, bytes) = std::mem::replace(&mut self.decided, next).wait()?;
            let decision = Decision::from_bytes(&bytes).filter(|it| it.lost.len() == self.lost.len());
            let decision = decision.ok_or(Error::Violation("a malformed decision of a group"))?;
            if let Some(from) = self.group.members.iter().position(|rank| *rank == status.source) {
                self.decisive[from] = Some(decision.by);
            }
            if self.known.iter().all(|known| known.by != decision.by) {
                self.known.push(decision);
            }
        }
        Ok(())
    }

    /// The decision with the latest coordinator.
    fn latest(&self) -> Option<&Decision> {
        self.known.iter().max_by_key(|decision| decision.by)
    }

    /// The decision that a member which has reported to `coordinator` may take: one of that coordinator or a
    /// later one, or any that the coordinator itself has taken (G-11).
    fn acceptable(&self, coordinator: usize) -> Option<&Decision> {
        let latest = self.latest().filter(|latest| latest.by as usize >= coordinator);
        latest.or_else(|| {
            let by = self.decisive[coordinator]?;
            self.known.iter().find(|known| known.by == by)
        })
    }

    /// Sends a decision to all members, also to those that are taken for lost: a live one learns of it.
    fn tell(&self, decision: &Decision) {
        let bytes = decision.to_bytes();
        for (member, rank) in self.group.members.iter().enumerate() {
            if member != self.group.me {
                // One that is gone need not know.
                let _ = self.group.collective.send_buffered(*rank, self.tag(Self::DECISION), &bytes);
            }
        }
    }

    /// Takes the notices that are here: whom they name as gone is lost (G-12). An error if this is the member
    /// that the others exclude.
    fn take_losses(&mut self) -> Result<()> {
        self.group.take_notices()?;
        if let Some(Cause::Excluded(by)) = self.group.failures.cause() {
            return Err(Error::Excluded(by));
        }
        for (lost, known) in self.lost.iter_mut().zip(self.group.known_lost()) {
            *lost |= known;
        }
        Ok(())
    }

    /// Waits until there is a decision or a notice, or one of `others` has ended. Meanwhile the collectives
    /// go on that were started (G-21). `changes` is what the group's failures had when they were looked at.
    fn wait_or(&self, others: &[&Receive], changes: u64) -> Result<()> {
        let (tagged, groups) = (self.group.collective.node().tagged(), self.group.groups());
        if self.group.collective.node().is_virtual() {
            let all: Vec<_> = others.iter().copied().chain([&self.decided]).map(Request::id).collect();
            let ended = !tagged.test_tagged(&all)?.is_empty();
            return if ended { Ok(()) } else { Err(SendError::WouldBlock.into()) };
        }
        let started = groups.started();
        let mut unless: Vec<_> = others.iter().map(|receive| receive.id()).collect();
        unless.extend(self.group.notice_request());
        groups.advance_all(None, &mut unless);
        let stop = || groups.started() != started || self.group.failures.changes() != changes;
        if !stop() {
            tagged.wait_tagged_unless(&[self.decided.id()], &unless, None, stop)?;
        }
        Ok(())
    }

    fn run(mut self) -> Result<Decision> {
        let me = self.group.me;
        loop {
            let coordinator = self.lost.iter().position(|lost| !lost).unwrap_or(me);
            let decision = match coordinator == me {
                true => Some(self.coordinate()?),
                false => self.follow(coordinator)?,
            };
            if let Some(decision) = decision {
                self.tell(&decision);
                return Ok(decision);
            }
            self.lost[coordinator] = true;
        }
    }

    /// A report: the value, and a byte for each member that says whether it is known to be lost.
    fn report(&self) -> Vec<u8> {
        let mut bytes = self.value.to_le_bytes().to_vec();
        bytes.extend(self.lost.iter().map(|lost| u8::from(*lost)));
        bytes
    }

    /// Takes the report of a member: its value counts, and whom it knows to be lost is lost. This member is
    /// not, since the other one reports to it.
    fn take_report(&mut self, bytes: &[u8]) -> Result<()> {
        let (value, lost) = bytes
            .split_first_chunk()
            .filter(|(_, lost)| lost.len() == self.lost.len())
            .ok_or(Error::Violation("a malformed report of a member"))?;
        self.value &= u64::from_le_bytes(*value);
        for (member, (known, told)) in self.lost.iter_mut().zip(lost).enumerate() {
            *known |= *told != 0 && member != self.group.me;
        }
        Ok(())
    }

    /// Collects reports, and decides (G-9, G-10).
    fn coordinate(&mut self) -> Result<Decision> {
        let (group, me) = (self.group, self.group.me);
        let tags = &group.collective;
        let mut waiting: Vec<(usize, Receive)> = Vec::new();
        for member in (0..self.lost.len()).filter(|member| *member != me && !self.lost[*member]) {
            let room = vec![0; 8 + self.lost.len()];
            waiting.push((member, tags.start_receive(group.members[member], self.tag(Self::REPORT), room)?));
        }
        loop {
            let changes = group.failures.changes();
            self.take_decisions()?;
            self.take_losses()?;
            if let Some(latest) = self.latest().filter(|latest| latest.by as usize > me) {
                // The others take this member for lost.
                return Ok(latest.clone());
            }
            // Nobody waits for the end of a channel to one whose loss others have seen.
            waiting.retain(|(member, _)| self.decisive[*member].is_none() && !self.lost[*member]);
            if waiting.is_empty() {
                break;
            }
            let receives: Vec<_> = waiting.iter().map(|(_, receive)| receive).collect();
            self.wait_or(&receives, changes)?;
            for index in (0..waiting.len()).rev() {
                if !waiting[index].1.test()? {
                    continue;
                }
                let (member, receive) = waiting.swap_remove(index);
                match receive.wait() {
                    Ok((status, bytes)) => self.take_report(&bytes[..status.len as usize])?,
                    Err(Error::PeerGone(..)) => self.lost[member] = true,
                    Err(error) => return Err(error),
                }
            }
        }
        let (value, lost) = (self.value, self.lost.clone());
        let own = Decision { by: me as u32, id: self.id.to_bytes(), value, lost };
        Ok(self.latest().cloned().map_or(own, |latest| Decision { by: me as u32, ..latest }))
    }

    /// Reports to a coordinator, and waits for a decision that it or a later one has made (G-11). None if
    /// the coordinator is lost, by its channel or by a notice.
    fn follow(&mut self, coordinator: usize) -> Result<Option<Decision>> {
        let group = self.group;
        let (tags, rank) = (&group.collective, group.members[coordinator]);
        let life = tags.start_receive(rank, self.tag(Self::LIFE), Vec::new())?;
        match tags.send_buffered(rank, self.tag(Self::REPORT), &self.report()) {
            Ok(()) => {}
            Err(Error::PeerGone(..)) => return Ok(None),
            Err(error) => return Err(error),
        }
        loop {
            // Asked first: all that the coordinator sent arrives before the news that it is lost.
            let (is_lost, changes) = (life.test()?, group.failures.changes());
            self.take_decisions()?;
            self.take_losses()?;
            if let Some(decision) = self.acceptable(coordinator) {
                return Ok(Some(decision.clone()));
            }
            if is_lost || self.lost[coordinator] {
                return Ok(None);
            }
            self.wait_or(&[&life], changes)?;
        }
    }
}

impl Group {
    fn decide(&self, value: u64) -> Result<Decision> {
        let (inner, tags) = (&*self.0, &self.0.tags);
        let number = inner.agreements.fetch_add(1, Ordering::Relaxed);
        let tag = |number: u32| AGREEMENT | (number << 2 & (AGREEMENT - 1));
        // Decisions that others sent on after this member had returned.
        for former in number.saturating_sub(FORMER)..number {
            while inner.collective.try_claim(ANY, tag(former) | Agreement::DECISION)?.is_some() {}
        }
        let tag = tag(number);
        let id = groups(tags).give_id(inner.members[inner.me], tags.node().size())?;
        let decided = Agreement::listen(inner, tag)?;
        inner.take_notices()?;
        let (mut lost, decisive) = (inner.known_lost(), vec![None; inner.members.len()]);
        for (lost, rank) in lost.iter_mut().zip(&*inner.members) {
            *lost |= matches!(tags.node().peer_state(*rank), Some(PeerState::Down(_)));
        }
        let known = Vec::new();
        let result = Agreement { group: inner, tag, value, id, lost, decided, decisive, known }.run();
        if !result.as_ref().is_ok_and(|decision| decision.id == id.to_bytes()) {
            groups(tags).return_id(id);
        }
        let decision = result.inspect_err(|error| {
            if let Error::Excluded(by) = error {
                inner.note_excluded(*by);
            }
        })?;
        if decision.lost[inner.me] {
            let by = match inner.failures.cause() {
                // The others are gone, and this one decided alone.
                Some(Cause::Excluded(by)) if decision.by as usize == inner.me => by,
                _ => inner.members[decision.by as usize],
            };
            inner.note_excluded(by);
            return Err(Error::Excluded(by));
        }
        inner.fence(&decision.lost);
        Ok(decision)
    }

    /// Agrees with all members that are left, whatever happened in collectives before: returns the bitwise
    /// and of their values, the same at all of them, and which members were lost. It succeeds when members
    /// are lost, also meanwhile. All members call it, in the same order as other agreements.
    ///
    /// A value of a member that was lost meanwhile may or may not count.
    ///
    /// From then on the members that are left exchange no messages of this group with those that were lost.
    /// One that is alive, because the others were mistaken or because of [`Group::exclude`], learns of it:
    /// its calls of the group, this one included, fail with [`Error::Excluded`].
    pub fn agree(&self, value: u64) -> Result<(u64, Vec<usize>)> {
        let decision = self.decide(value)?;
        let (inner, tags) = (&*self.0, &self.0.tags);
        // The id is for a group, and there is none.
        if let Ok(id) = Id::from_bytes(&decision.id, inner.members[inner.me], tags.node().size()) {
            groups(tags).return_id(id);
        }
        Ok((decision.value, lost(&decision)))
    }

    /// A group of the members that are left, in the same order. All of them call it, as [`Group::agree`]; it
    /// succeeds whatever happened in collectives before.
    ///
    /// [`Error::Excluded`] at a member that the others take for lost.
    pub fn shrink(&self) -> Result<Group> {
        let decision = self.decide(0)?;
        let inner = &*self.0;
        let left = inner.members.iter().zip(&decision.lost).filter(|(_, lost)| !**lost);
        let left: Vec<_> = left.map(|(rank, _)| *rank).collect();
        let id = Id::from_bytes(&decision.id, left[0], inner.tags.node().size())?;
        Group::agreed(&inner.tags, left, id, inner.choices.clone())
    }

    /// Takes a member for lost, whatever the transport says of it: one that does not answer as the program
    /// expects. Collectives of the group fail as if it had died, and the next [`Group::agree`] or
    /// [`Group::shrink`] excludes it.
    pub fn exclude(&self, member: usize) -> Result<()> {
        let rank = self.0.members.get(member).filter(|_| member != self.0.me);
        let rank = *rank.ok_or_else(|| Error::other(format!("member {member} cannot be excluded here")))?;
        let _ = self.0.fail(0, Error::PeerGone(rank, crate::Down::Excluded));
        Ok(())
    }

    /// Makes all collectives of the group fail with [`Error::Revoked`], here and at all other members as soon
    /// as they call or wait for one, and ends its tagged messages ([`Group::tags`]): those that have not
    /// begun, and all later ones, here at once and at the others when word reaches them, whatever call they
    /// wait in. [`Group::agree`] and [`Group::shrink`] still work, and so do other groups.
    pub fn revoke(&self) {
        let _ = self.0.fail(0, Error::Revoked);
    }
}

fn lost(decision: &Decision) -> Vec<usize> {
    decision.lost.iter().enumerate().filter(|(_, lost)| **lost).map(|(member, _)| member).collect()
}

#[cfg(test)]
mod tests;
