//! Every tuning knob of a node, in one place.

mod xdp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tautline_device::fault::Faults;

use crate::JoinError;
use crate::limits::{MAX_LOAN_POOL, MAX_SHORT, TAG_CREDIT, TAG_OVERHEAD, TX_RESERVE};

pub use xdp::XdpOptions;

/// How a thread waits for something to happen (N-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Waiting {
    /// Polls while no other thread wants the core; parks for a while when one does.
    Spin,
    /// Polls for [`Config::spin`], then, if other ranks of the job are on this host, offers the core to other
    /// threads between polls, then sleeps in the kernel. Where ranks outnumber the cores, it offers the core
    /// at once.
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
    /// The same datagrams past the kernel, by AF_XDP; over UDP sockets where AF_XDP cannot be used, and
    /// through shared memory between ranks with the same address.
    Xdp,
    /// The same, with the options of a launcher or a job file; see [`Config::ask_for`].
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
    /// The name with its options, as it is read.
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
#[non_exhaustive]
pub struct Config {
    /// The knobs of its links.
    pub link: tautline_link::Config,
    /// The only device to use; by default the best that opens.
    pub device: Option<DeviceName>,
    /// How this node waits.
    pub waiting: Waiting,
    /// How long [`Waiting::SpinThenPark`] polls before it sleeps.
    pub spin: Duration,
    /// The watchdog polls when the program has not for this long; `None` for no watchdog (N-5).
    pub watchdog: Option<Duration>,
    /// Messages with tags of up to this many bytes may be sent before a receive takes them (E-5).
    pub eager_limit: u32,
    /// Slots to send from; at least 32.
    pub tx_slots: usize,
    /// Small messages share the next frame while earlier ones are unacknowledged. Saves frames, costs
    /// latency.
    pub share_frames: bool,
    /// How long a send waits for a peer that was never reached.
    pub connect_timeout: Duration,
    /// How long closing waits for peers to take what was sent.
    pub close_timeout: Duration,
    /// Address to bind, if the job does not say; port 0 for any.
    pub bind: Option<SocketAddr>,
    /// Use segmentation offload for sending, where the system has it.
    pub gso: bool,
    /// Use receive coalescing, where the system has it.
    pub gro: bool,
    /// Microseconds for which the kernel may busy-poll the card; zero for none.
    pub busy_poll_us: u32,
    /// Bytes of socket receive buffer; if not set, 1 MiB or what the system lets users have
    /// (twice `net.core.rmem_max`).
    pub receive_buffer: Option<usize>,
    /// Bytes that each peer on this host can be lent at a time; zero for none. Memory is allocated when it is
    /// first lent, and reused.
    pub loan_pool: usize,
    /// As [`tautline_link::Config::message_window`], for messages from peers on this host, where granting
    /// more takes longer than copying.
    pub local_window: u32,
    /// Bytes of the longest message that is kept whole; a longer one is an error where it is read. Handlers
    /// that take a message piece by piece have no such limit (M-19).
    pub max_whole: u64,
    /// Bytes of one process's messages that are kept while they arrive, or until the program takes them. A
    /// message that exceeds the limit is an error where it is read (M-19).
    pub max_held: u64,
    /// Messages of at least this many bytes, sent by a blocking send in one call, are copied by the peer
    /// itself if it is on this host, has set this to any length too, and the system permits it; by default
    /// none are. This saves a copy on this process's core, and costs time where both cores are free
    /// (docs/decisions/0005). The send waits until the peer's handler has read the message or ended: a
    /// handler that first waits for another message of the same program waits for ever. Set it only among
    /// peers that trust each other: a handler that reads such a message waits for as long as the memory of
    /// its sender lets it (S-32).
    pub single_copy: Option<usize>,
    /// How [`DeviceName::Xdp`] gets frames from the card to our memory.
    pub xdp_mode: tautline_device::xdp::Mode,
    /// Who moves frames that [`DeviceName::Xdp`] receives; by default what is faster on the first traffic.
    /// With [`Waiting::Park`] the kernel does.
    pub xdp_receive: tautline_device::xdp::Receive,
    /// The framing of [`DeviceName::Xdp`]; all nodes of a job must agree. Raw framing requires that every
    /// rank uses it, with one rank per interface and all ranks on one segment: a rank on UDP receives no raw
    /// frame. If ranks of the job share an address, UDP framing is used, and the choice says why. A rank
    /// behind a gateway is reached through the socket.
    pub xdp_framing: tautline_device::xdp::Framing,
    /// Drop the three capabilities once [`DeviceName::Xdp`] is open, in the thread that joins and those it
    /// starts afterwards.
    pub xdp_drop_privileges: bool,
    /// Inject faults into the traffic, both ways: a seed, and which faults.
    pub fault: Option<(u64, Faults)>,
    /// Write every frame to a capture file.
    pub pcap: Option<PathBuf>,
    /// Write a line per frame to standard error.
    pub trace: bool,
}

/// A century: as good as for ever, and far from overflow.
const LONGEST: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

