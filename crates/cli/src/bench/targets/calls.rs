//! The goals for calls, beside tarpc.

use super::{Judge, Target, VALUE};
use crate::bench::case::{Device, Style};
use crate::bench::plan::{TARPC, Test, WINDOWS, memory};
use crate::bench::rows::ratio;

/// How many times as fast as tarpc over TCP, with one call in progress and with many.
const GOALS: [(Device, &str, [f64; 2]); 2] =
    [(Device::Shm, "shm", [40.0, 15.0]), (Device::Udp, "udp", [4.0, 8.0])];

impl Judge<'_> {
    pub(super) fn calls(&mut self) {
        for (device, name, goals) in GOALS {
            for (window, goal) in WINDOWS.into_iter().zip(goals) {
                for (style, typed) in [(Style::Rpc, ""), (Style::TypedRpc, "typed, ")] {
                    let of = |system| self.find(Test::Calls, system, |cell| cell.window == Some(window));
                    let Some(ours) = of(memory(device, style)) else { continue };
                    let what = format!("calls, {typed}64 B, {window} in flight, {name}");
                    match of(TARPC) {
                        Some(theirs) => {
                            self.at_least(what, ratio(ours, theirs, VALUE), goal, "tarpc over TCP");
                        }
                        None => self.unknown(what, goal),
                    }
                }
            }
        }
    }

    fn unknown(&mut self, what: String, goal: f64) {
        let how = if tautline_baseline::TARPC.is_some() {
            "it was not measured"
        } else {
            "build with --features tarpc"
        };
        let goal = format!("at least {goal} × tarpc over TCP: {how}");
        self.targets.push(Target { what, goal, value: None, met: false });
    }
}
