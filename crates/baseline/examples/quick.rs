//! Prints the bare limits and the baselines of this machine: two pinned processes over loopback.
//!
//! `cargo run --release -p tautline-baseline --example quick [local-ip]`

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

use tautline_baseline::cpu::{self, Burner, Machine};
use tautline_baseline::drive::{self, Content};
use tautline_baseline::stats::Summary;
use tautline_baseline::udp_gso::{self, Plan};
use tautline_baseline::{Kind, Measured, Setup, Side, limits, open, packed, rivals};

/// Names the inherited control descriptor to the second process.
const CONTROL: &str = "TAUTLINE_BASELINE_CONTROL";

fn main() -> Result<(), Box<dyn Error>> {
    let address = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let cores = cpu::allowed_cores()?;
    let other = *cores.get(1).unwrap_or(&cores[0]);
    if let Ok(fd) = std::env::var(CONTROL) {
        cpu::pin(other)?;
        // SAFETY: the parent made this descriptor for us and named its number, and nobody else in here owns
        // it.
        let mut control = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd.parse()?) });
        return Ok(all(&mut Bench { side: Side::B, control: &mut control, address })?);
    }
    about_the_machine(&cores)?;
    let (mut control, theirs) = UnixStream::pair()?;
    let mut child = start_other(&theirs)?;
    drop(theirs);
    cpu::pin(cores[0])?;
    let done = all(&mut Bench { side: Side::A, control: &mut control, address });
    if done.is_ok() {
        println!("\nwith a CPU burner on every core");
        let burner = Burner::start(&cores)?;
        let paced = Bench { side: Side::A, control: &mut control, address }.paced();
        drop(burner);
        paced?;
    }
    drop(control);
    child.wait()?;
    Ok(done?)
}

fn start_other(theirs: &UnixStream) -> io::Result<Child> {
    rustix::io::fcntl_setfd(theirs, rustix::io::FdFlags::empty())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args().skip(1)).env(CONTROL, theirs.as_raw_fd().to_string());
    command.spawn()
}

fn about_the_machine(cores: &[usize]) -> io::Result<()> {
    println!("{:#?}\n", Machine::examine());
    for rival in rivals::detect() {
        println!("{rival}");
    }
    println!(
        "\nsystem call {:.0} ns, clock read {:.0} ns",
        limits::system_call_ns(100),
        limits::clock_read_ns(100)
    );
    for (name, bytes, copies) in [("64 K", 64 << 10, 20_000), ("1 M", 1 << 20, 2000), ("32 M", 32 << 20, 20)]
    {
        println!("memcpy {name:>4} {:5.1} GB/s", limits::copy_gigabytes_per_second(bytes, copies));
    }
    if let [one, other, ..] = cores[..] {
        println!("cache line, one way {:.0} ns", limits::cache_line_ns(one, other, 1_000_000)?);
    }
    Ok(())
}

fn all(bench: &mut Bench<'_>) -> io::Result<()> {
    bench.latency()?;
    bench.streams()?;
    bench.gso()?;
    bench.packed()?;
    bench.paced()?;
    if bench.side == Side::B {
        bench.paced()?;
    }
    Ok(())
}

struct Bench<'a> {
    side: Side,
    control: &'a mut UnixStream,
    address: IpAddr,
}

