//! The tests that start other programs.

mod common;

mod blocked_deaths;
mod doc_programs;
mod examples;
mod group_deaths;
mod kill;
mod mapped_deaths;
mod members;
