//! The Wireshark dissector has the same layouts as this crate, and tshark shows the fields of written frames.

use std::path::{Path, PathBuf};
use std::process::Command;

use tautline_wire::ext::put_sack;
use tautline_wire::frame::{HEADER_LEN, flags};
use tautline_wire::handshake::{HANDSHAKE_LEN, Security};
use tautline_wire::memory::{Atomic, ExtentRef, MemoryRecord, Refusal, Target};
use tautline_wire::record::{LOAN_LEN, LOAN_MORE_LEN, LoanLocation, RecordHead as _, write};
use tautline_wire::{Field, Handshake, Header, Kind, Seq, VERSION, layout};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../extras/wireshark/tautline.lua")
}

/// Returns the lines `{ "name", offset, size },` below the comment `-- LAYOUT <name>`.
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

/// W-3: the tables of the dissector equal the layouts.
#[test]
fn dissector_tables_equal_layouts() {
    let text = std::fs::read_to_string(script()).unwrap();
    for name in ["frame", "handshake", "record"] {
        let ours = layout(name).unwrap().iter();
        let lower = |f: &Field| (f.name.trim_start_matches("AT_").to_lowercase(), f.at, f.size);
        assert_eq!(table(&text, name), ours.map(lower).collect::<Vec<_>>(), "{name}");
    }
    assert!(layout("nonsense").is_none());
}

