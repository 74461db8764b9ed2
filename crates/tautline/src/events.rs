//! Events as a stream of futures-core.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::{Endpoint, Event};

/// The events of an endpoint, as they come; see [`Endpoint::events`].
#[derive(Debug)]
pub struct Events {
    endpoint: Endpoint,
}

impl Endpoint {
    /// What happens, as a stream without an end. It is woken by [`Endpoint::extract`], which somebody has to call.
    pub fn events(&self) -> Events {
        Events { endpoint: Endpoint::inner(self.core.clone()) }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.endpoint.poll_event() {
            return Poll::Ready(Some(event));
        }
        let mut waits = self.endpoint.core.event_waits.borrow_mut();
        if !waits.iter().any(|waker| waker.will_wake(context.waker())) {
            waits.push(context.waker().clone());
        }
        Poll::Pending
    }
}
