//! The steering program, which runs for every frame that the interface receives.
//!
//! It takes frames for this device's address and port that look like ours, drops and counts those that are
//! for us and malformed, and passes everything else to the kernel untouched (D-11, D-18). Handshake frames of
//! other jobs pass (D-31). Fragments, packets with IP options or extension headers, and datagrams that do not
//! look like frames (W-1) pass, too: the socket that owns the port gets them.

use std::mem::offset_of;
use std::net::IpAddr;

use tautline_wire::frame::{HEADER_LEN, MARK};
use tautline_wire::handshake::{HANDSHAKE_LEN, JOB_RANGE};

use super::asm::{Asm, If, Op, Reg, Reg::*, Size};
use super::headers::{ETHER_IPV4, ETHER_IPV6, ETHER_RAW, ETHER_VLAN, Mac, RAW_LEN};
use crate::sys::bpf::Addressee;

/// Why the program drops a frame; each cause has a counter (D-17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropCause {
    /// Lengths that contradict each other or the frame.
    Length,
    /// A wrong checksum of the IP header, or no UDP checksum over IPv6.
    Checksum,
    /// A source address that no host has: our own, loopback, multicast, unspecified.
    Source,
    /// It looks like a frame, but is shorter than any of its kind.
    Short,
}

/// The number of causes; each queue has a counter of each.
pub(crate) const DROP_CAUSES: u32 = 4;

/// What the program takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steering {
    pub ip: IpAddr,
    /// The VLAN of the address. Cards often remove the tag, so frames without one are taken, too.
    pub vlan: Option<u16>,
    /// Take every datagram for the port, whatever it looks like; for tests.
    pub any_shape: bool,
    /// Pass datagrams with a partial checksum. Only a sender on this host leaves it so, and in generic mode
    /// the kernel may hand over such trains without segmenting them; the UDP socket gets them segmented.
    pub pass_partial_checksums: bool,
    /// Take raw Ethernet frames, too.
    pub raw: bool,
    /// Descriptors of the maps: sockets by queue, addressees by queue, counters.
    pub sockets: i32,
    pub ports: i32,
    pub drops: i32,
}

/// Where the program runs. The kernel describes the frame by 32-bit fields, which it rewrites; an interpreter
/// has real pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Kernel,
    #[cfg(test)]
    Interpreter,
}

// Verdicts and functions of the kernel, from `linux/bpf.h`.
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const FRAME_LEN: i32 = 188;

/// The offset of the receive queue in the context.
const QUEUE: i16 = 16;
/// Offsets on the stack: the name of our job, a hardware address, and a key.
const JOB: i16 = -24;
const MAC: i16 = -16;
const KEY: i16 = -4;
const ETHERNET: i16 = 14;
const TAG: i32 = 4;
const UDP: i16 = 17;
/// The offset of UDP behind IPv4 and IPv6 headers without options.
const UDP4: i16 = ETHERNET + 20;
const UDP6: i16 = ETHERNET + 40;
const UDP_LEN: i16 = 8;

/// Assembles the program.
///
/// `R6` is the context, `R7` the frame (four bytes further behind a VLAN tag), `R8` the end of its first
/// fragment, `R9` the length of the whole frame.
pub(crate) fn steering(to: &Steering, target: Target) -> Vec<u64> {
    let mut p = Asm::default();
    p.op(Op::Move, R6, R1);
    p.call(FRAME_LEN);
    p.op(Op::Move, R9, R0);
    load_bounds(&mut p, target);
    need(&mut p, ETHERNET, "pass");
    // Keeps the destination's hardware address for later: its offset changes behind a tag.
    p.load(Size::Word, R3, R7, 0);
    p.store(Size::Word, R10, MAC, R3);
    p.load(Size::Half, R3, R7, 4);
    p.store(Size::Half, R10, MAC + 4, R3);
    p.load_be16(R3, R7, 12);
    p.jump_if_number(R3, If::NotEqual, ETHER_VLAN.into(), "untagged");
    untag(&mut p, to.vlan);
    p.label("untagged");
    if to.raw {
        p.jump_if_number(R3, If::Equal, ETHER_RAW.into(), "raw");
    }
    match to.ip {
        IpAddr::V4(ip) => ipv4(&mut p, ip.octets(), to),
        IpAddr::V6(ip) => ipv6(&mut p, ip.octets(), to),
    }
    if to.raw {
        p.label("raw");
        raw(&mut p, to);
    }
    verdicts(&mut p, to);
    p.build()
}

fn load_bounds(p: &mut Asm, target: Target) {
    match target {
        Target::Kernel => {
            p.load(Size::Word, R7, R6, 0);
            p.load(Size::Word, R8, R6, 4);
        }
        #[cfg(test)]
        Target::Interpreter => {
            p.load(Size::Double, R7, R6, 0);
            p.load(Size::Double, R8, R6, 8);
        }
    }
}

