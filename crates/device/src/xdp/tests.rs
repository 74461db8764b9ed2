//! The steering program on an interpreter and in the kernel, and the headers against it.
#![allow(clippy::print_stdout)]

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use super::headers::{
    FrameAddresses, FrameError, Framing, HEADERS_MAX, Parsed, Sender, Template, fold, parse, sum,
};
use super::program::{DROP_CAUSES, DropCause, Steering, Target, steering};
use crate::sys::bpf::{self, Addressee, CounterMap, QueueMap};
use crate::sys::caps;

const PASS: u64 = 2;
const DROP: u64 = 1;
/// What the replacement for the kernel's redirect function returns: the frame is taken.
const TAKEN: u64 = 4;

thread_local! {
    static FRAME_LEN: Cell<u64> = const { Cell::new(0) };
}

fn frame_len(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    FRAME_LEN.get()
}

fn redirect(_: u64, queue: u64, otherwise: u64, _: u64, _: u64) -> u64 {
    assert_eq!((queue, otherwise), (3, PASS), "to the frame's queue, or else to the kernel");
    TAKEN
}

/// Stands for the map of addressees; the other map is that of counters, which are checked in the kernel.
const PORTS: i32 = 77;
/// The addressee of our queue.
static PORT: Addressee = Addressee { mac: [2, 0, 0, 0, 0, 3], port: 7_000, job: JOB.to_le() };
/// The name of our job.
const JOB: u64 = 0x0123_4567_89ab_cdef;
/// The offset of the job's name in a handshake frame (H-10).
const AT_JOB: usize = tautline_wire::handshake::JOB_RANGE.start;

fn lookup(map: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    if map == PORTS as u64 { (&raw const PORT).addr() as u64 } else { 0 }
}

const US4: &str = "10.1.2.3:7000";
const THEM4: &str = "10.1.2.4:9000";
const US6: &str = "[fd00::3]:7000";
const THEM6: &str = "[fd00::4]:9000";

fn steer(to: &str) -> Steering {
    let to: SocketAddr = to.parse().unwrap();
    Steering {
        ip: to.ip(),
        vlan: None,
        any_shape: false,
        pass_partial_checksums: false,
        raw: false,
        sockets: 0,
        ports: PORTS,
        drops: 0,
    }
}

/// Returns the interpreter's verdict.
fn interpret(to: &Steering, frame: &[u8]) -> u64 {
    let code = steering(to, Target::Interpreter);
    let bytes: Vec<u8> = code.iter().flat_map(|insn| insn.to_le_bytes()).collect();
    let mut vm = rbpf::EbpfVmMbuff::new(Some(&bytes)).unwrap();
    vm.register_helper(188, frame_len).unwrap();
    vm.register_helper(51, redirect).unwrap();
    vm.register_helper(1, lookup).unwrap();
    let port = (&raw const PORT).addr() as u64;
    vm.register_allowed_memory(port..port + size_of::<Addressee>() as u64);
    FRAME_LEN.set(frame.len() as u64);
    let start = frame.as_ptr().addr() as u64;
    let mut context = Vec::new();
    context.extend(start.to_ne_bytes());
    context.extend((start + frame.len() as u64).to_ne_bytes());
    context.extend(3u64.to_ne_bytes());
    vm.execute_program(frame, &context).unwrap()
}

/// Returns the kernel's verdict, and the counter that was incremented; `None` without the privileges.
fn run_in_kernel(to: &Steering, frame: &[u8]) -> Option<(u32, Option<DropCause>)> {
    if !caps::missing().is_empty() {
        return None;
    }
    let (sockets, ports) = (QueueMap::sockets(4).unwrap(), QueueMap::ports(4).unwrap());
    let drops = CounterMap::new(4 * DROP_CAUSES).unwrap();
    // The frame of a test run arrives by the first queue.
    ports.set_addressee(0, PORT).unwrap();
    let with_maps = Steering { sockets: sockets.raw(), ports: ports.raw(), drops: drops.raw(), ..*to };
    let code = steering(&with_maps, Target::Kernel);
    let program = bpf::load(bpf::PROG_XDP, &code, bpf::F_HAS_FRAGS, "tautline").unwrap();
    let verdict = bpf::test_run(program.as_fd(), frame).unwrap();
    let all = [DropCause::Length, DropCause::Checksum, DropCause::Source, DropCause::Short];
    let counted: Vec<_> = all.into_iter().filter(|kind| drops.get(*kind as u32) > 0).collect();
    assert!(counted.len() <= 1, "one cause");
    Some((verdict, counted.first().copied()))
}

