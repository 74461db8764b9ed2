//! A member that begins messages of 16 GiB and 256 MiB and sends one byte of each, to a handler that keeps
//! them whole.

use tautline::Security;

use crate::launch::{Members, member};
use crate::record::Record;

/// The victim's address space, in KiB: a victim that reserves what it is promised ends.
const ADDRESS_SPACE_KIB: u64 = 4 << 20;
/// Memory that the victim may take, in KiB.
const GROWTH_KIB: u64 = 256 << 10;

/// Begins `count` messages.
pub fn attack(count: u64) -> Record {
    Record::of("claims of memory".to_owned(), |record| {
        if let Err(why) = run(record, count) {
            record.breaks(why);
        }
    })
}

fn run(record: &mut Record, count: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let members = Members::new(2, "udp", Security::Fabric).map_err(failed)?;
    let limit = format!("ulimit -v {ADDRESS_SPACE_KIB}");
    let mut victim = members.start(1, None, member("keeper", &limit)).map_err(failed)?;
    victim.line("@joined")?;
    let before = victim.memory();
    let mut claimer = members.start(0, None, member("claimer", "")).map_err(failed)?;
    claimer.line("@joined")?;
    claimer.ask(&count.to_string());
    let begun = claimer.line("@begun")?;
    record.count = begun.parse().unwrap_or(0);
    let sent = claimer.line("@sent")?;
    victim.check_alive()?;
    if sent == "ok" {
        let len = victim.line("@whole")?;
        if len != "100" {
            record.breaks(format!("the victim received a whole message of {len} bytes"));
        }
        record.checked = 1;
    }
    // Every other message is too long to be kept whole, and fails; no other fails (M-18, M-19).
    for _ in 0..record.count.div_ceil(2) {
        let why = victim.line("@failed")?;
        if !why.contains("max_whole") {
            record.breaks(format!("a message failed: {why}"));
            break;
        }
    }
    victim
        .drain("@failed")
        .first()
        .into_iter()
        .for_each(|line| record.breaks(format!("the victim said {line}")));
    let growth = victim.memory().saturating_sub(before);
    record.notes.push(format!("the victim grew by {growth} KiB, and the message behind them was: {sent}"));
    if growth > GROWTH_KIB {
        record.breaks(format!("the victim grew by {growth} KiB"));
    }
    Ok(())
}