/// Continues only if the frame's first fragment has as many bytes.
fn need(p: &mut Asm, bytes: i16, otherwise: &'static str) {
    p.op(Op::Move, R2, R7);
    p.op_number(Op::Add, R2, bytes.into());
    p.jump_if(R2, If::Greater, R8, otherwise);
}

/// Skips our own tag, or one that only sets a priority.
fn untag(p: &mut Asm, vlan: Option<u16>) {
    need(p, ETHERNET + TAG as i16, "pass");
    p.load_be16(R4, R7, 14);
    p.op_number(Op::And, R4, 0x0fff);
    p.jump_if_number(R4, If::NotEqual, vlan.unwrap_or(0).into(), "pass");
    p.load_be16(R3, R7, 16);
    p.op_number(Op::Add, R7, TAG);
    p.op_number(Op::Sub, R9, TAG);
}

fn ipv4(p: &mut Asm, ip: [u8; 4], to: &Steering) {
    p.jump_if_number(R3, If::NotEqual, ETHER_IPV4.into(), "pass");
    need(p, UDP4 + UDP_LEN, "pass");
    // Version 4, no options.
    p.load(Size::Byte, R3, R7, ETHERNET);
    p.jump_if_number(R3, If::NotEqual, 0x45, "pass");
    // Not a fragment: neither "more" nor an offset.
    p.load_be16(R3, R7, ETHERNET + 6);
    p.jump_if_number(R3, If::Bits, 0x3fff, "pass");
    p.load(Size::Byte, R3, R7, ETHERNET + 9);
    p.jump_if_number(R3, If::NotEqual, UDP.into(), "pass");
    p.jump_unless_word(R7, ETHERNET + 16, ip, "pass");
    check_addressee(p, to, UDP4 + 2, "addressed");
    if !to.any_shape {
        check_mark(p, UDP4 + UDP_LEN, "marked");
    }
    if to.pass_partial_checksums {
        pass_partial(p, ETHERNET + 12, 2, UDP4);
    }
    // The frame is for us. The IP header's words add up to all ones.
    add_words(p, ETHERNET, 5);
    fold(p);
    p.jump_if_number(R3, If::NotEqual, 0xffff, "checksum");
    // The packet fits the frame, and UDP fills the packet.
    p.load_be16(R3, R7, ETHERNET + 2);
    p.op(Op::Move, R4, R3);
    p.op_number(Op::Add, R4, ETHERNET.into());
    p.jump_if(R4, If::Greater, R9, "length");
    p.load_be16(R4, R7, UDP4 + 4);
    p.op(Op::Move, R5, R4);
    p.op_number(Op::Add, R5, 20);
    p.jump_if(R5, If::NotEqual, R3, "length");
    // A possible source: not ourselves, not 0/8, not 127/8, not multicast or above.
    p.load(Size::Byte, R3, R7, ETHERNET + 12);
    p.jump_if_number(R3, If::Equal, 0, "source");
    p.jump_if_number(R3, If::Equal, 127, "source");
    p.jump_if_number(R3, If::Greater, 223, "source");
    p.load(Size::Word, R3, R7, ETHERNET + 12);
    p.load(Size::Word, R5, R7, ETHERNET + 16);
    p.jump_if(R3, If::Equal, R5, "source");
    check_length(p, to, UDP4 + UDP_LEN);
}

/// `R3 =` the sum of `words` 32-bit words, in memory order. Uses `R4`.
fn add_words(p: &mut Asm, at: i16, words: i16) {
    p.op_number(Op::Move, R3, 0);
    for word in 0..words {
        p.load(Size::Word, R4, R7, at + 4 * word);
        p.op(Op::Add, R3, R4);
    }
}

/// Folds the sum in `R3` into 16 bits. Uses `R4` and `R5`.
fn fold(p: &mut Asm) {
    p.op(Op::Move, R4, R3);
    p.op_number(Op::ShiftRight, R4, 32);
    p.op_number(Op::Move, R5, -1);
    p.op_number(Op::ShiftRight, R5, 32);
    p.op(Op::And, R3, R5);
    p.op(Op::Add, R3, R4);
    // Thirty-three bits carry twice.
    for _ in 0..3 {
        p.op(Op::Move, R4, R3);
        p.op_number(Op::ShiftRight, R4, 16);
        p.op_number(Op::And, R3, 0xffff);
        p.op(Op::Add, R3, R4);
    }
}

/// Passes a datagram whose checksum covers only the pseudo header: addresses, protocol and length.
fn pass_partial(p: &mut Asm, addresses: i16, words: i16, udp: i16) {
    add_words(p, addresses, words);
    p.op_number(Op::Add, R3, u16::from_ne_bytes(UDP.to_be_bytes()).into());
    p.load(Size::Half, R4, R7, udp + 4);
    p.op(Op::Add, R3, R4);
    fold(p);
    p.load(Size::Half, R4, R7, udp + 6);
    p.jump_if(R3, If::Equal, R4, "pass");
}

