//! The tests that start other programs.

mod common;

mod doc_programs;
mod examples;
mod group_deaths;
mod kill;
mod mapped_deaths;
mod members;
