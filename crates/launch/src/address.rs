//! The addresses that this process announces to the other members (J-14).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use tautline_node::{JoinError, Member};

/// Names the interfaces, or the networks, whose addresses are announced.
pub const INTERFACE: &str = "TAUTLINE_INTERFACE";

/// Addresses for documentation: no host has them, so that their routes are those to anywhere. Connecting a
/// UDP socket sends nothing.
const ANYWHERE: [(IpAddr, IpAddr); 2] = [
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))),
];

/// The addresses of `wanted`, in this order: names of interfaces, addresses, or networks such as
/// `10.0.0.0/8`, with commas between them. Without it, the address from which this host reaches others.
pub fn announced(wanted: Option<&str>) -> Result<Vec<IpAddr>, JoinError> {
    let addresses = interfaces();
    match wanted {
        Some(wanted) => find_all(wanted, &addresses).map_err(JoinError::Config),
        None => Ok(vec![by_route(&addresses)]),
    }
}

/// Sockets for this many members that are at each of these addresses, with the members (J-28).
pub fn bind(ips: &[IpAddr], count: usize) -> io::Result<Vec<(UdpSocket, Vec<SocketAddr>)>> {
    let of_port = |port| ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect::<Vec<_>>();
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let bind_to = Member::at(&of_port(0)).map_err(invalid)?.bind_address();
    let bound = (0..count).map(|_| {
        let socket = UdpSocket::bind(bind_to)?;
        let addrs = of_port(socket.local_addr()?.port());
        Ok((socket, addrs))
    });
    bound.collect()
}

/// An address of this host, with its interface's name.
type Local = (String, IpAddr);

fn find_all(wanted: &str, addresses: &[Local]) -> Result<Vec<IpAddr>, String> {
    let found: Vec<_> = wanted.split(',').map(|one| find(one, addresses)).collect::<Result<_, _>>()?;
    let members: Vec<_> = found.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
    let wrong = |why| format!("{INTERFACE} is \"{wanted}\": {why}");
    Member::at(&members).map_err(|why| wrong(why.replace(":0", "")))?;
    Ok(found)
}

fn find(wanted: &str, addresses: &[Local]) -> Result<IpAddr, String> {
    let network = parse_network(wanted)?;
    let fits = |(name, ip): &&Local| match network {
        Some((base, bits)) => is_within(*ip, base, bits),
        None => name == wanted,
    };
    let found: Vec<IpAddr> = addresses.iter().filter(fits).map(|(_, ip)| *ip).collect();
    // IPv4 first: an interface has both, and other hosts may have only that.
    let best = found.iter().find(|ip| ip.is_ipv4()).or(found.first());
    best.copied().ok_or_else(|| {
        let there: Vec<_> = addresses.iter().map(|(name, ip)| format!("{name} {ip}")).collect();
        format!(
            "{INTERFACE} is \"{wanted}\", and this host has no such address; it has: {}",
            there.join(", ")
        )
    })
}

/// A network or an address; none for the name of an interface.
fn parse_network(text: &str) -> Result<Option<(IpAddr, u32)>, String> {
    let Some((base, bits)) = text.split_once('/') else {
        return Ok(text.parse().ok().map(|ip: IpAddr| (ip, width(ip))));
    };
    let wrong = || format!("{INTERFACE} is \"{text}\", which is no network such as 10.0.0.0/8");
    let base: IpAddr = base.parse().map_err(|_| wrong())?;
    let bits = bits.parse().ok().filter(|bits| *bits <= width(base)).ok_or_else(wrong)?;
    Ok(Some((base, bits)))
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn is_within(ip: IpAddr, base: IpAddr, bits: u32) -> bool {
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    ip.is_ipv4() == base.is_ipv4() && (bits == 0 || (number(ip) ^ number(base)) >> (128 - bits) == 0)
}

/// The source address of the default route; without one, the first address that other hosts might reach.
fn by_route(addresses: &[Local]) -> IpAddr {
    let routed = ANYWHERE.iter().find_map(|(any, anywhere)| {
        let socket = UdpSocket::bind((*any, 0)).ok()?;
        socket.connect((*anywhere, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    });
    let outside = || addresses.iter().map(|(_, ip)| *ip).find(|ip| !ip.is_loopback());
    routed.or_else(outside).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// The addresses of this host that are valid beyond one link, IPv4 first, from /proc.
fn interfaces() -> Vec<Local> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut found = parse_ipv4(&read("/proc/net/fib_trie"), &read("/proc/net/route"));
    found.extend(parse_ipv6(&read("/proc/net/if_inet6")));
    found
}

/// Addresses of this host are the leaves `/32 host LOCAL`. The interface is that of the network which the
/// address is in.
fn parse_ipv4(trie: &str, routes: &str) -> Vec<Local> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let networks: Vec<(&str, u32, u32)> = routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (gateway, mask) = (hex(fields.get(2)?)?, hex(fields.get(7)?)?);
            (gateway == 0 && mask != 0).then_some((fields[0], hex(fields[1])?, mask))
        })
        .collect();
    let mut found: Vec<Local> = Vec::new();
    let mut leaf = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if let (true, Some(ip)) = (line.starts_with("/32 host LOCAL"), leaf) {
            let network = networks.iter().find(|(_, base, mask)| ip.to_bits() & mask == *base);
            let name = if ip.is_loopback() { "lo" } else { network.map_or("?", |network| network.0) };
            // The kernel has the same addresses in two tables.
            if !found.iter().any(|(_, other)| *other == ip) {
                found.push((name.to_owned(), ip.into()));
            }
        }
    }
    found
}

