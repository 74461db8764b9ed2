//! Which types may be used from other threads, checked by the compiler.

use tautline::{Config, Endpoint, Error, Event, Handler, Message, Outgoing, Waker};

/// Whether a type is `Send` or `Sync`: an inherent constant has precedence over a trait's.
struct Is<T>(std::marker::PhantomData<T>);

trait Not {
    const SEND: bool = false;
    const SYNC: bool = false;
}

impl<T> Not for Is<T> {}

impl<T: Send> Is<T> {
    const SEND: bool = true;
}

impl<T: Sync> Is<T> {
    const SYNC: bool = true;
}

/// An endpoint, its messages and its batches belong to one thread.
#[test]
fn endpoint_types_are_not_send() {
    const { assert!(!Is::<Endpoint>::SEND && !Is::<Endpoint>::SYNC) }
    const { assert!(!Is::<Message>::SEND && !Is::<Message>::SYNC) }
    const { assert!(!Is::<Outgoing>::SEND && !Is::<Outgoing>::SYNC) }
    const { assert!(!Is::<tautline::Batch<'static>>::SEND) }
    const { assert!(!Is::<tautline::Short<'static>>::SEND) }
}

/// Wakers, names, configurations, events and errors may be used from any thread.
#[test]
fn other_types_are_send_and_sync() {
    const { assert!(Is::<Waker>::SEND && Is::<Waker>::SYNC) }
    const { assert!(Is::<Error>::SEND && Is::<Error>::SYNC) }
    const { assert!(Is::<Event>::SEND && Is::<Event>::SYNC) }
    const { assert!(Is::<Config>::SEND && Is::<Config>::SYNC) }
    const { assert!(Is::<Handler>::SEND && Is::<Handler>::SYNC) }
    const { assert!(Is::<tautline::Job>::SEND && Is::<tautline::Job>::SYNC) }
}
