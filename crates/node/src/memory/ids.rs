//! What names the things that a program makes: apertures, tripwires, tripsets, operations.

use super::slab::Name;

/// An aperture of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApertureId(pub(crate) Name);

/// A tripwire of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireId(pub(crate) Name);

/// A tripset of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetId(pub(crate) Name);

/// An operation in progress, or complete with a result that nobody has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) Name);
