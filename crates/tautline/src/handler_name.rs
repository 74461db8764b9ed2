//! Names of handlers, as programs pass them.

use tautline_node::Key;

use crate::error::Result;

/// A handler's name, looked up once; see [`crate::Endpoint::handler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handler(pub(crate) Key);

/// The name of a handler: a string, or a [`Handler`] that was looked up beforehand, which is faster.
pub trait Name {
    #[doc(hidden)]
    fn key(&self, node: &tautline_node::Endpoint) -> Result<Handler>;
}

impl Name for Handler {
    #[inline]
    fn key(&self, _: &tautline_node::Endpoint) -> Result<Handler> {
        Ok(*self)
    }
}

impl Name for &str {
    fn key(&self, node: &tautline_node::Endpoint) -> Result<Handler> {
        Ok(Handler(node.key(self)?))
    }
}
