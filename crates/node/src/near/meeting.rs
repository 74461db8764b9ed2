//! How peers on this host meet: knocking, opening the door, hearing who is there (S-5, N-12).

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tautline_device::shm::{self, Call, Gift, Greeting, Shm, Visitor};
use tautline_link::{Death, Nanos};

use super::{Near, STRANGER};
use crate::interface::Interface;
use crate::limits::{MAX_VISITORS, NEAR_LOOK};
use crate::peer::PeerState;
use crate::{Down, Event, Rank};

/// Bytes that a frame which has to wait takes without more memory.
const HELD: usize = 256;

/// How long the door of a peer that could not be met is left alone.
const TURNED_AWAY: Nanos = 1_000_000_000;

impl Interface {
    /// Knocks at a peer's door, if it has one on this host. True if an answer is awaited, or datagrams are not to be used anyway.
    pub(crate) fn knock(&mut self, now: Nanos, rank: Rank) -> bool {
        if self.hood.is_none() || self.closed {
            return false;
        }
        if self.is_local(rank) {
            return true;
        }
        let Some(only) = self.hood.as_ref().filter(|hood| hood.meets(rank)).map(|hood| hood.only) else {
            return false;
        };
        if now < self.peers[rank as usize].knock_after && !only {
            return false;
        }
        let epoch = self.fresh_number();
        let window = self.config.local_window;
        let Some(hood) = &mut self.hood else { return false };
        let (me, asymmetric) = (self.rank, hood.asymmetric);
        let greet = || {
            let (lent, pool) = hood.pool();
            let beacon = hood.beacon();
            let greeting =
                Greeting { from: me, to: rank, epoch, answers: 0, window, pool, beacon, asymmetric };
            (greeting.to_bytes(hood.prove()), lent)
        };
        match Call::new(&shm::door_of(&hood.place, hood.job, rank), hood.bell.as_fd(), greet) {
            Ok(call) => {
                hood.watch(call.fd(), None);
                hood.calls.push((rank, epoch, call));
                true
            }
            Err(error) => {
                tracing::debug!(rank = self.rank, peer = rank, %error, "no shared memory");
                // No door is no news of somebody who lives elsewhere.
                let met = error.kind() != io::ErrorKind::NotFound;
                self.peers[rank as usize].not_near = met.then(|| why_not(&error));
                if hood.only && !hood.again.iter().any(|(to, _)| *to == rank) {
                    hood.again.push((rank, now + NEAR_LOOK));
                }
                hood.only
            }
        }
    }

    /// Looks whether somebody knocks, answers or dies, if it is time to.
    #[inline]
    pub(crate) fn look_around(&mut self, now: Nanos) {
        if let Some(hood) = &mut self.hood
            && now >= hood.next_look
        {
            hood.next_look = now + NEAR_LOOK;
            if !hood.fallen.is_empty() {
                hood.clear_doors(now);
            }
            if !hood.again.is_empty() {
                self.knock_again(now);
            }
            let news = self.hood.as_ref().map_or(Vec::new(), |hood| hood.news());
            if !news.is_empty() {
                self.meet(now, &news);
            }
        }
    }

    /// Whatever woke us may have been somebody at the door.
    pub(crate) fn look_soon(&mut self) {
        if let Some(hood) = &mut self.hood {
            hood.next_look = 0;
        }
        self.near_polls = 0;
    }

    /// When to look at the latest although nothing happens.
    pub(crate) fn near_deadline(&self) -> Option<Nanos> {
        let hood = self.hood.as_ref()?;
        hood.again.iter().map(|(_, at)| *at).chain(hood.fallen.iter().map(|(_, _, at)| *at)).min()
    }

    #[cold]
    fn knock_again(&mut self, now: Nanos) {
        let Some(hood) = &mut self.hood else { return };
        let (due, later) = std::mem::take(&mut hood.again).into_iter().partition(|(_, at)| *at <= now);
        hood.again = later;
        let due: Vec<(Rank, Nanos)> = due;
        for (rank, _) in due {
            // One that had been there may come back, too.
            let peer = &self.peers[rank as usize];
            if peer.state == PeerState::Connecting || peer.near.is_none() && now < peer.connect_by {
                self.knock(now, rank);
            }
        }
    }

