//! What a node's program does: it sends messages of all sorts in bursts, several at once, and gives some of them up.

use std::rc::Rc;

use tautline::{Endpoint, Error, Outgoing, Rank, Result, SendError};

use crate::Nanos;
use crate::check::{Begun, Fate};
use crate::content;
use crate::handlers::{Kind, Liveness};
use crate::rng::Rng;
use crate::swarm::NodeOptions;

/// Messages that are being sent at once.
const MAX_OPEN: usize = 6;
/// Bytes of the longest piece.
const MAX_PIECE: usize = 32 * 1024;

/// A message under way.
struct Sending {
    out: Outgoing,
    key: u64,
    total: u64,
    at: u64,
    /// What is being added, and how much of it has been.
    piece: Vec<u8>,
    piece_at: usize,
    /// Given up when this much was sent.
    stop_at: Option<u64>,
}

/// A node's program.
pub(crate) struct Program {
    rng: Rng,
    options: NodeOptions,
    open: Vec<Sending>,
    /// Messages still to be begun.
    left: u64,
    burst: u64,
    next_burst: Nanos,
    /// Buffers for pieces.
    spare: Vec<Vec<u8>>,
    /// Sends refused because the peer was gone.
    pub(crate) refused: u64,
}

/// What is to be sent next.
#[derive(Clone, Copy)]
struct Draft {
    peer: Rank,
    kind: Kind,
    len: u64,
    whole: bool,
}

impl Program {
    pub(crate) fn new(seed: u64, stream: u64, options: NodeOptions, messages: u64) -> Program {
        Program {
            rng: Rng::new(seed, stream),
            options,
            open: Vec::new(),
            left: messages,
            burst: 0,
            next_burst: 0,
            spare: Vec::new(),
            refused: 0,
        }
    }

    /// Begins nothing more.
    pub(crate) fn stop(&mut self) {
        self.left = 0;
        self.burst = 0;
    }

    /// Messages still to be begun or ended.
    pub(crate) fn left(&self) -> u64 {
        self.left + self.open.len() as u64
    }

    /// Whether messages are half sent.
    pub(crate) fn is_sending(&self) -> bool {
        !self.open.is_empty()
    }

    /// Does what can be done now; returns when there will be more to do, if not earlier because something arrived.
    pub(crate) fn step(&mut self, life: &Rc<Liveness>, ep: &Endpoint, size: u32) -> Nanos {
        let now = life.now();
        // Whatever is due is dealt with before the first message, not within the call that sends it.
        let _ = ep.connect((life.rank + 1) % size);
        let batch = self.rng.chance(self.options.batch_ppm).then(|| ep.batch());
        self.go_on(life);
        if self.left > 0 && self.burst == 0 && now >= self.next_burst {
            self.burst = self.rng.magnitude(1, self.options.burst).min(self.left);
            self.next_burst = now + self.rng.below(2 * self.options.gap_ns + 1);
        }
        while self.burst > 0 && self.open.len() < MAX_OPEN {
            let draft = self.draw(life.rank, size);
            match self.begin(life, ep, draft) {
                Ok(()) => {}
                Err(Error::Send(SendError::WouldBlock)) => break,
                Err(Error::Send(SendError::PeerGone(..))) => {
                    self.refused += 1;
                    if self.rng.chance(200_000) {
                        break;
                    }
                }
                Err(other) => {
                    life.check.borrow_mut().violation(format!("a send failed: {other}"));
                    self.stop();
                    break;
                }
            }
            self.burst -= 1;
            self.left -= 1;
        }
        drop(batch);
        match (self.burst > 0, self.left > 0) {
            // Blocked: arrivals will wake us, and if nothing arrives, time.
            (true, _) => now + 1_000_000,
            (false, true) => self.next_burst,
            _ if self.is_sending() => now + 1_000_000,
            _ => Nanos::MAX,
        }
    }

    fn draw(&mut self, me: Rank, size: u32) -> Draft {
        let rng = &mut self.rng;
        let mut peer = rng.below(u64::from(size)) as Rank;
        if peer == me && !rng.chance(100_000) {
            peer = (peer + 1) % size;
        }
        let kind = match rng.below(100) {
            0..=49 => Kind::Short,
            50..=59 => Kind::Echo,
            60..=61 => Kind::PanicShort,
            62..=84 => Kind::Stream,
            85..=89 => Kind::Slow,
            90..=93 => Kind::Early,
            94..=95 => Kind::Panic,
            _ => Kind::Relay,
        };
        let small = self.options.small_ppm;
        let largest = if kind.is_short() || rng.chance(small) { 1_000 } else { self.options.largest };
        let len = rng.magnitude(0, largest.max(1));
        let whole = kind.is_short() || len <= 1_000 && rng.chance(500_000);
        Draft { peer, kind, len, whole }
    }

