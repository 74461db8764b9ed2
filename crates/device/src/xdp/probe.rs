//! What AF_XDP supports on this machine, interface by interface; nothing is attached or changed.

use super::attach::{self, describe_occupant};
use super::bind::{limit_too_low, pinned};
use super::neighbour::Link;
use super::{XdpConfig, features, neighbour};
use crate::sys::caps;
use crate::sys::netlink::Netlink;
use crate::udp;

/// The result of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Whether this process may use AF_XDP, or why not.
    pub allowed: Result<(), String>,
    /// The Ethernet interfaces.
    pub interfaces: Vec<InterfaceProbe>,
}

/// What one interface supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceProbe {
    /// Its name.
    pub name: String,
    /// What to expect, or why the interface cannot be used now; one sentence.
    pub verdict: Result<String, String>,
}

/// Inspects the machine, for a device with this configuration.
pub fn probe(config: &XdpConfig) -> Probe {
    let allowed = attach::check_privileges().map_err(|refusal| refusal.to_string());
    let links = Netlink::open(0).ok().and_then(|mut netlink| neighbour::links(&mut netlink).ok());
    let usable = links.unwrap_or_default().into_iter().filter(|link| !link.loopback && link.mac != [0; 6]);
    let interfaces = usable.map(|link| {
        let driver = neighbour::driver(&link);
        let expected = match (features::features(link.index), driver.as_str()) {
            (Some(features), driver) => features.describe(driver),
            (None, "veth") => {
                "generic mode (on veth the faster one; native where ranks share several queues), no zero copy"
                    .to_owned()
            }
            (None, _) => "zero copy if the driver has it, else native or generic mode".to_owned(),
        };
        let verdict = match (link.programs.first(), link.running) {
            (Some(number), _) => describe_occupant(&link.name, *number),
            (None, false) => Err("the link is down".to_owned()),
            (None, true) => memory(config, &link).map(|memory| {
                let queues = neighbour::queues(&link);
                format!("driver {driver}, {queues} queue(s), MTU {}: {expected}{memory}", link.mtu)
            }),
        };
        InterfaceProbe { name: link.name, verdict }
    });
    Probe { allowed, interfaces: interfaces.collect() }
}

/// Compares what may be pinned with what a device on this interface pins. Returns a remark, or why it is too
/// little.
fn memory(config: &XdpConfig, link: &Link) -> Result<String, String> {
    let payload = config.udp.slot_payload.unwrap_or_else(|| udp::payload_of_mtu(link.mtu));
    let (usual, least) = pinned(config, neighbour::queues(link), link.mtu, payload);
    enough(caps::memlock_limit().filter(|_| !caps::may_pin_any()), usual, least)
}

fn enough(limit: Option<u64>, usual: usize, least: usize) -> Result<String, String> {
    match limit {
        Some(limit) if limit < least as u64 => Err(limit_too_low(Some(limit), usual, least)),
        Some(limit) if limit < usual as u64 => Ok(format!(
            ", with fewer chunks or queues, because RLIMIT_MEMLOCK is {} KiB instead of {} KiB (ulimit -l {})",
            limit / 1_024,
            usual.div_ceil(1_024),
            usual.div_ceil(1_024),
        )),
        _ => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memlock_limit_is_compared() {
        assert_eq!(enough(None, 1 << 30, 1 << 20), Ok(String::new()));
        assert_eq!(enough(Some(1 << 30), 1 << 30, 1 << 20), Ok(String::new()));
        let fewer = enough(Some(1 << 20), 1 << 30, 1 << 20).unwrap();
        assert!(fewer.contains("ulimit -l 1048576"), "{fewer}");
        let why = enough(Some((1 << 20) - 1), 1 << 30, 1 << 20).unwrap_err();
        assert!(why.contains("1024 KiB") && why.contains("ulimit -l 1048576"), "{why}");
        assert!(why.contains("RLIMIT_MEMLOCK is 1023 KiB") && why.contains("cap_ipc_lock"), "{why}");
    }
}
