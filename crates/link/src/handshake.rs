//! The handshake (H-1 … H-16) and the relation to one other rank, over restarts of either side.

mod attempt;

use std::ops::Range;
use std::sync::Arc;

use tautline_wire::frame::{MAX_FRAME, SMALLEST_FRAME};
use tautline_wire::handshake::{HANDSHAKE_LEN, RefuseReason};
use tautline_wire::{Handshake, Kind, VERSION};

pub use crate::keys::ChannelIds;
use crate::keys::{Role, constant_eq, party};
use crate::link::Negotiated;
use crate::seal::Seal;
use crate::shared::Shared;
use crate::{Arrival, Config, Death, FrameError, FrameOfTrain, JobKey, Link, MICRO, MILLI, Nanos};
use attempt::ConnectAttempt;

/// The features that this side has (H-4): none so far.
const FEATURES: u16 = 0;

/// The bytes of a handshake frame.
pub type HandshakeFrame = [u8; HANDSHAKE_LEN];

/// The two sides of a peering, their key and path.
#[derive(Clone, Debug)]
pub struct PeeringParams {
    /// The job's key.
    pub key: JobKey,
    /// Our rank.
    pub me: u32,
    /// The peer's rank.
    pub peer: u32,
    /// Our lane.
    pub lane: u16,
    /// The peer's lane.
    pub peer_lane: u16,
    /// The port of our lane, which the peer cannot know; zero for lane 0 of a rank that peers know.
    pub port: u16,
    /// The largest frame that the path to the peer carries.
    pub max_frame: usize,
}

impl PeeringParams {
    /// Whether our hello counts when both sides send one (H-11).
    fn takes_precedence(&self) -> bool {
        (self.me, self.lane) < (self.peer, self.peer_lane)
    }
}

/// The result of a handshake frame.
#[derive(Debug)]
pub enum HandshakeOutcome {
    /// The frame is out of date, or another hello takes precedence. It is not answered.
    Ignored,
    /// This frame is to be sent to the sender of the hello. Nothing has changed.
    Reply(HandshakeFrame),
    /// This welcome is to be sent to the sender of the hello. Frames of the channel that it offers go there,
    /// too, once the first one has arrived (H-8).
    Welcome(HandshakeFrame),
    /// The peer's lane is at this port: hellos go there from now on (H-13).
    Redirected(u16),
    /// The link is live on our side.
    Opened,
    /// The peer refused our hello.
    Refused(RefuseReason),
}

#[derive(Debug)]
enum State {
    Down,
    Connecting(ConnectAttempt),
    Live(Box<Link>),
}

/// A link for a hello that we answered, until its first frame arrives (H-8).
#[derive(Debug)]
struct Candidate {
    link: Box<Link>,
    welcome: HandshakeFrame,
    expires: Nanos,
}

/// The relation to one other rank.
#[derive(Debug)]
pub struct Peering {
    params: PeeringParams,
    config: Arc<Shared>,
    /// The credit that the peer has at first (L-42).
    first_credit: u32,
    /// Whether this side accepts raw frames.
    raw_frames: bool,
    job: u64,
    /// Whether frames of links are checked. False only for fuzzing.
    authenticates: bool,
    state: State,
    candidate: Option<Box<Candidate>>,
    /// Frames for the candidate are not handled.
    suspended: bool,
    /// What a hello must bring as its cookie to count as recent, once a retry has asked for it (H-12).
    challenge: Option<[u8; 16]>,
    /// Links that a newer one replaced; the caller takes their tokens and events.
    superseded: Vec<Link>,
    /// The peer's epoch and our welcome for the live link, in case the peer repeats its hello.
    welcome: Option<Box<(u64, HandshakeFrame)>>,
}

impl Peering {
    /// Makes a peering. It sends nothing until [`Peering::connect`] is called or a hello arrives.
    pub fn new(params: PeeringParams, config: impl Into<Arc<Shared>>) -> Peering {
        let (job, config) = (params.key.job_id(), config.into());
        Peering {
            params,
            first_credit: config.first_credit(),
            raw_frames: config.raw_frames,
            config,
            job,
            authenticates: true,
            state: State::Down,
            candidate: None,
            suspended: false,
            challenge: None,
            superseded: Vec::new(),
            welcome: None,
        }
    }

