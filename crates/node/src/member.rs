//! A member of a job: the addresses that it receives datagrams at, and its host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::limits::MAX_ADDRESSES;

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Where it receives datagrams; its first address, if it has several.
    pub addr: SocketAddr,
    /// The host that it runs on, if the launcher told it.
    pub host: Option<HostId>,
    /// Its other addresses.
    more: Box<[SocketAddr]>,
}

/// Tells hosts apart by facts, not by addresses: processes with the same number run under the same kernel and
/// in the same network namespace (J-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(pub u64);

impl Member {
    /// The process that receives datagrams at `addr`.
    pub fn new(addr: SocketAddr) -> Member {
        Member { addr, host: None, more: Box::default() }
    }

    /// The process that receives datagrams at each of these addresses, which peers try in this order (J-28).
    ///
    /// # Errors
    /// If there is no address, or more than [`MAX_ADDRESSES`], or one of them twice; and if they differ in
    /// the port or the IP version: one socket receives for all of them.
    pub fn at(addrs: &[SocketAddr]) -> Result<Member, String> {
        let (first, more) = addrs.split_first().ok_or("a member has at least one address")?;
        if addrs.len() > MAX_ADDRESSES {
            return Err(format!("{} addresses are more than the {MAX_ADDRESSES} of a member", addrs.len()));
        }
        for (index, addr) in addrs.iter().enumerate() {
            if addrs[..index].contains(addr) {
                return Err(format!("the address {addr} is there twice"));
            }
            if addr.port() != first.port() {
                return Err(format!("{first} and {addr} have different ports; a member has one port"));
            }
            if addr.is_ipv4() != first.is_ipv4() {
                return Err(format!("{first} and {addr} have different IP versions; a member has one"));
            }
        }
        Ok(Member { more: more.into(), ..Member::new(*first) })
    }

    /// Tells which host it runs on.
    pub fn on_host(mut self, host: HostId) -> Member {
        self.host = Some(host);
        self
    }

    /// Its addresses, in the order in which peers try them.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        std::iter::once(self.addr).chain(self.more.iter().copied())
    }

    /// How many addresses it has.
    pub(crate) fn address_count(&self) -> u8 {
        1 + self.more.len() as u8
    }

    /// The address that its socket is bound to: its only one, or the unspecified one.
    pub fn bind_address(&self) -> SocketAddr {
        let mut bind = self.addr;
        if !self.more.is_empty() {
            bind.set_ip(unspecified(bind.ip()));
        }
        bind
    }

    /// Whether both may share memory: not if the launcher told that they are on different hosts (J-11).
    pub(crate) fn may_share_with(&self, other: &Member) -> bool {
        !matches!((self.host, other.host), (Some(own), Some(other)) if own != other)
    }

    /// A number that members of one host have in common, by what [`Member::is_on_host_of`] goes by.
    pub(crate) fn host_number(&self) -> u64 {
        match (self.host, self.addr.ip()) {
            (Some(HostId(number)), _) => number,
            (None, ip) if ip.is_loopback() => 0,
            (None, IpAddr::V4(ip)) => ip.to_bits().into(),
            (None, IpAddr::V6(ip)) => (ip.to_bits() >> 64) as u64 ^ ip.to_bits() as u64,
        }
    }

    /// Whether both run on one host: by what the launcher told of them or, without that, by their addresses.
    pub(crate) fn is_on_host_of(&self, other: &Member) -> bool {
        if let (Some(own), Some(other)) = (self.host, other.host) {
            return own == other;
        }
        let is_same = |own: IpAddr, other: IpAddr| own == other || own.is_loopback() && other.is_loopback();
        self.addresses().any(|own| other.addresses().any(|other| is_same(own.ip(), other.ip())))
    }
}

/// The unspecified address of the same IP version.
fn unspecified(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The addresses in one word, as job files and launchers have them.
pub fn join_addresses(addrs: impl IntoIterator<Item = SocketAddr>) -> String {
    addrs.into_iter().map(|addr| addr.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addrs: &[&str]) -> Result<Member, String> {
        let addrs: Vec<_> = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
        Member::at(&addrs)
    }

    /// J-28: the order of addresses is kept, and one socket receives for all of them.
    #[test]
    fn members_have_addresses() {
        let one = at(&["10.0.0.1:7000"]).unwrap();
        assert_eq!((&one, one.bind_address()), (&Member::new(one.addr), one.addr));
        let two = at(&["10.0.0.1:7000", "10.1.0.1:7000"]).unwrap();
        assert_eq!(join_addresses(two.addresses()), "10.0.0.1:7000,10.1.0.1:7000");
        assert_eq!((two.addr, two.address_count()), (one.addr, 2));
        assert_eq!(two.bind_address().to_string(), "0.0.0.0:7000");
        assert_eq!(at(&["[::1]:7", "[2001:db8::1]:7"]).unwrap().bind_address().to_string(), "[::]:7");
        let second = at(&["10.1.0.1:7001"]).unwrap();
        assert!(two.is_on_host_of(&second) && second.is_on_host_of(&two) && !one.is_on_host_of(&second));
        assert!(one.host_number() != second.host_number());
    }

    /// J-28: what one socket cannot receive for is refused, and so are too many addresses.
    #[test]
    fn addresses_that_do_not_go_together() {
        let many: Vec<_> = (0..=MAX_ADDRESSES).map(|n| format!("10.0.0.{n}:7000")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(at(&many[1..]).is_ok());
        for (addrs, word) in [
            (&[][..], "at least one"),
            (&many, "9 addresses are more than the 8"),
            (&["10.0.0.1:7", "10.1.0.1:7", "10.0.0.1:7"], "10.0.0.1:7 is there twice"),
            (&["10.0.0.1:7", "10.1.0.1:8"], "different ports"),
            (&["10.0.0.1:7", "[::1]:7"], "IP versions"),
        ] {
            let error = at(addrs).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