    fn begin(&mut self, life: &Rc<Liveness>, ep: &Endpoint, draft: Draft) -> Result<()> {
        let Draft { peer, kind, len, whole } = draft;
        if whole {
            return life.post(ep, peer, kind, len as usize);
        }
        // First what may make progress, and so meet the peer anew; nothing that follows does, unless it fails.
        if self.rng.chance(10_000) {
            self.expect_refusals(life, ep, peer)?;
        }
        if life.is_new(peer, life.channel(ep, peer)) {
            life.post(ep, peer, Kind::Short, 8)?;
        }
        let out = ep.try_begin(peer, life.name(ep, kind)?, len)?;
        let channel = life.channel(ep, peer);
        let given_up = len > 0 && self.rng.chance(self.options.give_up_ppm);
        let stop_at = given_up.then(|| self.rng.below(len));
        let key = life.fresh_key();
        let fate = if given_up { Fate::GivenUp } else { Fate::Whole };
        life.note(peer, channel, Begun { key, len, kind, fate });
        let mut piece = self.spare.pop().unwrap_or_default();
        piece.clear();
        self.open.push(Sending { out, key, total: len, at: 0, piece, piece_at: 0, stop_at });
        self.go_on(life);
        Ok(())
    }

    /// What a correct library refuses.
    fn expect_refusals(&mut self, life: &Liveness, ep: &Endpoint, peer: Rank) -> Result<()> {
        let unknown = ep.try_send(peer, "nobody", b"x");
        let long = ep.try_begin(peer, life.name(ep, Kind::Short)?, 1 << 20).map(drop);
        for (result, name) in [(unknown, "an unknown handler"), (long, "a long message for a short handler")]
        {
            match result {
                Err(Error::Send(
                    SendError::UnknownHandler(_) | SendError::TooLongForHandler(_) | SendError::PeerGone(..),
                )) => {}
                Err(error @ Error::Send(SendError::WouldBlock)) => return Err(error),
                other => life.check.borrow_mut().violation(format!("{name}: {other:?}")),
            }
        }
        Ok(())
    }

    /// Adds pieces to every message under way.
    fn go_on(&mut self, life: &Liveness) {
        let mut i = 0;
        while i < self.open.len() {
            match self.add_pieces(i) {
                Ok(true) => i += 1,
                Ok(false) => {
                    let mut done = self.open.swap_remove(i);
                    self.spare.push(std::mem::take(&mut done.piece));
                    if let Err(error) = finish(done) {
                        let gone = matches!(error, Error::Send(SendError::PeerGone(..)));
                        if !gone {
                            life.check.borrow_mut().violation(format!("ending a message failed: {error}"));
                        }
                    }
                }
                Err(Error::Send(SendError::PeerGone(..))) => {
                    self.refused += 1;
                    self.open.swap_remove(i);
                }
                Err(error) => {
                    life.check.borrow_mut().violation(format!("a piece was refused: {error}"));
                    self.open.swap_remove(i);
                }
            }
        }
    }

    /// False when all is sent that is to be sent.
    fn add_pieces(&mut self, i: usize) -> Result<bool> {
        for _ in 0..4 {
            let sending = &mut self.open[i];
            let until = sending.stop_at.unwrap_or(sending.total);
            if sending.at == until {
                return Ok(false);
            }
            if sending.piece_at == sending.piece.len() {
                let left = (until - sending.at).min(MAX_PIECE as u64);
                sending.piece.resize(self.rng.magnitude(1, left) as usize, 0);
                content::fill(sending.key, sending.at, &mut sending.piece);
                sending.piece_at = 0;
            }
            match sending.out.try_piece(&sending.piece[sending.piece_at..]) {
                Ok(added) => {
                    sending.at += added as u64;
                    sending.piece_at += added;
                }
                Err(error) if error.is_would_block() => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Ends a message, or gives it up in one of the ways there are.
fn finish(mut done: Sending) -> Result<()> {
    if done.stop_at.is_none() {
        return done.out.end();
    }
    if done.key.is_multiple_of(3) {
        return match done.out.end() {
            Err(Error::MessageTooShort { missing }) if missing == done.total - done.at => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(Error::other("a message that lacked bytes was ended")),
        };
    }
    if done.total - done.at > MAX_PIECE as u64 {
        return Ok(());
    }
    let too_long = [0; MAX_PIECE + 1];
    match done.out.try_piece(&too_long) {
        Err(Error::PieceTooLong { .. }) => Ok(()),
        other => Err(Error::other(format!("a piece that is too long: {other:?}"))),
    }
}