fn ipv6(p: &mut Asm, ip: [u8; 16], to: &Steering) {
    p.jump_if_number(R3, If::NotEqual, ETHER_IPV6.into(), "pass");
    need(p, UDP6 + UDP_LEN, "pass");
    p.load(Size::Byte, R3, R7, ETHERNET);
    p.op_number(Op::ShiftRight, R3, 4);
    p.jump_if_number(R3, If::NotEqual, 6, "pass");
    // UDP follows directly: no extension headers, hence no fragment.
    p.load(Size::Byte, R3, R7, ETHERNET + 6);
    p.jump_if_number(R3, If::NotEqual, UDP.into(), "pass");
    for word in 0..4 {
        let bytes = [ip[4 * word], ip[4 * word + 1], ip[4 * word + 2], ip[4 * word + 3]];
        p.jump_unless_word(R7, ETHERNET + 24 + 4 * word as i16, bytes, "pass");
    }
    check_addressee(p, to, UDP6 + 2, "addressed");
    if !to.any_shape {
        check_mark(p, UDP6 + UDP_LEN, "marked");
    }
    if to.pass_partial_checksums {
        pass_partial(p, ETHERNET + 8, 8, UDP6);
    }
    // The frame is for us. The packet fits the frame, UDP fills the packet, and there is a checksum.
    p.load_be16(R3, R7, ETHERNET + 4);
    p.op(Op::Move, R4, R3);
    p.op_number(Op::Add, R4, UDP6.into());
    p.jump_if(R4, If::Greater, R9, "length");
    p.load_be16(R4, R7, UDP6 + 4);
    p.jump_if(R4, If::NotEqual, R3, "length");
    p.load(Size::Half, R3, R7, UDP6 + 6);
    p.jump_if_number(R3, If::Equal, 0, "checksum");
    // A possible source: not ourselves, not multicast, and neither the unspecified address nor loopback,
    // whose first half is zero.
    for word in (0..16).step_by(4) {
        p.load(Size::Word, R3, R7, ETHERNET + 8 + word);
        p.load(Size::Word, R5, R7, ETHERNET + 24 + word);
        p.jump_if(R3, If::NotEqual, R5, "another");
    }
    p.jump("source");
    p.label("another");
    p.load(Size::Byte, R3, R7, ETHERNET + 8);
    p.jump_if_number(R3, If::Equal, 0xff, "source");
    p.load(Size::Word, R3, R7, ETHERNET + 8);
    p.load(Size::Word, R5, R7, ETHERNET + 12);
    p.op(Op::Add, R3, R5);
    p.jump_if_number(R3, If::Equal, 0, "source");
    check_length(p, to, UDP6 + UDP_LEN);
}

/// Checks a frame of the raw framing: length, port, port, zero (D-12).
fn raw(p: &mut Asm, to: &Steering) {
    need(p, ETHERNET + RAW_LEN as i16, "pass");
    check_addressee(p, to, ETHERNET + 2, "addressed_raw");
    if !to.any_shape {
        check_mark(p, ETHERNET + RAW_LEN as i16, "marked_raw");
    }
    p.load(Size::Half, R3, R7, ETHERNET + 6);
    p.jump_if_number(R3, If::NotEqual, 0, "checksum");
    p.load_be16(R4, R7, ETHERNET);
    // From here on as if the length included a UDP header.
    p.op_number(Op::Add, R4, UDP_LEN.into());
    p.op(Op::Move, R3, R4);
    p.op_number(Op::Add, R3, i32::from(ETHERNET) + RAW_LEN as i32 - i32::from(UDP_LEN));
    p.jump_if(R3, If::Greater, R9, "length");
    check_length(p, to, ETHERNET + RAW_LEN as i16);
}

/// Continues only if the frame is for its queue's addressee. A socket gets only frames of its own queue, so a
/// frame for another process's port goes to that process's UDP socket. A unicast frame must be for our
/// hardware address: in promiscuous mode others arrive, too.
fn check_addressee(p: &mut Asm, to: &Steering, at: i16, addressed: &'static str) {
    p.load(Size::Word, R3, R6, QUEUE);
    look_up(p, to.ports, R3);
    p.jump_if_number(R0, If::Equal, 0, "pass");
    p.load(Size::Half, R3, R0, size_of::<Mac>() as i16);
    p.load_be16(R4, R7, at);
    p.jump_if(R3, If::NotEqual, R4, "pass");
    p.load(Size::Double, R3, R0, offset_of!(Addressee, job) as i16);
    p.store(Size::Double, R10, JOB, R3);
    p.load(Size::Byte, R3, R10, MAC);
    p.jump_if_number(R3, If::Bits, 1, addressed);
    for (size, at) in [(Size::Word, 0), (Size::Half, 4)] {
        p.load(size, R3, R10, MAC + at);
        p.load(size, R4, R0, at);
        p.jump_if(R3, If::NotEqual, R4, "pass");
    }
    p.label(addressed);
}

