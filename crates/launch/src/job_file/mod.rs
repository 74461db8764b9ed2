//! Job files: how a job is described to its processes (J-2 … J-5, J-9, J-10).
//!
//! A description is handed over by an inherited descriptor, or by a file of mode 0600. It contains the key,
//! which is never in arguments or in the environment. A file can describe a job to all of its processes: then
//! the rank comes from the environment, and members have names.

mod members;

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use tautline_node::link::JobKey;
use tautline_node::wire::Security;
use tautline_node::{DeviceName, HostId, Job, JoinError, Member, Rank, join_addresses};

use crate::secret_file::{NO_KEY, open, parse_key, read_and_erase};
use crate::{JOB_FD, hex};
use members::{Resolve, check_addresses, parse_host, parse_member};

const HEADER: &str = "tautline-job 1";

/// Reads a job file, which must belong to this process's user and be readable by nobody else (J-2).
pub fn read(path: &Path) -> Result<Job, JoinError> {
    read_with(path, &members::resolve)
}

fn read_with(path: &Path, resolve: &Resolve) -> Result<Job, JoinError> {
    let variable = |name: &str| std::env::var(name).ok();
    let around = Surroundings { variable: &variable, resolve };
    let job = read_and_erase(open(path)?, |text| parse_in(text, &around))
        .map_err(|e| JoinError::Unreadable(format!("{}: {e}", path.display())))?;
    job.map_err(|error| match error {
        JoinError::Nonsense(why) => JoinError::Nonsense(format!("{}: {why}", path.display())),
        other => other,
    })
}

/// Says what is wrong with a job file, for diagnosis. Each name is asked for once.
///
/// # Errors
/// As [`read`] would find, but for names that take a while to appear.
pub fn check(path: &Path) -> Result<Job, JoinError> {
    read_with(path, &members::resolve_once)
}

/// Takes over the inherited descriptor of this number and reads its job description.
pub(crate) fn read_descriptor(number: &str) -> Result<Job, JoinError> {
    let unreadable = |why: String| JoinError::Unreadable(format!("descriptor {number} ({JOB_FD}): {why}"));
    let raw = number.parse().map_err(|_| unreadable("not a number".into()))?;
    let fd = tautline_node::device::inherit::take(raw).map_err(|e| {
        unreadable(format!(
            "{e}; it is handed over once: this process has joined already, or is not the one that was launched"
        ))
    })?;
    read_and_erase(std::fs::File::from(fd), parse).map_err(|e| unreadable(e.to_string()))?
}

/// What a description may refer to: the environment of the process, and the names of hosts.
struct Surroundings<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    resolve: &'a Resolve,
}

/// Reads a description that refers to nothing outside of it (J-3).
pub fn parse(text: &str) -> Result<Job, JoinError> {
    let refused = |name: &str| Err(format!("\"{name}\" is no address, and names are for job files"));
    parse_in(text, &Surroundings { variable: &|_| None, resolve: &refused })
}

