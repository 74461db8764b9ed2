//! Goodput: later.
