//! An attacker on the path: every pair of ranks exchanges datagrams through sockets of ours, which forward,
//! record and inject.

use std::io;
use std::net::{SocketAddr, UdpSocket};

/// For each ordered pair of ranks the socket that the first takes for the second.
pub struct Relay {
    addresses: Vec<SocketAddr>,
    legs: Vec<(usize, usize, UdpSocket)>,
    buffer: Vec<u8>,
}

/// A datagram on its way.
pub struct Passing<'a> {
    pub from: usize,
    pub to: usize,
    pub bytes: &'a [u8],
}

impl Relay {
    pub fn new(addresses: &[SocketAddr]) -> io::Result<Relay> {
        let mut legs = Vec::new();
        for from in 0..addresses.len() {
            for to in (0..addresses.len()).filter(|to| *to != from) {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.set_nonblocking(true)?;
                legs.push((from, to, socket));
            }
        }
        Ok(Relay { addresses: addresses.to_vec(), legs, buffer: vec![0; 65_536] })
    }

    /// The addresses at which `rank` sees all members.
    pub fn seen_by(&self, rank: usize) -> io::Result<Vec<SocketAddr>> {
        (0..self.addresses.len())
            .map(|to| match self.leg(rank, to) {
                Some(socket) => socket.local_addr(),
                None => Ok(self.addresses[to]),
            })
            .collect()
    }

    fn leg(&self, from: usize, to: usize) -> Option<&UdpSocket> {
        self.legs.iter().find(|leg| (leg.0, leg.1) == (from, to)).map(|leg| &leg.2)
    }

    /// Takes what has arrived at each socket, up to a few datagrams. Those that `decide` lets through go on.
    /// Returns how many there were.
    pub fn pass(&mut self, mut decide: impl FnMut(&Relay, &Passing<'_>) -> bool) -> usize {
        const AT_A_TIME: usize = 16;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        for (from, to, socket) in &self.legs {
            for _ in 0..AT_A_TIME {
                let Ok((len, _)) = socket.recv_from(&mut buffer) else { break };
                let passing = Passing { from: *from, to: *to, bytes: &buffer[..len] };
                count += 1;
                if decide(self, &passing) {
                    self.inject(*from, *to, passing.bytes);
                }
            }
        }
        self.buffer = buffer;
        count
    }

    /// Sends bytes to `to` as if they came from `from`. A full buffer loses them, as a network may.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        if let Some(socket) = self.leg(to, from) {
            let _ = socket.send_to(bytes, self.addresses[to]);
        }
    }
}
