//! The algorithms of collectives. Each writes what one member does into a [`super::plan::Draft`]; none of
//! them knows of tags, devices or time.

pub(super) mod all_gather;
pub(super) mod all_reduce;
pub(super) mod all_to_all;
pub(super) mod barrier;
pub(super) mod broadcast;
pub(super) mod gather;
pub(super) mod reduce;
pub(super) mod reduce_scatter;
pub(super) mod scan;
pub(super) mod scatter;
