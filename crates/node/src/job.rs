//! A job: its members, their addresses, and the key they share (J-1 … J-4).
//!
//! It is handed over by an inherited descriptor whose number is in `TAUTLINE_JOB_FD`, or by a file of mode
//! 0600 named in `TAUTLINE_JOB_FILE`. The key is never in arguments or in the environment.

use std::fmt::Write as _;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tautline_link::JobKey;
use tautline_wire::handshake::Security;

use crate::limits::{MAX_JOB_FILE, MAX_PEERS};
use crate::{DeviceName, JoinError, Rank};

/// Names the inherited descriptor that a job description is read from.
pub const JOB_FD: &str = "TAUTLINE_JOB_FD";
/// Names the file that a job description is read from.
pub const JOB_FILE: &str = "TAUTLINE_JOB_FILE";

const HEADER: &str = "tautline-job 1";

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Where it receives datagrams.
    pub addr: SocketAddr,
}

impl Member {
    /// The process that receives datagrams at `addr`.
    pub fn new(addr: SocketAddr) -> Member {
        Member { addr }
    }
}

/// A job, as one of its processes sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Job {
    /// This process.
    pub rank: Rank,
    /// The shared secret.
    pub key: JobKey,
    /// All processes, by rank.
    pub members: Vec<Member>,
    /// The security mode that the launcher asked for.
    pub security: Option<Security>,
    /// The only device to use, if the launcher asked for one.
    pub device: Option<DeviceName>,
    /// A socket, bound to this member's address, that the launcher opened.
    pub socket: Option<OwnedFd>,
}

impl Job {
    /// Describes a job for one of its processes. Usually a launcher does that.
    pub fn new(rank: Rank, key: JobKey, members: Vec<Member>) -> Job {
        Job { rank, key, members, security: None, device: None, socket: None }
    }

    /// Sets the only device to use.
    pub fn with_device(mut self, device: DeviceName) -> Job {
        self.device = Some(device);
        self
    }

    /// Sets the socket that is bound to this member's address.
    pub fn with_socket(mut self, socket: impl Into<OwnedFd>) -> Job {
        self.socket = Some(socket.into());
        self
    }

    /// How many processes there are.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The job that this process was started in (J-1).
    pub fn from_environment() -> Result<Job, JoinError> {
        if let Ok(number) = std::env::var(JOB_FD) {
            return Job::from_descriptor(&number);
        }
        match std::env::var_os(JOB_FILE) {
            Some(path) => Job::from_file(Path::new(&path)),
            None => Err(JoinError::NoJob),
        }
    }

    fn from_descriptor(number: &str) -> Result<Job, JoinError> {
        let unreadable =
            |why: String| JoinError::Unreadable(format!("descriptor {number} ({JOB_FD}): {why}"));
        let raw = number.parse().map_err(|_| unreadable("not a number".into()))?;
        let fd = tautline_device::inherit::take(raw).map_err(|e| {
            unreadable(format!(
                "{e}; it is handed over once: this process has joined already, or is not the one that was launched"
            ))
        })?;
        Job::read(std::fs::File::from(fd)).map_err(|e| unreadable(e.to_string()))?
    }

    /// Reads a description, and erases its text, which has the key in it (H-17).
    fn read(file: std::fs::File) -> std::io::Result<Result<Job, JoinError>> {
        // With room for all of it, so that no part is copied and left behind.
        let mut text = String::new();
        text.try_reserve_exact(MAX_JOB_FILE + 64).map_err(|_| {
            let why = "no memory is left to read it; raise the limit, for example: ulimit -v 100000";
            std::io::Error::new(std::io::ErrorKind::OutOfMemory, why)
        })?;
        let read = file.take(MAX_JOB_FILE as u64).read_to_string(&mut text);
        let job = Job::parse(&text);
        let mut bytes = text.into_bytes();
        tautline_link::erase(&mut bytes);
        read.map(|_| job)
    }

