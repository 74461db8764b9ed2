//! `--hosts` and `--hostfile`: on which hosts the ranks run, and how many on each.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tautline::node::limits::MAX_PEERS;

/// Bytes of the longest host file.
const MAX_FILE: u64 = 1 << 20;

/// A host as it was named, and how many processes it takes, if that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub slots: Option<usize>,
}

/// Reads `a,b:4,[::1]:2`.
pub fn parse_list(text: &str) -> Result<Vec<Host>> {
    let hosts =
        text.split(',').map(|entry| parse_host(entry.trim()).with_context(|| format!("--hosts {text}")));
    Ok(merged(hosts.collect::<Result<_>>()?))
}

/// Writes hosts as [`parse_list`] reads them.
pub fn to_list(hosts: &[Host]) -> String {
    let shown = |host: &Host| match host.slots {
        Some(slots) => format!("{}:{slots}", host.name),
        None => host.name.clone(),
    };
    hosts.iter().map(shown).collect::<Vec<_>>().join(",")
}

/// Reads a file with a host per line: `a`, `b:4` or `c slots=4`. `#` begins a comment.
pub fn read_file(path: &Path) -> Result<Vec<Host>> {
    let text = read_text(path).with_context(|| {
        format!("cannot read the host file {}\ncheck the path; the reason was", path.display())
    })?;
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if !line.is_empty() {
            hosts.push(parse_line(line).with_context(|| format!("{}:{number}", path.display()))?);
        }
    }
    if hosts.is_empty() {
        bail!(
            "the host file {} names no host\nwrite a host in each line: a, or b:4 for four processes",
            path.display()
        );
    }
    Ok(merged(hosts))
}

