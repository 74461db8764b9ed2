//! The handshake (H-1 … H-9) and the relation to one other rank, across its restarts.

use tautline_wire::frame::{LEAST_FRAME, MAX_FRAME};
use tautline_wire::handshake::{HANDSHAKE_LEN, MAX_CREDIT, Refusal, Security};
use tautline_wire::{Handshake, Kind, VERSION};

use crate::keys::constant_eq;
use crate::link::Agreed;
use crate::seal::Seal;
use crate::{Arrival, Config, Death, JobKey, Link, MICRO, MILLI, Nanos, Refused, Role};

/// Hellos are repeated ever more rarely, down to this interval.
const HELLO_MAX: Nanos = 320 * MILLI;

/// What this side has (H-4): nothing that version 1 leaves open.
const FEATURES: u16 = 0;

/// A handshake frame, ready to be sent.
pub type ShakeFrame = [u8; HANDSHAKE_LEN];

/// Who speaks with whom.
#[derive(Clone, Debug)]
pub struct Who {
    /// The job's secret.
    pub key: JobKey,
    /// Our rank.
    pub me: u32,
    /// The other's rank.
    pub peer: u32,
    /// Our endpoint.
    pub endpoint: u16,
    /// The other's endpoint.
    pub peer_endpoint: u16,
    /// The largest frame that the path to the peer takes.
    pub max_frame: usize,
}

/// Random or unique numbers that the caller supplies whenever a new channel may come into being.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Unpredictable and never used before; not zero.
    pub epoch: u64,
    /// Our number for the channel.
    pub channel: u32,
}

/// What came of a handshake frame.
#[derive(Debug)]
pub enum Outcome {
    /// Not for us, not authentic, or out of date. Counted, not answered.
    Ignored,
    /// Send this back to where the frame came from.
    Reply(ShakeFrame),
    /// The channel is open on our side.
    Opened,
    /// The peer will not have us, for this reason.
    Refused(Refusal),
}

#[derive(Debug)]
enum State {
    Down,
    Knocking(Knock),
    Live(Box<Link>),
}

#[derive(Debug)]
struct Knock {
    fresh: Fresh,
    next: Nanos,
    interval: Nanos,
    cookie: [u8; 16],
}

/// A channel that we answered but whose initiator has not yet shown that it is alive (H-8).
#[derive(Debug)]
struct Candidate {
    link: Box<Link>,
    welcome: ShakeFrame,
    expires: Nanos,
}

/// The relation to one other rank.
#[derive(Debug)]
pub struct Peering {
    who: Who,
    config: Config,
    job: u64,
    state: State,
    candidate: Option<Candidate>,
    /// The link that a restarted peer's new one replaced; the caller takes its tokens and events.
    former: Vec<Link>,
    /// The welcome that made the live link, for initiators that did not get it.
    welcome: Option<(u64, ShakeFrame)>,
}

impl Peering {
    /// Nothing is sent until [`Peering::connect`] is called or a hello comes.
    pub fn new(who: Who, config: Config) -> Peering {
        let job = who.key.job_id();
        Peering { who, config, job, state: State::Down, candidate: None, former: Vec::new(), welcome: None }
    }

    /// Starts to knock, unless there is a live link or we are knocking already.
    pub fn connect(&mut self, now: Nanos, fresh: Fresh) {
        let over = match &self.state {
            State::Down => true,
            State::Knocking(_) => false,
            State::Live(link) => link.is_over(),
        };
        if over {
            self.retire();
            let interval = self.config.hello_interval;
            self.state = State::Knocking(Knock { fresh, next: now, interval, cookie: [0; 16] });
        }
    }

    /// Whether we are knocking.
    pub fn is_knocking(&self) -> bool {
        matches!(self.state, State::Knocking(_))
    }

    /// Stops knocking.
    pub fn give_up(&mut self) {
        if self.is_knocking() {
            self.state = State::Down;
        }
    }

