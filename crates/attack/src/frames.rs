//! Hostile Ethernet frames to a node with an AF_XDP device, over a veth pair between network namespaces of
//! our own: random payloads, payloads that look like frames, handshakes of another job, damaged headers,
//! other framings, truncated frames.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Member, Security, job_file};
use tautline_baseline::packet::PacketSocket;

use crate::datagrams::{all_up, forward_until, settle};
use crate::hostile::{Captures, Forger};
use crate::launch::{Process, member};
use crate::record::Record;
use crate::relay::Relay;

const PORT: u16 = 7_300;
const MACS: [&str; 2] = ["02:00:00:54:4c:11", "02:00:00:54:4c:12"];
/// Frames after which the sender gives the receiver time.
const BURST: u64 = 32;

/// Sends `count` frames.
pub fn attack(count: u64, seed: u64) -> Record {
    Record::of("hostile frames, AF_XDP".to_owned(), |record| {
        let spaces = match Spaces::new() {
            Ok(spaces) => spaces,
            Err(why) => return record.skipped = Some(why),
        };
        if let Err(why) = run(record, &spaces, count, seed) {
            record.breaks(why);
        }
    })
}

fn address(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 212, 9, side as u8 + 1)
}

fn ip(args: &str) -> Result<(), String> {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    let out = out.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("ip {args}: {}", said.trim())) }
}

/// Two namespaces that a veth pair joins, and a folder for job files; removed when dropped.
struct Spaces {
    names: [String; 2],
    folder: PathBuf,
}

impl Spaces {
    fn new() -> Result<Spaces, String> {
        let id = std::process::id();
        let names = ["a", "b"].map(|side| format!("tlattack{side}-{id}"));
        let folder = std::env::temp_dir().join(format!("tautline-attack-{id}"));
        std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let spaces = Spaces { names, folder };
        let [a, b] = &spaces.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        let [first, second] = MACS;
        ip(&format!("-n {a} link add v0 address {first} type veth peer name v0 address {second} netns {b}"))?;
        for (side, name) in spaces.names.iter().enumerate() {
            let (ours, peers) = (address(side), address(1 - side));
            ip(&format!("-n {name} addr add {ours}/24 dev v0"))?;
            ip(&format!("-n {name} link set v0 up"))?;
            let mac = MACS[1 - side];
            ip(&format!("-n {name} neigh replace {peers} lladdr {mac} dev v0 nud permanent"))?;
        }
        Ok(spaces)
    }

    /// Starts the member of a side, in its namespace.
    fn start(&self, side: usize) -> Result<Process, String> {
        let members: Vec<_> = (0..2).map(|side| Member::new((address(side), PORT).into())).collect();
        let (key, device) = (JobKey::new([42; 32]), Some(DeviceName::Xdp));
        let text = job_file::describe(side as u32, &key, &members, Some(Security::Fabric), device, None);
        let path = self.folder.join(format!("job-{side}"));
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]).arg(program);
        command.args(member("talk-parked", "").get_args()).env("TAUTLINE_JOB_FILE", path);
        Process::spawn(side, command).map_err(|error| error.to_string())
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run(record: &mut Record, spaces: &Spaces, count: u64, seed: u64) -> Result<(), String> {
    let mut ranks = vec![spaces.start(0)?, spaces.start(1)?];
    let mut relay = Relay::new(&[]).map_err(|error| error.to_string())?;
    forward_until(&mut relay, &mut ranks, all_up)?;
    for rank in &mut ranks {
        let transports = rank.drain("@transport");
        if !transports.iter().any(|line| line.split_whitespace().nth(2) == Some("xdp")) {
            record.skipped = Some(format!("AF_XDP cannot be used here: {transports:?}"));
            return Ok(());
        }
    }
    let sent = std::thread::scope(|scope| {
        // The thread stays in the namespace that it enters.
        scope.spawn(|| inject(spaces, count, seed)).join().unwrap_or_else(|_| Err("it panicked".to_owned()))
    })?;
    record.count = sent;
    for rank in &mut ranks {
        let deaths = rank.drain("@down");
        deaths.iter().for_each(|line| record.breaks(format!("rank {} said {line}", rank.rank)));
    }
    settle(record, &mut relay, &mut ranks, Security::Fabric)
}

/// Sends frames from the first side to the second.
fn inject(spaces: &Spaces, count: u64, seed: u64) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let space = File::open(format!("/var/run/netns/{}", spaces.names[0])).map_err(failed)?;
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| failed(e.into()))?;
    let socket = PacketSocket::open("v0").map_err(failed)?;
    let (mut forger, captures) = (Forger::new(Security::Fabric, seed), Captures::default());
    for number in 0..count {
        let mut payload = forger.datagram(&captures);
        payload.truncate(1_400);
        let mut frame = frame(&payload);
        match forger.random.below(6) {
            // Damage in the headers, or anywhere.
            0 => flip(&mut frame, 14 * 8, 42, &mut forger),
            1 => flip(&mut frame, 0, 14, &mut forger),
            2 => frame.truncate(14 + forger.random.below(frame.len() - 14)),
            // The type of raw frames, and a VLAN tag.
            3 => frame[12..14].copy_from_slice(&[0x88, 0xb5]),
            4 => drop(frame.splice(12..12, [0x81, 0x00, 0x00, forger.random.next() as u8])),
            _ => {}
        }
        // The interface refuses what it cannot carry.
        let _ = socket.send(&frame);
        if number % BURST == BURST - 1 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
    Ok(count)
}

/// Flips a bit of the bytes up to `end`.
fn flip(frame: &mut [u8], first_bit: usize, end: usize, forger: &mut Forger) {
    let bits = 8 * end.min(frame.len());
    let bit = first_bit + forger.random.below(bits.saturating_sub(first_bit));
    if let Some(byte) = frame.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

/// A frame from the first side to the second, with correct headers and no UDP checksum.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mac = |text: &str| text.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let (to, from): (Vec<u8>, Vec<u8>) = (mac(MACS[1]), mac(MACS[0]));
    let mut header = vec![0x45, 0];
    header.extend(((28 + payload.len()) as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    header.extend(address(0).octets());
    header.extend(address(1).octets());
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [to, from, vec![8, 0], header].concat();
    frame.extend(PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(((8 + payload.len()) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}
