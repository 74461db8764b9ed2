//! The contexts of groups whose members may end all messages in them at once (E-17).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::matching::Pattern;
use super::peers::Answer;
use super::receives::ReceiveState;
use super::requests::{Failure, SendState};
use super::{Buffer, Tags};
use crate::Rank;

/// The groups of a lane.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By context.
    known: BTreeMap<u32, Group>,
    /// Contexts that peers have revoked whose groups are not known here.
    early: Vec<(Rank, u32)>,
}

#[derive(Debug)]
struct Group {
    members: Arc<[Rank]>,
    is_revoked: bool,
}

/// Revocations of groups that are not known here, kept for each peer: the latest ones.
const MAX_EARLY: usize = 4096;

fn record(context: u32) -> Answer {
    Answer::Fence { first: context, last: context, all: true }
}

impl Tags {
    /// Adds the group of a context.
    pub(crate) fn add_group(&mut self, context: u32, members: Arc<[Rank]>) {
        let before = self.groups.early.len();
        self.groups.early.retain(|(by, of)| *of != context || !members.contains(by));
        self.groups.known.insert(context, Group { members, is_revoked: false });
        if self.groups.early.len() < before {
            self.revoke(context);
        }
    }

    /// Forgets a group. Returns whether it was revoked.
    pub(crate) fn remove_group(&mut self, context: u32) -> bool {
        self.groups.known.remove(&context).is_some_and(|group| group.is_revoked)
    }

    /// Why no messages of a context are exchanged with anybody, if that is so.
    pub(crate) fn why_revoked(&self, context: u32) -> Option<Failure> {
        let group = self.groups.known.get(&context).filter(|_| self.is_restricted)?;
        group.is_revoked.then_some(Failure::Revoked)
    }

    /// Forgets what a peer that is lost has revoked: those that it told first tell this node, too.
    pub(super) fn forget_revocations(&mut self, by: Rank) {
        self.groups.early.retain(|(rank, _)| *rank != by);
    }

    /// A peer says that contexts are revoked. False if it names several.
    pub(super) fn handle_revocation(&mut self, by: Rank, contexts: RangeInclusive<u32>) -> bool {
        let context = *contexts.start();
        if context != *contexts.end() {
            return false;
        }
        match self.groups.known.get(&context) {
            Some(group) if group.members.contains(&by) => self.revoke(context),
            // Another group of this number, that this rank is not in.
            Some(_) => {}
            None if self.groups.early.contains(&(by, context)) => {}
            None => {
                let early = &mut self.groups.early;
                // The oldest is most likely of a group that this node has left.
                if early.iter().filter(|(rank, _)| *rank == by).count() == MAX_EARLY
                    && let Some(oldest) = early.iter().position(|(rank, _)| *rank == by)
                {
                    early.remove(oldest);
                }
                early.push((by, context));
            }
        }
        true
    }

    /// Ends all messages in the context of a group that have not begun, and tells the other members.
    pub(crate) fn revoke(&mut self, context: u32) {
        let Some(group) = self.groups.known.get(&context).filter(|group| !group.is_revoked) else { return };
        let members = group.members.clone();
        self.end_context(context, &members);
        if let Some(group) = self.groups.known.get_mut(&context) {
            group.is_revoked = true;
        }
        self.is_restricted = true;
        for member in members.iter().filter(|member| self.peers.is_up(**member)).copied().collect::<Vec<_>>()
        {
            self.answer(member, record(context));
        }
    }

    /// Ends what has not begun, and drops the messages that wait. Sends that their receivers were told of end
    /// when these have dropped them.
    fn end_context(&mut self, context: u32, members: &[Rank]) {
        self.activity += 1;
        for name in self.sends.names().collect::<Vec<_>>() {
            let queued = self
                .sends
                .get(name)
                .filter(|send| send.context == context && matches!(send.state, SendState::Queued));
            if let Some(to) = queued.map(|send| send.to) {
                self.peers.get_mut(to).into_iter().for_each(|peer| peer.queue.retain(|it| *it != name));
                self.end_send(name, Err(Failure::Revoked));
            }
        }
        for name in self.receives.names().collect::<Vec<_>>() {
            if let Some(ReceiveState::Posted { posted, .. }) =
                self.receives.get(name).map(|receive| receive.state)
                && self.matcher.posted_key(posted).context == context
            {
                self.matcher.cancel(posted);
                self.end_receive(name, Err(Failure::Revoked));
            }
        }
        for member in members {
            for waiting in self.matcher.all_from(*member) {
                let (key, _) = self.matcher.message(waiting);
                if key.context == context {
                    let pattern = Pattern { context, source: Some(*member), tag: Some(key.tag) };
                    if let Ok(id) = self.receive(pattern, &mut Buffer::Absent) {
                        self.forget_receive(id);
                    }
                }
            }
        }
    }

    /// Tells a member that has a channel now which groups were revoked.
    pub(super) fn tell_revoked(&mut self, member: Rank) {
        if !self.is_restricted {
            return;
        }
        let revoked =
            self.groups.known.iter().filter(|(_, group)| group.is_revoked && group.members.contains(&member));
        for context in revoked.map(|(context, _)| *context).collect::<Vec<_>>() {
            self.answer(member, record(context));
        }
    }
}
