//! What AF_XDP can do on this machine, interface by interface; nothing is attached or changed.

use super::attach::Refusal;
use super::{features, neighbour};
use crate::sys::caps;
use crate::sys::netlink::Netlink;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// This process may do it; else why not.
    pub allowed: Result<(), String>,
    /// What each interface that carries Ethernet offers.
    pub interfaces: Vec<InterfaceProbe>,
}

/// What one interface offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceProbe {
    /// Its name.
    pub name: String,
    /// One sentence: what can be expected; or why it cannot be used now.
    pub verdict: Result<String, String>,
}

/// Looks at the machine.
pub fn probe() -> Probe {
    let missing = caps::missing();
    let allowed = if missing.is_empty() { Ok(()) } else { Err(Refusal::Privileges(missing).to_string()) };
    let links = Netlink::open(0).ok().and_then(|mut netlink| neighbour::links(&mut netlink).ok());
    let usable = links.unwrap_or_default().into_iter().filter(|link| !link.loopback && link.mac != [0; 6]);
    let interfaces = usable.map(|link| {
        let driver = neighbour::driver(&link);
        let expected = match (features::features(link.index), driver.as_str()) {
            (Some(features), driver) => features.describe(driver),
            (None, "veth") => "generic mode (on veth the faster one), no zero copy".to_owned(),
            (None, _) => {
                "zero copy if the driver has it, else native or generic mode; opening tells".to_owned()
            }
        };
        let verdict = match (link.programs.first(), link.running) {
            (Some(number), _) => Err(format!(
                "another XDP program is attached: number {number}; if it is Tautline's and of this user, a process on it may share the interface, one queue or more each"
            )),
            (None, false) => Err("it is down".to_owned()),
            (None, true) => {
                Ok(format!("driver {driver}, {} queue(s), MTU {}: {expected}", neighbour::queues(&link), link.mtu))
            }
        };
        InterfaceProbe { name: link.name, verdict }
    });
    Probe { allowed, interfaces: interfaces.collect() }
}
