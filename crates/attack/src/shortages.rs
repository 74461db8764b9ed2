//! Members that lack a resource: they join and exchange messages, or fail with a reason; they neither abort
//! nor hang, and their peer does not suffer.

use tautline::Security;

use crate::launch::{Members, member};
use crate::member::NOT_JOINED;
use crate::record::Record;

/// The limits, as the shell sets them, and the values that are tried. The last value of each suffices. The
/// limit of processes is `-p` in dash.
const LIMITS: [(&str, &str, &[u64]); 4] = [
    ("descriptors", "ulimit -n", &[8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 64]),
    ("address space, KiB", "ulimit -v", &[8_000, 12_000, 20_000, 40_000, 100_000, 4_000_000]),
    ("pinned memory, KiB", "ulimit -l", &[0, 64]),
    ("processes", "ulimit -u", &[0, 1, 100_000]),
];

/// Tries every limit on a rank that another one, without limits, exchanges messages with.
pub fn attack() -> Vec<Record> {
    LIMITS
        .into_iter()
        .map(|(what, limit, values)| {
            Record::of(format!("shortage of {what}"), |record| {
                if limit == "ulimit -u" && rustix::process::geteuid().is_root() {
                    record.skipped = Some("the limit does not bind root".to_owned());
                    return;
                }
                for value in values {
                    let must_work = Some(value) == values.last();
                    let limit = format!("{limit} {value}");
                    if let Err(why) = limited(record, &limit, must_work) {
                        record.breaks(format!("{limit}: {why}"));
                    }
                    record.count += 1;
                }
            })
        })
        .collect()
}

fn limited(record: &mut Record, limit: &str, must_work: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let members = Members::new(2, "shm", Security::Fabric).map_err(failed)?;
    let mut first = members.start(0, None, member("talk", "")).map_err(failed)?;
    let in_dash = limit.replace("ulimit -u", "ulimit -p");
    let command = format!("{limit} 2>/dev/null || {in_dash}");
    let mut second = members.start(1, None, member("talk", &command)).map_err(failed)?;
    let joined = second.expect("that it joined, or why not", |line| {
        let word = line.split_whitespace().next()?;
        matches!(word, "@joined" | "@error").then(|| (word == "@joined", line.to_owned()))
    });
    match joined {
        Ok((true, _)) => {
            first.line("@up 1")?;
            second.line("@up 0")?;
            let before = first.drain("@down");
            first.ask("report");
            first.line("@report")?;
            second.check_alive()?;
            second.ask("quit");
            let (status, said) = second.finish().ok_or("it does not quit")?;
            if !status.success() || !before.is_empty() {
                return Err(format!("{status}: {said:?}, {before:?}"));
            }
            record.notes.push(format!("{limit}: works"));
        }
        Ok((false, why)) => {
            let (status, _) = second.finish().ok_or("it does not end")?;
            if status.code() != Some(NOT_JOINED.into()) || must_work {
                return Err(format!("{status}: {why}"));
            }
            record.notes.push(format!("{limit}: refused"));
        }
        Err(why) => {
            // The program may not even be loaded; nothing of ours has run then.
            if must_work || !second.drain("@started").is_empty() {
                return Err(why);
            }
            record.notes.push(format!("{limit}: not loaded"));
        }
    }
    first.check_alive()
}
