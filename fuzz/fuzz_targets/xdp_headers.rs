//! Headers of frames from an AF_XDP ring: any bytes are parsed or refused, the payload lies within the frame,
//! and headers that were written parse as what they say.
#![no_main]

#[path = "../../crates/device/src/xdp/headers.rs"]
#[allow(dead_code)]
mod headers;

use std::net::SocketAddr;

use headers::{FrameAddresses, Framing, Sender, Template, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(parsed) = parse(data) {
        assert!(parsed.start <= parsed.end && parsed.end <= data.len());
        assert!(parsed.start >= 14 + 8);
    }
    let Some((choice, rest)) = data.split_first_chunk::<8>() else { return };
    let [kind, macs @ .., port] = *choice;
    let vlan = (kind & 1 != 0).then_some(u16::from(macs[0]) << 4);
    let framing = if kind & 2 != 0 { Framing::Raw } else { Framing::Udp };
    let addresses: [SocketAddr; 2] = if kind & 4 != 0 {
        [("fd00::1", port), ("fd00::2", 9)]
            .map(|(ip, port)| SocketAddr::new(ip.parse().unwrap(), port.into()))
    } else {
        [("10.0.0.1", port), ("10.0.0.2", 9)]
            .map(|(ip, port)| SocketAddr::new(ip.parse().unwrap(), port.into()))
    };
    let [from, to] = addresses;
    let payload = &rest[..rest.len().min(9_000)];
    if payload.is_empty() {
        return;
    }
    let frame_addresses = FrameAddresses { from_mac: macs, to_mac: [2; 6], vlan, from, to };
    let template = Template::new(&frame_addresses, framing);
    let template = if kind & 8 != 0 { template.without_checksum() } else { template };
    let mut frame = vec![0; template.len()];
    frame.extend_from_slice(payload);
    template.write(&mut frame);
    let parsed = parse(&frame).expect("what was written is read");
    assert_eq!(&frame[parsed.start..parsed.end], payload);
    match (parsed.from, framing) {
        (Sender::Ip(address), Framing::Udp) => assert_eq!(address, from),
        (Sender::Raw(mac, port), Framing::Raw) => assert_eq!((mac, port), (macs, from.port())),
        other => panic!("{other:?}"),
    }
});