/// The expected treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Taken,
    Passed,
    Dropped(DropCause),
}

fn check(to: &Steering, frame: &[u8], expected: Verdict, what: &str) {
    let code = match expected {
        Verdict::Taken => TAKEN,
        Verdict::Passed => PASS,
        Verdict::Dropped(_) => DROP,
    };
    assert_eq!(interpret(to, frame), code, "{what}, interpreted");
    // The kernel's test run needs at least an Ethernet header.
    if frame.len() < 14 {
        return;
    }
    let Some((verdict, counted)) = run_in_kernel(to, frame) else { return };
    // There is no socket at the queue of a test run, so a taken frame passes.
    let code = if matches!(expected, Verdict::Dropped(_)) { DROP } else { PASS };
    assert_eq!(u64::from(verdict), code, "{what}, in the kernel");
    assert_eq!(counted.map_or(expected, Verdict::Dropped), expected, "{what}: its counter");
}

fn addresses(from: &str, to: &str, vlan: Option<u16>) -> FrameAddresses {
    FrameAddresses {
        from_mac: [2, 0, 0, 0, 0, 4],
        to_mac: [2, 0, 0, 0, 0, 3],
        vlan,
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
    }
}

fn framed(addresses: &FrameAddresses, framing: Framing, payload: &[u8]) -> Vec<u8> {
    let template = Template::new(addresses, framing);
    let mut frame = vec![0xee; template.len()];
    frame.extend(payload);
    template.write(&mut frame);
    frame
}

fn payload(first: u8, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
    if let Some(byte) = bytes.first_mut() {
        *byte = first;
    }
    if let (0x72..=0x75, Some(name)) = (first, bytes.get_mut(AT_JOB..AT_JOB + 8)) {
        name.copy_from_slice(&JOB.to_le_bytes());
    }
    bytes
}

/// D-31: handshake frames of other jobs pass, whatever the rest of them is; data frames name no job.
#[test]
fn handshakes_of_other_jobs_pass() {
    for (us, them, framing) in
        [(US4, THEM4, Framing::Udp), (US6, THEM6, Framing::Udp), (US4, THEM4, Framing::Raw)]
    {
        let to = Steering { raw: framing == Framing::Raw, ..steer(us) };
        for first in 0x71..=0x76 {
            let ours = framed(&addresses(them, us, None), framing, &payload(first, 112));
            check(&to, &ours, Verdict::Taken, &format!("kind {first:x}"));
            for bit in 0..64 {
                let mut other = payload(first, 112);
                other[AT_JOB + bit / 8] ^= 1 << (bit % 8);
                let frame = framed(&addresses(them, us, None), framing, &other);
                let names_a_job = (0x72..=0x75).contains(&first);
                let expected = if names_a_job { Verdict::Passed } else { Verdict::Taken };
                check(&to, &frame, expected, &format!("kind {first:x}, another bit {bit} of the job"));
            }
        }
        // Cut before the end of the name it is nobody's; behind it, and too short, it is another job's.
        let short = framed(&addresses(them, us, None), framing, &payload(0x72, AT_JOB + 7));
        check(&to, &short, Verdict::Dropped(DropCause::Short), "no whole name");
        let mut other = payload(0x72, AT_JOB + 8);
        other[AT_JOB] ^= 1;
        let short = framed(&addresses(them, us, None), framing, &other);
        check(&to, &short, Verdict::Passed, "another job's, and short");
    }
}

/// D-11: our frames are taken, with and without a tag.
#[test]
fn our_frames_are_taken() {
    if !caps::missing().is_empty() {
        let why = format!("{:?} are missing; interpreted only", caps::missing());
        tautline_skips::skip("our_frames_are_taken", why);
    }
    for (us, them) in [(US4, THEM4), (US6, THEM6)] {
        let to = steer(us);
        for (first, len) in [(0x71, 48), (0x71, 1_400), (0x76, 48), (0x72, 112), (0x75, 112), (0x73, 200)] {
            let frame = framed(&addresses(them, us, None), Framing::Udp, &payload(first, len));
            check(&to, &frame, Verdict::Taken, &format!("{us}, kind {first:x}, {len} bytes"));
            // Short frames are padded on the wire.
            let mut padded = frame.clone();
            padded.resize(frame.len() + 6, 0);
            check(&to, &padded, Verdict::Taken, "padded");
        }
        let tagged = framed(&addresses(them, us, Some(7)), Framing::Udp, &payload(0x71, 60));
        check(&Steering { vlan: Some(7), ..to }, &tagged, Verdict::Taken, "our tag");
        check(&Steering { vlan: Some(8), ..to }, &tagged, Verdict::Passed, "another tag");
        check(&to, &tagged, Verdict::Passed, "a tag, and we have none");
        let prioritised = framed(&addresses(them, us, Some(0)), Framing::Udp, &payload(0x71, 60));
        check(&to, &prioritised, Verdict::Taken, "a tag with a priority only");
        let untagged = framed(&addresses(them, us, None), Framing::Udp, &payload(0x71, 60));
        check(&Steering { vlan: Some(7), ..to }, &untagged, Verdict::Taken, "the card removed our tag");
    }
}