/// Reads no more than a file with as many hosts as a job may have.
fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let len = std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if len as u64 > MAX_FILE {
        return Err(std::io::Error::other(format!("it has more than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// Reads `c slots=4 max_slots=8`. What else host files may say of a host has no effect here.
fn parse_line(line: &str) -> Result<Host> {
    let mut words = line.split_whitespace();
    let mut host = parse_host(words.next().unwrap_or_default())?;
    for word in words {
        match word.split_once('=') {
            Some(("slots", slots)) => host.slots = Some(parse_slots(&host.name, slots)?),
            Some((name, _)) if !name.is_empty() => {}
            _ => bail!("\"{line}\" is no host\nwrite one host in each line: a, b:4 or c slots=4"),
        }
    }
    Ok(host)
}

fn parse_host(text: &str) -> Result<Host> {
    // A colon belongs to an IPv6 address if it is in brackets.
    let (name, slots) = match text.rsplit_once(':') {
        Some((name, slots)) if !slots.contains(']') => (name, Some(slots)),
        _ => (text, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"@._-%:[]".contains(&byte);
    let bare = name.rsplit_once('@').map_or(name, |(_, host)| host);
    // A name that begins with a hyphen would be an option of ssh.
    if bare.is_empty()
        || name.starts_with(['-', '@'])
        || bare.starts_with('-')
        || !name.bytes().all(is_name)
        || bare.contains(':') && !(bare.starts_with('[') && bare.ends_with(']'))
    {
        bail!(
            "\"{text}\" is no host\nwrite a name or an address, with a colon and a number for several processes: b:4"
        );
    }
    let slots = slots.map(|slots| parse_slots(name, slots)).transpose()?;
    Ok(Host { name: name.to_owned(), slots })
}

fn parse_slots(name: &str, text: &str) -> Result<usize> {
    match text.parse() {
        Ok(0) => bail!("the host {name} has 0 processes\nleave it out, or give it at least one: {name}:1"),
        Ok(slots) if slots <= MAX_PEERS => Ok(slots),
        _ => bail!("\"{text}\" is no number of processes\nwrite for example {name}:4"),
    }
}

/// A host that is named several times, as batch systems write files, takes a process for each time, or the
/// sum of its numbers.
fn merged(hosts: Vec<Host>) -> Vec<Host> {
    let mut merged: Vec<Host> = Vec::with_capacity(hosts.len());
    for host in hosts {
        match merged.iter_mut().find(|other| other.name == host.name) {
            Some(other) => {
                other.slots = Some(other.slots.unwrap_or(1).saturating_add(host.slots.unwrap_or(1)));
            }
            None => merged.push(host),
        }
    }
    merged
}

/// The same hosts with those that follow each other in one; an error if ranks of one host do not follow each
/// other.
pub fn in_order(hosts: Vec<Host>) -> Result<Vec<Host>> {
    let names = hosts.iter().map(|host| &host.name);
    let mut turns: Vec<&String> = names.collect();
    turns.dedup();
    if let Some(name) = (1..turns.len()).find(|at| turns[..*at].contains(&turns[*at])).map(|at| turns[at]) {
        bail!(
            "the host {name} is named again after another one\nname it for programs that follow each other"
        );
    }
    Ok(merged(hosts))
}

/// Whether all ranks are to run on this host, which needs no ssh.
pub fn are_here(hosts: &[Host]) -> bool {
    let own = rustix::system::uname();
    let is_own = |name: &str| own.nodename().to_str().is_ok_and(|own| own == name);
    hosts.iter().all(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&&*host.name) || is_own(&host.name))
}

/// How many processes the hosts take if no number is given.
pub fn capacity(hosts: &[Host], ppn: Option<usize>) -> usize {
    hosts.iter().fold(0, |sum: usize, host| sum.saturating_add(host.slots.or(ppn).unwrap_or(1)))
}

/// The first rank and the number of ranks of each host. Hosts without a number share what the others leave.
pub fn place(hosts: &[Host], ppn: Option<usize>, n: usize) -> Result<Vec<(usize, usize)>> {
    let known: usize = hosts.iter().filter_map(|host| host.slots.or(ppn)).sum();
    let open = hosts.iter().filter(|host| host.slots.or(ppn).is_none()).count();
    let mut share = n.saturating_sub(known);
    let mut placed = Vec::new();
    let (mut next, mut open_left) = (0, open);
    for host in hosts {
        let slots = host.slots.or(ppn).unwrap_or_else(|| {
            let slots = share.div_ceil(open_left);
            (share, open_left) = (share - slots, open_left - 1);
            slots
        });
        let count = slots.min(n - next);
        placed.push((next, count));
        next += count;
    }
    if next < n {
        bail!(
            "{n} processes do not fit: the hosts take {next}\nname more hosts, give a host more processes, as in b:4, or all of them with --oversubscribe"
        );
    }
    Ok(placed)
}

/// Hosts that take `n` processes: each takes as many times its number as it must, the first ones once more.
pub fn oversubscribed(mut hosts: Vec<Host>, ppn: Option<usize>, n: usize) -> Vec<Host> {
    let all = capacity(&hosts, ppn);
    let is_open = |host: &Host| host.slots.or(ppn).is_none();
    if n <= all || all == 0 || hosts.iter().any(is_open) {
        return hosts;
    }
    let mut rest = n % all;
    for host in &mut hosts {
        let slots = host.slots.or(ppn).unwrap_or(1);
        let more = slots.min(rest);
        rest -= more;
        host.slots = Some(slots * (n / all) + more);
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parsed_and_filled_in_order() {
        let hosts = parse_list("a,me@b.example:4,[fe80::1%2]:2,c").unwrap();
        let names: Vec<_> = hosts.iter().map(|host| (&*host.name, host.slots)).collect();
        assert_eq!(names, [("a", None), ("me@b.example", Some(4)), ("[fe80::1%2]", Some(2)), ("c", None)]);
        assert_eq!(to_list(&hosts), "a,me@b.example:4,[fe80::1%2]:2,c");
        assert_eq!(place(&hosts, None, 9).unwrap(), [(0, 2), (2, 4), (6, 2), (8, 1)]);
        assert_eq!(place(&hosts, Some(1), 8).unwrap(), [(0, 1), (1, 4), (5, 2), (7, 1)]);
        assert_eq!(place(&hosts, Some(1), 3).unwrap(), [(0, 1), (1, 2), (3, 0), (3, 0)]);
        assert_eq!(capacity(&hosts, Some(3)), 12);
        let error = place(&hosts, Some(1), 9).unwrap_err().to_string();
        assert!(error.contains("the hosts take 8"), "{error}");
    }

    #[test]
    fn hosts_take_more_than_their_slots_on_request() {
        let placed = |list: &str, ppn, n| {
            let hosts = oversubscribed(parse_list(list).unwrap(), ppn, n);
            place(&hosts, ppn, n).unwrap().into_iter().map(|(_, count)| count).collect::<Vec<_>>()
        };
        assert_eq!(placed("a:2", None, 4), [4]);
        assert_eq!(placed("a:2,b:1", None, 4), [3, 1]);
        assert_eq!(placed("a:2,b:1", None, 8), [6, 2]);
        assert_eq!(placed("a,b:1", Some(2), 7), [5, 2]);
        assert_eq!(placed("a:2,b:1", None, 2), [2, 0]);
        assert_eq!(placed("a,b:1", None, 7), [6, 1]);
    }

    #[test]
    fn this_host_has_several_names() {
        let own = rustix::system::uname();
        let own = own.nodename().to_str().unwrap();
        let are_here = |text: &str| are_here(&parse_list(text).unwrap());
        assert!(are_here("localhost:4") && are_here("127.0.0.1,[::1]:2") && are_here(own));
        assert!(!are_here("localhost,another.example") && !are_here("me@localhost"));
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = format!("{:#}", read_file(Path::new("/dev/zero")).unwrap_err());
        assert!(error.contains("/dev/zero") && error.contains("more than 1048576 bytes"), "{error}");
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, word) in [
            ("a:0", "0 processes"),
            ("a:x", "no number"),
            ("a:-1", "no number"),
            ("a:99999999999999999999", "no number"),
            ("", "no host"),
            ("a,,b", "no host"),
            ("-oProxyCommand=x", "no host"),
            ("me@-x", "no host"),
            ("@a", "no host"),
            ("a b", "no host"),
            ("$(x)", "no host"),
            ("fe80::1:4", "no host"),
        ] {
            let error = format!("{:#}", parse_list(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn host_files_are_read() {
        let path = std::env::temp_dir().join(format!("tautline-hosts-{}", std::process::id()));
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            read_file(&path).map_err(|error| format!("{error:#}"))
        };
        let hosts = read(b"a\na\nb:3\na\n").unwrap();
        assert_eq!(to_list(&hosts), "a:3,b:3");
        let hosts = read(b"# two hosts\na\n\nb slots=4 # large\nc:2\n").unwrap();
        assert_eq!(capacity(&hosts, None), 7);
        let hosts = read(b"a slots=4 max_slots=8\nb max-slots=2 slots=3\nc binding=socket\n").unwrap();
        assert_eq!(to_list(&hosts), "a:4,b:3,c");
        for (text, word) in [
            (&b"a\nb c d\n"[..], ":2: \"b c d\" is no host"),
            (b"a slots=0\n", ":1: the host a has 0"),
            (b"# nothing\n", "names no host"),
            (b"\xff\xfe\n", "cannot read"),
            (b"\x00\x01\n", "is no host"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word) && error.contains("tautline-hosts"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", read_file(&path).unwrap_err()).contains("check the path"));
    }
}
