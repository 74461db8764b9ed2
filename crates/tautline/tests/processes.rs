//! The tests that start other programs.

mod common;

mod doc_programs;
mod examples;
mod kill;
mod mapped_deaths;