/// D-18: everything that is not ours passes.
#[test]
fn everything_else_passes() {
    for (us, them, other) in [(US4, THEM4, "10.1.2.5:7000"), (US6, THEM6, "[fd00::5]:7000")] {
        let to = steer(us);
        let ours = framed(&addresses(them, us, None), Framing::Udp, &payload(0x71, 60));
        let ip = 14;
        let change = |at: usize, byte: u8| {
            let mut frame = ours.clone();
            frame[at] = byte;
            frame
        };
        check(
            &to,
            &framed(&addresses(them, other, None), Framing::Udp, &payload(0x71, 60)),
            Verdict::Passed,
            "another address",
        );
        let port = SocketAddr::new(us.parse::<SocketAddr>().unwrap().ip(), 7_001).to_string();
        check(
            &to,
            &framed(&addresses(them, &port, None), Framing::Udp, &payload(0x71, 60)),
            Verdict::Passed,
            "another port",
        );
        check(
            &to,
            &framed(&addresses(them, us, None), Framing::Raw, &payload(0x71, 60)),
            Verdict::Passed,
            "raw, and we are not",
        );
        for first in [0x00, 0x70, 0x77, 0x7f, 0x81, 0xff] {
            let stray = framed(&addresses(them, us, None), Framing::Udp, &payload(first, 60));
            check(&to, &stray, Verdict::Passed, &format!("a stray that begins with {first:x}"));
            check(&Steering { any_shape: true, ..to }, &stray, Verdict::Taken, "any shape is accepted");
        }
        check(&to, &change(12, 0x80), Verdict::Passed, "no IP");
        (0..6).for_each(|at| check(&to, &change(at, 0x42), Verdict::Passed, "for another hardware address"));
        check(&to, &change(0, 0x33), Verdict::Taken, "multicast");
        if us == US4 {
            check(&to, &change(ip, 0x46), Verdict::Passed, "options");
            check(&to, &change(ip + 6, 0x20), Verdict::Passed, "a first fragment");
            check(&to, &change(ip + 7, 0x10), Verdict::Passed, "a later fragment");
            check(&to, &change(ip + 9, 6), Verdict::Passed, "TCP");
        } else {
            check(&to, &change(ip, 0x50), Verdict::Passed, "version 5");
            check(&to, &change(ip + 6, 44), Verdict::Passed, "a fragment header");
            check(&to, &change(ip + 6, 6), Verdict::Passed, "TCP");
        }
        // A frame that is cut within the headers passes.
        let headers = ours.len() - 60;
        for len in 0..headers {
            check(&to, &ours[..len], Verdict::Passed, &format!("cut to {len}"));
        }
        // A frame that is cut behind them is ours, and shorter than it says.
        for len in headers + 1..ours.len() {
            check(&to, &ours[..len], Verdict::Dropped(DropCause::Length), &format!("cut to {len}"));
        }
    }
}

