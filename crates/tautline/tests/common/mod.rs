//! Jobs for tests: several endpoints in one process, each in a thread of its own.
#![allow(dead_code)]

use std::net::UdpSocket;
use std::os::fd::OwnedFd;

use tautline::{Builder, Endpoint, Job, Member};
use tautline::node::link::JobKey;

/// Descriptions of a job of `n` processes on loopback; the sockets are bound, so that no port can be taken meanwhile.
pub fn jobs(n: usize) -> Vec<Job> {
    let sockets: Vec<_> = (0..n).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let members: Vec<_> = sockets.iter().map(|s| Member { addr: s.local_addr().unwrap() }).collect();
    sockets
        .into_iter()
        .enumerate()
        .map(|(rank, socket)| Job {
            rank: rank as u32,
            key: JobKey::new([42; 32]),
            members: members.clone(),
            security: None,
            socket: Some(OwnedFd::from(socket)),
        })
        .collect()
}

/// Runs `program` once per rank, each in a thread, and waits for all.
pub fn run(n: usize, program: impl Fn(Job) + Send + Sync) {
    std::thread::scope(|scope| {
        for job in jobs(n) {
            let program = &program;
            scope.spawn(move || program(job));
        }
    });
}

/// Joins with a builder.
pub fn join(builder: Builder, job: Job) -> Endpoint {
    builder.join_job(job).unwrap()
}
