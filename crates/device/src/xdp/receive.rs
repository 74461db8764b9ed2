//! Receiving: frames are read where the kernel put them, and lent to the batch (D-10). While nothing arrives this looks at memory and at nothing else.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::Xdp;
use super::attach::{MAIL_NEWS, MAIL_UDP};
use super::headers::{Mac, Parsed, Sender, Unfit, parse};
use super::neighbour;
use crate::sys::ReceivedChunk;
use crate::{Datagram, RxBatch};

/// Frames of one receive: what bounds a poll (N-3).
const FRAMES: usize = 64;
/// Looks at a socket after its word last changed. The word is counted up a moment before what came can be read, so that one look
/// might be too early.
const LOOKS: u32 = 64;
/// Receives after which both sockets are looked at whatever their words say, in case that moment was long.
const LOOK_ANYWAY: u32 = 1 << 16;

/// Receives, one of which is followed by a look at the clock if nothing came, and perhaps at the program: few, because whoever sleeps receives seldom.
const CARE_RECEIVES: u32 = 4;

/// Looks at the rings for each at everything else, while nothing comes: they are what a waiting program waits for, and the pause between
/// two looks is on each message's way.
const GLANCES: u32 = 8;

/// Frames in a row, hardly answered, that make a stream; and what is remembered of them at most.
const STREAK: u32 = 16;
const STREAK_MAX: u32 = 64;
/// A doorbell counts against so many frames of a stream: less than the frames that an acknowledgement is for, so that those end none.
pub(super) const ANSWER: u32 = 16;
/// How long a receiver that has caught up with a stream looks away.
const BREATH: u32 = 12;

/// Lets the kernel get ahead with a stream. Whoever looks all the time at the word that it writes makes its line travel to and fro for every frame.
#[cold]
fn breathe() {
    for _ in 0..BREATH {
        std::hint::spin_loop();
    }
}

/// What is known of the mail for the socket.
#[derive(Debug, Default)]
pub(super) struct Post {
    udp_seen: u64,
    news_seen: u64,
    /// Looks that are still due, at the socket and at the kernel's tables.
    looks: u32,
    news_looks: u32,
    receives: u32,
    /// The socket had its turn, so the ring has the next.
    had_turn: bool,
}

impl Xdp {
    #[inline]
    pub(super) fn receive_frames(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        self.take_back(batch);
        if let Some(trial) = &mut self.trial {
            trial.look();
        }
        if self.health.gone {
            self.come_back();
        }
        let news = self.mail.get(MAIL_NEWS);
        if news != self.post.news_seen || self.post.news_looks > 0 {
            self.look_for_news(news);
        }
        if self.has_mail() {
            self.post.had_turn = true;
            let count = self.udp.recv(batch)?;
            self.post.looks = if count > 0 { LOOKS } else { self.post.looks.saturating_sub(1) };
            if count > 0 {
                self.look_after_program(true);
                return Ok(count);
            }
        }
        self.post.had_turn = false;
        if !self.queues.has_some() && (self.busy || self.queues.wants_knock()) {
            self.knock();
        }
        let mut refused = 0;
        while batch.frames().len() < FRAMES {
            let Some(frame) = self.queues.take() else { break };
            if frame.more {
                if !self.gather(batch, frame) {
                    refused += 1;
                }
            } else if !self.accept(batch, frame) {
                refused += 1;
            }
            if self.layout.slot_chunks > 1 && !batch.has_room() {
                break;
            }
        }
        let count = batch.frames().len();
        if count + refused > 0 {
            if self.trial.is_some() {
                self.frame_came();
            }
            self.streak = (self.streak + count as u32).min(STREAK_MAX);
            self.queues.finish_taking();
        } else if let Some(trial) = &mut self.trial {
            trial.found_nothing();
        }
        if refused > 0 {
            self.queues.submit_chunks();
        }
        if count == 0 && self.post.receives.is_multiple_of(CARE_RECEIVES) {
            self.look_after_program(false);
        }
        Ok(count)
    }

    /// Whether there is nothing to be done: no frame, no mail, nobody to knock for.
    #[inline]
    pub(super) fn sees_nothing(&mut self) -> bool {
        if let Some(trial) = &mut self.trial {
            trial.look();
            trial.found_nothing();
        }
        if self.streak > STREAK {
            breathe();
        }
        (0..GLANCES).all(|_| !self.queues.has_some())
            && !self.busy
            && (self.post.looks | self.post.news_looks) == 0
            && self.mail.get(MAIL_UDP) == self.post.udp_seen
            && self.mail.get(MAIL_NEWS) == self.post.news_seen
            && !self.queues.wants_knock()
    }

