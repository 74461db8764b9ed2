//! One measurement, as the controller requests it from both sides, and their replies. One JSON object per
//! line.

mod experiment;
mod style;
mod work;

use std::fmt;

use serde::{Deserialize, Serialize};
use tautline::{DeviceName, Security, Waiting};
use tautline_baseline::rivals::{Rival, RivalStatus};
use tautline_baseline::shm::Transfer;
use tautline_baseline::{Kind, content};

pub use experiment::{Experiment, part_words};
pub use style::Style;
pub use work::{Touch, Work};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum System {
    /// A transport of the kernel, polled or blocking.
    Plain { kind: Plain, blocking: bool },
    /// A stream over raw UDP with GSO and GRO: the limit of bandwidth.
    Gso { blocking: bool },
    /// The same with one datagram at a time.
    Datagrams { blocking: bool },
    /// Small records packed into raw UDP frames: the limit of the message rate.
    Packed { blocking: bool },
    /// Frames of our device without anything above, or with flow control.
    Bare { flow: bool },
    /// The limits of shared memory.
    Shared { limit: Shared },
    /// The tag or the cipher of our frames alone.
    Protection { security: Mode },
    /// Loans.
    Lent,
    /// Messages that the receiver copies out of the sender's process.
    SingleCopy,
    /// Bare AF_XDP, one message in a frame: the limit of OS bypass.
    Xdp { native: bool, busy: bool },
    /// Another system that is installed here.
    Rival { other: Other, tcp: bool },
    /// Our messages over UDP, from a device that loses frames.
    Lossy { go_back_n: bool },
    /// Messages.
    Taut { device: Device, security: Mode, waiting: Policy },
    /// Memory, or calls; polled, and protected as messages are by default.
    Memory { device: Device, style: Style },
}

/// The limits between two processes that share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shared {
    /// A cache line with its flag.
    Line,
    /// Copied in, copied out.
    HandOver,
    /// Written in place, copied out.
    WriteFlagCopy,
    /// Copied in and copied out at the same time, chunk by chunk.
    Pipelined,
    /// One process, from its own memory to its own.
    Memcpy,
    /// Copied in and copied out at the same time.
    TwoCopyStream,
    /// A ring of cache lines.
    Ring,
    /// One process moves a buffer, in other ways than [`Shared::Memcpy`].
    NonTemporal,
    Slot,
    Readv,
    Pinned,
}

/// The rivals, each through its own shared memory or local sockets, some over TCP too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Other {
    OpenMpi,
    Mpich,
    /// Our own, as the others are measured: the same C programs. Over UDP instead of TCP.
    TautlineMpi,
    Ucx,
    /// Its own test, which resends an untouched buffer.
    UcxPerftest,
    ZeroMq,
    Iceoryx2,
    /// Without a copy; filled before and read after the measured time.
    Iceoryx2Loan,
    /// Calls, over a Unix socket or TCP.
    Tarpc,
}

/// The device of our messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Device {
    Udp,
    Shm,
    /// Past the kernel's stack, with UDP framing.
    Xdp,
    /// The same with raw framing.
    XdpRaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Plain {
    Pipe,
    Fifo,
    SysV,
    Semaphores,
    Unix,
    Tcp,
    /// With Nagle's delay.
    TcpNagle,
    /// Over an interface without offloads.
    TcpBare,
    /// Both.
    TcpBareNagle,
    Udp,
    /// The kernel polls the interface while a call waits.
    UdpBusy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    Open,
    Fabric,
    Sealed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Policy {
    Spin,
    SpinThenPark,
    Park,
}

impl Plain {
    /// The transports that are measured at every size.
    pub const ALL: [Plain; 4] = [Plain::Pipe, Plain::Unix, Plain::Tcp, Plain::Udp];

    pub fn kind(self) -> Kind {
        match self {
            Plain::Pipe => Kind::Pipe,
            Plain::Fifo => Kind::Fifo,
            Plain::SysV => Kind::SysV,
            Plain::Semaphores => Kind::Semaphores,
            Plain::Unix => Kind::Unix,
            Plain::Tcp | Plain::TcpBare => Kind::Tcp,
            Plain::TcpNagle | Plain::TcpBareNagle => Kind::TcpNagle,
            Plain::Udp => Kind::Udp,
            Plain::UdpBusy => Kind::UdpBusy,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Plain::TcpBare => "tcp-bare",
            Plain::TcpBareNagle => "tcp-bare-nagle",
            _ => self.kind().name(),
        }
    }

    /// Whether it needs an interface that may be changed.
    pub fn needs_interface(self) -> bool {
        self.is_bare() || self == Plain::UdpBusy
    }

    /// Whether its interface has no offloads.
    pub fn is_bare(self) -> bool {
        matches!(self, Plain::TcpBare | Plain::TcpBareNagle)
    }
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Open, Mode::Fabric, Mode::Sealed];

    pub fn security(self) -> Security {
        match self {
            Mode::Open => Security::Open,
            Mode::Fabric => Security::Fabric,
            Mode::Sealed => Security::Sealed,
        }
    }
}

