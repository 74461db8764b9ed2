//! A capture can be read by tshark.
#![allow(clippy::print_stdout)]

use std::fs::File;
use std::process::Command;

use tautline_device::pcap::Pcap;
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::{Datagram, HEADROOM, RxBatch};

#[test]
fn tshark_reads_the_capture() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return tautline_skips::skip("tshark_reads_the_capture", "tshark is not installed");
    }
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let config = || UdpConfig::with(|config| config.bind = bind.parse().unwrap());
        let Ok(mut b) = Udp::open(config()) else {
            tautline_skips::skip("tshark_reads_the_capture", format!("there is no {bind} here (in part)"));
            continue;
        };
        let path = std::env::temp_dir().join(format!(
            "tautline-{}-{}.pcap",
            std::process::id(),
            b.local_addr().port()
        ));
        let mut a = Pcap::new(Udp::open(config()).unwrap(), File::create(&path).unwrap()).unwrap();
        let route = a.route(b.local_addr()).unwrap();
        let slot = a.arena().take().unwrap();
        for len in [1, 48, 1_001] {
            a.send(route, slot, HEADROOM..HEADROOM + len);
        }
        a.flush();
        let back = b.route(a.local_addr()).unwrap();
        let slot = b.arena().take().unwrap();
        b.send(back, slot, HEADROOM..HEADROOM + 77);
        b.flush();
        let mut batch = RxBatch::new(4);
        assert!((0..10_000).any(|_| a.recv(&mut batch).unwrap() > 0));
        drop(a);
        let shown = Command::new("tshark")
            .args(["-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields"])
            .args(["-e", "udp.length", "-e", "udp.checksum.status", "-r"])
            .arg(&path)
            .output()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let text = String::from_utf8_lossy(&shown.stdout);
        // Length with the header, and 1 for "good".
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            ["9", "1", "56", "1", "1009", "1", "85", "1"]
        );
    }
}
