//! Events as a stream of futures-core.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::Event;
use crate::endpoint::Endpoint;
use crate::waiters::Waiter;

/// The events of an endpoint, as they happen; see [`Endpoint::events`].
#[derive(Debug)]
pub struct Events {
    endpoint: Endpoint,
    waiter: Waiter,
}

impl Events {
    pub(crate) fn new(endpoint: &Endpoint) -> Events {
        Events { endpoint: Endpoint::view(endpoint.core.clone()), waiter: Waiter::default() }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.endpoint.poll_event() {
            return Poll::Ready(Some(event));
        }
        if self.endpoint.core.is_closed() {
            return Poll::Ready(None);
        }
        self.endpoint.core.events.waiters.register(&self.waiter, context);
        Poll::Pending
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.endpoint.core.events.waiters.remove(&self.waiter);
    }
}
