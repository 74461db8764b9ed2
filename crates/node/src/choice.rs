//! Which device was chosen, and why the better ones were not (N-11).

/// A device that was considered and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassedOver {
    /// Its name.
    pub device: &'static str,
    /// Why not.
    pub reason: String,
}

/// The device that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// Its name.
    pub device: &'static str,
    /// Why this one, in a sentence.
    pub reason: String,
    /// How it is set up.
    pub details: String,
    /// Better ones that could not be used.
    pub passed_over: Vec<PassedOver>,
}