/// `R0 =` the address of a map's value. Clobbers `R1` to `R5`.
fn look_up(p: &mut Asm, map: i32, key: Reg) {
    p.store(Size::Word, R10, KEY, key);
    p.op(Op::Move, R2, R10);
    p.op_number(Op::Add, R2, KEY.into());
    p.map(R1, map);
    p.call(MAP_LOOKUP);
}

/// Checks that the frame looks like ours (W-1) and, if it names a job, that it names ours (D-31); others
/// pass, and the socket's owner counts them.
fn check_mark(p: &mut Asm, payload: i16, marked: &'static str) {
    need(p, payload + 1, "pass");
    p.load(Size::Byte, R3, R7, payload);
    p.jump_if_number(R3, If::Less, i32::from(MARK) + 1, "pass");
    p.jump_if_number(R3, If::Greater, i32::from(MARK) + 6, "pass");
    // Data and close frames name no job. A handshake that ends before the name is too short.
    p.jump_if_number(R3, If::Less, i32::from(MARK) + 2, marked);
    p.jump_if_number(R3, If::Greater, i32::from(MARK) + 5, marked);
    need(p, payload + JOB_RANGE.end as i16, marked);
    p.load(Size::Double, R4, R10, JOB);
    p.jump_if_number(R4, If::Equal, 0, marked);
    p.load(Size::Double, R3, R7, payload + JOB_RANGE.start as i16);
    p.jump_if(R3, If::NotEqual, R4, "pass");
    p.label(marked);
}

/// Checks the length of UDP header and payload in `R4`: no frame is shorter than its kind's header.
fn check_length(p: &mut Asm, to: &Steering, payload: i16) {
    p.jump_if_number(R4, If::Less, i32::from(UDP_LEN) + 1, "length");
    if !to.any_shape {
        p.jump_if_number(R4, If::Less, i32::from(UDP_LEN) + HEADER_LEN as i32, "short");
        need(p, payload + 1, "short");
        p.load(Size::Byte, R3, R7, payload);
        // Data and close frames have the short header; the four kinds in between are handshakes.
        p.jump_if_number(R3, If::Less, i32::from(MARK) + 2, "take");
        p.jump_if_number(R3, If::Greater, i32::from(MARK) + 5, "take");
        p.jump_if_number(R4, If::Less, i32::from(UDP_LEN) + HANDSHAKE_LEN as i32, "short");
    }
    p.jump("take");
}

fn verdicts(p: &mut Asm, to: &Steering) {
    p.label("take");
    p.map(R1, to.sockets);
    // To the socket of the frame's queue; if there is none, to the kernel.
    p.load(Size::Word, R2, R6, QUEUE);
    p.op_number(Op::Move, R3, XDP_PASS);
    p.call(REDIRECT_MAP);
    p.exit();
    for (kind, label) in [
        (DropCause::Length, "length"),
        (DropCause::Checksum, "checksum"),
        (DropCause::Source, "source"),
        (DropCause::Short, "short"),
    ] {
        if p.leads_to(label) {
            p.label(label);
            p.op_number(Op::Move, R3, kind as i32);
            p.jump("drop");
        }
    }
    p.label("drop");
    // This queue's counters: four per queue.
    p.load(Size::Word, R4, R6, QUEUE);
    const { assert!(DROP_CAUSES == 4) };
    p.op(Op::Add, R4, R4);
    p.op(Op::Add, R4, R4);
    p.op(Op::Add, R3, R4);
    look_up(p, to.drops, R3);
    p.jump_if_number(R0, If::Equal, 0, "dropped");
    p.load(Size::Double, R3, R0, 0);
    p.op_number(Op::Add, R3, 1);
    p.store(Size::Double, R0, 0, R3);
    p.label("dropped");
    p.op_number(Op::Move, R0, XDP_DROP);
    p.exit();
    p.label("pass");
    p.op_number(Op::Move, R0, XDP_PASS);
    p.exit();
}

/// Assembles a socket filter that accepts every packet and counts it in a word that this process has mapped:
/// so reading memory tells whether a system call is worthwhile.
pub(crate) fn arrival_counter(words: i32, word: u32) -> Vec<u64> {
    let mut p = Asm::default();
    p.map_value(R1, words, word * 8);
    p.op_number(Op::Move, R2, 1);
    p.atomic_add(R1, 0, R2);
    p.op_number(Op::Move, R0, -1);
    p.exit();
    p.build()
}
