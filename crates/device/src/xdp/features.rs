//! What a driver offers for AF_XDP, by the kernel's `netdev` family (Linux 6.3; for sending 6.8).

use crate::sys::netlink::{Netlink, add_attribute, attributes, u16_at};

/// Bytes of the header of every message of the family.
const GENERIC: usize = 4;

// From `linux/genetlink.h` and `linux/netdev.h`.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_XDP: u16 = 3;
const DEVICE_XSK: u16 = 6;

const BASIC: u64 = 1;
const ZERO_COPY: u64 = 8;
const FRAGMENTS: u64 = 32;
const SEND_CHECKSUM: u64 = 2;

/// What a driver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// Programs run in the driver.
    pub native: bool,
    /// The card writes to our memory.
    pub zero_copy: bool,
    /// Programs get frames in several fragments: jumbo frames.
    pub fragments: bool,
    /// The card computes checksums of sent frames.
    pub checksum: bool,
}

/// Requests the features of an interface from the kernel; `None` if it is too old.
pub(crate) fn features(interface: u32) -> Option<Features> {
    let mut netlink = Netlink::open_generic().ok()?;
    let mut body = vec![GET_FAMILY, 1, 0, 0];
    add_attribute(&mut body, FAMILY_NAME, b"netdev\0");
    let mut family = None;
    netlink
        .request(CONTROL, 0, &body, |_, body| {
            let id = attributes(body, GENERIC).find(|(kind, _)| *kind == FAMILY_ID);
            family = id.and_then(|(_, value)| u16_at(value, 0));
        })
        .ok()?;
    let mut body = vec![GET_DEVICE, 1, 0, 0];
    add_attribute(&mut body, DEVICE_INDEX, &interface.to_ne_bytes());
    let (mut xdp, mut xsk) = (None, 0);
    netlink
        .request(family?, 0, &body, |_, body| {
            for (kind, value) in attributes(body, GENERIC) {
                let word = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
                match (kind, word) {
                    (DEVICE_XDP, word) => xdp = word,
                    (DEVICE_XSK, Some(word)) => xsk = word,
                    _ => {}
                }
            }
        })
        .ok()?;
    let xdp = xdp?;
    Some(Features {
        native: xdp & BASIC != 0,
        zero_copy: xdp & ZERO_COPY != 0,
        fragments: xdp & FRAGMENTS != 0,
        checksum: xsk & SEND_CHECKSUM != 0,
    })
}

impl Features {
    /// Describes the features, for people.
    pub(crate) fn describe(self, driver: &str) -> String {
        let has = |has: bool, what: &str| format!("{}{what}", if has { "" } else { "no " });
        let mode = match (driver, self.zero_copy, self.native) {
            ("veth", ..) => "generic mode (on veth the faster one; native where ranks share several queues)",
            (_, true, _) => "zero copy",
            (_, false, true) => "native mode",
            (_, false, false) => "generic mode (the driver runs no programs)",
        };
        let list = [
            has(self.zero_copy, "zero copy"),
            has(self.fragments, "frames in several fragments"),
            has(self.checksum, "checksum offload for sending"),
        ];
        format!("{mode}; the driver has {}", list.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_described() {
        let all = Features { native: true, zero_copy: true, fragments: true, checksum: true };
        assert!(all.describe("ice").starts_with("zero copy; the driver has zero copy, frames in several"));
        let some = Features { zero_copy: false, checksum: false, ..all };
        assert!(some.describe("ena").starts_with("native mode; the driver has no zero copy,"));
        assert!(some.describe("ena").contains("no checksum offload"));
        assert!(some.describe("veth").starts_with("generic mode (on veth"));
        let none = Features { native: false, ..some };
        assert!(none.describe("e100").starts_with("generic mode (the driver runs no"));
    }

    /// Every host has loopback, and its driver runs no programs.
    #[test]
    fn features_of_loopback() {
        if let Some(loopback) = features(1) {
            assert!(!loopback.native && !loopback.zero_copy, "{loopback:?}");
        }
        assert_eq!(features(0x7fff_fff0), None, "there is no such interface");
    }
}