fn hello() -> Vec<u8> {
    let handshake = Handshake {
        kind: Kind::Hello,
        reason: None,
        port: 0,
        version_min: VERSION,
        version_max: VERSION,
        security: Security::Fabric,
        features: 3,
        job: 0x0102_0304_0506_0708,
        from: 4,
        to: 9,
        from_lane: 1,
        to_lane: 2,
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
    handshake.write(&mut bytes);
    bytes.to_vec()
}

/// Returns a frame with a selective acknowledgement and two records.
fn data() -> Vec<u8> {
    let mut sack = [0; 8];
    let ext_len = put_sack(&mut sack, &[0b101, 0x80]);
    let header = Header {
        kind: Kind::Data,
        flags: flags::SLOT | flags::ACK_REQUESTED | flags::RAW,
        ext_len: ext_len as u16,
        channel: 77,
        packet: 0x1_0000_0005,
        slot: Seq(1234),
        ack: Seq(5000),
        credit: Seq(5256),
        echo: 17,
        residence_ns: 4321,
        duplicates: 2,
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

/// Returns a frame for each kind of memory record and for both kinds of loans.
fn memory_and_loan_frames() -> Vec<Vec<u8>> {
    let target = Target { handle: 3, id: 70, at: 1 << 40 };
    let messages = [
        (MemoryRecord::Open { handle: 3, cookie: 9, incarnation: 0xabc, secret: [7; 16] }, &b""[..]),
        (MemoryRecord::Put(target, &[]), b"put"),
        (MemoryRecord::Part(target, 1 << 33, &[]), b"part"),
        (MemoryRecord::Notice { target, len: 11, value: 12 }, b""),
        (MemoryRecord::Get(target, 13), b""),
        (MemoryRecord::Atomic(target, Atomic::Swap(14)), b""),
        (MemoryRecord::Atomic(target, Atomic::Add(15)), b""),
        (MemoryRecord::Atomic(target, Atomic::CompareSwap(16, 17)), b""),
        (MemoryRecord::Flush { id: 71 }, b""),
        (MemoryRecord::OutOfBand(&[]), b"out of band"),
        (MemoryRecord::Done { id: 72 }, b""),
        (MemoryRecord::Failed { id: 73, why: Refusal::Expired }, b""),
        (MemoryRecord::Value { id: 74, value: 18 }, b""),
        (MemoryRecord::Data { id: 75, at: 19, data: &[] }, b"data"),
        (MemoryRecord::LoanedPart(target, 20, ExtentRef { number: 86, len: 87, at: 12_288 }), b""),
    ];
    let mut records: Vec<Vec<u8>> = messages
        .iter()
        .map(|(message, data)| {
            let mut record = vec![0; message.head_len()];
            message.write(&mut record, 0, data.len());
            record.extend_from_slice(data);
            record
        })
        .collect();
    let mut loan = vec![0; LOAN_LEN];
    write::loan(&mut loan, 5, 80, LoanLocation::Pool(4096), 81);
    let mut more = vec![0; LOAN_MORE_LEN];
    write::loan_more(&mut more, 82, 83, (84, 8192, 85));
    records.extend([loan, more]);
    let frame = |record: Vec<u8>| {
        let mut bytes = data();
        bytes.truncate(HEADER_LEN);
        // Removes the extension.
        bytes[2..4].fill(0);
        bytes.extend_from_slice(&record);
        bytes
    };
    records.into_iter().map(frame).collect()
}

/// Returns a capture of IPv4 packets (link type 228) with UDP datagrams between the same two ports.
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

/// Returns what tshark shows of a capture, one line per packet.
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

/// W-1, W-3, W-5, W-6: tshark recognises Tautline frames among others and shows their fields.
#[test]
fn tshark_shows_fields() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return tautline_skips::skip("tshark_shows_fields", "tshark is not installed");
    }
    let pcap = std::env::temp_dir().join(format!("tautline-dissector-{}.pcap", std::process::id()));
    let foreign = vec![0x11; 100];
    std::fs::write(&pcap, capture(&[hello(), data(), foreign])).unwrap();

    let shown = tshark(&pcap, &["_ws.col.Protocol", "tautline.handshake.from", "tautline.handshake.epoch"]);
    assert_eq!(shown, ["Tautline;4;0x00000000feedf00d", "Tautline;;", "UDP;;"]);
    let header = ["slot", "ack", "credit", "packet", "residence"].map(|f| format!("tautline.frame.{f}"));
    let shown = tshark(&pcap, &header.each_ref().map(String::as_str));
    assert_eq!(shown[1], "1234;5000;5256;4294967301;4321");
    let shown = tshark(
        &pcap,
        &[
            "tautline.ext.sack.slot",
            "tautline.flags.ack_requested",
            "tautline.flags.sealed",
            "tautline.flags.raw",
        ],
    );
    assert_eq!(shown[1], "5001,5003,5016;1;0;1");
    let record =
        ["kind", "handler", "len", "message", "wide", "data"].map(|f| format!("tautline.record.{f}"));
    let shown = tshark(&pcap, &record.each_ref().map(String::as_str));
    assert_eq!(shown[1], "1,2;11,12;3,2;88;8589934592;616263,6465");
    std::fs::remove_file(&pcap).unwrap();
}

/// A-4, S-8: tshark shows the fields of every kind of memory record and loan.
#[test]
fn tshark_shows_memory_records() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return tautline_skips::skip("tshark_shows_memory_records", "tshark is not installed");
    }
    let pcap = std::env::temp_dir().join(format!("tautline-dissector-memory-{}.pcap", std::process::id()));
    let mut frames = vec![hello()];
    frames.extend(memory_and_loan_frames());
    std::fs::write(&pcap, capture(&frames)).unwrap();
    let memory = |names: &[&str]| -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| format!("tautline.{name}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        tshark(&pcap, &names)[1..].to_vec()
    };
    let names = ["record.kind", "memory.handle", "memory.id", "memory.at", "record.data"];
    assert_eq!(
        memory(&names),
        [
            "16;3;;;",
            "17;3;70;1099511627776;707574",
            "18;3;70;1099511627776;70617274",
            "19;3;70;1099511627776;",
            "20;3;70;1099511627776;",
            "21;3;70;1099511627776;",
            "22;3;70;1099511627776;",
            "23;3;70;1099511627776;",
            "24;;71;;",
            "25;;;;6f7574206f662062616e64",
            "26;;72;;",
            "27;;73;;",
            "28;;74;;",
            "29;;75;19;64617461",
            "30;3;70;1099511627776;",
            "7;;;;",
            "8;;;;",
        ]
    );
    let names = ["bytes", "value", "expected", "rest", "why", "cookie", "incarnation"]
        .map(|it| format!("memory.{it}"));
    assert_eq!(
        memory(&names.each_ref().map(String::as_str)),
        [
            ";;;;;9;0x0000000000000abc",
            ";;;;;;",
            ";;;8589934592;;;",
            "11;12;;;;;",
            "13;;;;;;",
            ";14;;;;;",
            ";15;;;;;",
            ";17;16;;;;",
            ";;;;;;",
            ";;;;;;",
            ";;;;;;",
            ";;;;4;;",
            ";18;;;;;",
            ";;;;;;",
            ";;;20;;;",
            "81;;;;;;",
            ";;;;;;",
        ]
    );
    let shown =
        memory(&["memory.number", "memory.pool_offset", "record.message", "record.wide", "record.aux"]);
    assert_eq!(shown[14..], [";12288;;;", ";;80;4096;0", "84;8192;82;83;85"]);
    assert_eq!(memory(&["memory.loan", "memory.extent_len"])[14], "86;87");
    assert!(memory(&["malformed"]).iter().all(String::is_empty));
    std::fs::remove_file(&pcap).unwrap();
}
