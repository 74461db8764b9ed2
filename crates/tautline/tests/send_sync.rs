//! Which types may be used from other threads, checked by the compiler.

use tautline::memory::{AsyncRemoteHandle, RemoteHandle};
use tautline::rpc::{HandleCall, Replier, TypedHandleCall, TypedReplier};
use tautline::{
    AsyncEndpoint, AsyncHandle, Config, Endpoint, Error, Event, Handle, Handler, Message, Outgoing, Waker,
};

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
    const { assert!(!Is::<AsyncEndpoint>::SEND && !Is::<AsyncEndpoint>::SYNC) }
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

/// Handles, what is made of them, and their futures may be used from any thread.
#[test]
fn handles_are_send_and_sync() {
    fn is_clone<T: Clone>() {}
    is_clone::<Handle>();
    is_clone::<AsyncHandle>();
    is_clone::<RemoteHandle>();
    const { assert!(Is::<Handle>::SEND && Is::<Handle>::SYNC) }
    const { assert!(Is::<AsyncHandle>::SEND && Is::<AsyncHandle>::SYNC) }
    const { assert!(Is::<RemoteHandle>::SEND && Is::<RemoteHandle>::SYNC) }
    const { assert!(Is::<AsyncRemoteHandle>::SEND && Is::<AsyncRemoteHandle>::SYNC) }
    const { assert!(Is::<HandleCall>::SEND && Is::<TypedHandleCall<std::rc::Rc<u8>>>::SEND) }
    const { assert!(Is::<Replier>::SEND && Is::<TypedReplier<u64, String>>::SEND) }
    fn is_send<F: Future + Send>(_: impl Fn(&'static AsyncHandle, &'static AsyncRemoteHandle) -> F) {}
    is_send(|handle, _| handle.send(1, "name", b"bytes"));
    is_send(|handle, _| handle.call_raw(1, "name", b"bytes"));
    is_send(|handle, _| handle.call::<_, u64>(1, "name", "text"));
    is_send(|handle, _| handle.call_timeout::<_, u64>(1, "name", "text", None));
    is_send(|_, remote| remote.put(0, b"bytes"));
    is_send(|_, remote| remote.get(0, 1));
    is_send(|_, remote| remote.flush());
    is_send(|_, remote| remote.fetch_add(0, 1));
}
