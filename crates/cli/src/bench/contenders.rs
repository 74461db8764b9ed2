//! Rivals with processes of their own: started on first use, kept for all rounds, given up after two
//! failures.

use std::collections::HashMap;

use anyhow::{Result, bail};
use tautline_baseline::rivals::{Contender, Figures, Order, Placement, Route, Test};

use super::case::{Case, Other, Outcome, System, Work};
use super::pair::Interrupted;
use crate::sys::Signals;

/// A rival that has failed this often is not tried again.
const FAILURES: u32 = 2;

/// Whether a system has processes of its own, beside the two in which every other system is measured.
pub fn is_one(system: System) -> bool {
    matches!(system, System::Rival { other, .. } if Contender::is_one(other.rival()))
}

/// The rivals that were used so far.
#[derive(Default)]
pub struct Contenders {
    entries: HashMap<(Other, bool), Entry>,
}

#[derive(Default)]
struct Entry {
    contender: Option<Contender>,
    failures: u32,
    last: String,
}

impl Contenders {
    /// Has a rival run a case. A failure affects this figure only.
    pub fn run(&mut self, case: &Case, placement: &Placement, signals: &mut Signals) -> Result<[Outcome; 2]> {
        let System::Rival { other, tcp } = case.system else { bail!("no rival") };
        let test = match case.work {
            Work::PingPong { .. } => Test::PingPong,
            Work::Paced { period_us, .. } => Test::Paced { period_us },
            Work::Stream { window, .. } => Test::Stream { window },
            _ => bail!("rivals have no such test"),
        };
        let order = Order { test, bytes: case.work.bytes(), count: case.work.count() };
        let entry = self.entries.entry((other, tcp)).or_default();
        if entry.failures >= FAILURES {
            bail!("not tried again after {FAILURES} failures: {}", entry.last);
        }
        let mut signal = None;
        let done = entry.measure(other, tcp, placement, &order, &mut || {
            signal = signal.or_else(|| signals.take());
            signal.is_some()
        });
        if let Some(signal) = signal {
            return Err(Interrupted(signal.as_raw()).into());
        }
        match done {
            Ok(figures) => Ok(figures.map(|figures| outcome(&figures))),
            Err(reason) => {
                entry.contender = None;
                entry.failures += 1;
                entry.last.clone_from(&reason);
                bail!("{reason}")
            }
        }
    }
}

impl Entry {
    fn measure(
        &mut self,
        other: Other,
        tcp: bool,
        placement: &Placement,
        order: &Order,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<[Figures; 2], String> {
        let mut contender = match self.contender.take() {
            Some(contender) => contender,
            None => {
                let route = if tcp { Route::Tcp } else { Route::Host };
                Contender::start(other.rival(), route, placement.clone(), stop)?
            }
        };
        let figures = contender.run(order, stop)?;
        self.contender = Some(contender);
        Ok(figures)
    }
}

fn outcome(figures: &Figures) -> Outcome {
    let one_way_us = |ns: f64| ns / 2e3;
    Outcome {
        median_us: one_way_us(figures.median_ns),
        p99_us: one_way_us(figures.p99_ns),
        p999_us: one_way_us(figures.p999_ns),
        mean_us: one_way_us(figures.mean_ns),
        messages: figures.messages,
        bytes: figures.bytes,
        elapsed_ns: figures.elapsed_ns,
        cpu_ns: figures.cpu_ns,
        account: figures.account.map(Into::into),
        ..Outcome::default()
    }
}
