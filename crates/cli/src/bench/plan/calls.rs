//! Calls of 64 B by one client of one server, beside the alternatives: tarpc, if this build has it, and plain
//! requests over sockets.

use super::{Limit, Load, Plan, Test, memory};
use crate::bench::case::{Device, Other, Plain, Style, System, Work};

/// Calls in progress at a time.
pub const WINDOWS: [u64; 2] = [1, 64];
/// tarpc over TCP, which the goals refer to.
pub const TARPC: System = System::Rival { other: Other::Tarpc, tcp: true };
const BYTES: usize = 64;

impl Plan {
    pub(super) fn calls(&mut self, tarpc: bool) {
        for window in WINDOWS {
            let beside = if tarpc { TARPC } else { System::Plain { kind: Plain::Tcp, blocking: true } };
            let limit = Some(Limit::soft(beside));
            for (device, alone_ns, together_ns) in
                [(Device::Shm, 1_500.0, 250.0), (Device::Udp, 12_000.0, 1_500.0)]
            {
                let each_ns = if window == 1 { alone_ns } else { together_ns };
                for style in [Style::Rpc, Style::TypedRpc] {
                    self.call(memory(device, style), window, each_ns, limit);
                }
            }
            for kind in [Plain::Unix, Plain::Tcp] {
                for blocking in [false, true] {
                    let each_ns = if blocking && window == 1 { 40_000.0 } else { 8_000.0 };
                    self.call(System::Plain { kind, blocking }, window, each_ns, None);
                }
            }
            for tcp in [false, true].into_iter().filter(|_| tarpc) {
                let each_ns = if window == 1 { 50_000.0 } else { 6_000.0 };
                self.call(System::Rival { other: Other::Tarpc, tcp }, window, each_ns, None);
            }
        }
    }

    fn call(&mut self, system: System, window: u64, each_ns: f64, limit: Option<Limit>) {
        let count = self.extent.count(each_ns, 1.0);
        self.add(Test::Calls, system, Work::Calls { bytes: BYTES, count, window }, Load::Idle, limit);
    }
}
