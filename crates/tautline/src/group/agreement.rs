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
            self.take_decisions()?;
            if let Some(latest) = self.latest().filter(|latest| latest.by as usize > me) {
                // The others take this member for lost.
                return Ok(latest.clone());
            }
            // Nobody waits for the end of a channel to one whose loss others have seen.
            waiting.retain(|(member, _)| self.decisive[*member].is_none() && !self.lost[*member]);
            if waiting.is_empty() {
                break;
            }
            let requests = waiting.iter().map(|(_, receive)| receive as &dyn Request);
            let requests: Vec<_> = requests.chain([&self.decided as &dyn Request]).collect();
            let mut ended = tags.wait_some(&requests)?;
            ended.retain(|index| *index < waiting.len());
            for index in ended.into_iter().rev() {
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
    /// the coordinator is lost.
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
            let is_lost = life.test()?;
            self.take_decisions()?;
            if let Some(decision) = self.acceptable(coordinator) {
                return Ok(Some(decision.clone()));
            }
            if is_lost {
                return Ok(None);
            }
            tags.wait_some(&[&life, &self.decided])?;
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
mod tests {
    use std::net::UdpSocket;
    use std::sync::Barrier;

    use tautline_node::link::JobKey;

    use super::*;
    use crate::tags::ANY;
    use crate::{Endpoint, Job, Member};

    /// Runs `program` once for each member of a job, each in a thread, when all have channels to all.
    fn run(n: usize, program: impl Fn(&Group) + Sync) {
        let sockets: Vec<_> = (0..n).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let members: Vec<_> =
            sockets.iter().map(|socket| Member::new(socket.local_addr().unwrap())).collect();
        let ready = Barrier::new(n);
        std::thread::scope(|scope| {
            for (rank, socket) in (0..).zip(sockets) {
                let job = Job::new(rank, JobKey::new([42; 32]), members.clone()).with_socket(socket);
                let (program, ready) = (&program, &ready);
                scope.spawn(move || {
                    let ep = Endpoint::builder().join_job(job).unwrap();
                    let world = ep.world().unwrap();
                    world.barrier().unwrap();
                    // A notice of a failure would end the barrier of another member.
                    ready.wait();
                    program(&world);
                    // What was sent to members that close at the same time may be undelivered.
                    match ep.close() {
                        Ok(()) | Err(Error::Undelivered(_)) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                });
            }
        });
    }

    /// What member 0 decides.
    fn decision(group: &Inner) -> Decision {
        let id = groups(&group.tags).give_id(group.members[group.me], group.tags.node().size()).unwrap();
        Decision { by: 0, value: 77, id: id.to_bytes(), lost: vec![false; group.members.len()] }
    }

    /// G-11: a member that takes a decision sends it on: the coordinator has told nobody else.
    #[test]
    fn decisions_are_sent_on() {
        let told = Barrier::new(2);
        run(3, |world| {
            if world.member() == 0 {
                let tags = &world.0.collective;
                let reports = [1, 2].map(|member| {
                    tags.start_receive(member, AGREEMENT | Agreement::REPORT, vec![0; 8 + 3])?.wait()
                });
                let bytes = decision(&world.0).to_bytes();
                let sent = tags.send_buffered(2, AGREEMENT | Agreement::DECISION, &bytes);
                told.wait();
                assert!(reports.iter().all(Result::is_ok) && sent.is_ok(), "{reports:?}, {sent:?}");
            } else {
                let agreed = world.agree(1);
                if world.member() == 2 {
                    told.wait();
                }
                assert_eq!(agreed.unwrap(), (77, vec![]));
            }
            // The others close, so a member that still waits decides alone.
        });
    }

    /// G-9, G-11: a coordinator that learns of a decision of a former one makes it its own.
    #[test]
    fn coordinators_adopt_decisions() {
        let over = Barrier::new(3);
        run(3, |world| {
            let tags = &world.0.collective;
            match world.member() {
                1 => {
                    world.exclude(0).unwrap();
                    let agreed = world.agree(1);
                    over.wait();
                    assert_eq!(agreed.unwrap(), (77, vec![]));
                }
                2 => {
                    let theirs = Agreement::listen(&world.0, AGREEMENT).unwrap();
                    let bytes = decision(&world.0).to_bytes();
                    tags.send_buffered(1, AGREEMENT | Agreement::DECISION, &bytes).unwrap();
                    let theirs = theirs.wait();
                    over.wait();
                    let theirs = Decision::from_bytes(&theirs.unwrap().1).unwrap();
                    assert_eq!((theirs.by, theirs.value, theirs.lost), (1, 77, vec![false; 3]));
                }
                _ => drop(over.wait()),
            }
        });
    }

    /// E-17, G-8: members that wait for tagged messages of a group learn that it was revoked, as do those
    /// that use them later. Those of other groups go on, and so does agreement.
    #[test]
    fn a_revoked_group_exchanges_no_tagged_messages() {
        run(3, |world| {
            let group = world.duplicate().unwrap();
            let is_revoked = |error: Error| matches!(error, Error::Revoked);
            match world.member() {
                0 => group.revoke(),
                1 => assert!(group.tags().receive(ANY, 1, &mut Vec::new()).is_err_and(is_revoked)),
                _ => assert!(group.tags().probe(1, ANY).is_err_and(is_revoked)),
            }
            for other in (0..3).filter(|other| *other != world.member() as u32) {
                assert!(group.tags().send(other, 1, b"late").is_err_and(is_revoked));
                assert!(group.tags().receive(other, 1, &mut Vec::new()).is_err_and(is_revoked));
                world.tags().send(other, 1, b"on").unwrap();
            }
            for other in (0..3).filter(|other| *other != world.member() as u32) {
                let mut bytes = vec![0; 2];
                world.tags().receive(other, 1, &mut bytes).unwrap();
                assert_eq!(bytes, b"on");
            }
            assert!(group.barrier().is_err_and(is_revoked));
            let shrunk = group.shrink().unwrap();
            assert_eq!(shrunk.ranks(), world.ranks());
            shrunk.barrier().unwrap();
        });
    }

    /// G-13: a rank that was excluded, and decides alone because the others have closed, names the one that
    /// said so first.
    #[test]
    fn an_excluded_rank_does_not_name_itself() {
        run(2, |world| {
            if world.member() == 1 {
                world.0.note_excluded(0);
                for _ in 0..2 {
                    let shrunk = world.shrink().map(|group| group.size());
                    assert!(matches!(shrunk, Err(Error::Excluded(0))), "{shrunk:?}");
                }
            }
        });
    }

    /// G-9: nobody waits for a member whose loss a report tells.
    #[test]
    fn reported_losses_count() {
        let over = Barrier::new(3);
        run(3, |world| match world.member() {
            2 => drop(over.wait()),
            me => {
                if me == 1 {
                    world.exclude(2).unwrap();
                }
                let agreed = world.agree(1);
                over.wait();
                assert_eq!(agreed.unwrap(), (1, vec![2]));
            }
        });
    }

    /// G-11: whoever has reported to a coordinator takes no decision of an earlier one, unless the
    /// coordinator has taken it.
    #[test]
    fn old_decisions_are_not_taken() {
        run(1, |world| {
            let group = &*world.0;
            let id = groups(&group.tags).give_id(0, 1).unwrap();
            let decided = Agreement::listen(group, AGREEMENT).unwrap();
            let old = decision(group);
            let newer = Decision { by: 2, ..old.clone() };
            let (lost, decisive) = (vec![false; 3], vec![None; 3]);
            let (tag, value, known) = (AGREEMENT, 0, vec![old.clone()]);
            let mut agreement = Agreement { group, tag, value, id, lost, decided, decisive, known };
            assert_eq!(agreement.acceptable(0), Some(&old));
            assert_eq!(agreement.acceptable(1), None);
            agreement.decisive[1] = Some(0);
            assert_eq!(agreement.acceptable(1), Some(&old));
            agreement.known.push(newer.clone());
            assert_eq!(agreement.acceptable(1), Some(&newer));
        });
    }

    #[test]
    fn decisions_survive_the_wire() {
        let decision =
            Decision { by: 2, value: 1 << 63 | 5, id: [1, 2, 3, 4], lost: vec![true, false, true] };
        assert_eq!(Decision::from_bytes(&decision.to_bytes()), Some(decision));
        assert_eq!(Decision::from_bytes(&[0; HEAD - 1]), None);
    }
}