    /// The live link, which may be over.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        match &self.state {
            State::Live(link) => Some(link),
            _ => None,
        }
    }

    /// The live link, which may be over.
    #[inline]
    pub fn link_mut(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            State::Live(link) => Some(link),
            _ => None,
        }
    }

    /// Whether a link has been replaced and not yet been taken.
    #[inline]
    pub fn has_former(&self) -> bool {
        !self.former.is_empty()
    }

    /// A link that has been replaced: take its tokens and events, then drop it.
    pub fn take_former(&mut self) -> Option<Link> {
        self.former.pop()
    }

    /// The path to the peer now takes frames of this size.
    pub fn set_path_limit(&mut self, now: Nanos, max_frame: usize) {
        self.who.max_frame = max_frame;
        if let Some(link) = self.link_mut() {
            link.set_path_limit(now, max_frame);
        }
    }

    /// This side takes raw Ethernet frames from now on, or no more: the peer is told at once, and by every frame (D-12).
    pub fn set_raw_frames(&mut self, takes: bool) {
        self.config.raw_frames = takes;
        let candidate = self.candidate.as_mut().map(|candidate| &mut *candidate.link);
        let live = match &mut self.state {
            State::Live(link) => Some(&mut **link),
            _ => None,
        };
        candidate.into_iter().chain(live).for_each(|link| link.set_raw_frames(takes));
    }

    /// The next hello, when it is due.
    pub fn poll_hello(&mut self, now: Nanos) -> Option<ShakeFrame> {
        let State::Knocking(knock) = &mut self.state else { return None };
        if knock.next > now {
            return None;
        }
        knock.next = now + knock.interval;
        knock.interval = (knock.interval * 2).min(HELLO_MAX);
        let (fresh, cookie) = (knock.fresh, knock.cookie);
        Some(self.make(Kind::Hello, fresh, 0, cookie))
    }

    /// When [`Peering::poll_hello`] has something next, or the live link must be told the time.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let own = match &self.state {
            State::Down => None,
            State::Knocking(knock) => Some(knock.next),
            State::Live(link) => link.next_deadline(),
        };
        let candidate = self.candidate.as_ref().map(|c| c.expires);
        own.into_iter().chain(candidate).min()
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.candidate.as_ref().is_some_and(|c| c.expires <= now) {
            self.candidate = None;
        }
        if let State::Live(link) = &mut self.state {
            link.handle_timeout(now);
        }
    }

    /// A frame of an established channel. The first one on a candidate proves that its peer is alive (H-8), and the
    /// candidate replaces whatever was live before.
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Nanos,
        channel: u32,
        bytes: &mut [u8],
    ) -> Result<(Option<Arrival>, std::ops::Range<usize>), Refused> {
        if let State::Live(link) = &mut self.state
            && link.channel() == channel
        {
            return link.handle_frame(now, bytes);
        }
        self.handle_candidate_frame(now, channel, bytes)
    }

    #[cold]
    fn handle_candidate_frame(
        &mut self,
        now: Nanos,
        channel: u32,
        bytes: &mut [u8],
    ) -> Result<(Option<Arrival>, std::ops::Range<usize>), Refused> {
        let Some(mut candidate) = self.candidate.take_if(|c| c.link.channel() == channel) else {
            return Err(Refused::Over);
        };
        let result = candidate.link.handle_frame(now, bytes);
        if result.is_err() {
            self.candidate = Some(candidate);
            return result;
        }
        self.retire();
        self.welcome = Some((candidate.link.peer().epoch, candidate.welcome));
        self.state = State::Live(candidate.link);
        result
    }

    /// The live link, if any, is no more: its peer has a new one.
    fn retire(&mut self) {
        if let State::Live(mut link) = std::mem::replace(&mut self.state, State::Down) {
            link.kill(Death::Restarted);
            self.former.push(*link);
        }
        self.welcome = None;
    }

    /// Whether a handshake frame is for this peering and made with the job's key (H-2). Check before anything else.
    pub fn is_authentic(&self, bytes: &ShakeFrame, shake: &Handshake) -> bool {
        shake.job == self.job && shake.from == self.who.peer && self.who.key.verify(bytes)
    }

    /// A stateless answer that asks the sender of an authentic hello to prove its address (H-7).
    pub fn retry(&self, hello: &Handshake, cookie: [u8; 16]) -> ShakeFrame {
        self.make(Kind::Retry, Fresh { epoch: 1, channel: 0 }, hello.epoch, cookie)
    }

    /// Takes a handshake frame that [`Peering::is_authentic`].
    pub fn handle_handshake(&mut self, now: Nanos, shake: &Handshake, fresh: Fresh) -> Outcome {
        match shake.kind {
            Kind::Hello => self.handle_hello(now, shake, fresh),
            Kind::Welcome => self.handle_welcome(now, shake),
            Kind::Retry => self.handle_retry(now, shake),
            Kind::Refuse => self.handle_refuse(shake),
            Kind::Data | Kind::Close => Outcome::Ignored,
        }
    }

    fn handle_hello(&mut self, now: Nanos, hello: &Handshake, fresh: Fresh) -> Outcome {
        if let Some(reason) = self.objection(hello) {
            return Outcome::Reply(self.refuse(hello, fresh, reason));
        }
        // H-6: when both knock at once, the lower rank's hello counts; and whoever was welcomed holds on to that until
        // the peer has heard of it, for its hello may have been sent before.
        let welcomed = self.link().is_some_and(|link| !link.is_confirmed() && !link.is_over());
        if welcomed || self.is_knocking() && self.who.me < self.who.peer {
            return Outcome::Ignored;
        }
        // H-9: a repeated hello gets the same answer, and the candidate the time to show life anew: the initiator that
        // gets this answer relies on it.
        if let Some(candidate) = &mut self.candidate
            && candidate.link.peer().epoch == hello.epoch
        {
            candidate.expires = now + self.config.silence;
            return Outcome::Reply(candidate.welcome);
        }
        if let Some((epoch, welcome)) = &self.welcome
            && *epoch == hello.epoch
        {
            return Outcome::Reply(*welcome);
        }
        if self.link().is_some_and(|link| link.peer().epoch == hello.epoch) {
            return Outcome::Ignored;
        }
        let welcome = self.make(Kind::Welcome, fresh, hello.epoch, [0; 16]);
        let link = Box::new(self.make_link(now, Role::Responder, hello, fresh));
        let expires = now + self.config.silence;
        self.candidate = Some(Candidate { link, welcome, expires });
        Outcome::Reply(welcome)
    }

    fn handle_welcome(&mut self, now: Nanos, welcome: &Handshake) -> Outcome {
        let State::Knocking(knock) = &self.state else { return Outcome::Ignored };
        // H-6: we answered the lower rank's hello; its channel comes to be, unless it shows no life.
        if self.who.me > self.who.peer && self.candidate.is_some() {
            return Outcome::Ignored;
        }
        if welcome.peer_epoch != knock.fresh.epoch || welcome.security != self.config.security {
            return Outcome::Ignored;
        }
        let fresh = knock.fresh;
        let link = self.make_link(now, Role::Initiator, welcome, fresh);
        self.state = State::Live(Box::new(link));
        self.candidate = None;
        Outcome::Opened
    }

    fn handle_retry(&mut self, now: Nanos, retry: &Handshake) -> Outcome {
        if let State::Knocking(knock) = &mut self.state
            && retry.peer_epoch == knock.fresh.epoch
            && !constant_eq(&retry.cookie, &knock.cookie)
        {
            knock.cookie = retry.cookie;
            knock.next = now;
        }
        Outcome::Ignored
    }

    fn handle_refuse(&mut self, refuse: &Handshake) -> Outcome {
        match (&self.state, refuse.reason) {
            (State::Knocking(knock), Some(reason)) if refuse.peer_epoch == knock.fresh.epoch => {
                self.state = State::Down;
                Outcome::Refused(reason)
            }
            _ => Outcome::Ignored,
        }
    }

    /// H-4, H-5: what is wrong with a hello, if anything.
    fn objection(&self, hello: &Handshake) -> Option<Refusal> {
        if hello.to != self.who.me {
            return Some(Refusal::WrongRank);
        }
        if hello.to_endpoint != self.who.endpoint {
            return Some(Refusal::NoEndpoint);
        }
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Some(Refusal::Version);
        }
        if (hello.features >> 16) as u16 & !FEATURES != 0 {
            return Some(Refusal::Feature);
        }
        (hello.security != self.config.security).then_some(Refusal::Security)
    }

    fn make_link(&self, now: Nanos, role: Role, peer: &Handshake, fresh: Fresh) -> Link {
        let (mine, theirs) = ((self.who.me, fresh.epoch), (self.who.peer, peer.epoch));
        let (initiator, responder) = match role {
            Role::Initiator => (mine, theirs),
            Role::Responder => (theirs, mine),
        };
        let keys = self.who.key.derive(role, initiator, responder);
        let seal = Seal::new(self.config.security, &keys);
        let agreed = Agreed {
            peer: *peer,
            my_channel: fresh.channel,
            my_epoch: fresh.epoch,
            my_rank: self.who.me,
            seal,
            max_frame: self.who.max_frame.clamp(LEAST_FRAME, MAX_FRAME),
        };
        Link::new(now, &self.config, agreed)
    }

    /// A refusal comes from whom the hello was for, even if that is not us: its sender waits for that name (H-5).
    fn refuse(&self, hello: &Handshake, fresh: Fresh, reason: Refusal) -> ShakeFrame {
        let mut shake = self.shake(Kind::Refuse, fresh, hello.epoch, [0; 16]);
        shake.reason = Some(reason);
        shake.from = hello.to;
        self.signed(&shake)
    }

    fn make(&self, kind: Kind, fresh: Fresh, peer_epoch: u64, cookie: [u8; 16]) -> ShakeFrame {
        self.signed(&self.shake(kind, fresh, peer_epoch, cookie))
    }

    fn signed(&self, shake: &Handshake) -> ShakeFrame {
        let mut frame = [0; HANDSHAKE_LEN];
        shake.write(&mut frame);
        self.who.key.sign(&mut frame);
        frame
    }

    fn shake(&self, kind: Kind, fresh: Fresh, peer_epoch: u64, cookie: [u8; 16]) -> Handshake {
        Handshake {
            kind,
            reason: None,
            version_min: VERSION,
            version_max: VERSION,
            security: self.config.security,
            features: u32::from(FEATURES),
            job: self.job,
            from: self.who.me,
            to: self.who.peer,
            from_endpoint: self.who.endpoint,
            to_endpoint: self.who.peer_endpoint,
            channel: fresh.channel,
            epoch: fresh.epoch,
            peer_epoch,
            max_frame: self.who.max_frame.clamp(LEAST_FRAME, MAX_FRAME) as u32,
            credit: self.config.credit_slots.clamp(1, MAX_CREDIT),
            buffer: self.config.receive_buffer,
            message_window: self.config.message_window,
            silence_ms: (self.config.silence / MILLI) as u32,
            ack_delay_us: (self.config.ack_delay / MICRO) as u32,
            cookie,
            mac: [0; 16],
        }
    }

    /// The protection that links of this peering have.
    pub fn security(&self) -> Security {
        self.config.security
    }
}