impl Other {
    const ALL: [Other; 9] = [
        Other::OpenMpi,
        Other::Mpich,
        Other::TautlineMpi,
        Other::Ucx,
        Other::UcxPerftest,
        Other::ZeroMq,
        Other::Iceoryx2,
        Other::Iceoryx2Loan,
        Other::Tarpc,
    ];

    /// Returns the rivals that are installed here.
    pub fn installed(found: &[RivalStatus]) -> Vec<Other> {
        let is_here = |other: &Other| found.iter().any(|f| f.rival == other.rival() && f.version.is_some());
        Other::ALL.into_iter().filter(is_here).collect()
    }

    pub fn rival(self) -> Rival {
        match self {
            Other::OpenMpi => Rival::OpenMpi,
            Other::Mpich => Rival::Mpich,
            Other::TautlineMpi => Rival::TautlineMpi,
            Other::Ucx => Rival::Ucx,
            Other::UcxPerftest => Rival::UcxPerftest,
            Other::ZeroMq => Rival::ZeroMq,
            Other::Iceoryx2 | Other::Iceoryx2Loan => Rival::Iceoryx2,
            Other::Tarpc => Rival::Tarpc,
        }
    }

    /// Whether its own test resends an untouched buffer, whatever is requested.
    pub fn is_warm(self) -> bool {
        self == Other::UcxPerftest
    }

    /// Whether it is another one's.
    pub fn is_foreign(self) -> bool {
        self != Other::TautlineMpi
    }

    /// Whether it is an MPI.
    pub fn is_mpi(self) -> bool {
        matches!(self, Other::OpenMpi | Other::Mpich | Other::TautlineMpi)
    }

    /// Whether it has messages, and not only calls.
    pub fn has_messages(self) -> bool {
        self != Other::Tarpc
    }

    /// Whether it has a stream test that does the work of a user.
    pub fn has_streams(self) -> bool {
        self != Other::Iceoryx2Loan
    }
}

impl Shared {
    fn name(self) -> &'static str {
        match self {
            Shared::Line => "line",
            Shared::HandOver => "hand-over",
            Shared::WriteFlagCopy => "write-flag-copy",
            Shared::Pipelined => "pipelined",
            Shared::Memcpy => "memcpy",
            Shared::TwoCopyStream => "two-copy-stream",
            Shared::Ring => "ring",
            Shared::NonTemporal => "non-temporal",
            Shared::Slot => "slot",
            Shared::Readv => "readv",
            Shared::Pinned => "pinned",
        }
    }

    /// How one process moves a buffer, if that is what it is.
    pub fn transfer(self) -> Option<Transfer> {
        Some(match self {
            Shared::NonTemporal => Transfer::NonTemporal,
            Shared::Slot => Transfer::Slot,
            Shared::Readv => Transfer::Readv,
            Shared::Pinned => Transfer::Pinned,
            _ => return None,
        })
    }
}

impl Device {
    /// Whether frames bypass the kernel's stack.
    pub fn is_xdp(self) -> bool {
        matches!(self, Device::Xdp | Device::XdpRaw)
    }

    pub fn device(self) -> DeviceName {
        match self {
            Device::Udp => DeviceName::Udp,
            Device::Shm => DeviceName::Shm,
            Device::Xdp | Device::XdpRaw => DeviceName::Xdp,
        }
    }
}

impl Policy {
    pub fn waiting(self) -> Waiting {
        match self {
            Policy::Spin => Waiting::Spin,
            Policy::SpinThenPark => Waiting::SpinThenPark,
            Policy::Park => Waiting::Park,
        }
    }
}

