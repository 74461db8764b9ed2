//! Calls that several ranks make together: barriers, sharing cookies, exchanging long messages.
//!
//! Every endpoint registers the two handlers that they need, behind those of the program. Their messages do
//! not count as handled.

mod dissemination;
mod exchange;

use std::cell::OnceCell;
use std::rc::{Rc, Weak};

use crate::async_endpoint::AsyncEndpoint;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::handler_name::Handler;
use crate::memory::Cookie;
use crate::messages::Message;
use crate::messages::handlers::Registered;
use crate::{PeerId, Rank};
use dissemination::{Call, Gathered, Rounds, longest_round};
use exchange::Exchanges;

/// The handlers' names.
const ROUND: &str = "tautline.round";
const EXCHANGE: &str = "tautline.exchange";

/// The number of handlers that every endpoint registers.
pub(crate) const HANDLERS: usize = 2;

/// What an endpoint keeps for these calls.
#[derive(Default)]
pub(crate) struct Collectives {
    rounds: Rc<Rounds>,
    exchanges: Rc<Exchanges>,
    home: Rc<OnceCell<Weak<Core>>>,
}

impl Collectives {
    /// The handlers, with their names.
    pub(crate) fn handlers(&self) -> [(String, Registered); HANDLERS] {
        let (rounds, exchanges) = (self.rounds.clone(), self.exchanges.clone());
        let (first, second) = (self.home.clone(), self.home.clone());
        let round = move |mut message: Message| {
            let (rounds, home) = (rounds.clone(), first.get().cloned().unwrap_or_default());
            async move {
                let size = home.upgrade().map_or(0, |core| core.node.size());
                let bytes = if message.len() > longest_round(size) {
                    Err(Error::Violation("a message of a barrier that is too long"))
                } else {
                    message.read_to_end().await
                };
                let Some(core) = home.upgrade() else { return Ok(()) };
                core.extraction.not_of_the_program();
                if let Err(error @ Error::Violation(_)) = bytes {
                    return Err(error);
                }
                // A sender that is gone is noticed by those who wait for it.
                bytes.map_or(Ok(()), |bytes| rounds.arrived(&core, message.from(), &bytes))
            }
        };
        let exchange = move |mut message: Message| {
            let home = second.get().cloned().unwrap_or_default();
            // Its place in the queue is that of its first frame. The sender may be gone by now.
            let incarnation = |core: Rc<Core>| core.node.last_incarnation(message.from()).ok();
            let incarnation = home.upgrade().and_then(incarnation).unwrap_or_default();
            let place = exchanges.reserve(PeerId::new(message.from(), incarnation));
            async move {
                let bytes = message.read_whole().await;
                if let Some(core) = home.upgrade() {
                    core.extraction.not_of_the_program();
                }
                place?.fill(bytes);
                Ok(())
            }
        };
        let handlers = (Registered::stream(round), Registered::stream(exchange));
        [(ROUND.to_owned(), handlers.0), (EXCHANGE.to_owned(), handlers.1)]
    }

    /// Names the endpoint that the handlers belong to.
    pub(crate) fn bind(core: &Rc<Core>) {
        if let Some(collectives) = core.attachment::<Collectives>() {
            let _ = collectives.home.set(Rc::downgrade(core));
        }
        // Barriers fail themselves when a rank is gone.
        let _ = core.node.key(ROUND).and_then(|key| core.node.leave_unreported(key));
    }

    fn of(core: &Core) -> Result<&Collectives> {
        core.attachment().ok_or(Error::Stale)
    }
}

fn handler(core: &Core, name: &str) -> Result<Handler> {
    Ok(Handler(core.node.key(name)?))
}