    /// Takes back the chunks that the batch had, and those that came back by themselves.
    #[inline]
    fn take_back(&mut self, batch: &mut RxBatch) {
        let Xdp { queues, umem, .. } = self;
        let mut any = false;
        let mut fill = |chunk| {
            any = true;
            queues.fill(chunk);
        };
        batch.take_back(umem, &mut fill);
        umem.take_returned(&mut fill);
        if any {
            queues.submit_chunks();
        }
    }

    #[cold]
    fn look_for_news(&mut self, word: u64) {
        let fresh = word != self.post.news_seen;
        self.post.news_seen = word;
        self.post.news_looks = if fresh { LOOKS } else { self.post.news_looks - 1 };
        self.hear_news();
        self.attached.answer();
    }

    /// Whether the socket shall be looked at now.
    #[inline]
    fn has_mail(&mut self) -> bool {
        let word = self.mail.get(MAIL_UDP);
        self.post.receives += 1;
        if word != self.post.udp_seen {
            (self.post.udp_seen, self.post.looks) = (word, LOOKS);
        } else if self.post.receives >= LOOK_ANYWAY {
            (self.post.receives, self.post.looks) = (0, self.post.looks.max(1));
            self.post.news_looks = self.post.news_looks.max(1);
        }
        self.post.looks > 0 && !self.post.had_turn | !self.queues.has_some()
    }

    #[cold]
    fn knock(&mut self) {
        if self.loses_doorbell() {
            return;
        }
        self.counters.receive_calls += 1;
        self.queues.knock();
    }

    /// Lends a frame to the batch; false if it is no frame of ours.
    #[inline]
    fn accept(&mut self, batch: &mut RxBatch, frame: ReceivedChunk) -> bool {
        match parse(frame.bytes(&self.umem)) {
            Ok(Parsed { start, end, from }) => {
                let source = self.source(from);
                self.counters.frames_received += 1;
                self.counters.bytes_received += (end - start) as u64;
                batch.lend(&self.umem, frame, (start, end), source);
                true
            }
            Err(unfit) => {
                self.refuse(unfit);
                self.queues.fill(frame.into_chunk());
                false
            }
        }
    }

    /// A frame that lies in several chunks is put together in a buffer of the batch: the only copy there is.
    #[cold]
    fn gather(&mut self, batch: &mut RxBatch, first: ReceivedChunk) -> bool {
        let mut whole = Vec::with_capacity(self.layout.stride() + self.layout.chunk);
        let mut next = Some(first);
        while let Some(part) = next {
            whole.extend_from_slice(part.bytes(&self.umem));
            let more = part.more;
            self.queues.fill(part.into_chunk());
            next = if more { self.queues.take_rest() } else { None };
        }
        self.queues.submit_chunks();
        match parse(&whole) {
            Ok(Parsed { start, end, from }) => {
                let source = self.source(from);
                self.counters.frames_received += 1;
                self.counters.bytes_received += (end - start) as u64;
                batch.push_from(source, &whole[start..end])
            }
            Err(unfit) => {
                self.refuse(unfit);
                false
            }
        }
    }

    #[cold]
    fn refuse(&mut self, unfit: Unfit) {
        match unfit {
            Unfit::Shape => self.refused.shape += 1,
            Unfit::Checksum => self.refused.checksum += 1,
        }
    }

    /// Who a frame is from: of a raw frame, whoever has that hardware address.
    #[inline]
    fn source(&mut self, from: Sender) -> Option<SocketAddr> {
        match from {
            Sender::Ip(source) => Some(source),
            Sender::Raw(mac, port) if self.sources => self.raw_source(mac, port),
            Sender::Raw(..) => None,
        }
    }

    #[cold]
    fn raw_source(&mut self, mac: Mac, port: u16) -> Option<SocketAddr> {
        let of = |senders: &[(Mac, IpAddr)]| senders.iter().find(|(m, _)| *m == mac).map(|(_, ip)| *ip);
        let ip = of(&self.senders).or_else(|| {
            let v4 = self.local.is_ipv4();
            self.senders = neighbour::neighbours(&mut self.asks, self.place.upper.index);
            self.senders.retain(|(_, ip)| ip.is_ipv4() == v4);
            of(&self.senders)
        });
        ip.map(|ip| SocketAddr::new(ip, port))
    }
}