    #[cold]
    fn meet(&mut self, now: Nanos, news: &[u64]) {
        // Deaths first: whoever knocks may be the dead one's successor.
        for rank in news.iter().filter(|of| **of != STRANGER).map(|of| *of as Rank) {
            let dead = self.peers[rank as usize].near.as_ref().is_some_and(|near| near.shm.is_dead());
            if dead && !self.has_turned_away(now, rank) {
                self.outlive(rank);
            }
        }
        if news.contains(&STRANGER) {
            self.open_the_door();
            self.hear_visitors(now);
            self.hear_answers(now);
        }
    }

    fn open_the_door(&mut self) {
        let Some(hood) = &mut self.hood else { return };
        for _ in 0..MAX_VISITORS {
            match hood.door.accept() {
                Ok(Some(visitor)) => {
                    // Whoever means it speaks at once; whoever has been silent for longest makes room.
                    if hood.visitors.len() >= MAX_VISITORS {
                        hood.forget(hood.visitors[0].fd());
                        hood.visitors.remove(0);
                        self.counters.strays += 1;
                    }
                    hood.watch(visitor.fd(), None);
                    hood.visitors.push(visitor);
                }
                Ok(None) => break,
                // Of another user, or gone already; or we have too many descriptors.
                Err(error) => {
                    tracing::debug!(rank = self.rank, %error, "a visitor was turned away");
                    self.counters.strays += 1;
                }
            }
        }
    }

    fn hear_visitors(&mut self, now: Nanos) {
        let Some(hood) = &mut self.hood else { return };
        let prove = hood.prove();
        for visitor in std::mem::take(&mut hood.visitors) {
            let Some(hood) = &mut self.hood else { return };
            let said = visitor.listen(&prove);
            if let Ok(None) = said {
                hood.visitors.push(visitor);
                continue;
            }
            hood.forget(visitor.fd());
            match said {
                Ok(Some((greeting, gift))) => self.let_in(now, visitor, greeting, gift),
                _ => self.counters.forged_handshakes += 1,
            }
        }
    }

    fn let_in(&mut self, now: Nanos, visitor: Visitor, greeting: Greeting, gift: Gift) {
        let (me, from) = (self.rank, greeting.from);
        let stranger = greeting.to != me || from == me || from as usize >= self.peers.len();
        if stranger || self.closed {
            return;
        }
        let far = self.peers[from as usize].peering.link().is_some_and(|link| !link.is_over());
        let epoch = self.fresh_number();
        let window = self.config.local_window;
        let Some(hood) = &mut self.hood else { return };
        // N-12: somebody whom the device that was asked for reaches. Both called: the lower rank's call counts. And a live channel by datagram is not replaced; a restarted peer is let in by datagram.
        if far || !hood.meets(from) || me < from && hood.calls.iter().any(|(to, _, _)| *to == from) {
            return;
        }
        let (given_up, calls) = std::mem::take(&mut hood.calls).into_iter().partition(|(to, ..)| *to == from);
        hood.calls = calls;
        let given_up: Vec<(Rank, u64, Call)> = given_up;
        given_up.iter().for_each(|(_, _, call)| hood.forget(call.fd()));
        let (lent, pool) = hood.pool();
        let answer = Greeting {
            from: me,
            to: from,
            epoch,
            answers: greeting.epoch,
            window,
            pool,
            beacon: hood.beacon(),
            asymmetric: hood.asymmetric,
        };
        let both = greeting.asymmetric && hood.asymmetric;
        let answer = answer.to_bytes(hood.prove());
        match visitor.welcome(gift, &answer, (hood.bell.as_fd(), lent), both) {
            Ok(shm) => self.move_in(now, from, shm, &greeting),
            Err(error) => self.peers[from as usize].not_near = Some(why_not(&error)),
        }
    }

    fn hear_answers(&mut self, now: Nanos) {
        let Some(hood) = &mut self.hood else { return };
        let prove = hood.prove();
        for (rank, epoch, call) in std::mem::take(&mut hood.calls) {
            let Some(hood) = &mut self.hood else { return };
            let said = call.listen(&prove);
            if let Ok(None) = said {
                hood.calls.push((rank, epoch, call));
                continue;
            }
            hood.forget(call.fd());
            match said {
                Ok(None) => {}
                Ok(Some((answer, theirs))) => {
                    let meant = answer.from == rank && answer.to == self.rank && answer.answers == epoch;
                    let both = hood.asymmetric && answer.asymmetric;
                    if meant {
                        self.move_in(now, rank, call.enter(theirs, both), &answer);
                    }
                }
                // They left, or would rather call us.
                Err(error) if self.peers[rank as usize].near.is_none() && !hood.only => {
                    self.peers[rank as usize].not_near = Some(why_not(&error));
                    self.turn_away(now, rank);
                }
                Err(_) if hood.only => hood.again.push((rank, now + NEAR_LOOK)),
                Err(_) => {}
            }
        }
    }

