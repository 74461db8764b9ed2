//! Time that the host of a virtual machine took from the measured cores. A polling process that is stopped
//! for a moment delays its partner, too, so what was measured meanwhile says more about the host than about
//! the system. It is measured again, a few times at most.

use std::fs;
use std::time::{Duration, Instant};

/// Ticks per second of the counters in `/proc/stat`: those of x86-64.
const TICKS: u32 = 100;
/// From this share of the cores' time on, a figure is not kept if there is a better one.
const TOO_MUCH: f64 = 0.03;
/// How often a cell is measured in one round at most.
const ATTEMPTS: usize = 3;

/// Measures until the host leaves the cores alone. Returns the result of the attempt from which it took
/// least, and the share of the time that it took then.
pub fn undisturbed<T, E>(cores: [usize; 2], measure: impl FnMut() -> Result<T, E>) -> Result<(T, f64), E> {
    least_disturbed(measure, |begun: Option<Reading>| {
        let now = Reading::of(cores);
        (now, begun.map_or(0.0, |begun| now.share_since(begun)))
    })
}

/// `reading` takes a reading, and tells the share since another one.
fn least_disturbed<T, E, R>(
    mut measure: impl FnMut() -> Result<T, E>,
    mut reading: impl FnMut(Option<R>) -> (R, f64),
) -> Result<(T, f64), E> {
    let mut attempt = || -> Result<(T, f64), E> {
        let (begun, _) = reading(None);
        let result = measure()?;
        Ok((result, reading(Some(begun)).1))
    };
    let mut best = attempt()?;
    for _ in 1..ATTEMPTS {
        if best.1 < TOO_MUCH {
            break;
        }
        let next = attempt()?;
        if next.1 < best.1 {
            best = next;
        }
    }
    Ok(best)
}

#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    stolen: Duration,
    cores: u32,
}

impl Reading {
    fn of(cores: [usize; 2]) -> Reading {
        let cores = if cores[0] == cores[1] { &cores[..1] } else { &cores };
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks: u32 = cores.iter().map(|core| stolen(&stat, *core)).sum();
        Reading {
            at: Instant::now(),
            stolen: Duration::from_secs(1) * ticks / TICKS,
            cores: cores.len() as u32,
        }
    }

    fn share_since(self, begun: Reading) -> f64 {
        let elapsed = (self.at - begun.at) * self.cores;
        let stolen = self.stolen.saturating_sub(begun.stolen);
        (stolen.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)).min(1.0)
    }
}

/// The ticks that were taken from a core, by the text of `/proc/stat`; zero if it does not say.
fn stolen(stat: &str, core: usize) -> u32 {
    let name = format!("cpu{core}");
    let mut fields = stat.lines().map(str::split_whitespace);
    let line = fields.find_map(|mut fields| (fields.next() == Some(&name)).then_some(fields));
    line.and_then(|mut fields| fields.nth(7)).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_ticks_are_those_of_the_core() {
        let stat = "cpu  9 9 9 9 9 9 9 99 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3 4 5 6 7 31 0 0\nintr 5\n";
        assert_eq!([0, 1, 2].map(|core| stolen(stat, core)), [8, 31, 0]);
        assert_eq!(stolen("cpu0 1 2 3", 0), 0, "a kernel that does not count them");
    }

    #[test]
    fn the_least_disturbed_attempt_counts() {
        for (shares, kept, attempts) in [
            (&[0.01, 0.5][..], 0, 1),
            (&[0.2, 0.02, 0.5], 1, 2),
            (&[0.2, 0.1, 0.3, 0.0], 1, 3),
            (&[0.2, 0.3, 0.4, 0.0], 0, 3),
        ] {
            let mut measured = 0;
            let result: Result<_, ()> = least_disturbed(
                || {
                    measured += 1;
                    Ok(measured - 1)
                },
                {
                    let mut taken = shares.iter();
                    move |begun: Option<()>| ((), begun.map_or(0.0, |()| *taken.next().unwrap()))
                },
            );
            assert_eq!((result, measured), (Ok((kept, shares[kept])), attempts), "{shares:?}");
        }
        assert_eq!(
            least_disturbed(|| Err::<(), _>("it failed"), |_: Option<()>| ((), 0.0)),
            Err("it failed")
        );
    }
}
