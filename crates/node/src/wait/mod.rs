//! Waiting: what the threads of a node share, how they sleep and wake, and who makes progress meanwhile.

mod activity;
mod descriptors;
mod shared;
mod spin;
pub(crate) mod watchdog;

pub(crate) use activity::PollActivity;
pub(crate) use descriptors::Descriptors;
pub(crate) use shared::{Guard, Shared};
pub(crate) use spin::{SpinBackoff, Spinner, Turn};