impl Endpoint {
    /// Waits until all ranks of the job have called this as often as this rank. Extracts meanwhile, and so
    /// runs handlers. Not in handlers. Each lane has barriers of its own, with the lanes of the same number.
    ///
    /// It says nothing about messages and memory: what a rank sent before the barrier may arrive after it,
    /// and puts are in place only if they were flushed.
    ///
    /// If a rank goes down, every rank that waits for it, or for a rank that waits for it, gets
    /// [`Error::PeerGone`] with the rank that went down. From then on the ranks may disagree on how many
    /// barriers there were, so all further calls of `barrier` and [`Endpoint::share`] fail with the same
    /// error, even if the rank is started again. A rank may hear of it from another one, before its own
    /// [`Endpoint::peer_state`] says so.
    ///
    /// The cost is log2(n) rounds, each a short message to another rank.
    pub fn barrier(&self) -> Result<()> {
        Collectives::of(&self.core)?.rounds.run(&self.core, Call::Barrier, Gathered::default()).map(drop)
    }

    /// Hands a cookie of this rank, or none, to all ranks of the job, and returns the cookies of all ranks,
    /// by rank. All ranks must call it, in the same order as [`Endpoint::barrier`]; it waits for them and
    /// fails as [`Endpoint::barrier`] does.
    pub fn share(&self, cookie: impl Into<Option<Cookie>>) -> Result<Vec<Option<Cookie>>> {
        let own = Gathered::of(self.rank(), cookie.into());
        Collectives::of(&self.core)?.rounds.run(&self.core, Call::Share, own)?.into_cookies(self.size())
    }

    /// Sends `bytes` to a peer that calls this with this rank, and returns the peer's bytes. Both may be of
    /// any length. Extracts while it sends and waits, so it does not deadlock. The n-th exchange of a pair
    /// matches the n-th one at the peer. Not in handlers.
    ///
    /// If the peer goes down first, returns [`Error::PeerGone`].
    pub fn exchange(&self, peer: Rank, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(self.exchange_all(&[(peer, bytes)])?.pop().unwrap_or_default())
    }

    /// As [`Endpoint::exchange`], with several peers at once; returns their bytes in the same order. If one
    /// of them goes down, the whole call fails, and messages of which only a part was sent are aborted: the
    /// peers' exchanges then fail, too.
    pub fn exchange_all(&self, messages: &[(Rank, &[u8])]) -> Result<Vec<Vec<u8>>> {
        Collectives::of(&self.core)?.exchanges.run(&self.core, messages)
    }
}

impl AsyncEndpoint {
    /// As [`Endpoint::barrier`], in tasks and handlers. An endpoint has one call of `barrier` or
    /// [`AsyncEndpoint::share`] under way: another one fails with [`Error::TooMany`].
    ///
    /// If the future is dropped before its end, this rank has begun the barrier all the same: the next call
    /// goes on with it.
    pub async fn barrier(&self) -> Result<()> {
        let core = self.core();
        Collectives::of(core)?.rounds.run_async(core, Call::Barrier, Gathered::default()).await.map(drop)
    }

    /// As [`Endpoint::share`], in tasks and handlers; otherwise as [`AsyncEndpoint::barrier`]. A call that
    /// goes on with one that was dropped hands on the cookie of that one.
    pub async fn share(&self, cookie: impl Into<Option<Cookie>>) -> Result<Vec<Option<Cookie>>> {
        let (core, own) = (self.core(), Gathered::of(self.rank(), cookie.into()));
        Collectives::of(core)?.rounds.run_async(core, Call::Share, own).await?.into_cookies(self.size())
    }

    /// As [`Endpoint::exchange`], in tasks and handlers. There is one exchange with a peer at a time: another
    /// one fails with [`Error::TooMany`].
    ///
    /// If the future is dropped before its end, what was sent in part is aborted, and the peer's exchange
    /// fails; what the peer sent is dropped.
    pub async fn exchange(&self, peer: Rank, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(self.exchange_all(&[(peer, bytes)]).await?.pop().unwrap_or_default())
    }

    /// As [`Endpoint::exchange_all`], in tasks and handlers; otherwise as [`AsyncEndpoint::exchange`].
    pub async fn exchange_all(&self, messages: &[(Rank, &[u8])]) -> Result<Vec<Vec<u8>>> {
        Collectives::of(self.core())?.exchanges.run_async(self.core(), messages).await
    }
}
