//! `--fault loss=5%,dup=1%,…`: the faults of the network between the ranks.

use std::str::FromStr;
use std::time::Duration;

use tautline::node::device::fault::{Delay, Faults};

/// The faults that were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultSpec {
    pub faults: Faults,
    pub seed: u64,
}

/// How many frames may overtake one that is held back.
const REORDER_BY: u32 = 16;
/// Bits of a damaged frame that are flipped, at most.
const CORRUPT_BITS: u32 = 3;

impl FromStr for FaultSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultSpec, String> {
        let mut spec = FaultSpec::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (word, value) = part
                .split_once('=')
                .ok_or_else(|| format!("\"{part}\" has no value; for example: loss=5%"))?;
            match word {
                "loss" => spec.faults.loss = share(value)?,
                "dup" | "duplicate" => spec.faults.duplicate = share(value)?,
                "reorder" => (spec.faults.reorder, spec.faults.reorder_by) = (share(value)?, REORDER_BY),
                "corrupt" => (spec.faults.corrupt, spec.faults.corrupt_bits) = (share(value)?, CORRUPT_BITS),
                "delay" => spec.faults.delay = delay(value)?,
                "seed" => {
                    spec.seed =
                        value.parse().map_err(|_| format!("\"{value}\" is no seed; give a whole number"))?;
                }
                other => {
                    return Err(format!(
                        "unknown fault \"{other}\"; there are loss, dup, reorder, corrupt, delay, and seed"
                    ));
                }
            }
        }
        Ok(spec)
    }
}

fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("\"{text}\" is no share; write 5% or 0.05");
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().map_err(|_| wrong())? / unit;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

/// One time, or a range such as `100us-2ms`.
fn delay(text: &str) -> Result<Delay, String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (time(low)?, time(high)?);
    if low > high {
        return Err(format!("\"{text}\": the first time must not be the longer one"));
    }
    Ok(Delay::Time(low, high))
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no time; for example: 100us, 2ms or 1s");
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let number: f64 = text[..at].parse().map_err(|_| wrong())?;
    let seconds = match &text[at..] {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        _ => return Err(wrong()),
    };
    if (0.0..=60.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_fault_specification_is_parsed() {
        let spec: FaultSpec =
            "loss=5%,dup=0.01,reorder=10%,corrupt=1%,delay=100us-2ms,seed=7".parse().unwrap();
        assert_eq!((spec.faults.loss, spec.faults.duplicate, spec.seed), (0.05, 0.01, 7));
        assert_eq!((spec.faults.reorder, spec.faults.reorder_by), (0.1, REORDER_BY));
        assert_eq!(spec.faults.delay, Delay::Time(Duration::from_micros(100), Duration::from_millis(2)));
    }

    #[test]
    fn mistakes_in_faults_are_explained() {
        for (text, word) in [
            ("loss", "no value"),
            ("loss=x", "no share"),
            ("loss=500%", "no share"),
            ("delay=5", "no time"),
            ("delay=2ms-1ms", "longer"),
            ("seed=x", "no seed"),
            ("gain=1%", "unknown fault"),
        ] {
            assert!(text.parse::<FaultSpec>().unwrap_err().contains(word), "{text}");
        }
    }
}