impl Config {
    /// The default configuration, as `change` changes it.
    ///
    /// ```
    /// use tautline_node::{Config, Waiting};
    ///
    /// let config = Config::with(|config| config.waiting = Waiting::Park);
    /// assert_eq!(config.waiting, Waiting::Park);
    /// ```
    pub fn with(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        change(&mut config);
        config
    }

    /// Asks for a device, with its options.
    pub fn ask_for(&mut self, device: DeviceName) {
        self.device = Some(match device {
            DeviceName::XdpWith(options) => {
                options.apply(self);
                DeviceName::Xdp
            }
            other => other,
        });
    }

    /// Refuses values that no channel can work with, and bounds times, so that sums of them do not overflow.
    pub(crate) fn check(&mut self) -> Result<(), JoinError> {
        let (link, most_credit) = (&mut self.link, tautline_wire::handshake::MAX_CREDIT);
        let window = u64::from(link.message_window.max(self.local_window));
        // L-35: one slot of credit is for messages, and one for windows (L-27).
        let needs = [
            ("link.credit_slots", u64::from(link.credit_slots), 2..=u64::from(most_credit)),
            ("link.message_window", link.message_window.into(), 1..=u64::from(u32::MAX)),
            ("link.window_initial", link.window_initial.into(), 1..=u64::from(u32::MAX)),
            ("link.silence", link.silence, 1_000_000..=u64::MAX),
            ("local_window", self.local_window.into(), 1..=u64::from(u32::MAX)),
            ("max_whole", self.max_whole, 1..=u64::MAX),
            // One message that the program leaves unread is no reason to lose it.
            ("max_held", self.max_held, window.max(MAX_SHORT as u64)..=u64::MAX),
            // S-34, with room for parts.
            ("loan_pool", self.loan_pool as u64, 0..=MAX_LOAN_POOL),
            ("eager_limit", self.eager_limit.into(), 0..=TAG_CREDIT - TAG_OVERHEAD),
            ("tx_slots", self.tx_slots as u64, 2 * TX_RESERVE as u64..=1 << 24),
        ];
        for (name, value, allowed) in needs {
            if !allowed.contains(&value) {
                let (least, most) = (allowed.start(), allowed.end());
                return Err(JoinError::Config(format!("{name} is {value}; allowed is {least} to {most}")));
            }
        }
        let times = [
            &mut link.silence,
            &mut link.ack_delay,
            &mut link.rto_min,
            &mut link.rto_max,
            &mut link.rto_initial,
        ];
        times.into_iter().chain([&mut link.hello_interval]).for_each(|time| *time = LONGEST.min(*time));
        let longest = Duration::from_nanos(LONGEST);
        for time in [&mut self.spin, &mut self.connect_timeout, &mut self.close_timeout] {
            *time = longest.min(*time);
        }
        self.watchdog = self.watchdog.map(|tick| tick.clamp(Duration::from_micros(1), longest));
        Ok(())
    }

    /// Settles the device: the program's choice comes before the job's, but the job's options for the device
    /// that both choose come before the program's.
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
            eager_limit: 64 << 10,
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
            max_whole: crate::limits::MAX_WHOLE,
            max_held: crate::limits::MAX_HELD,
            single_copy: None,
            xdp_mode: tautline_device::xdp::Mode::default(),
            xdp_receive: tautline_device::xdp::Receive::Measured,
            xdp_framing: tautline_device::xdp::Framing::default(),
            xdp_drop_privileges: false,
            fault: None,
            pcap: None,
            trace: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-1: values that no channel works with are refused by name; times without a bound are as good as for
    /// ever.
    #[test]
    fn useless_values_are_refused() {
        let refused = |change: fn(&mut Config)| match Config::with(change).check() {
            Err(JoinError::Config(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(|c| c.link.credit_slots = 1).starts_with("link.credit_slots is 1; allowed is 2 to"));
        assert!(refused(|c| c.link.credit_slots = u32::MAX).starts_with("link.credit_slots"));
        assert!(refused(|c| c.link.message_window = 0).starts_with("link.message_window"));
        assert!(refused(|c| c.link.window_initial = 0).starts_with("link.window_initial"));
        assert!(refused(|c| c.link.silence = 0).starts_with("link.silence"));
        assert!(refused(|c| c.local_window = 0).starts_with("local_window"));
        assert!(refused(|c| c.loan_pool = usize::MAX).starts_with("loan_pool"));
        assert!(refused(|c| c.max_whole = 0).starts_with("max_whole"));
        assert!(
            refused(|c| c.max_held = (2 << 20) - 1).starts_with("max_held is 2097151; allowed is 2097152")
        );
        assert!(refused(|c| c.tx_slots = 31).starts_with("tx_slots is 31; allowed is 32 to"));
        let mut endless = Config::with(|c| {
            (c.connect_timeout, c.close_timeout, c.spin) = (Duration::MAX, Duration::MAX, Duration::MAX);
            c.link.silence = u64::MAX;
        });
        endless.check().unwrap();
        assert!(endless.connect_timeout.as_nanos() + endless.spin.as_nanos() < u128::from(u64::MAX));
        assert!(endless.link.silence.checked_add(LONGEST).is_some());
    }
}
