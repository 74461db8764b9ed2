//! What a node's program does: it sends messages of all kinds in bursts, several at once, and abandons some
//! of them.

use std::rc::Rc;

use tautline::{AsyncEndpoint, AsyncOutgoing, Error, Result, SendError};

use crate::Nanos;
use crate::check::{BegunMessage, Intent};
use crate::content;
use crate::handlers::{Incarnation, Kind};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::swarm::NodeOptions;

/// Messages that are sent at the same time.
const MAX_OPEN: usize = 6;
/// Bytes of the longest piece.
const MAX_PIECE: usize = 32 * 1024;

/// A message in progress.
struct Sending {
    out: AsyncOutgoing,
    key: u64,
    total: u64,
    at: u64,
    /// The piece that is being added, and how much of it has been.
    piece: Vec<u8>,
    piece_at: usize,
    /// The message is abandoned when this much was sent.
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

/// The next message to send.
#[derive(Clone, Copy)]
struct Draft {
    /// The place that it is for.
    peer: u32,
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

    /// Begins no more messages.
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

    /// Does what can be done now; returns when it wants to run again if nothing arrives before.
    pub(crate) fn step(&mut self, incarnation: &Rc<Incarnation>, ep: &AsyncEndpoint) -> Nanos {
        let (now, places) = (incarnation.now(), incarnation.places);
        // Timers that are due are handled before the first message, not within the call that sends it.
        let _ = ep.connect(places.number((incarnation.place + 1) % places.count()));
        let batch = self.rng.chance(self.options.batch_ppm).then(|| ep.batch());
        self.continue_messages(incarnation);
        let kept = incarnation.saboteur.withheld_messages(incarnation.place);
        if self.left > kept && self.burst == 0 && now >= self.next_burst {
            self.burst = self.rng.magnitude(1, self.options.burst).min(self.left - kept);
            self.next_burst = now + self.rng.below(2 * self.options.gap_ns + 1);
        }
        while self.burst > 0 && self.open.len() < MAX_OPEN {
            let draft = self.draw(incarnation.place, places.count());
            match self.begin(incarnation, ep, draft) {
                Ok(()) => {}
                Err(Error::Send(SendError::WouldBlock)) => break,
                Err(Error::PeerGone(..)) => {
                    self.refused += 1;
                    if self.rng.chance(200_000) {
                        break;
                    }
                }
                Err(other) => {
                    incarnation.check.borrow_mut().violation(format!("a send failed: {other}"));
                    self.stop();
                    break;
                }
            }
            self.burst -= 1;
            self.left -= 1;
        }
        drop(batch);
        match (self.burst > 0, self.left > kept) {
            // Blocked: an arrival wakes the program, or else the time.
            (true, _) => now + 1_000_000,
            (false, true) => self.next_burst,
            _ if self.is_sending() => now + 1_000_000,
            _ => Nanos::MAX,
        }
    }

    fn draw(&mut self, me: u32, places: u32) -> Draft {
        let rng = &mut self.rng;
        let mut peer = rng.below(u64::from(places)) as u32;
        if peer == me && !rng.chance(100_000) {
            peer = (peer + 1) % places;
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
        let short = self.options.short;
        let largest = if kind.is_short() || rng.chance(small) { short } else { self.options.largest };
        let len = rng.magnitude(0, largest.max(1));
        let whole = kind.is_short() || len <= short && rng.chance(500_000);
        Draft { peer, kind, len, whole }
    }

    fn begin(&mut self, incarnation: &Rc<Incarnation>, ep: &AsyncEndpoint, draft: Draft) -> Result<()> {
        let Draft { peer, kind, len, whole } = draft;
        if whole {
            return incarnation.post(ep, peer, kind, len as usize);
        }
        // First a call that may make progress, and so connect to the peer again; the calls that follow do
        // not, unless they fail.
        if self.rng.chance(10_000) {
            self.expect_refusals(incarnation, ep, peer)?;
        }
        if incarnation.is_new(peer, incarnation.channel(ep, peer)) {
            incarnation.post(ep, peer, Kind::Short, 8)?;
        }
        let out = ep.try_begin(incarnation.places.number(peer), incarnation.name(ep, kind)?, len)?;
        let given_up = len > 0 && self.rng.chance(self.options.give_up_ppm);
        let stop_at = given_up.then(|| self.rng.below(len));
        let key = incarnation.fresh_key();
        let intent = if given_up { Intent::Abandon } else { Intent::Whole };
        let aborts = len > 0 && !given_up && incarnation.saboteur.strikes(Sabotage::Abort);
        let stop_at = if aborts { Some(len - 1) } else { stop_at };
        incarnation.note(ep, peer, BegunMessage { key, len, kind, intent, sent: false });
        let mut piece = self.spare.pop().unwrap_or_default();
        piece.clear();
        self.open.push(Sending { out, key, total: len, at: 0, piece, piece_at: 0, stop_at });
        self.continue_messages(incarnation);
        Ok(())
    }

    /// Calls that a correct library refuses.
    fn expect_refusals(&mut self, incarnation: &Incarnation, ep: &AsyncEndpoint, peer: u32) -> Result<()> {
        let peer = incarnation.places.number(peer);
        let unknown = ep.try_send(peer, "nobody", b"x");
        let long = ep.try_begin(peer, incarnation.name(ep, Kind::Short)?, 1 << 20).map(drop);
        for (result, name) in [(unknown, "an unknown handler"), (long, "a long message for a short handler")]
        {
            match result {
                Err(
                    Error::Send(SendError::UnknownHandler(_) | SendError::TooLongForHandler(_))
                    | Error::PeerGone(..),
                ) => {}
                Err(error @ Error::Send(SendError::WouldBlock)) => return Err(error),
                other => incarnation.check.borrow_mut().violation(format!("{name}: {other:?}")),
            }
        }
        Ok(())
    }

    /// Adds pieces to every message in progress.
    fn continue_messages(&mut self, incarnation: &Incarnation) {
        let mut i = 0;
        while i < self.open.len() {
            match self.add_pieces(i) {
                Ok(true) => i += 1,
                Ok(false) => {
                    let mut done = self.open.swap_remove(i);
                    self.spare.push(std::mem::take(&mut done.piece));
                    if let Err(error) = finish(done) {
                        let gone = matches!(error, Error::PeerGone(..));
                        if !gone {
                            incarnation
                                .check
                                .borrow_mut()
                                .violation(format!("ending a message failed: {error}"));
                        }
                    }
                }
                Err(Error::PeerGone(..)) => {
                    self.refused += 1;
                    self.open.swap_remove(i);
                }
                Err(error) => {
                    incarnation.check.borrow_mut().violation(format!("a piece was refused: {error}"));
                    self.open.swap_remove(i);
                }
            }
        }
    }

    /// Returns false when everything that is to be sent is sent.
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

/// Ends a message, or abandons it in one of the possible ways.
fn finish(mut done: Sending) -> Result<()> {
    if done.stop_at.is_none() {
        return done.out.end();
    }
    if done.key.is_multiple_of(3) {
        return match done.out.end() {
            Err(Error::MessageTooShort { missing }) if missing == done.total - done.at => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(Error::other("a message with missing bytes was ended")),
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
