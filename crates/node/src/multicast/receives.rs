//! Receives of multicasts, and a message's way into its receive.

use super::stream::Stream;
use super::{Group, Multicast, MulticastReceiveId};
use crate::SendError;
use crate::memory::{Name, Slab};
use crate::tags::{Buffer, Ended, Failure, Status};

const TOO_MANY: SendError = SendError::TooMany("multicast receives whose results nobody has taken");

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) group: u32,
    /// The root whose message it takes; any if none.
    source: Option<u32>,
    buffer: Buffer,
    /// Its end.
    done: Option<Result<Status, Failure>>,
    /// Nobody waits for it: it is removed when it ends.
    detached: bool,
}

impl Multicast {
    /// Begins to receive the next message of a root, or of any, that no earlier receive takes. The length of
    /// the buffer is the room for it.
    pub(crate) fn receive(
        &mut self,
        id: u32,
        source: Option<u32>,
        buffer: Buffer,
    ) -> Result<MulticastReceiveId, SendError> {
        let receive = Receive { group: id, source, buffer, done: None, detached: false };
        let name = self.receives.insert(receive).ok_or(TOO_MANY)?;
        if let Some(why) = self.why_failed(id) {
            self.end_receive(name, Err(why));
            return Ok(MulticastReceiveId(name));
        }
        let Some(group) = self.groups.get_mut(&id) else { return Ok(MulticastReceiveId(name)) };
        group.posted.push_back(name);
        let roots: Vec<u32> = match source {
            Some(root) => vec![root],
            None => group.streams.keys().copied().collect(),
        };
        for root in roots {
            self.deliver_stored(id, root);
        }
        Ok(MulticastReceiveId(name))
    }

    /// Gives the program what has arrived of a root, as far as there are receives for it.
    pub(super) fn deliver_stored(&mut self, id: u32, root: u32) {
        let Multicast { groups, receives, .. } = self;
        let Some(group) = groups.get_mut(&id) else { return };
        let mut ended = Vec::new();
        let Group { streams, posted, me, members, .. } = group;
        let Some(stream) = streams.get_mut(&root).filter(|_| root != *me) else { return };
        while let Some(packet) = stream.untaken() {
            if packet.flush {
                stream.take();
                continue;
            }
            let Some(name) = stream.filling.or_else(|| matching(posted, receives, root, stream.whole > 0))
            else {
                break;
            };
            let (data, last) = (packet.data.bytes(), packet.last);
            let source = members[root as usize];
            if let Some(result) = fill(receives, name, (stream.got, last), data, source) {
                ended.push((name, result));
            }
            let len = data.len();
            note_filled(stream, name, len, last);
            stream.take();
        }
        while stream.trim().is_some() {}
        for (name, result) in ended {
            self.end_receive(name, result);
        }
        self.acknowledge(id, root);
    }

    /// Gives the program bytes as they arrive, if it has taken all that came before and there is a receive
    /// for them. False if they must be kept.
    pub(super) fn deliver_now(&mut self, id: u32, root: u32, data: &[u8], last: bool) -> bool {
        let Multicast { groups, receives, .. } = self;
        let Some(group) = groups.get_mut(&id) else { return false };
        let Group { streams, posted, members, .. } = group;
        let Some(stream) = streams.get_mut(&root) else { return false };
        if stream.untaken().is_some() {
            return false;
        }
        let whole = last && stream.got == 0;
        let Some(name) = stream.filling.or_else(|| matching(posted, receives, root, whole)) else {
            return false;
        };
        let result = fill(receives, name, (stream.got, last), data, members[root as usize]);
        note_filled(stream, name, data.len(), last);
        if let Some(result) = result {
            self.end_receive(name, result);
        }
        true
    }

    /// Ends a receive.
    pub(super) fn end_receive(&mut self, name: Name, result: Result<Status, Failure>) {
        self.activity += 1;
        let Some(receive) = self.receives.get_mut(name) else { return };
        if receive.detached {
            self.receives.remove(name);
        } else if receive.done.is_none() {
            receive.done = Some(result);
        }
    }

    /// Returns whether a receive has ended.
    #[inline]
    pub(crate) fn is_received(&self, id: MulticastReceiveId) -> bool {
        self.receives.get(id.0).is_none_or(|receive| receive.done.is_some())
    }

    /// Takes the result of a receive that has ended, and its buffer.
    pub(crate) fn take_received(&mut self, id: MulticastReceiveId) -> Option<Ended<Status>> {
        let result = self.receives.get(id.0)?.done?;
        Some((result, self.receives.remove(id.0)?.buffer))
    }

    /// Forgets a receive: it takes no message, or drops the rest of the one that it takes.
    pub(crate) fn forget_receive(&mut self, id: MulticastReceiveId) {
        if self.take_received(id).is_some() {
            return;
        }
        let Some(receive) = self.receives.get_mut(id.0) else { return };
        (receive.detached, receive.buffer) = (true, Buffer::Absent);
        let group = receive.group;
        let Some(group) = self.groups.get_mut(&group) else { return };
        if let Some(at) = group.posted.iter().position(|posted| *posted == id.0) {
            group.posted.remove(at);
            self.receives.remove(id.0);
        }
    }
}

/// Takes the first receive out of the queue that takes the next message of a root. One that takes messages
/// of any root takes whole ones only: it would hold up other roots while it waits for the rest.
fn matching(
    posted: &mut std::collections::VecDeque<Name>,
    receives: &Slab<Receive>,
    root: u32,
    whole: bool,
) -> Option<Name> {
    let takes = |name: &Name| {
        receives.get(*name).is_some_and(|receive| receive.source.map_or(whole, |source| source == root))
    };
    let at = posted.iter().position(takes)?;
    posted.remove(at)
}

/// Writes the next bytes of a message, of which `got` came before. Returns the result if they are the last.
fn fill(
    receives: &mut Slab<Receive>,
    name: Name,
    (got, last): (u64, bool),
    data: &[u8],
    source: crate::Rank,
) -> Option<Result<Status, Failure>> {
    let receive = receives.get_mut(name)?;
    receive.buffer.write(got, data);
    let len = got + data.len() as u64;
    let status = Status { source, tag: 0, len };
    let absent = receive.buffer == Buffer::Absent;
    let fits = absent || len <= receive.buffer.len();
    last.then_some(if fits { Ok(status) } else { Err(Failure::Truncated(status)) })
}

fn note_filled(stream: &mut Stream, name: Name, len: usize, last: bool) {
    (stream.filling, stream.got) = if last { (None, 0) } else { (Some(name), stream.got + len as u64) };
}
