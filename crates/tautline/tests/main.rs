//! The tests that may share a process, in one program: each program contains the whole library, and takes
//! longer to build than most files of tests take to run.

mod common;

mod asleep;
mod async_collective;
mod async_endpoint;
mod backpressure;
mod blocked;
mod closing;
mod collective;
mod exclusion;
mod executors;
mod failures;
mod groups;
mod handlers;
mod handles;
mod hosts_collectives;
mod lanes;
mod loans;
mod local;
mod loopback;
mod memory;
mod memory_progress;
mod messages;
mod multicast;
mod multicast_memory;
mod paths;
mod peers;
mod pieces;
mod promised_numbers;
mod refusals;
mod registration;
mod rpc;
mod send_sync;
mod shared_collectives;
mod started_sends;
mod styles;
mod tag_lists;
mod tags;
mod teardown;
mod threads;
mod tokio;
mod torn_words;
mod undelivered;
mod waiting;