/// Lines of address, index, prefix, scope, flags and name. The scope 20 is one link.
fn parse_ipv6(text: &str) -> Vec<Local> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let bits = u128::from_str_radix(fields.first()?, 16).ok()?;
        let (scope, name) = (*fields.get(3)?, *fields.get(5)?);
        (scope != "20").then(|| (name.to_owned(), Ipv6Addr::from_bits(bits).into()))
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
        +-- 10.1.0.0/24 2 0 2\n        |-- 10.1.0.0\n           /24 link UNICAST\n        |-- 10.1.0.7\n           \
        /32 host LOCAL\n        |-- 127.0.0.1\n           /32 host LOCAL\nLocal:\n        |-- 10.1.0.7\n           \
        /32 host LOCAL\n        |-- 192.168.5.9\n           /32 host LOCAL\n";
    const ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
        eth0\t00000000\t0100010A\t0003\t0\t0\t0\t00000000\n\
        eth0\t0000010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
        ib0\t0005A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
    const INET6: &str = "00000000000000000000000000000001 01 80 10 80       lo\n\
        20010db8000000000000000000000007 02 40 00 80     eth0\n\
        fe800000000000000000000000000007 02 40 20 80     eth0\n";

    fn there() -> Vec<Local> {
        [parse_ipv4(TRIE, ROUTES), parse_ipv6(INET6)].concat()
    }

    /// J-14: an interface, a network or an address selects what is announced.
    #[test]
    fn overrides_select_an_address() {
        for (wanted, expected) in [
            ("eth0", "10.1.0.7"),
            ("ib0", "192.168.5.9"),
            ("lo", "127.0.0.1"),
            ("192.168.0.0/16", "192.168.5.9"),
            ("2001:db8::/32", "2001:db8::7"),
            ("10.1.0.7", "10.1.0.7"),
            ("0.0.0.0/0", "10.1.0.7"),
        ] {
            assert_eq!(find(wanted, &there()).map(|ip| ip.to_string()), Ok(expected.to_owned()), "{wanted}");
        }
    }

    /// J-28: several are announced in the order in which they are named, and each once.
    #[test]
    fn several_addresses() {
        let found = |wanted: &str| {
            let found = find_all(wanted, &there());
            found.map(|ips| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(found("ib0,eth0").unwrap(), "192.168.5.9 10.1.0.7");
        assert_eq!(found("10.0.0.0/8,192.168.5.9").unwrap(), "10.1.0.7 192.168.5.9");
        for (wanted, word) in [
            ("eth0,eth7", "\"eth7\", and this host has no such address"),
            ("eth0,10.1.0.7", "\"eth0,10.1.0.7\": the address 10.1.0.7 is there twice"),
            ("eth0,2001:db8::7", "IP versions"),
            ("eth0,", "no such address"),
            ("eth0,eth0,eth0,eth0,eth0,eth0,eth0,eth0,eth0", "9 addresses are more than the 8"),
        ] {
            let error = found(wanted).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    /// J-28: one socket for all addresses.
    #[test]
    fn one_socket_receives_for_all_addresses() {
        let ips = ["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap());
        for (socket, addrs) in bind(&ips, 2).unwrap() {
            socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
            for addr in &addrs {
                UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", addr).unwrap();
                assert_eq!(socket.recv(&mut [0; 2]).unwrap(), 1, "{addr}");
            }
            assert_eq!(addrs.iter().map(SocketAddr::ip).collect::<Vec<_>>(), ips);
        }
        let (socket, addrs) = bind(&ips[..1], 1).unwrap().remove(0);
        assert_eq!(addrs, [socket.local_addr().unwrap()]);
    }

    /// J-14: a mistake is named, with what there is.
    #[test]
    fn mistakes_name_what_there_is() {
        for wanted in ["eth7", "172.16.0.0/12", "10.1.0.8", "fe80::/10"] {
            let error = find(wanted, &there()).unwrap_err();
            assert!(error.contains(wanted) && error.contains("ib0 192.168.5.9"), "{error}");
        }
        assert!(find("10.0.0.0/33", &there()).unwrap_err().contains("no network"));
        assert!(find("x/8", &there()).unwrap_err().contains("no network"));
    }

    /// J-14: this machine has at least a loopback address, and garbage is no address.
    #[test]
    fn this_machine_has_an_address() {
        let own = announced(None).unwrap();
        assert!(own.len() == 1 && bind(&own, 1).is_ok(), "{own:?}");
        assert_eq!(parse_ipv4("|-- x\n/32 host LOCAL\n|--", "a\nb c d"), []);
        assert_eq!(parse_ipv6("zz\n\n0 1"), []);
    }
}