impl System {
    /// The name in tables; together with [`System::device`], [`System::policy`] and [`System::security`] it
    /// is unique.
    pub fn name(self) -> &'static str {
        match self {
            System::Plain { kind, .. } => kind.name(),
            System::Gso { .. } => "udp-gso",
            System::Datagrams { .. } => "udp-mmsg",
            System::Packed { .. } => "udp-packed",
            System::Bare { flow: false } => "frames",
            System::Bare { flow: true } => "frames+flow",
            System::Shared { limit } => limit.name(),
            System::Protection { .. } => "protection",
            System::Lent => "loans",
            System::SingleCopy => "single-copy",
            System::Xdp { native: false, .. } => "xdp-generic",
            System::Xdp { native: true, .. } => "xdp-native",
            System::Rival { other: Other::OpenMpi, tcp: false } => "openmpi",
            System::Rival { other: Other::OpenMpi, tcp: true } => "openmpi-tcp",
            System::Rival { other: Other::Mpich, .. } => "mpich",
            System::Rival { other: Other::TautlineMpi, tcp: false } => "tautline-mpi",
            System::Rival { other: Other::TautlineMpi, tcp: true } => "tautline-mpi-udp",
            System::Rival { other: Other::Ucx, tcp: false } => "ucx",
            System::Rival { other: Other::Ucx, tcp: true } => "ucx-tcp",
            System::Rival { other: Other::UcxPerftest, .. } => "ucx-perftest",
            System::Rival { other: Other::ZeroMq, .. } => Kind::ZeroMq.name(),
            System::Rival { other: Other::Iceoryx2, .. } => Kind::Iceoryx2.name(),
            System::Rival { other: Other::Iceoryx2Loan, .. } => "iceoryx2-loan",
            System::Rival { other: Other::Tarpc, tcp: true } => "tarpc",
            System::Rival { other: Other::Tarpc, tcp: false } => "tarpc-unix",
            System::Taut { .. } | System::Lossy { go_back_n: false } => "tautline",
            System::Lossy { go_back_n: true } => "tautline-go-back-n",
            System::Memory { style, .. } => style.name(),
        }
    }

    /// How it waits.
    pub fn policy(self) -> &'static str {
        match self {
            System::Plain { blocking, .. }
            | System::Gso { blocking }
            | System::Datagrams { blocking }
            | System::Packed { blocking } => {
                if blocking {
                    "blocking"
                } else {
                    "polled"
                }
            }
            System::Lent | System::SingleCopy | System::Lossy { .. } => Policy::Spin.waiting().name(),
            System::Rival { other: Other::ZeroMq | Other::Tarpc, .. } => "blocking",
            System::Xdp { busy: true, .. } => "busy-poll",
            System::Xdp { .. }
            | System::Bare { .. }
            | System::Shared { .. }
            | System::Protection { .. }
            | System::Rival { .. } => "polled",
            System::Memory { style, .. } => style.waiting().waiting().name(),
            System::Taut { waiting, .. } => waiting.waiting().name(),
        }
    }

    /// How frames are protected, if they are ours.
    pub fn security(self) -> Option<&'static str> {
        match self {
            System::Taut { security, .. } | System::Protection { security } => {
                Some(security.security().name())
            }
            System::Memory { .. } | System::Lossy { .. } => Some(Mode::Fabric.security().name()),
            _ => None,
        }
    }

    /// What moves the bytes.
    pub fn device(self) -> &'static str {
        match self {
            System::Plain { kind: Plain::TcpNagle | Plain::TcpBare | Plain::TcpBareNagle, .. } => "tcp",
            System::Plain { kind: Plain::UdpBusy, .. } => "udp",
            System::Plain { kind, .. } => kind.kind().name(),
            System::Xdp { .. } => "xdp",
            System::Rival { other: Other::TautlineMpi, tcp: true } => "udp",
            System::Rival { tcp: true, .. } => "tcp",
            System::Rival { other: Other::ZeroMq | Other::Tarpc, .. } => "unix",
            System::Shared { .. } | System::Lent | System::SingleCopy | System::Rival { .. } => "shm",
            System::Taut { device: Device::XdpRaw, .. } => "xdp-raw",
            System::Taut { device, .. } | System::Memory { device, .. } => device.device().name(),
            _ => "udp",
        }
    }

    /// Whether it needs an interface that may be changed.
    pub fn needs_interface(self) -> bool {
        matches!(self, System::Plain { kind, .. } if kind.needs_interface())
    }

    /// Whether it uses the network, and so is measured over veth too.
    pub fn is_network(self) -> bool {
        !matches!(
            self,
            System::Plain {
                kind: Plain::Pipe | Plain::Fifo | Plain::SysV | Plain::Semaphores | Plain::Unix,
                ..
            } | System::Shared { .. }
                | System::Lent
                | System::SingleCopy
                | System::Rival { tcp: false, .. }
                // It searches for interfaces where those of another namespace are not visible.
                | System::Rival { other: Other::Ucx, .. }
                | System::Taut { device: Device::Shm, .. }
                | System::Memory { device: Device::Shm, .. }
        )
    }

    /// Whether it is a bare UDP socket.
    pub fn is_raw_udp(self) -> bool {
        matches!(
            self,
            System::Plain { kind: Plain::Udp | Plain::UdpBusy, .. }
                | System::Gso { .. }
                | System::Datagrams { .. }
                | System::Packed { .. }
        )
    }

    /// Whether it is one of ours.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            System::Taut { .. }
                | System::Memory { .. }
                | System::Lossy { .. }
                | System::Lent
                | System::SingleCopy
        )
    }

    /// Whether it is a rival: it may fail, and then the report has a line that says so.
    pub fn is_rival(self) -> bool {
        matches!(self, System::Rival { .. })
    }

    /// Whether it is another way to send between two processes of one host.
    pub fn is_host_rival(self) -> bool {
        matches!(
            self,
            System::Rival { tcp: false, .. }
                | System::Plain {
                    kind: Plain::Pipe | Plain::Fifo | Plain::SysV | Plain::Semaphores | Plain::Unix,
                    ..
                }
        )
    }

    /// The veth pair that it has to itself, counted from zero: TCP, raw UDP, ours, bare AF_XDP (a program in
    /// the driver switches off offloads of its pair), rivals, TCP without offloads.
    pub fn lane(self) -> u8 {
        match self {
            System::Plain { kind: Plain::Udp | Plain::UdpBusy, .. }
            | System::Gso { .. }
            | System::Datagrams { .. }
            | System::Packed { .. } => 1,
            System::Plain { kind, .. } if kind.is_bare() => 8,
            System::Plain { .. } => 0,
            System::Xdp { native: false, .. } => 3,
            System::Xdp { native: true, .. } => 4,
            System::Rival { .. } => 5,
            System::Taut { device: Device::Xdp, .. } | System::Memory { device: Device::Xdp, .. } => 6,
            System::Taut { device: Device::XdpRaw, .. } => 7,
            _ => 2,
        }
    }

    /// Whether it sleeps while it waits.
    pub fn is_blocking(self) -> bool {
        match self {
            System::Plain { blocking, .. }
            | System::Gso { blocking }
            | System::Datagrams { blocking }
            | System::Packed { blocking } => blocking,
            // Its own thread needs the core that it shares with the program.
            System::Rival { other, .. } => matches!(other, Other::ZeroMq | Other::Tarpc),
            System::Bare { .. }
            | System::Shared { .. }
            | System::Protection { .. }
            | System::Lent
            | System::SingleCopy
            | System::Memory { .. }
            | System::Lossy { .. }
            | System::Xdp { .. } => false,
            System::Taut { waiting, .. } => waiting != Policy::Spin,
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            System::Taut { device: Device::Shm | Device::Xdp | Device::XdpRaw, security, .. } => {
                write!(f, "tautline {} {} {}", self.device(), security.security().name(), self.policy())
            }
            System::Lent | System::SingleCopy => write!(f, "tautline {} {}", self.name(), self.policy()),
            System::Taut { security, .. } => {
                write!(f, "tautline {} {}", security.security().name(), self.policy())
            }
            System::Memory { .. } | System::Lossy { .. } => write!(f, "{} {}", self.name(), self.device()),
            _ => write!(f, "{} {}", self.name(), self.policy()),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub system: System,
    pub work: Work,
    /// Both sides run on the core of side A.
    pub one_core: bool,
}

/// What a side measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// One-way times in microseconds; zero if there were none.
    pub median_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub mean_us: f64,
    /// Messages and bytes moved.
    pub messages: u64,
    pub bytes: u64,
    pub elapsed_ns: u64,
    /// The part of the elapsed time that is not what is measured, where that was measured by itself.
    pub base_ns: u64,
    /// How often something was lost and sent again, as far as the system reports it.
    pub drops: u64,
    /// CPU time of the whole process, and the kernel's part of it.
    pub cpu_ns: u64,
    pub system_ns: u64,
    /// What the process wrote to send it, and what it read of what it received; none if the system does not
    /// say.
    pub account: Option<Account>,
}

/// Bytes and sums, as `tautline_baseline::content` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub written: (u64, u64),
    pub read: (u64, u64),
}

impl From<content::Account> for Account {
    fn from(account: content::Account) -> Account {
        let pair = |tally: content::Tally| (tally.bytes, tally.sum);
        Account { written: pair(account.written), read: pair(account.read) }
    }
}

/// A side's reply to a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// It runs, and is pinned.
    Ready,
    Done(Outcome),
    Failed(String),
}