impl Bench<'_> {
    fn setup(&mut self, blocking: bool) -> Setup<'_> {
        Setup {
            side: self.side,
            control: self.control,
            local: self.address,
            remote: self.address,
            blocking,
            rcvbuf: Some(4 << 20),
        }
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.side == Side::A {
            println!("{}", text());
        }
    }

    fn latency(&mut self) -> io::Result<()> {
        self.say(|| "\none-way latency in µs: median / p99 / p99.9".to_owned());
        for (bytes, iterations) in [(8, 20_000), (64, 20_000), (1024, 20_000), (65_536, 2000), (1 << 20, 300)]
        {
            for (kind, blocking) in kinds() {
                let side = self.side;
                let mut transport = open(kind, &mut self.setup(blocking), 1 << 20)?;
                let trips =
                    drive::ping_pong(transport.as_mut(), side, bytes, iterations, Content::Rewritten)?;
                self.say(|| row(kind, blocking, bytes, &latency_text(&trips)));
            }
        }
        Ok(())
    }

    fn streams(&mut self) -> io::Result<()> {
        self.say(|| {
            "\nstream, window 64 (8 B) or none: M messages/s, GB/s, CPU s/GB of the sender".to_owned()
        });
        for (bytes, count, window) in [(8, 200_000, Some(64)), (65_536, 10_000, None), (1 << 20, 1000, None)]
        {
            for (kind, blocking) in kinds() {
                let side = self.side;
                let mut transport = open(kind, &mut self.setup(blocking), 1 << 20)?;
                let measured =
                    drive::stream(transport.as_mut(), side, bytes, count, window, Content::Rewritten)?;
                self.say(|| row(kind, blocking, bytes, &stream_text(&measured)));
            }
        }
        Ok(())
    }

    fn gso(&mut self) -> io::Result<()> {
        for (bytes, count) in [(65_536, 20_000), (1 << 20, 1500)] {
            for plan in [Plan::new(bytes, count), Plan::new(bytes, count).without_gso()] {
                let plan = udp_gso::best_plan(&mut self.setup(false), &plan, 64 << 20)?;
                self.say(|| format!("\n{plan:?}"));
                for blocking in [false, true] {
                    let measured = udp_gso::stream(&mut self.setup(blocking), &plan)?;
                    self.say(|| row(Kind::Udp, blocking, bytes, &stream_text(&measured)));
                }
            }
        }
        Ok(())
    }

    fn packed(&mut self) -> io::Result<()> {
        self.say(|| "\npacked records of 8 B: window 64, then GSO streams by window".to_owned());
        for blocking in [false, true] {
            let measured = packed::window(&mut self.setup(blocking), 50_000)?;
            self.say(|| row(Kind::Udp, blocking, 8, &stream_text(&measured)));
        }
        for window in [256 << 10, packed::STREAM_WINDOW, 1 << 20] {
            let measured = packed::stream(&mut self.setup(false), 50_000_000, window)?;
            self.say(|| row(Kind::Udp, false, 8, &stream_text(&measured)));
        }
        Ok(())
    }

    fn paced(&mut self) -> io::Result<()> {
        self.say(|| "\n64 B paced one per ms, one way in µs: median / p99 / p99.9".to_owned());
        for (kind, blocking) in kinds() {
            let side = self.side;
            let mut transport = open(kind, &mut self.setup(blocking), 1 << 20)?;
            let period = Duration::from_millis(1);
            let trips = drive::paced(transport.as_mut(), side, 64, 500, period, blocking)?;
            self.say(|| row(kind, blocking, 64, &latency_text(&trips)));
        }
        Ok(())
    }
}

fn kinds() -> impl Iterator<Item = (Kind, bool)> {
    Kind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
}

fn row(kind: Kind, blocking: bool, bytes: usize, text: &str) -> String {
    let policy = if blocking { "blocking" } else { "polled" };
    format!("{:>5} {policy:8} {bytes:>8} B  {text}", kind.name())
}

fn latency_text(round_trips: &[u64]) -> String {
    let one_way = Summary::of(round_trips).scaled(0.5 / 1000.0);
    format!("{:8.2} {:8.2} {:8.2}", one_way.median, one_way.p99, one_way.p999)
}

fn stream_text(measured: &Measured) -> String {
    format!(
        "{:8.3} M/s {:6.2} GB/s {:6.3} s/GB {:3} drops",
        measured.messages_per_second() / 1e6,
        measured.gigabytes_per_second(),
        measured.cpu_seconds_per_gigabyte(),
        measured.drops
    )
}