    /// Makes a peering whose links accept every well-formed frame, for fuzzers, which cannot make authentic
    /// ones. Nothing else may call it, and no build setting has the same effect.
    #[doc(hidden)]
    pub fn without_authentication(params: PeeringParams, config: Config) -> Peering {
        Peering { authenticates: false, ..Peering::new(params, config) }
    }

    /// Starts to send hellos, unless there is a live link or an attempt is under way.
    pub fn connect(&mut self, now: Nanos, ids: ChannelIds) {
        let over = match &self.state {
            State::Down => true,
            State::Connecting(_) => false,
            State::Live(link) => link.is_over(),
        };
        if over {
            self.supersede();
            self.state = State::Connecting(ConnectAttempt::new(ids, now, self.config.hello_interval));
        }
    }

    /// Returns how many hellos were sent since the peer last answered one; zero if none are being sent.
    pub fn unanswered_hellos(&self) -> u8 {
        match &self.state {
            State::Connecting(attempt) => attempt.unanswered,
            _ => 0,
        }
    }

    /// Goes on with an epoch of its own where hellos are being sent, because they go elsewhere from now on:
    /// answers to the former ones do not count any more. The time between hellos stays.
    pub fn restart_attempt(&mut self, ids: ChannelIds) {
        if let State::Connecting(attempt) = &mut self.state {
            attempt.restart(ids);
        }
    }

