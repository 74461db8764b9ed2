//! The Wireshark dissector agrees with the layouts, and tshark shows what was written.

use std::path::{Path, PathBuf};
use std::process::Command;

use tautline_wire::ext::put_sack;
use tautline_wire::frame::{HEADER_LEN, flags};
use tautline_wire::handshake::{HANDSHAKE_LEN, Security};
use tautline_wire::record::write;
use tautline_wire::{Field, Handshake, Header, Kind, Seq, VERSION, layout};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../extras/wireshark/tautline.lua")
}

/// The lines `{ "name", offset, size },` below the comment `-- LAYOUT <name>`.
fn table(text: &str, name: &str) -> Vec<(String, usize, usize)> {
    let head = format!("-- LAYOUT {name}:");
    let lines = text.lines().skip_while(|l| !l.starts_with(&head)).skip(2).take_while(|l| *l != "}");
    let entry = |line: &str| {
        let mut parts =
            line.trim().trim_start_matches('{').trim_end_matches(',').trim_end_matches('}').split(',');
        let mut next = || parts.next().expect("three values").trim().trim_matches('"').to_owned();
        (next(), next().parse().expect("an offset"), next().parse().expect("a size"))
    };
    lines.map(entry).collect()
}

/// W-3: the dissector's tables are the layouts.
#[test]
fn tables_agree() {
    let text = std::fs::read_to_string(script()).unwrap();
    for name in ["frame", "handshake", "record"] {
        let ours = layout(name).unwrap().iter();
        let lower = |f: &Field| (f.name.trim_start_matches("AT_").to_lowercase(), f.at, f.size);
        assert_eq!(table(&text, name), ours.map(lower).collect::<Vec<_>>(), "{name}");
    }
    assert!(layout("nonsense").is_none());
}

fn hello() -> Vec<u8> {
    let shake = Handshake {
        kind: Kind::Hello,
        reason: None,
        version_min: VERSION,
        version_max: VERSION,
        security: Security::Fabric,
        features: 3,
        job: 0x0102_0304_0506_0708,
        from: 4,
        to: 9,
        from_endpoint: 1,
        to_endpoint: 2,
        channel: 77,
        epoch: 0xfeed_f00d,
        peer_epoch: 0,
        max_frame: 1472,
        credit: 256,
        buffer: 212_992,
        message_window: 524_288,
        silence_ms: 1000,
        ack_delay_us: 500,
        cookie: [3; 16],
        mac: [9; 16],
    };
    let mut bytes = [0; HANDSHAKE_LEN];
    shake.write(&mut bytes);
    bytes.to_vec()
}

/// A frame with a selective acknowledgement and two records.
fn data() -> Vec<u8> {
    let mut sack = [0; 8];
    let ext_len = put_sack(&mut sack, &[0b101, 0x80]);
    let header = Header {
        kind: Kind::Data,
        flags: flags::SLOT | flags::ASK,
        ext_len: ext_len as u16,
        channel: 77,
        packet: 0x1_0000_0005,
        slot: Seq(1234),
        ack: Seq(5000),
        credit: Seq(5256),
        echo: 17,
        residence_ns: 4321,
        repeats: 2,
        tag: 0xdead_beef_0bad_cafe,
    };
    let mut bytes = vec![0; HEADER_LEN];
    header.write(&mut bytes);
    bytes.extend_from_slice(&sack[..ext_len]);
    let mut records = [0; 64];
    let mut at = write::short(&mut records, 11, 3);
    records[at..at + 3].copy_from_slice(b"abc");
    at += 3;
    at += write::first(&mut records[at..], 12, 88, 1 << 33, 2);
    records[at..at + 2].copy_from_slice(b"de");
    bytes.extend_from_slice(&records[..at + 2]);
    bytes
}

/// A capture of IPv4 packets (link type 228), each a UDP datagram between the same two ports.
fn capture(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend([0xa1b2_c3d4u32.to_le_bytes(), [2, 0, 4, 0], [0; 4], [0; 4]].concat());
    out.extend([65_535u32.to_le_bytes(), 228u32.to_le_bytes()].concat());
    for datagram in datagrams {
        let (udp, ip) = (datagram.len() as u16 + 8, datagram.len() as u16 + 28);
        out.extend([[0; 4], [0; 4], u32::from(ip).to_le_bytes(), u32::from(ip).to_le_bytes()].concat());
        out.extend([0x45, 0]);
        out.extend(ip.to_be_bytes());
        out.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        out.extend([40_000u16.to_be_bytes(), 41_000u16.to_be_bytes(), udp.to_be_bytes(), [0, 0]].concat());
        out.extend(datagram);
    }
    out
}

/// What tshark shows of a capture, one line per packet.
fn tshark(pcap: &Path, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script().display())).arg("-r").arg(pcap);
    command.args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=a"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// W-1, W-3, W-5, W-6: tshark finds our frames among strangers and shows their fields.
#[test]
#[allow(clippy::print_stderr, reason = "a test that does not run must say so")]
fn tshark_shows_fields() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED: tshark is not installed; `cargo xtask setup` tells how to get it");
        return;
    }
    let pcap = std::env::temp_dir().join(format!("tautline-dissector-{}.pcap", std::process::id()));
    let stranger = vec![0x11; 100];
    std::fs::write(&pcap, capture(&[hello(), data(), stranger])).unwrap();

    let shown = tshark(&pcap, &["_ws.col.Protocol", "tautline.handshake.from", "tautline.handshake.epoch"]);
    assert_eq!(shown, ["Tautline;4;0x00000000feedf00d", "Tautline;;", "UDP;;"]);
    let header = ["slot", "ack", "credit", "packet", "residence"].map(|f| format!("tautline.frame.{f}"));
    let shown = tshark(&pcap, &header.each_ref().map(String::as_str));
    assert_eq!(shown[1], "1234;5000;5256;4294967301;4321");
    let shown = tshark(&pcap, &["tautline.ext.sack.slot", "tautline.flags.ask", "tautline.flags.sealed"]);
    assert_eq!(shown[1], "5001,5003,5016;1;0");
    let record =
        ["kind", "handler", "len", "message", "wide", "data"].map(|f| format!("tautline.record.{f}"));
    let shown = tshark(&pcap, &record.each_ref().map(String::as_str));
    assert_eq!(shown[1], "1,2;11,12;3,2;88;8589934592;616263,6465");
    std::fs::remove_file(&pcap).unwrap();
}
