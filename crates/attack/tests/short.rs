//! The short form of every attack: counts that take seconds. `cargo xtask attack --long` has the long form.
#![forbid(unsafe_code)]

use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One at a time: they start many processes.
static ALONE: Mutex<()> = Mutex::new(());

#[track_caller]
fn attack(test: &str, args: &[&str]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let out = Command::new(env!("CARGO_BIN_EXE_tautline-attack")).args(args).output().unwrap();
    let said = [String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)].concat();
    let table = String::from_utf8_lossy(&out.stdout);
    let skipped = table.lines().filter_map(|line| line.split_once("SKIPPED: "));
    skipped.for_each(|(_, why)| tautline_skips::skip(test, why.trim_end_matches([' ', '|'])));
    assert!(out.status.success(), "{said}");
}

/// H-2, H-10, L-3, L-22, W-1: nothing forged is accepted, and no message is harmed.
#[test]
fn hostile_datagrams() {
    attack("hostile_datagrams", &["datagrams"]);
}

/// D-11, D-14, D-17: the same past the kernel.
#[test]
fn hostile_frames() {
    attack("hostile_frames", &["frames"]);
}

/// H-8, H-9: neither replays nor copies of handshakes keep a rank out.
#[test]
fn handshakes() {
    attack("handshakes", &["handshakes"]);
}

/// N-4, N-8, N-16: killed ranks come back, by the transport that they had.
#[test]
fn kills() {
    attack("kills", &["kills"]);
}

/// N-8, L-16: stopped ranks are not dead.
#[test]
fn stops() {
    attack("stops", &["stops"]);
}

/// Whatever is missing is named, and nobody else suffers.
#[test]
fn shortages() {
    attack("shortages", &["shortages"]);
}

/// M-5: a message holds what it has sent, not what it claims.
#[test]
fn claims() {
    attack("claims", &["claims"]);
}

/// S-31: a member that fills and blocks what it shares stops nobody.
#[test]
fn bells() {
    attack("bells", &["bells"]);
}

#[test]
fn unknown_attacks_are_named() {
    let out = Command::new(env!("CARGO_BIN_EXE_tautline-attack")).arg("dragons").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("there is no attack"), "{said}");
}

/// H-16: a flood of hostile datagrams harms no message. What it costs is measured by the long form.
#[test]
fn flood() {
    attack("flood", &["flood"]);
}