/// D-17: malformed frames for us are dropped and counted by cause.
#[test]
fn malformed_frames_are_dropped() {
    let to = steer(US4);
    let ours = framed(&addresses(THEM4, US4, None), Framing::Udp, &payload(0x71, 60));
    let ip = 14;
    // Every bit of the IP header that does not change the destination breaks its checksum.
    for at in [1, 2, 3, 4, 5, 8, 10, 11, 12, 13, 14, 15] {
        for bit in 0..8 {
            let mut frame = ours.clone();
            frame[ip + at] ^= 1 << bit;
            check(&to, &frame, Verdict::Dropped(DropCause::Checksum), &format!("bit {bit} of byte {at}"));
        }
    }
    let mut frame = ours.clone();
    frame[ip + 20 + 5] ^= 1;
    check(&to, &frame, Verdict::Dropped(DropCause::Length), "UDP's length");
    for from in ["10.1.2.3:9000", "127.0.0.1:9000", "0.0.0.0:9000", "224.0.0.1:9000", "255.255.255.255:9"] {
        let frame = framed(&addresses(from, US4, None), Framing::Udp, &payload(0x71, 60));
        check(&to, &frame, Verdict::Dropped(DropCause::Source), from);
    }
    let to6 = steer(US6);
    for from in ["[::]:9000", "[::1]:9000", "[ff02::1]:9000", US6] {
        let frame = framed(&addresses(from, US6, None), Framing::Udp, &payload(0x71, 60));
        check(&to6, &frame, Verdict::Dropped(DropCause::Source), from);
    }
    for (us, them) in [(US4, THEM4), (US6, THEM6)] {
        for (first, len) in [(0x71, 1), (0x71, 47), (0x76, 47), (0x72, 111), (0x75, 48)] {
            let frame = framed(&addresses(them, us, None), Framing::Udp, &payload(first, len));
            check(
                &steer(us),
                &frame,
                Verdict::Dropped(DropCause::Short),
                &format!("kind {first:x}, {len} bytes"),
            );
        }
    }
    let mut frame = framed(&addresses(THEM6, US6, None), Framing::Udp, &payload(0x71, 60));
    frame[ip + 40 + 6..][..2].fill(0);
    check(&to6, &frame, Verdict::Dropped(DropCause::Checksum), "no checksum over IPv6");
}

/// D-12, D-20: raw frames are taken, and malformed ones dropped.
#[test]
fn raw_frames_are_taken_or_dropped() {
    let to = Steering { raw: true, ..steer(US4) };
    for vlan in [None, Some(7)] {
        let to = Steering { vlan, ..to };
        let frame = framed(&addresses(THEM4, US4, vlan), Framing::Raw, &payload(0x71, 60));
        check(&to, &frame, Verdict::Taken, "raw");
        let head = frame.len() - 60;
        let Parsed { start, end, from } = parse(&frame).unwrap();
        assert_eq!((start, end, from), (head, frame.len(), Sender::Raw([2, 0, 0, 0, 0, 4], 9_000)));
        for len in head..frame.len() {
            let expected = if len == head { Verdict::Passed } else { Verdict::Dropped(DropCause::Length) };
            check(&to, &frame[..len], expected, "cut");
            assert_eq!(parse(&frame[..len]), Err(FrameError::Shape));
        }
        let mut other = frame.clone();
        other[5] ^= 1;
        check(&to, &other, Verdict::Passed, "another hardware address");
        let mut other = frame.clone();
        other[head - 5] ^= 1;
        check(&to, &other, Verdict::Passed, "another port");
        let mut reserved = frame.clone();
        reserved[head - 1] = 1;
        check(&to, &reserved, Verdict::Dropped(DropCause::Checksum), "the reserved field");
    }
    check(
        &to,
        &framed(&addresses(THEM4, US4, None), Framing::Udp, &payload(0x71, 60)),
        Verdict::Taken,
        "UDP is taken, too",
    );
}

/// Headers parse as they were written, with correct checksums.
#[test]
fn headers_round_trip() {
    for (us, them) in [(US4, THEM4), (US6, THEM6)] {
        for vlan in [None, Some(7)] {
            for len in (1..70).chain([1_471, 1_472, 8_972]) {
                let frame = framed(&addresses(them, us, vlan), Framing::Udp, &payload(0x71, len));
                let head = frame.len() - len;
                assert!(head <= HEADERS_MAX);
                let read = parse(&frame).unwrap();
                assert_eq!((read.start, read.end), (head, frame.len()));
                assert_eq!(read.from, Sender::Ip(them.parse().unwrap()));
                let udp = head - 8;
                assert_eq!(udp_sum_by_hand(us, them, &frame[udp..]), 0xffff, "{len} bytes");
                if us == US4 {
                    assert_eq!(sum_by_hand(&frame[udp - 20..udp]), 0xffff);
                }
            }
        }
    }
}

/// D-28: the checksum may be omitted over IPv4, but not over IPv6; the program takes both.
#[test]
fn checksums_may_be_omitted_over_ipv4() {
    for (us, them, left_out) in [(US4, THEM4, true), (US6, THEM6, false)] {
        let whole = Template::new(&addresses(them, us, None), Framing::Udp);
        let mut frame = vec![0xee; whole.len()];
        frame.extend(payload(0x71, 60));
        let udp = whole.len() - 8;
        whole.without_checksum().write(&mut frame);
        assert_eq!(frame[udp + 6..udp + 8] == [0, 0], left_out);
        assert!(parse(&frame).is_ok());
        for generic in [false, true] {
            check(
                &Steering { pass_partial_checksums: generic, ..steer(us) },
                &frame,
                Verdict::Taken,
                "no checksum",
            );
        }
    }
}

