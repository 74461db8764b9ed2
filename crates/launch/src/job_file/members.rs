//! The members of a job file: addresses, names, and hosts with several members (J-3, J-10).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use tautline_node::limits::{MAX_ADDRESSES, MAX_PEERS};
use tautline_node::{HostId, JoinError, Member};

/// Finds the address of a host's name, or says why there is none.
pub(super) type Resolve = dyn Fn(&str) -> Result<IpAddr, String>;

/// Names of pods appear some time after the pods themselves.
const RESOLVE_FOR: Duration = Duration::from_secs(30);
const RESOLVE_EVERY: Duration = Duration::from_millis(250);

/// Asks the system for the address of a name, repeatedly for a while.
pub(super) fn resolve(name: &str) -> Result<IpAddr, String> {
    let until = Instant::now() + RESOLVE_FOR;
    loop {
        match look_up(name) {
            Ok(ip) => return Ok(ip),
            Err(why) if Instant::now() >= until => {
                let found = format!("no address of the host \"{name}\" was found for {RESOLVE_FOR:?}");
                return Err(format!("{found}: {why}"));
            }
            Err(_) => std::thread::sleep(RESOLVE_EVERY),
        }
    }
}

/// Asks the system for the address of a name.
pub(super) fn resolve_once(name: &str) -> Result<IpAddr, String> {
    look_up(name).map_err(|why| format!("no address of the host \"{name}\" was found: {why}"))
}

fn look_up(name: &str) -> Result<IpAddr, String> {
    let mut found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().map(|addr| addr.ip()).ok_or_else(|| "it has no address".to_owned())
}

/// Says what to write for an address that is valid on one interface only.
const SCOPE: &str = "a link-local address wants the number of this host's interface behind it, as `ip link` shows it: [fe80::1%2]:7000 for the interface 2";

/// Reads `RANK ADDRESSES [HOST]`.
pub(super) fn parse_member(text: &str, expected: usize, resolve: &Resolve) -> Result<Member, JoinError> {
    let bad = |why: String| JoinError::Nonsense(format!("member \"{text}\": {why}"));
    let mut words = text.split_whitespace();
    let (Some(rank), Some(addr)) = (words.next(), words.next()) else {
        return Err(bad("wants a rank and an address".into()));
    };
    if rank.parse() != Ok(expected) {
        return Err(bad(format!("expected rank {expected}; members are listed in order")));
    }
    let member = Member::at(&parse_addresses(addr, resolve).map_err(bad)?).map_err(bad)?;
    match (words.next(), words.next()) {
        (None, _) => Ok(member),
        (Some(host), None) if host.len() == 16 && host.bytes().all(|b| b.is_ascii_hexdigit()) => {
            Ok(member.on_host(HostId(u64::from_str_radix(host, 16).expect("digits"))))
        }
        _ => Err(bad("after the addresses there may be a host's number of 16 hexadecimal digits".into())),
    }
}

/// Reads `ADDRESSES COUNT`: as many members at the ports from this one on.
pub(super) fn parse_host(text: &str, members: &mut Vec<Member>, resolve: &Resolve) -> Result<(), JoinError> {
    let bad = |why: String| JoinError::Nonsense(format!("host \"{text}\": {why}"));
    let (addr, count) = text
        .split_once(char::is_whitespace)
        .ok_or_else(|| bad("wants an address and how many members are there".into()))?;
    let count: u16 = count.trim().parse().map_err(|_| bad(format!("\"{count}\" is no count")))?;
    let addrs = parse_addresses(addr, resolve).map_err(bad)?;
    let base = Member::at(&addrs).map_err(bad)?.addr;
    if count == 0 {
        return Err(bad("there is at least one member".into()));
    }
    if base.port().checked_add(count - 1).is_none() {
        return Err(bad(format!("there are not {count} ports from {} to 65535", base.port())));
    }
    if members.len() + usize::from(count) > MAX_PEERS {
        return Err(bad(format!("a job has at most {MAX_PEERS} members")));
    }
    for port in (base.port()..=u16::MAX).take(usize::from(count)) {
        let mut addrs = addrs.clone();
        addrs.iter_mut().for_each(|addr| addr.set_port(port));
        members.push(Member::at(&addrs).map_err(bad)?);
    }
    Ok(())
}

/// Reads addresses with commas between them (J-28).
fn parse_addresses(text: &str, resolve: &Resolve) -> Result<Vec<SocketAddr>, String> {
    let addresses: Vec<_> = text.split(',').collect();
    if addresses.len() > MAX_ADDRESSES {
        // Before names are asked for.
        return Err(format!("{} addresses are more than the {MAX_ADDRESSES} of a member", addresses.len()));
    }
    addresses.into_iter().map(|address| parse_address(address, resolve)).collect()
}

fn parse_address(text: &str, resolve: &Resolve) -> Result<SocketAddr, String> {
    let addr: SocketAddr = match text.parse() {
        Ok(addr) => addr,
        Err(_) if text.contains('%') => return Err(SCOPE.into()),
        Err(_) => resolve_address(text, resolve)?,
    };
    if let SocketAddr::V6(six) = addr
        && let Some(four) = six.ip().to_ipv4_mapped()
    {
        return Err(format!("an IPv4 address in the clothes of IPv6; write {four}:{}", six.port()));
    }
    let unscoped =
        matches!(addr, SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() && addr.scope_id() == 0);
    if unscoped { Err(SCOPE.into()) } else { Ok(addr) }
}

/// Reads `NAME:PORT`.
fn resolve_address(text: &str, resolve: &Resolve) -> Result<SocketAddr, String> {
    const SHAPE: &str = "the address must look like 10.0.0.1:7000, [::1]:7000 or node1:7000";
    let (name, port) = text.rsplit_once(':').ok_or(SHAPE)?;
    let port: u16 = port.parse().map_err(|_| SHAPE)?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(SHAPE.into());
    }
    Ok(SocketAddr::new(resolve(name)?, port))
}

/// J-3: every member has addresses of its own.
pub(super) fn check_addresses(members: &[Member]) -> Result<(), JoinError> {
    let mut addrs: Vec<_> = members.iter().flat_map(Member::addresses).collect();
    addrs.sort_unstable();
    if let Some(addr) = addrs.iter().find(|a| a.port() == 0) {
        return Err(JoinError::Nonsense(format!(
            "the address {addr} has no port; others must know where to send"
        )));
    }
    match addrs.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(JoinError::Nonsense(format!("two members have the address {}", pair[0]))),
        None => Ok(()),
    }
}