fn parse_in(text: &str, around: &Surroundings<'_>) -> Result<Job, JoinError> {
    let bad = JoinError::Nonsense;
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(bad(format!("the first line must be \"{HEADER}\"")));
    }
    let (mut rank, mut key, mut security, mut device) = (None, None, None, None);
    let (mut socket, mut notices, mut joined, mut control) = (None, None, 0, None);
    let mut members: Vec<Member> = Vec::new();
    let mut seen = Vec::new();
    for line in lines.map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (word, rest) =
            line.split_once(char::is_whitespace).ok_or_else(|| bad(format!("\"{line}\" has no value")))?;
        let rest = rest.trim_start();
        let repeats = matches!(word, "member" | "host");
        if !repeats && seen.contains(&word) {
            return Err(bad(format!("there are two lines with \"{word}\"")));
        }
        if !repeats {
            seen.push(word);
        }
        match word {
            "rank" => rank = Some(parse_rank(rest, around)?),
            "key" => key = Some(parse_key(rest).ok_or_else(|| bad(NO_KEY.into()))?),
            "member" => members.push(parse_member(rest, members.len(), around.resolve)?),
            "host" => parse_host(rest, &mut members, around.resolve)?,
            "security" => security = Some(rest.parse().map_err(bad)?),
            "device" => device = Some(rest.parse().map_err(bad)?),
            "joined" => joined = parse_joined(rest)?,
            "control" => control = Some(rest.into()),
            "socket" | "notices" => {
                let fd = take_descriptor(word, rest)?;
                *(if word == "socket" { &mut socket } else { &mut notices }) = Some(fd);
            }
            other => return Err(bad(format!("unknown word \"{other}\""))),
        }
    }
    let rank: Rank = rank.ok_or_else(|| bad("there is no rank".into()))?;
    let key = key.ok_or_else(|| bad("there is no key".into()))?;
    check_addresses(&members)?;
    let mut job = Job::new(rank, key, members);
    (job.security, job.device, job.socket, job.notices) = (security, device, socket, notices);
    (job.joined, job.control) = (joined, control);
    job.check()?;
    Ok(job)
}

/// A number, or the environment variable that has it (J-9). Of `web-3`, as Kubernetes names the pods of a
/// stateful set, the number at the end counts.
fn parse_rank(text: &str, around: &Surroundings<'_>) -> Result<Rank, JoinError> {
    let bad = JoinError::Nonsense;
    let Some(name) = text.strip_prefix('$') else {
        return text.parse().map_err(|_| bad(format!("\"{text}\" is no rank")));
    };
    let value = (around.variable)(name)
        .ok_or_else(|| bad(format!("the rank is to be read from ${name}, which is not set")))?;
    let number = value.rsplit_once('-').map_or(&*value, |(_, number)| number);
    number
        .parse()
        .map_err(|_| bad(format!("the rank is to be read from ${name}, and \"{value}\" is no rank")))
}

fn parse_joined(text: &str) -> Result<u32, JoinError> {
    text.parse().map_err(|_| JoinError::Nonsense(format!("joined \"{text}\": not a number of members")))
}

/// Writes a description for the process of `rank`; `socket` is the number of an inherited descriptor.
pub fn describe(
    rank: Rank,
    key: &JobKey,
    members: &[Member],
    security: Option<Security>,
    device: Option<DeviceName>,
    socket: Option<i32>,
) -> String {
    let mut text = format!("{HEADER}\nrank {rank}\nkey {}\n", hex::encode(key.bytes()));
    for (rank, member) in members.iter().enumerate() {
        let _ = write!(text, "member {rank} {}", join_addresses(member.addresses()));
        if let Some(HostId(host)) = member.host {
            let _ = write!(text, " {host:016x}");
        }
        text.push('\n');
    }
    if let Some(security) = security {
        let _ = writeln!(text, "security {}", security.name());
    }
    if let Some(device) = device {
        let _ = writeln!(text, "device {device}");
    }
    if let Some(socket) = socket {
        let _ = writeln!(text, "socket {socket}");
    }
    text
}

