//! Groups for tests: the members are threads of one process.

use std::net::UdpSocket;
use std::sync::Barrier;

use tautline_node::link::JobKey;

use crate::error::Error;
use crate::group::Group;
use crate::{Endpoint, Job, Member};

/// Runs `program` once for each member of a job, each in a thread, when all have channels to all.
pub(in crate::group) fn run(n: usize, program: impl Fn(&Group) + Sync) {
    let sockets: Vec<_> = (0..n).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let members: Vec<_> = sockets.iter().map(|socket| Member::new(socket.local_addr().unwrap())).collect();
    let ready = Barrier::new(n);
    std::thread::scope(|scope| {
        for (rank, socket) in (0..).zip(sockets) {
            let job = Job::new(rank, JobKey::new([42; 32]), members.clone()).with_socket(socket);
            let (program, ready) = (&program, &ready);
            scope.spawn(move || {
                let ep = Endpoint::builder().join_job(job).unwrap();
                let world = ep.world().unwrap();
                world.barrier().unwrap();
                // A notice of a failure would end the barrier of another member.
                ready.wait();
                program(&world);
                // What was sent to members that close at the same time may be undelivered.
                match ep.close() {
                    Ok(()) | Err(Error::Undelivered(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            });
        }
    });
}