    /// Reads a job file, which must belong to this process's user and be readable by nobody else (J-2).
    pub fn from_file(path: &Path) -> Result<Job, JoinError> {
        let unreadable = |why: String| JoinError::Unreadable(format!("{}: {why}", path.display()));
        // What was opened is checked, not what the path names; opening a FIFO must not wait for a writer.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(nonblocking)
            .open(path)
            .map_err(|e| unreadable(e.to_string()))?;
        let meta = file.metadata().map_err(|e| unreadable(e.to_string()))?;
        if !meta.is_file() {
            return Err(unreadable("not a regular file".into()));
        }
        let user = rustix::process::geteuid().as_raw();
        if meta.uid() != user {
            return Err(unreadable(format!(
                "it belongs to user {}, who knows the key and can change it, and this process runs as user {user}; run: chown {user} {}",
                meta.uid(),
                path.display()
            )));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(unreadable(format!(
                "mode {:04o} lets others read the key; run: chmod 600 {}",
                meta.mode() & 0o7777,
                path.display()
            )));
        }
        let job = Job::read(file).map_err(|e| unreadable(e.to_string()))?;
        job.map_err(|error| match error {
            JoinError::Nonsense(why) => JoinError::Nonsense(format!("{}: {why}", path.display())),
            other => other,
        })
    }