fn take_descriptor(word: &str, text: &str) -> Result<OwnedFd, JoinError> {
    let bad = |why: String| JoinError::Nonsense(format!("{word} \"{text}\": {why}"));
    let raw = text.parse().map_err(|_| bad("not a descriptor's number".into()))?;
    tautline_node::device::inherit::take(raw).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<Member> {
        ["127.0.0.1:1000", "[::1]:2000"].iter().map(|a| Member::new(a.parse().unwrap())).collect()
    }

    /// J-3: a description reads back as written.
    #[test]
    fn round_trip() {
        let key = JobKey::new([0xab; 32]);
        let text = describe(1, &key, &members(), Some(Security::Sealed), Some(DeviceName::Udp), None);
        let job = parse(&text).unwrap();
        assert_eq!((job.rank, job.size(), job.security), (1, 2, Some(Security::Sealed)));
        assert_eq!(job.device, Some(DeviceName::Udp));
        assert_eq!(job.key.bytes(), key.bytes());
        assert_eq!(*job.members, members());
        let spaced =
            parse(&text.replace("device ", "device \t ").replace("member 1 ", "member  1  ")).unwrap();
        assert_eq!((spaced.device, spaced.members), (job.device, job.members));
    }

    /// J-11: the launcher tells which members share a host.
    #[test]
    fn hosts_are_told() {
        let told: Vec<_> = members().into_iter().map(|member| member.on_host(HostId(7))).collect();
        let text = describe(0, &JobKey::new([1; 32]), &told, None, None, None);
        assert_eq!(*parse(&text).unwrap().members, told, "{text}");
    }

    /// J-9, J-10: one file for all processes, with names, ports counted from a base, and ranks from outside.
    #[test]
    fn a_file_for_all_processes() {
        let text = format!(
            "{HEADER}\nkey {}\nrank $POD\nmember 0 first:7000\nhost second:7000 2\n",
            hex::encode(&[1; 32])
        );
        let resolve = |name: &str| match name {
            "first" => Ok("10.0.0.1".parse().unwrap()),
            "second" => Ok("10.0.0.2".parse().unwrap()),
            _ => Err("unknown".to_owned()),
        };
        let read = |pod: &'static str| {
            let variable = move |name: &str| (name == "POD").then(|| pod.to_owned());
            parse_in(&text, &Surroundings { variable: &variable, resolve: &resolve })
        };
        let job = read("web-2").unwrap();
        let addrs: Vec<_> = job.members.iter().map(|member| member.addr.to_string()).collect();
        assert_eq!(
            (job.rank, addrs),
            (2, vec!["10.0.0.1:7000".into(), "10.0.0.2:7000".into(), "10.0.0.2:7001".into()])
        );
        assert_eq!(read("1").unwrap().rank, 1);
        assert!(read("web-x").unwrap_err().to_string().contains("$POD"));
        assert!(read("3").unwrap_err().to_string().contains("not among"));
    }

    /// J-28: several addresses of a member read back as written, alone and of all members of a host.
    #[test]
    fn several_addresses() {
        let addrs = ["10.0.0.2:7000", "10.1.0.2:7000"].map(|addr| addr.parse().unwrap());
        let told = vec![Member::new("10.0.0.1:7000".parse().unwrap()), Member::at(&addrs).unwrap()];
        let text = describe(0, &JobKey::new([1; 32]), &told, None, None, None);
        assert!(text.contains("\nmember 1 10.0.0.2:7000,10.1.0.2:7000\n"), "{text}");
        assert_eq!(*parse(&text).unwrap().members, told);
        let text = text + "host 10.0.0.3:7000,10.1.0.3:7000 2\n";
        let job = parse(&text).unwrap();
        let read: Vec<_> = job.members.iter().map(|member| join_addresses(member.addresses())).collect();
        assert_eq!(read[2..], ["10.0.0.3:7000,10.1.0.3:7000", "10.0.0.3:7001,10.1.0.3:7001"]);
        let many: Vec<_> = (1..=9).map(|last| format!("10.2.0.{last}:7000")).collect();
        for (addrs, word) in [
            ("10.0.0.2:7000,10.0.0.2:7000", "there twice"),
            ("10.0.0.2:7000,10.1.0.2:7001", "different ports"),
            ("10.0.0.2:7000,[::1]:7000", "IP versions"),
            ("10.0.0.2:7000,", "must look like"),
            ("10.0.0.2:7000,10.0.0.1:7000", "two members"),
            (&many.join(","), "9 addresses are more than the 8"),
        ] {
            let text = text.replace("10.0.0.2:7000,10.1.0.2:7000", addrs);
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// J-3: an address may be scoped to an interface.
    #[test]
    fn scopes_are_read() {
        let text = describe(0, &JobKey::new([1; 32]), &members(), None, None, None);
        let job = parse(&text.replacen("[::1]:2000", "[fe80::1%7]:2000", 1)).unwrap();
        assert!(matches!(job.members[1].addr, std::net::SocketAddr::V6(addr) if addr.scope_id() == 7));
        let again = parse(&describe(0, &job.key, &job.members, None, None, None)).unwrap();
        assert_eq!(again.members, job.members);
    }

    /// J-3: each mistake is named, and the key never is.
    #[test]
    fn mistakes_are_named() {
        let good = describe(1, &JobKey::new([0xab; 32]), &members(), None, None, None);
        for (from, to, word) in [
            ("tautline-job 1", "job", "first line"),
            ("rank 1", "rank $NO_SUCH", "not set"),
            ("[::1]:2000", "[::1]:2000 0g", "16 hexadecimal"),
            ("rank 1", "rank 1\nhost 10.0.0.1:65535 2", "65535"),
            ("rank 1", "rank 1\nhost 10.0.0.1:7000 0", "at least one"),
            ("rank 1", "rank 1\nhost 10.0.0.1:7000", "how many"),
            ("rank 1", "rank 1\nhost node1:7000 2", "names are for job files"),
            ("rank 1", "rank x", "no rank"),
            ("rank 1", "rank 7", "not among"),
            ("rank 1\n", "", "no rank"),
            ("key abab", "key zzab", "hexadecimal"),
            ("member 1", "member 5", "in order"),
            ("[::1]:2000", "localhost", "address"),
            ("[::1]:2000", "[fe80::1%v0]:2000", "ip link"),
            ("[::1]:2000", "[fe80::1]:2000", "ip link"),
            ("[::1]:2000", "[::ffff:10.77.0.1]:7000", "write 10.77.0.1:7000"),
            ("rank 1", "bogus 1", "bogus"),
            ("rank 1", "rank 1\nrank 0", "two lines"),
            ("[::1]:2000", "127.0.0.1:1000", "two members"),
            ("[::1]:2000", "[::1]:0", "no port"),
        ] {
            let error = parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
            assert!(!error.contains("abababab"), "{error}");
        }
    }

    /// A job file of this test, of mode 0600; removed when dropped.
    struct JobFile(std::path::PathBuf);

    impl JobFile {
        fn new(name: &str) -> JobFile {
            use std::os::unix::fs::PermissionsExt;
            let path = std::env::temp_dir().join(format!("tautline-{name}-{}", std::process::id()));
            std::fs::write(&path, describe(0, &JobKey::new([1; 32]), &members(), None, None, None)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            JobFile(path)
        }
    }

    impl Drop for JobFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// J-2: a job file that others can read is refused, with the command that repairs it.
    #[test]
    fn file_mode_is_checked() {
        use std::os::unix::fs::PermissionsExt;
        let JobFile(path) = &JobFile::new("job-mode");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = read(path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read(path).is_ok());
    }

    /// J-2: a job file of another user is refused, even where this process may read it.
    #[test]
    fn file_owner_is_checked() {
        if let Some(why) = tautline_skips::lacks_root() {
            return tautline_skips::skip("file_owner_is_checked", why);
        }
        let JobFile(path) = &JobFile::new("job-owner");
        std::os::unix::fs::chown(path, Some(12_345), None).unwrap();
        let error = read(path).unwrap_err().to_string();
        assert!(error.contains("belongs to user 12345") && error.contains("chown"), "{error}");
    }

    /// J-2: what is no file is refused, and a FIFO does not keep the process waiting.
    #[test]
    fn only_files_are_read() {
        let path = std::env::temp_dir().join(format!("tautline-job-fifo-{}", std::process::id()));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let error = read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(read(Path::new("/dev/null")).unwrap_err().to_string().contains("not a regular"));
    }
}