    /// A channel through shared memory begins.
    fn move_in(&mut self, now: Nanos, rank: Rank, mut shm: Shm, greeting: &Greeting) {
        if self.peers[rank as usize].near.is_some() {
            self.take_down(rank, Down::Died(Death::Restarted));
        }
        let Some(hood) = &mut self.hood else { return };
        shm.try_to_read(greeting.beacon, hood.job);
        let [process, socket] = shm.watched();
        // It was a stranger's so far.
        hood.forget(socket);
        hood.watch(process, Some(rank));
        hood.watch(socket, Some(rank));
        hood.again.retain(|(to, _)| *to != rank);
        let peer = &mut self.peers[rank as usize];
        peer.peering.give_up();
        if let Some(open) = peer.open.take() {
            self.device.arena().give(open.slot);
        }
        let peer = &mut self.peers[rank as usize];
        peer.reset_channel();
        peer.near = Some(Box::new(Near {
            shm,
            pending: 0,
            stalled: false,
            wanting: None,
            offered: Vec::new(),
            window: greeting.window,
        }));
        peer.announced = true;
        peer.not_near = None;
        peer.incarnation += 1;
        peer.state = PeerState::Connecting;
        peer.connect_by = now + self.config.connect_timeout.as_nanos() as Nanos;
        self.near_up.push(rank);
        // What a program that only sends leaves untaken waits in buffers; they are there from the start.
        let held = self.config.link.credit_slots as usize;
        self.buffers.resize_with(self.buffers.len().max(held), || Vec::with_capacity(HELD));
        let reason = "on this host, of this user".to_owned();
        tracing::info!(rank = self.rank, peer = rank, %reason, "shared memory");
        self.push_event(Event::Transport { peer: rank, device: "shm", reason });
        self.announce(rank);
    }

    /// The peer could not be met, for want of descriptors perhaps: it is reached by datagram, without another knock at every hello.
    fn turn_away(&mut self, now: Nanos, rank: Rank) {
        self.peers[rank as usize].knock_after = now + TURNED_AWAY;
        self.connect_far(now, rank);
    }

    /// Whether the peer lives, and let go of the memory before it ever used it: it could not come in.
    fn has_turned_away(&mut self, now: Nanos, rank: Rank) -> bool {
        let only = self.hood.as_ref().is_some_and(|hood| hood.only);
        let peer = &self.peers[rank as usize];
        let lives = peer.near.as_ref().is_some_and(|near| !near.shm.has_exited() && !near.shm.has_news());
        if peer.state != PeerState::Connecting || !lives || only {
            return false;
        }
        self.part(rank);
        self.peers[rank as usize].reset_channel();
        self.peers[rank as usize].not_near = Some(
            "on this host, and it could not share memory with us: it may lack descriptors or memory".into(),
        );
        self.turn_away(now, rank);
        true
    }

    /// Why a peer on this host is reached by datagram; none for whoever lives elsewhere, or if this node was told to use datagrams (N-12).
    pub(crate) fn why_not_near(&mut self, rank: Rank) -> Option<String> {
        let peer = &mut self.peers[rank as usize];
        let (tried, at_home) = (peer.not_near.take(), peer.at_home);
        let Some(hood) = &self.hood else {
            return self.no_hood.clone().filter(|_| at_home);
        };
        let no_door = || "on this host, and without a door to shared memory: it was told to use datagrams, belongs to another user, or could not hang one";
        tried.or_else(|| (at_home && hood.meets(rank)).then(|| no_door().to_owned()))
    }
}

/// Why no memory is shared with somebody on this host.
pub(super) fn why_not(error: &io::Error) -> String {
    let limit = getrlimit(Resource::Nofile).current;
    let said = match (error.raw_os_error().map(Errno::from_raw_os_error), limit) {
        (Some(Errno::MFILE), Some(limit)) => {
            format!(
                "{error}: this process may have {limit} open; raise the limit, for example: ulimit -n {}",
                (4 * limit).max(256)
            )
        }
        _ => error.to_string(),
    };
    format!("on this host, and no memory can be shared: {said}")
}
