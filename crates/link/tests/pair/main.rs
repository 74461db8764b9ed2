//! Two links connected by a simulated network. One binary, so that the simulated world is compiled once.

mod flow_control;
mod handshake;
mod network_faults;
mod path_limit;
mod replays;
mod tampered_frames;
mod timers_and_close;
mod world;
