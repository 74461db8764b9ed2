//! Prints the table of goodput.
#![allow(clippy::print_stdout)]

fn main() {
    print!("{}", tautline_sim::goodput::table());
}
