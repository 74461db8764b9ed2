//! Two links against each other. One binary, so that the world is compiled once and all of it is used.

mod faults;
mod flow;
mod handshake;
mod mutations;
mod path;
mod timing;
mod world;
