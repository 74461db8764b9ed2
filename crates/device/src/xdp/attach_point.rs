//! The interface that an address belongs to, and the one below it that the program is attached to.

use std::io;
use std::net::SocketAddr;

use super::neighbour::{self, Link};
use super::unavailable::Unavailable;
use crate::sys::netlink::Netlink;

/// Where the program is attached.
#[derive(Clone, Debug)]
pub(super) struct AttachPoint {
    /// The interface with the address: routes lead to it.
    pub upper: Link,
    /// The interface that the program is attached to; the same as `upper` unless that is a VLAN on it.
    pub lower: Link,
    pub driver: String,
}

/// Finds the interface of an address. `vlan` overrides the interface's own tag.
pub(super) fn find(
    netlink: &mut Netlink,
    local: SocketAddr,
    vlan: Option<u16>,
) -> Result<AttachPoint, Unavailable> {
    let ip = local.ip();
    let refuse = |why: String| Err(Unavailable::Interface(why));
    if ip.is_unspecified() {
        return refuse(
            "the device is bound to no particular address: bind it to the address of the interface to use"
                .into(),
        );
    }
    if ip.is_loopback() {
        return refuse("AF_XDP cannot be used on loopback".into());
    }
    let failed = |e: io::Error| Unavailable::System(format!("the kernel's tables cannot be read: {e}"));
    let mut indexes = neighbour::interfaces_of(netlink, ip).map_err(failed)?;
    indexes.retain(|index| neighbour::scope(local).is_none_or(|scope| scope == *index));
    let Some(&index) = indexes.first() else {
        let scope =
            neighbour::scope(local).map_or(String::new(), |scope| format!(" (interface index {scope})"));
        return refuse(format!("no interface has the address {ip}{scope}"));
    };
    let mut upper = neighbour::link(netlink, index).map_err(failed)?;
    let mut lower = match (upper.vlan, upper.below) {
        (Some(_), Some(below)) => neighbour::link(netlink, below).map_err(failed)?,
        _ => upper.clone(),
    };
    if lower.mac == [0; 6] {
        return refuse(format!("{} is not an Ethernet interface", lower.name));
    }
    upper.vlan = vlan.or(upper.vlan);
    let driver = neighbour::driver(&lower);
    // The link message reports the queues that were allocated; fewer may be in use.
    lower.queues = lower.queues.min(neighbour::queues(&lower));
    Ok(AttachPoint { upper, lower, driver })
}