/// D-28: a checksum that is left to a card is correct after the card has added what it was told to.
#[test]
fn checksums_may_be_left_to_a_card() {
    for (us, them) in [(US4, THEM4), (US6, THEM6)] {
        for len in [1, 60, 61, 1_472] {
            let template = Template::new(&addresses(them, us, Some(7)), Framing::Udp);
            assert_eq!(template.offload(), None);
            let template = template.with_offload();
            let mut frame = vec![0xee; template.len()];
            frame.extend(payload(0x71, len));
            template.write(&mut frame);
            assert!(parse(&frame).is_ok(), "unfinished");
            let (from, offset) = template.offload().unwrap();
            let (from, at) = (usize::from(from), usize::from(from + offset));
            let sum = !sum_by_hand(&frame[from..]);
            frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(udp_sum_by_hand(us, them, &frame[from..]), 0xffff, "{len} bytes");
        }
    }
    let raw = Template::new(&addresses(THEM4, US4, None), Framing::Raw).with_offload();
    let none = Template::new(&addresses(THEM4, US4, None), Framing::Udp).without_checksum().with_offload();
    assert_eq!((raw.offload(), none.offload()), (None, None));
}

/// D-14: wrong checksums are detected; a partial one is not wrong, and over IPv4 there may be none.
#[test]
fn wrong_checksums_are_detected() {
    for (us, them, may_lack) in [(US4, THEM4, true), (US6, THEM6, false)] {
        let frame = framed(&addresses(them, us, None), Framing::Udp, &payload(0x71, 60));
        let udp = frame.len() - 68;
        for at in udp + 8..frame.len() {
            for bit in [0, 7] {
                let mut wrong = frame.clone();
                wrong[at] ^= 1 << bit;
                assert_eq!(parse(&wrong), Err(FrameError::Checksum), "byte {at}");
            }
        }
        let mut none = frame.clone();
        none[udp + 6..udp + 8].fill(0);
        assert_eq!(parse(&none).is_ok(), may_lack);
        let mut partial = frame.clone();
        partial[udp + 6..udp + 8].fill(0);
        let whole = !udp_sum_by_hand(us, them, &partial[udp..]);
        let body = sum_by_hand(&partial[udp..]);
        // The whole sum without the UDP part is that of the pseudo header.
        let pseudo = fold(u64::from((!whole).to_be()) + u64::from((!body).to_be()));
        partial[udp + 6..udp + 8].copy_from_slice(&pseudo.to_ne_bytes());
        assert!(parse(&partial).is_ok(), "partial");
        check(&steer(us), &partial, Verdict::Taken, "in native mode there are no trains");
        let generic = Steering { pass_partial_checksums: true, ..steer(us) };
        check(&generic, &partial, Verdict::Passed, "in generic mode it may be a train");
        check(&generic, &frame, Verdict::Taken, "a complete checksum");
    }
}

/// Truncated and altered frames give a result, never a panic and never bytes beyond the frame.
#[test]
fn hostile_headers_cause_no_panic() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for (us, them) in [(US4, THEM4), (US6, THEM6)] {
        for framing in [Framing::Udp, Framing::Raw] {
            let frame = framed(&addresses(them, us, Some(7)), framing, &payload(0x71, 60));
            for len in 0..frame.len() {
                assert!(parse(&frame[..len]).is_err(), "cut to {len}");
            }
            for _ in 0..20_000 {
                let mut wrong = frame.clone();
                for _ in 0..1 + random() % 3 {
                    let at = random() % 70;
                    wrong[at] = random() as u8;
                }
                wrong.truncate(1 + random() % frame.len());
                if let Ok(read) = parse(&wrong) {
                    assert!(read.start < read.end && read.end <= wrong.len());
                }
            }
        }
    }
}

fn sum_by_hand(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn udp_sum_by_hand(us: &str, them: &str, udp: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    for end in [them, us] {
        match end.parse::<SocketAddr>().unwrap().ip() {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    bytes.extend((udp.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, 17]);
    bytes.extend(udp);
    sum_by_hand(&bytes)
}

#[test]
fn sums_do_not_depend_on_the_width_of_additions() {
    let bytes: Vec<u8> = (0..300).map(|i| (i * 37 + 11) as u8).collect();
    for len in 0..bytes.len() {
        assert_eq!(fold(sum(&bytes[..len])).to_be(), sum_by_hand(&bytes[..len]), "{len}");
    }
}
