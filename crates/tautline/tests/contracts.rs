//! What the compiler can check: which types may go to other threads.

use tautline::{Config, Endpoint, Error, Event, Handler, Message, Outgoing, Waker};

/// Has `VALUE` true only for types that are `Send` (or `Sync`): an inherent constant wins over a trait's.
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
fn one_thread() {
    const { assert!(!Is::<Endpoint>::SEND && !Is::<Endpoint>::SYNC) }
    const { assert!(!Is::<Message>::SEND && !Is::<Message>::SYNC) }
    const { assert!(!Is::<Outgoing>::SEND && !Is::<Outgoing>::SYNC) }
    const { assert!(!Is::<tautline::Batch<'static>>::SEND) }
    const { assert!(!Is::<tautline::Short<'static>>::SEND) }
}

/// What wakes, names, configures, reports and fails may go anywhere.
#[test]
fn any_thread() {
    const { assert!(Is::<Waker>::SEND && Is::<Waker>::SYNC) }
    const { assert!(Is::<Error>::SEND && Is::<Error>::SYNC) }
    const { assert!(Is::<Event>::SEND && Is::<Event>::SYNC) }
    const { assert!(Is::<Config>::SEND && Is::<Config>::SYNC) }
    const { assert!(Is::<Handler>::SEND && Is::<Handler>::SYNC) }
    const { assert!(Is::<tautline::Job>::SEND && Is::<tautline::Job>::SYNC) }
}