    /// Returns whether hellos are being sent.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting(_))
    }

    /// Stops sending hellos.
    pub fn stop_connecting(&mut self) {
        if self.is_connecting() {
            self.state = State::Down;
        }
    }

    /// Stops sending hellos, and opens no link for a hello that was answered, until [`Peering::resume`]: the
    /// peer is reached in another way.
    pub fn suspend(&mut self) {
        self.stop_connecting();
        self.suspended = true;
    }

    /// Links are opened again, also for a hello that was answered before. Its sender repeats its first frame.
    pub fn resume(&mut self) {
        self.suspended = false;
    }

    /// Returns the live link, which may be over.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        match &self.state {
            State::Live(link) => Some(link),
            _ => None,
        }
    }

    /// Returns the live link, which may be over.
    #[inline]
    pub fn link_mut(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            State::Live(link) => Some(link),
            _ => None,
        }
    }

    /// Returns whether there is a link for [`Peering::take_superseded`].
    #[inline]
    pub fn has_superseded(&self) -> bool {
        !self.superseded.is_empty()
    }

    /// Returns a link that a newer one replaced. The caller polls its tokens and events, and drops it.
    pub fn take_superseded(&mut self) -> Option<Link> {
        self.superseded.pop()
    }

    /// Sets the largest frame that the path to the peer carries.
    pub fn set_path_limit(&mut self, now: Nanos, max_frame: usize) {
        self.params.max_frame = max_frame;
        if let Some(link) = self.link_mut() {
            link.set_path_limit(now, max_frame);
        }
    }

    /// Sets whether this side accepts raw Ethernet frames. The next frame, sent at once, and all later ones
    /// say so (D-22).
    pub fn set_raw_frames(&mut self, accepts: bool) {
        self.raw_frames = accepts;
        let candidate = self.candidate.as_mut().map(|candidate| &mut *candidate.link);
        let live = match &mut self.state {
            State::Live(link) => Some(&mut **link),
            _ => None,
        };
        candidate.into_iter().chain(live).for_each(|link| link.set_raw_frames(accepts));
    }

    /// Sets the credit that the peer has at first on a link that is opened from now on (L-42). Our own hello
    /// says another one: while it is being sent, nothing changes.
    pub fn set_first_credit(&mut self, slots: u32) {
        if !self.is_connecting() {
            self.first_credit = slots.clamp(1, self.config.most_credit());
        }
    }

    /// Returns the next hello, if it is due.
    pub fn poll_hello(&mut self, now: Nanos) -> Option<HandshakeFrame> {
        let State::Connecting(attempt) = &mut self.state else { return None };
        let (ids, cookie) = attempt.poll(now)?;
        Some(self.frame(Kind::Hello, ids, 0, cookie))
    }

    /// Returns when [`Peering::poll_hello`] or [`Peering::handle_timeout`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let own = match &self.state {
            State::Down => None,
            State::Connecting(attempt) => Some(attempt.next),
            State::Live(link) => link.next_deadline(),
        };
        let candidate = self.candidate.as_ref().map(|c| c.expires);
        own.into_iter().chain(candidate).min()
    }

    /// Handles what is due.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.candidate.as_ref().is_some_and(|c| c.expires <= now) {
            self.candidate = None;
        }
        if let State::Live(link) = &mut self.state {
            link.handle_timeout(now);
            if link.is_resting() {
                // N-32: the peer has had it for long.
                self.welcome = None;
                self.superseded.shrink_to_fit();
            }
        }
    }

    /// Handles a frame of an established channel. The first frame for a candidate proves that the peer is
    /// alive (H-8): the candidate then replaces the live link. `tags` are those for which
    /// [`Link::train_tags`] was given this very frame.
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Nanos,
        channel: u32,
        bytes: &mut [u8],
        tags: FrameOfTrain<'_>,
    ) -> Result<(Option<Arrival>, Range<usize>), FrameError> {
        if let State::Live(link) = &mut self.state
            && link.channel() == channel
        {
            return link.handle_frame_of_train(now, bytes, tags);
        }
        self.handle_candidate_frame(now, channel, bytes)
    }

    #[cold]
    fn handle_candidate_frame(
        &mut self,
        now: Nanos,
        channel: u32,
        bytes: &mut [u8],
    ) -> Result<(Option<Arrival>, Range<usize>), FrameError> {
        let opens =
            |c: &mut Box<Candidate>| c.link.channel() == channel && now < c.expires && !self.suspended;
        let Some(mut candidate) = self.candidate.take_if(opens) else {
            return Err(FrameError::Over);
        };
        let result = candidate.link.handle_frame(now, bytes);
        if result.is_err() {
            self.candidate = Some(candidate);
            return result;
        }
        self.supersede();
        self.welcome = Some(Box::new((candidate.link.peer().epoch, candidate.welcome)));
        self.state = State::Live(candidate.link);
        self.challenge = None;
        result
    }

    /// Ends the live link, if any, because a newer one replaces it.
    fn supersede(&mut self) {
        if let State::Live(mut link) = std::mem::replace(&mut self.state, State::Down) {
            link.kill(Death::Restarted);
            self.superseded.push(*link);
        }
        self.welcome = None;
    }

    /// Returns whether a handshake frame is for this peering and signed with the job's key (H-2, H-10). To be
    /// checked first.
    pub fn is_authentic(&self, bytes: &HandshakeFrame, handshake: &Handshake) -> bool {
        handshake.job == self.job && handshake.from == self.params.peer && self.params.key.verify(bytes)
    }

    /// Returns whether a hello brings the cookie that was asked for: it was sent after the retry, by a sender
    /// that receives at its address, and has not been used yet (H-12).
    pub fn is_proven(&self, hello: &Handshake) -> bool {
        self.challenge.is_some_and(|cookie| constant_eq(&cookie, &hello.cookie))
    }

    /// Uses up the proof that a hello has brought, if it has: when it comes again it proves nothing. For a
    /// caller that answers the hello in a way of its own.
    pub fn take_proof(&mut self, hello: &Handshake) -> bool {
        let proven = self.is_proven(hello);
        if proven {
            self.challenge = None;
        }
        proven
    }

    /// Returns a frame that asks the sender of a hello for proof that the hello is recent (H-7). The same
    /// cookie is asked for until a hello has brought it, so that a replay changes nothing (H-14).
    fn retry(&mut self, hello: &Handshake, ids: ChannelIds) -> HandshakeFrame {
        let cookie = *self.challenge.get_or_insert_with(|| {
            let mut cookie = [0; 16];
            cookie[..8].copy_from_slice(&ids.epoch.to_le_bytes());
            cookie
        });
        let mut retry = self.handshake(Kind::Retry, ChannelIds { epoch: 1, channel: 0 }, hello.epoch, cookie);
        retry.port = 0;
        self.signed(&retry)
    }

    /// Returns a frame that tells the sender of a hello for another lane of this node where that lane is
    /// (H-13). Keeps no state.
    pub fn redirect(&self, hello: &Handshake, port: u16) -> HandshakeFrame {
        let ids = ChannelIds { epoch: 1, channel: 0 };
        let mut retry = self.handshake(Kind::Retry, ids, hello.epoch, hello.cookie);
        (retry.from_lane, retry.to_lane, retry.port) = (hello.to_lane, hello.from_lane, port);
        self.signed(&retry)
    }

    /// Returns a frame that refuses a hello because this side was not told of the peer's rank.
    pub fn refuse_unknown(&self, hello: &Handshake) -> HandshakeFrame {
        self.refuse(hello, ChannelIds { epoch: 1, channel: 0 }, RefuseReason::UnknownRank)
    }

    /// Handles a handshake frame that [`Peering::is_authentic`].
    pub fn handle_handshake(
        &mut self,
        now: Nanos,
        handshake: &Handshake,
        ids: ChannelIds,
    ) -> HandshakeOutcome {
        // Answers count only from the one that was asked, and for the one that asked (H-5).
        if handshake.kind != Kind::Hello && !self.is_between_us(handshake) {
            return HandshakeOutcome::Ignored;
        }
        match handshake.kind {
            Kind::Hello => self.handle_hello(now, handshake, ids),
            Kind::Welcome => self.handle_welcome(now, handshake),
            Kind::Retry => self.handle_retry(now, handshake),
            Kind::Refuse => self.handle_refuse(handshake),
            Kind::Data | Kind::Close => HandshakeOutcome::Ignored,
        }
    }

    fn handle_hello(&mut self, now: Nanos, hello: &Handshake, ids: ChannelIds) -> HandshakeOutcome {
        if let Some(reason) = self.refuse_reason(hello) {
            return HandshakeOutcome::Reply(self.refuse(hello, ids, reason));
        }
        if let Some(welcome) = self.welcome.as_deref().filter(|(epoch, _)| *epoch == hello.epoch) {
            return HandshakeOutcome::Reply(welcome.1);
        }
        // After a welcome, the peer's hello is ignored until its first frame arrives: the hello may have been
        // sent before the welcome.
        let welcomed = self.link().is_some_and(|link| !link.is_confirmed() && !link.is_over());
        if welcomed || self.link().is_some_and(|link| link.peer().epoch == hello.epoch) {
            return HandshakeOutcome::Ignored;
        }
        // H-11: of two simultaneous hellos that of the lower rank, or of the lower lane, counts.
        if self.is_connecting() && self.params.takes_precedence() {
            let proven = self.is_proven(hello);
            return if proven {
                HandshakeOutcome::Ignored
            } else {
                HandshakeOutcome::Reply(self.retry(hello, ids))
            };
        }
        let proven = self.take_proof(hello);
        let expires = now + self.config.silence;
        // H-9: a repeated hello gets the same answer. The initiator relies on that answer for half the bound
        // at least, so an older candidate needs proof that its initiator still waits.
        if let Some(candidate) = &mut self.candidate
            && candidate.link.peer().epoch == hello.epoch
        {
            if proven {
                candidate.expires = expires;
            }
            if candidate.expires > now + self.config.silence / 2 {
                return HandshakeOutcome::Welcome(candidate.welcome);
            }
        }
        if !proven {
            return HandshakeOutcome::Reply(self.retry(hello, ids));
        }
        let welcome = self.frame(Kind::Welcome, ids, hello.epoch, [0; 16]);
        let link = Box::new(self.make_link(now, Role::Responder, hello, ids));
        self.candidate = Some(Box::new(Candidate { link, welcome, expires }));
        HandshakeOutcome::Welcome(welcome)
    }

    fn handle_welcome(&mut self, now: Nanos, welcome: &Handshake) -> HandshakeOutcome {
        let State::Connecting(attempt) = &self.state else { return HandshakeOutcome::Ignored };
        // H-11: we answered a recent hello that takes precedence, so its channel counts until the candidate
        // expires.
        if !self.params.takes_precedence() && self.candidate.is_some() {
            return HandshakeOutcome::Ignored;
        }
        if welcome.peer_epoch != attempt.ids.epoch || welcome.security != self.config.security {
            return HandshakeOutcome::Ignored;
        }
        let ids = attempt.ids;
        let link = self.make_link(now, Role::Initiator, welcome, ids);
        self.state = State::Live(Box::new(link));
        // H-14: what was asked of hellos that lost is void.
        (self.candidate, self.challenge) = (None, None);
        HandshakeOutcome::Opened
    }

    fn handle_retry(&mut self, now: Nanos, retry: &Handshake) -> HandshakeOutcome {
        let State::Connecting(attempt) = &mut self.state else { return HandshakeOutcome::Ignored };
        if retry.peer_epoch != attempt.ids.epoch {
            return HandshakeOutcome::Ignored;
        }
        let redirected = attempt.take_retry(now, retry.cookie, retry.port);
        redirected.map_or(HandshakeOutcome::Ignored, HandshakeOutcome::Redirected)
    }

    fn handle_refuse(&mut self, refuse: &Handshake) -> HandshakeOutcome {
        match (&self.state, refuse.reason) {
            (State::Connecting(attempt), Some(reason)) if refuse.peer_epoch == attempt.ids.epoch => {
                self.state = State::Down;
                HandshakeOutcome::Refused(reason)
            }
            _ => HandshakeOutcome::Ignored,
        }
    }

    fn is_between_us(&self, handshake: &Handshake) -> bool {
        let PeeringParams { me, peer, lane, peer_lane, .. } = self.params;
        (handshake.from, handshake.from_lane) == (peer, peer_lane)
            && (handshake.to, handshake.to_lane) == (me, lane)
    }

    /// Returns why a hello must be refused, if it must (H-4, H-5).
    fn refuse_reason(&self, hello: &Handshake) -> Option<RefuseReason> {
        if hello.to != self.params.me {
            return Some(RefuseReason::WrongRank);
        }
        if hello.to_lane != self.params.lane {
            return Some(RefuseReason::NoLane);
        }
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Some(RefuseReason::Version);
        }
        if (hello.features >> 16) as u16 & !FEATURES != 0 {
            return Some(RefuseReason::Feature);
        }
        (hello.security != self.config.security).then_some(RefuseReason::Security)
    }

    fn make_link(&self, now: Nanos, role: Role, peer: &Handshake, ids: ChannelIds) -> Link {
        let params = &self.params;
        let mine = (party(params.me, params.lane), ids.epoch);
        let theirs = (party(params.peer, params.peer_lane), peer.epoch);
        let (initiator, responder) = match role {
            Role::Initiator => (mine, theirs),
            Role::Responder => (theirs, mine),
        };
        let keys = self.params.key.derive(role, initiator, responder);
        let seal = match self.config.security {
            _ if !self.authenticates => Seal::Unchecked,
            security => Seal::new(security, &keys),
        };
        let negotiated = Negotiated {
            peer: *peer,
            my_channel: ids.channel,
            my_epoch: ids.epoch,
            my_rank: self.params.me,
            seal,
            max_frame: self.params.max_frame.clamp(SMALLEST_FRAME, MAX_FRAME),
            first_credit: self.first_credit,
            raw_frames: self.raw_frames,
        };
        Link::new(now, &self.config, negotiated)
    }

    /// Returns a refuse frame, in our own name even if the hello was for another rank or lane: the initiator
    /// believes it only from the one that it names (H-5).
    fn refuse(&self, hello: &Handshake, ids: ChannelIds, reason: RefuseReason) -> HandshakeFrame {
        let mut handshake = self.handshake(Kind::Refuse, ids, hello.epoch, [0; 16]);
        handshake.reason = Some(reason);
        self.signed(&handshake)
    }

    fn frame(&self, kind: Kind, ids: ChannelIds, peer_epoch: u64, cookie: [u8; 16]) -> HandshakeFrame {
        self.signed(&self.handshake(kind, ids, peer_epoch, cookie))
    }

    fn signed(&self, handshake: &Handshake) -> HandshakeFrame {
        let mut frame = [0; HANDSHAKE_LEN];
        handshake.write(&mut frame);
        self.params.key.sign(&mut frame);
        frame
    }

    fn handshake(&self, kind: Kind, ids: ChannelIds, peer_epoch: u64, cookie: [u8; 16]) -> Handshake {
        Handshake {
            kind,
            reason: None,
            port: self.params.port,
            version_min: VERSION,
            version_max: VERSION,
            security: self.config.security,
            features: FEATURES.into(),
            job: self.job,
            from: self.params.me,
            to: self.params.peer,
            from_lane: self.params.lane,
            to_lane: self.params.peer_lane,
            channel: ids.channel,
            epoch: ids.epoch,
            peer_epoch,
            max_frame: self.params.max_frame.clamp(SMALLEST_FRAME, MAX_FRAME) as u32,
            credit: self.first_credit,
            buffer: self.config.receive_buffer,
            message_window: self.config.message_window,
            silence_ms: (self.config.silence / MILLI) as u32,
            ack_delay_us: (self.config.ack_delay / MICRO) as u32,
            cookie,
            mac: [0; 16],
        }
    }
}
