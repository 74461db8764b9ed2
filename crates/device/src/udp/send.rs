//! Sending: the queue becomes trains, the trains become one system call; and what happens when the system
//! refuses.

use std::os::fd::AsFd;

use super::Udp;
use crate::SlotId;
use crate::sys::{self, Errno, Train, TxVectors};

/// The most frames of a train: what every kernel with GSO accepts.
const TRAIN_FRAMES: usize = 64;
/// The most bytes of a train: the largest IP packet without IPv6 and UDP headers.
const TRAIN_BYTES: usize = 65_487;
/// Retries after a refusal that may pass (a full device queue), before the frame counts as lost.
const SEND_RETRIES: usize = 32;

/// The frames that wait for the flush, and what one system call needs to send them.
pub(super) struct Outgoing {
    pub(super) queue: Vec<Queued>,
    trains: Vec<Train>,
    vectors: TxVectors,
}

impl Outgoing {
    pub(super) fn new(batch: usize) -> Outgoing {
        Outgoing {
            queue: Vec::with_capacity(batch),
            trains: Vec::with_capacity(batch),
            vectors: TxVectors::new(batch),
        }
    }
}

/// A frame that waits for the flush.
#[derive(Clone, Copy)]
pub(super) struct Queued {
    pub(super) route: u32,
    pub(super) slot: SlotId,
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Queued {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl Udp {
    /// Hands the queue to the network.
    #[inline]
    pub(super) fn send_queue(&mut self) {
        match *self.outgoing.queue.as_slice() {
            [] => return,
            // A single frame is sent by `sendto`: on loopback `sendmsg` costs some 60 ns more, and `sendmmsg`
            // 170 ns.
            [frame] => self.send_one(frame),
            _ => self.send_batch(),
        }
        self.outgoing.queue.clear();
        if self.refresh.is_due() {
            self.refresh_paths();
        }
    }

    #[inline]
    fn send_one(&mut self, frame: Queued) {
        if self.routes[frame.route as usize].is_new {
            self.connect_new(frame.route);
        }
        let route = &mut self.routes[frame.route as usize];
        route.sent = route.sent.wrapping_add(1);
        let bytes = self.arena.bytes(frame.slot, frame.start as usize..frame.end as usize);
        self.counters.send_calls += 1;
        let sent = match &route.connected {
            Some(connected) => sys::send_connected(connected.as_fd(), bytes),
            None => sys::send_to(self.socket.as_fd(), bytes, route.to),
        };
        match sent {
            Ok(()) => {
                self.counters.frames_sent += 1;
                self.counters.bytes_sent += frame.len() as u64;
            }
            Err(errno) => {
                let train = Train { first: 0, frames: 1, route: frame.route, segment: 0 };
                self.train_refused(train, errno);
            }
        }
    }

    fn send_batch(&mut self) {
        self.plan_trains();
        for at in 0..self.outgoing.trains.len() {
            let route = self.outgoing.trains[at].route;
            if self.routes[route as usize].is_new {
                self.connect_new(route);
            }
        }
        let mut at = 0;
        while at < self.outgoing.trains.len() {
            match self.send_trains(at..self.outgoing.trains.len()) {
                Ok(sent) => at += sent,
                Err(errno) => {
                    self.train_refused(self.outgoing.trains[at], errno);
                    at += 1;
                }
            }
        }
    }

    /// Joins consecutive frames of one route and size; the last frame of a train may be shorter.
    fn plan_trains(&mut self) {
        self.outgoing.trains.clear();
        let mut bytes = 0;
        for (index, frame) in self.outgoing.queue.iter().enumerate() {
            let len = frame.len();
            if let Some(train) = self.outgoing.trains.last_mut() {
                let segment = train.segment as usize;
                let full = bytes == train.frames as usize * segment;
                let fits = (train.frames as usize) < TRAIN_FRAMES && bytes + len <= TRAIN_BYTES;
                let route = &self.routes[frame.route as usize];
                if train.route == frame.route && route.gso && full && fits && (1..=segment).contains(&len) {
                    train.frames += 1;
                    bytes += len;
                    continue;
                }
            }
            let route = &mut self.routes[frame.route as usize];
            route.sent = route.sent.wrapping_add(1);
            // Frame lengths fit u16, because the arena's slots do.
            self.outgoing.trains.push(Train {
                first: index as u32,
                frames: 1,
                route: frame.route,
                segment: len as u16,
            });
            bytes = len;
        }
    }

    /// Sends some of the planned trains by one call, and counts those that left.
    fn send_trains(&mut self, range: std::ops::Range<usize>) -> Result<usize, Errno> {
        let sent = self.call(None, range.clone())?;
        let trains = &self.outgoing.trains[range][..sent];
        count_sent(&mut self.counters, trains, &self.outgoing.queue);
        Ok(sent)
    }

    /// Sends one train, planned or not, and counts it.
    fn send_train(&mut self, train: Train) -> Result<(), Errno> {
        let sent = self.call(Some(train), 0..0)?;
        count_sent(&mut self.counters, &[train][..sent], &self.outgoing.queue);
        Ok(())
    }

    fn call(&mut self, alone: Option<Train>, range: std::ops::Range<usize>) -> Result<usize, Errno> {
        let Udp { socket, outgoing: Outgoing { queue, trains, vectors }, arena, routes, counters, .. } = self;
        counters.send_calls += 1;
        let trains = alone.as_ref().map_or(&trains[range], std::slice::from_ref);
        // Frames of several routes go through the main socket, by one call.
        let first = trains[0].route;
        let connected =
            routes[first as usize].connected.as_ref().filter(|_| trains.iter().all(|t| t.route == first));
        vectors.send(
            connected.unwrap_or(socket).as_fd(),
            trains,
            |index| {
                let frame = queue[index as usize];
                arena.bytes(frame.slot, frame.start as usize..frame.end as usize)
            },
            |route| connected.is_none().then_some(routes[route as usize].to),
        )
    }

    /// Handles a refused train: retries what may pass, splits what the path's device cannot segment, and
    /// counts the rest as lost.
    #[cold]
    fn train_refused(&mut self, train: Train, mut errno: Errno) {
        for _ in 0..SEND_RETRIES {
            // A refused connection is the error of an earlier frame, not of this one.
            if !matches!(
                errno,
                Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR | Errno::CONNREFUSED
            ) {
                break;
            }
            match self.send_train(train) {
                Ok(()) => return,
                Err(next) => errno = next,
            }
        }
        match errno {
            Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP if train.frames > 1 => {
                self.send_singly(train, errno);
            }
            _ => self.train_lost(train, errno),
        }
    }

    /// Sends a refused train frame by frame. If that works, the path's device has no segmentation, and this
    /// route sends no more trains.
    fn send_singly(&mut self, train: Train, errno: Errno) {
        let failures = self.counters.send_failures;
        for first in train.first..train.first + train.frames {
            let alone = Train { first, frames: 1, ..train };
            if let Err(errno) = self.send_train(alone) {
                self.train_refused(alone, errno);
            }
        }
        if self.counters.send_failures == failures && errno != Errno::MSGSIZE {
            self.routes[train.route as usize].gso = false;
        }
    }

    fn train_lost(&mut self, train: Train, errno: Errno) {
        self.counters.send_failures += u64::from(train.frames);
        if errno == Errno::MSGSIZE {
            let len = self.outgoing.queue[train.first as usize].len();
            self.frame_too_long(train.route, len);
        }
    }
}

fn count_sent(counters: &mut crate::Counters, trains: &[Train], queue: &[Queued]) {
    for train in trains {
        let last = queue[(train.first + train.frames - 1) as usize].len();
        let before = u64::from(train.frames - 1) * u64::from(train.segment);
        counters.frames_sent += u64::from(train.frames);
        counters.bytes_sent += before + last as u64;
    }
}