    /// Reads a description (J-3).
    pub fn parse(text: &str) -> Result<Job, JoinError> {
        let bad = JoinError::Nonsense;
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(bad(format!("the first line must be \"{HEADER}\"")));
        }
        let (mut rank, mut key, mut security, mut device, mut socket) = (None, None, None, None, None);
        let mut members: Vec<Member> = Vec::new();
        let mut seen = Vec::new();
        for line in lines.map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (word, rest) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| bad(format!("\"{line}\" has no value")))?;
            let rest = rest.trim_start();
            if word != "member" && seen.contains(&word) {
                return Err(bad(format!("there are two lines with \"{word}\"")));
            }
            seen.push(word);
            match word {
                "rank" => rank = Some(rest.parse().map_err(|_| bad(format!("\"{rest}\" is no rank")))?),
                "key" => key = Some(parse_key(rest)?),
                "member" => members.push(parse_member(rest, members.len())?),
                "security" => security = Some(rest.parse().map_err(bad)?),
                "device" => device = Some(rest.parse().map_err(bad)?),
                "socket" => socket = Some(parse_socket(rest)?),
                other => return Err(bad(format!("unknown word \"{other}\""))),
            }
        }
        let rank: Rank = rank.ok_or_else(|| bad("there is no rank".into()))?;
        let key = key.ok_or_else(|| bad("there is no key".into()))?;
        check_addresses(&members)?;
        let job = Job { rank, key, members, security, device, socket };
        job.check()?;
        Ok(job)
    }

    /// The same job without the socket that the launcher opened.
    pub(crate) fn without_socket(&self) -> Job {
        let Job { rank, key, members, security, device, socket: _ } = self;
        let (rank, key, members) = (*rank, key.clone(), members.clone());
        Job { rank, key, members, security: *security, device: *device, socket: None }
    }

    /// Checks that the process is one of the members, and that there are not too many of them.
    pub(crate) fn check(&self) -> Result<(), JoinError> {
        let (rank, members) = (self.rank, self.members.len());
        if rank as usize >= members {
            return Err(JoinError::Nonsense(format!("rank {rank} is not among the {members} members")));
        }
        if members > MAX_PEERS {
            let most = format!("{members} members are more than the {MAX_PEERS} that a job may have");
            return Err(JoinError::Nonsense(most));
        }
        Ok(())
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
        let mut text = format!("{HEADER}\nrank {rank}\nkey ");
        for byte in key.bytes() {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        for (rank, member) in members.iter().enumerate() {
            let _ = writeln!(text, "member {rank} {}", member.addr);
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
}

fn parse_key(hex: &str) -> Result<JobKey, JoinError> {
    let mut key = [0; 32];
    let good = hex.len() == 64
        && hex.is_ascii()
        && key
            .iter_mut()
            .enumerate()
            .all(|(i, byte)| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map(|b| *byte = b).is_ok());
    // The key itself never appears in an error.
    if good {
        Ok(JobKey::new(key))
    } else {
        Err(JoinError::Nonsense("the key is not 64 hexadecimal digits".into()))
    }
}

/// Says what to write for an address that is valid on one interface only.
const SCOPE: &str = "a link-local address wants the number of this host's interface behind it, as `ip link` shows it: [fe80::1%2]:7000 for the interface 2";

fn parse_member(text: &str, expected: usize) -> Result<Member, JoinError> {
    let bad = |why: String| JoinError::Nonsense(format!("member \"{text}\": {why}"));
    let (rank, addr) =
        text.split_once(char::is_whitespace).ok_or_else(|| bad("wants a rank and an address".into()))?;
    if rank.parse() != Ok(expected) {
        return Err(bad(format!("expected rank {expected}; members are listed in order")));
    }
    let addr: SocketAddr = match addr.trim().parse() {
        Ok(addr) => addr,
        Err(_) if addr.contains('%') => return Err(bad(SCOPE.into())),
        Err(_) => return Err(bad("the address must look like 10.0.0.1:7000 or [::1]:7000".into())),
    };
    if let SocketAddr::V6(six) = addr
        && let Some(four) = six.ip().to_ipv4_mapped()
    {
        return Err(bad(format!("an IPv4 address in the clothes of IPv6; write {four}:{}", six.port())));
    }
    let unscoped =
        matches!(addr, SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() && addr.scope_id() == 0);
    if unscoped { Err(bad(SCOPE.into())) } else { Ok(Member { addr }) }
}

/// J-3: every member has an address of its own.
fn check_addresses(members: &[Member]) -> Result<(), JoinError> {
    let mut addrs: Vec<_> = members.iter().map(|m| m.addr).collect();
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

fn parse_socket(text: &str) -> Result<OwnedFd, JoinError> {
    let bad = |why: String| JoinError::Nonsense(format!("socket \"{text}\": {why}"));
    let raw = text.parse().map_err(|_| bad("not a descriptor's number".into()))?;
    tautline_device::inherit::take(raw).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<Member> {
        ["127.0.0.1:1000", "[::1]:2000"].iter().map(|a| Member { addr: a.parse().unwrap() }).collect()
    }

    /// J-3: a description reads back as written.
    #[test]
    fn round_trip() {
        let key = JobKey::new([0xab; 32]);
        let text = Job::describe(1, &key, &members(), Some(Security::Sealed), Some(DeviceName::Udp), None);
        let job = Job::parse(&text).unwrap();
        assert_eq!((job.rank, job.size(), job.security), (1, 2, Some(Security::Sealed)));
        assert_eq!(job.device, Some(DeviceName::Udp));
        assert_eq!(job.key.bytes(), key.bytes());
        assert_eq!(job.members, members());
        let spaced =
            Job::parse(&text.replace("device ", "device \t ").replace("member 1 ", "member  1  ")).unwrap();
        assert_eq!((spaced.device, spaced.members), (job.device, job.members));
    }

    /// J-3: an address may be scoped to an interface.
    #[test]
    fn scopes_are_read() {
        let text = Job::describe(0, &JobKey::new([1; 32]), &members(), None, None, None);
        let job = Job::parse(&text.replacen("[::1]:2000", "[fe80::1%7]:2000", 1)).unwrap();
        assert!(matches!(job.members[1].addr, SocketAddr::V6(addr) if addr.scope_id() == 7));
        let again = Job::parse(&Job::describe(0, &job.key, &job.members, None, None, None)).unwrap();
        assert_eq!(again.members, job.members);
    }

    /// J-3: each mistake is named, and the key never is.
    #[test]
    fn mistakes_are_named() {
        let good = Job::describe(1, &JobKey::new([0xab; 32]), &members(), None, None, None);
        for (from, to, word) in [
            ("tautline-job 1", "job", "first line"),
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
            let error = Job::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
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
            std::fs::write(&path, Job::describe(0, &JobKey::new([1; 32]), &members(), None, None, None))
                .unwrap();
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
        let error = Job::from_file(path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Job::from_file(path).is_ok());
    }

    /// J-2: a job file of another user is refused, even where this process may read it.
    #[test]
    #[allow(clippy::print_stdout, reason = "a skipped test must be visible")]
    fn file_owner_is_checked() {
        let JobFile(path) = &JobFile::new("job-owner");
        if let Err(why) = std::os::unix::fs::chown(path, Some(12_345), None) {
            println!("SKIPPED file_owner_is_checked: only root can give a file away ({why})");
            return;
        }
        let error = Job::from_file(path).unwrap_err().to_string();
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
        let error = Job::from_file(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(Job::from_file(Path::new("/dev/null")).unwrap_err().to_string().contains("not a regular"));
    }
}
