//! Every tuning knob of a node, in one place.

mod xdp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tautline_device::fault::Faults;

pub use xdp::XdpOptions;

use crate::local::simulated::SimulatedHost;

/// How a thread waits for something to happen (N-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Waiting {
    /// Polls for as long as the core is ours; parks for a while when somebody else needs it.
    Spin,
    /// Polls for [`Config::spin`], then sleeps in the kernel.
    #[default]
    SpinThenPark,
    /// Sleeps at once.
    Park,
}

impl Waiting {
    /// The policy's name in configuration, reports and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Spin => "spin",
            Waiting::SpinThenPark => "spin-then-park",
            Waiting::Park => "park",
        }
    }
}

impl std::str::FromStr for Waiting {
    type Err = String;

    fn from_str(name: &str) -> Result<Waiting, String> {
        match name {
            "spin" => Ok(Waiting::Spin),
            "spin-then-park" => Ok(Waiting::SpinThenPark),
            "park" => Ok(Waiting::Park),
            other => Err(format!("unknown waiting policy \"{other}\"; use spin, spin-then-park or park")),
        }
    }
}

/// A device that may be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceName {
    /// Shared memory; only for peers on this host.
    Shm,
    /// Datagrams over UDP sockets.
    Udp,
    /// The same datagrams past the kernel, by AF_XDP; over UDP sockets where that cannot be, and through shared memory between ranks at one address.
    Xdp,
    /// The same, with what a launcher or a job file says about it; see [`Config::ask_for`].
    XdpWith(XdpOptions),
}

impl DeviceName {
    /// The device's name.
    pub fn name(self) -> &'static str {
        match self {
            DeviceName::Shm => "shm",
            DeviceName::Udp => "udp",
            DeviceName::Xdp | DeviceName::XdpWith(_) => "xdp",
        }
    }
}

impl std::fmt::Display for DeviceName {
    /// The name with everything that was said, as it is read.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceName::XdpWith(options) => write!(f, "{},{options}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<DeviceName, String> {
        match name {
            "shm" => Ok(DeviceName::Shm),
            "udp" => Ok(DeviceName::Udp),
            "xdp" => Ok(DeviceName::Xdp),
            other if other.starts_with("xdp,") => other[4..].parse().map(DeviceName::XdpWith),
            other => Err(format!("unknown device \"{other}\"; this build has: shm, udp, xdp")),
        }
    }
}

/// The knobs of a node. The defaults suit a laptop and a cluster alike.
#[derive(Clone, Debug)]
pub struct Config {
    /// The knobs of its links.
    pub link: tautline_link::Config,
    /// The only device to be used; by default the best that opens.
    pub device: Option<DeviceName>,
    /// How this node waits.
    pub waiting: Waiting,
    /// How long [`Waiting::SpinThenPark`] polls before it sleeps.
    pub spin: Duration,
    /// The watchdog takes over when the program has not polled for this long; `None` for no watchdog (N-5).
    pub watchdog: Option<Duration>,
    /// Slots to send from.
    pub tx_slots: usize,
    /// Small messages may wait for company while earlier ones are unacknowledged. Saves frames, costs latency.
    pub share_frames: bool,
    /// How long a send waits for a peer that was never reached.
    pub connect_timeout: Duration,
    /// How long closing waits for peers to take what was sent.
    pub close_timeout: Duration,
    /// Address to bind, if the job does not say; port 0 for any.
    pub bind: Option<SocketAddr>,
    /// Use segmentation offload for sending, where there is any.
    pub gso: bool,
    /// Use receive coalescing, where there is any.
    pub gro: bool,
    /// Microseconds that the kernel may busy-poll the card on our behalf; zero for not at all.
    pub busy_poll_us: u32,
    /// Bytes of socket receive buffer to ask for; the system's default if not set.
    pub receive_buffer: Option<usize>,
    /// Bytes that each peer on this host can be lent at a time; zero for none. Memory is taken as it is first lent, and kept for the next time.
    pub loan_pool: usize,
    /// As [`tautline_link::Config::message_window`], for messages from peers on this host: there, granting more takes longer than copying.
    pub local_window: u32,
    /// Messages of so many bytes and more, sent in one go and waiting, are copied by the peer itself, if it is on this host and the system lets it; by default none are.
    /// It spares this process's core a copy, and costs time where both cores are free (docs/decisions/0005). The send waits until the peer's handler has read the message, or ended: a handler that
    /// waits for another message of the same program first would wait for ever.
    pub single_copy: Option<usize>,
    /// How [`DeviceName::Xdp`] gets frames from the card to our memory.
    pub xdp_mode: tautline_device::xdp::Mode,
    /// Who moves frames that [`DeviceName::Xdp`] receives; by default whoever is faster on the first traffic. A node that parks at once leaves it to the kernel.
    pub xdp_receive: tautline_device::xdp::Receive,
    /// How [`DeviceName::Xdp`] frames its frames; all nodes of a job must agree. Raw framing wants every rank on [`DeviceName::Xdp`] with raw framing, one rank per interface, and all
    /// of them on one segment: whoever is on UDP never sees a raw frame. Where ranks of the job share an address, UDP framing is used and the choice tells why; whoever is behind a gateway is reached
    /// through the socket.
    pub xdp_framing: tautline_device::xdp::Framing,
    /// Give up the three privileges once [`DeviceName::Xdp`] is open, in the thread that joins and those it starts from then on.
    pub xdp_drop_privileges: bool,
    /// Spoil traffic on purpose, both ways: a seed, and what goes wrong.
    pub fault: Option<(u64, Faults)>,
    /// Write every frame to a capture file.
    pub pcap: Option<PathBuf>,
    /// Write a line per frame to standard error.
    pub trace: bool,
    /// The simulated host whose nodes share memory with this one: only for nodes on a virtual clock.
    pub simulated_host: Option<SimulatedHost>,
}

impl Config {
    /// Asks for a device, with whatever is said about it.
    pub fn ask_for(&mut self, device: DeviceName) {
        self.device = Some(match device {
            DeviceName::XdpWith(options) => {
                options.apply(self);
                DeviceName::Xdp
            }
            other => other,
        });
    }

    /// The program's word counts before the job's, but for what the job says about the device that both want.
    pub(crate) fn settle_device(&mut self, job: Option<DeviceName>) {
        let same = |asked: &DeviceName| self.device.is_none_or(|own| own.name() == asked.name());
        if let Some(device) = job.filter(same).or(self.device) {
            self.ask_for(device);
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            link: tautline_link::Config::default(),
            device: None,
            waiting: Waiting::default(),
            spin: Duration::from_micros(20),
            watchdog: Some(Duration::from_millis(1)),
            tx_slots: 1024,
            share_frames: false,
            connect_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(2),
            bind: None,
            gso: true,
            gro: true,
            busy_poll_us: 0,
            receive_buffer: None,
            loan_pool: 256 << 20,
            local_window: 2 << 20,
            single_copy: None,
            xdp_mode: tautline_device::xdp::Mode::default(),
            xdp_receive: tautline_device::xdp::Receive::Measured,
            xdp_framing: tautline_device::xdp::Framing::default(),
            xdp_drop_privileges: false,
            fault: None,
            pcap: None,
            trace: false,
            simulated_host: None,
        }
    }
}
