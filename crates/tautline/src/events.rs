//! Events as a stream of futures-core.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::waits::Place;
use crate::{Endpoint, Event};

/// The events of an endpoint, as they come; see [`Endpoint::events`].
#[derive(Debug)]
pub struct Events {
    endpoint: Endpoint,
    wait: Place,
}

impl Endpoint {
    /// What happens, as a stream. It is woken by [`Endpoint::extract`], which somebody has to call, and by [`Endpoint::close`]: what has not been told by then is told, and then it ends.
    pub fn events(&self) -> Events {
        Events { endpoint: Endpoint::inner(self.core.clone()), wait: Place::default() }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.endpoint.poll_event() {
            return Poll::Ready(Some(event));
        }
        if self.endpoint.core.closed.get() {
            return Poll::Ready(None);
        }
        self.endpoint.core.event_waits.register(&self.wait, context);
        Poll::Pending
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.endpoint.core.event_waits.leave(&self.wait);
    }
}
