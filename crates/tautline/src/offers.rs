//! Named queues and streams: the cookie of a ring is offered to a name that a peer has registered.

use std::cell::RefCell;
use std::rc::Rc;

use tautline_node::memory::Cookie;

use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::builder::{Builder, Style};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::handler_name::Name;
use crate::messages::Message;

/// Registers a name to which peers offer cookies. Each cookie is opened by `open`, and the result handed to
/// `accept`.
pub(crate) fn on_offer<T: 'static>(
    name: &str,
    open: fn(&AsyncEndpoint, &Cookie) -> Result<T>,
    accept: impl FnMut(Rank, T) + 'static,
) -> impl Style {
    let accept = Rc::new(RefCell::new(accept));
    move |builder: Builder| {
        builder.on(name, move |mut message: Message| {
            let accept = accept.clone();
            async move {
                if message.len() != Cookie::LEN as u64 {
                    return Err(Error::Violation("an offer that is not a cookie"));
                }
                let cookie = Cookie::from_bytes(&message.read().await?);
                let opened = open(&message.endpoint(), &cookie)?;
                (accept.borrow_mut())(message.from(), opened);
                Ok(())
            }
        })
    }
}

/// Offers a cookie to a name of a peer; waits for room if necessary.
pub(crate) fn offer(ep: &Endpoint, peer: Rank, name: impl Name, cookie: &Cookie) -> Result<()> {
    ep.send(peer, name, &cookie.to_bytes())
}

/// As [`offer`], for handlers and tasks.
pub(crate) async fn offer_async(
    ep: &AsyncEndpoint,
    peer: Rank,
    name: impl Name,
    cookie: &Cookie,
) -> Result<()> {
    ep.send(peer, name, &cookie.to_bytes()).await
}
