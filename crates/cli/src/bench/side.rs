//! One of the two processes of a measurement: pinned, commanded by the controller, and connected to the
//! other.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tautline::node::device::{inherit, udp};
use tautline_baseline::content::{self, Sabotage};
use tautline_baseline::cpu::{self, CpuTime};
use tautline_baseline::drive::{self, Content};
use tautline_baseline::offload;
use tautline_baseline::stats::Summary;
use tautline_baseline::udp_gso::{self, Plan};
use tautline_baseline::xdp::{self, Attach};
use tautline_baseline::{Kind, Measured, Setup, Side, loan_ping_pong, open, packed, shm, tarpc_calls};

use super::calls::Calls;
use super::case::{Case, Device, Mode, Other, Outcome, Policy, Reply, Shared, Style, System, Touch, Work};
use super::flood;
use super::loans::Lender;
use super::matching::matching;
use super::memory::MemorySide;
use super::protection::protect;
use super::server::Server;
use super::tagged::TaggedSide;
use super::taut::{Options, Taut};
use super::{frames, netns, tune};
use crate::sys;

/// How a side is started; nobody types this.
#[derive(Debug, Args)]
pub struct SideArgs {
    side: Which,
    /// The controller.
    parent: i32,
    core: usize,
    /// The core of side A.
    first: usize,
    /// Descriptors of the streams to the controller and to the other side.
    orders: i32,
    other: i32,
    /// Addresses are those of the veth pairs.
    #[arg(long)]
    veth: bool,
    /// A fault to inject into the work of both sides.
    #[arg(long)]
    sabotage: Option<Fault>,
}

/// Faults that tests inject, to show that they are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Senders do not rewrite their buffers.
    SkipWriting,
    /// Receivers do not read.
    SkipReading,
    /// Limits seem far worse than they are.
    SlowLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    A,
    B,
}

/// Runs cases until the controller sends no more.
pub fn side(args: &SideArgs) -> Result<ExitCode> {
    if !sys::end_with(args.parent)? {
        return Ok(ExitCode::FAILURE);
    }
    cpu::share_single_core()?;
    cpu::pin(args.core).with_context(|| format!("cannot run on core {}", args.core))?;
    match args.sabotage {
        Some(Fault::SkipWriting) => content::sabotage(Sabotage::SkipWriting),
        Some(Fault::SkipReading) => content::sabotage(Sabotage::SkipReading),
        Some(Fault::SlowLimits) | None => {}
    }
    let orders = UnixStream::from(inherit::take(args.orders)?);
    let other = UnixStream::from(inherit::take(args.other)?);
    let mut worker = Worker {
        side: if args.side == Which::A { Side::A } else { Side::B },
        other,
        veth: args.veth,
        plans: HashMap::new(),
        chunks: HashMap::new(),
    };
    let mut answers = orders.try_clone()?;
    say(&mut answers, &Reply::Ready)?;
    for line in BufReader::new(orders).lines() {
        let case: Case = serde_json::from_str(&line?)?;
        content::take_account();
        if case.one_core {
            cpu::pin(args.first)?;
        }
        let done = worker.execute(&case);
        if case.one_core {
            cpu::pin(args.core)?;
        }
        let reply = match done {
            Ok(outcome) => {
                let account = Some(content::take_account().into());
                Reply::Done(Outcome { account, ..outcome })
            }
            Err(error) => Reply::Failed(error.to_string()),
        };
        say(&mut answers, &reply)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(to: &mut UnixStream, reply: &Reply) -> Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    Ok(to.write_all(&line)?)
}

struct Worker {
    side: Side,
    other: UnixStream,
    veth: bool,
    /// The best plan to stream messages of a size, with and without GSO, whole and in parts.
    plans: HashMap<(usize, bool, bool), Plan>,
    /// The best plan to stream messages of a size through shared memory, from a buffer and written in place.
    chunks: HashMap<(usize, bool), shm::Plan>,
}

impl Worker {
    fn setup(&mut self, system: System) -> Setup<'_> {
        let (a, b) = if self.veth {
            netns::addresses(system.lane())
        } else {
            (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST))
        };
        let (local, remote) = if self.side == Side::A { (a, b) } else { (b, a) };
        Setup {
            side: self.side,
            control: &mut self.other,
            local,
            remote,
            blocking: system.is_blocking(),
            // As our device asks for it. TCP finds the size of its buffers by itself.
            rcvbuf: system.is_raw_udp().then_some(udp::RECEIVE_BUFFER / 2),
        }
    }

    fn execute(&mut self, case: &Case) -> io::Result<Outcome> {
        match case.system {
            System::Plain { kind, .. } => {
                if kind.is_bare() {
                    if !self.veth {
                        return Err(io::Error::other("the loopback interface is left as it is"));
                    }
                    offload::set(&netns::interface(case.system.lane()), false)?;
                }
                let mut transport = open(kind.kind(), &mut self.setup(case.system), case.work.bytes())?;
                self.plain(&mut *transport, case)
            }
            System::Lent => {
                let (side, mut setup) = (self.side, self.setup(case.system));
                let Work::PingPong { bytes, count, .. } = case.work else {
                    return Err(io::ErrorKind::Unsupported.into());
                };
                let mut lender = Lender::open(&mut setup, bytes)?;
                lender.ping_pong(side, warm_up(count))?;
                let outcome = timed(|| lender.ping_pong(side, count))?;
                lender.close(&mut setup)?;
                Ok(outcome)
            }
            System::SingleCopy => {
                let options = Options { single_copy: Some(0), ..Options::new(Mode::Open, Policy::Spin) };
                self.taut(case, Device::Shm, &options)
            }
            System::Lossy { go_back_n } => {
                let Work::Lossy { bytes, count, per_mille } = case.work else {
                    return Err(io::ErrorKind::Unsupported.into());
                };
                let options = Options {
                    loss_per_mille: per_mille,
                    go_back_n,
                    ..Options::new(Mode::Fabric, Policy::Spin)
                };
                let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
                self.taut(&Case { work, ..*case }, Device::Udp, &options)
            }
            System::Rival { other, .. } => self.rival(other, case),
            System::Xdp { native, busy } => self.xdp(native, busy, case),
            System::Taut { device, security, waiting } => {
                self.taut(case, device, &Options::new(security, waiting))
            }
            System::Memory { device, style } => self.memory(case.work, device, style),
            System::Shared { limit } => self.shared(limit, &case.work),
            System::Protection { security } => self.protection(security, case.work),
            _ => self.stream(case),
        }
    }

    /// Measures our messages.
    fn taut(&mut self, case: &Case, device: Device, options: &Options) -> io::Result<Outcome> {
        let side = self.side;
        let mut setup = self.setup(case.system);
        let mut taut = Taut::open(&mut setup, device, options, case.work.bytes())?;
        let outcome = match case.work {
            Work::Polls { count, hit } => moved(|| taut.polls(&mut setup, count, hit))?,
            Work::Flood { count, junk, .. } => moved(|| flood::ours(&setup, &mut taut, count, junk))?,
            _ => ours(&mut taut, side, case)?,
        };
        taut.close(&mut setup)?;
        Ok(outcome)
    }

    fn xdp(&mut self, native: bool, busy: bool, case: &Case) -> io::Result<Outcome> {
        let mode = xdp::Mode { attach: if native { Attach::Native } else { Attach::Generic }, busy };
        let mut setup = self.setup(case.system);
        match case.work {
            Work::PingPong { bytes, count, warm: false } => {
                timed(|| xdp::ping_pong(&mut setup, mode, bytes, warm_up(count), count))
            }
            Work::Stream { bytes, count, window, .. } => {
                xdp::stream(&mut setup, mode, bytes, warm_up(count), window)?;
                moved(|| xdp::stream(&mut setup, mode, bytes, count, window))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Rivals that are libraries; the others have processes of their own.
    fn rival(&mut self, other: Other, case: &Case) -> io::Result<Outcome> {
        let kind = match (other, case.work) {
            (Other::Iceoryx2Loan, Work::PingPong { bytes, count, warm: false }) => {
                let mut setup = self.setup(case.system);
                return timed(|| loan_ping_pong(&mut setup, bytes, warm_up(count), count));
            }
            (Other::Tarpc, Work::Calls { bytes, count, window }) => {
                let tcp = matches!(case.system, System::Rival { tcp: true, .. });
                let mut setup = self.setup(case.system);
                return moved(|| tarpc_calls(&mut setup, tcp, bytes, [warm_up(count), count], window));
            }
            (Other::ZeroMq, _) => Kind::ZeroMq,
            (Other::Iceoryx2, _) => Kind::Iceoryx2,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let mut transport = open(kind, &mut self.setup(case.system), case.work.bytes())?;
        self.plain(&mut *transport, case)
    }

    fn memory(&mut self, work: Work, device: Device, style: Style) -> io::Result<Outcome> {
        let side = self.side;
        let mut setup = self.setup(System::Memory { device, style });
        match work {
            Work::PingPong { bytes, count, .. } if matches!(style, Style::Tag | Style::TagQueues) => {
                let mut tagged = TaggedSide::open(&mut setup, device, style, bytes)?;
                tagged.ping_pong(side, 0, warm_up(count))?;
                let outcome = timed(|| tagged.ping_pong(side, warm_up(count), count))?;
                tagged.close(&mut setup).map(|()| outcome)
            }
            Work::Stream { bytes, count, window, .. } if matches!(style, Style::Tag | Style::TagQueues) => {
                let mut tagged = TaggedSide::open(&mut setup, device, style, bytes)?;
                let outcome = moved(|| tagged.stream(side, count, window))?;
                tagged.close(&mut setup).map(|()| outcome)
            }
            Work::PingPong { bytes, count, .. } => {
                let mut memory = MemorySide::open(&mut setup, device, style, bytes)?;
                memory.ping_pong(side, 0, warm_up(count))?;
                let outcome = timed(|| memory.ping_pong(side, warm_up(count), count))?;
                memory.close(&mut setup).map(|()| outcome)
            }
            Work::Stream { bytes, count, .. } => {
                let mut memory = MemorySide::open(&mut setup, device, style, bytes)?;
                let outcome = moved(|| memory.stream(side, count))?;
                memory.close(&mut setup).map(|()| outcome)
            }
            Work::Calls { bytes, count, window } => {
                let mut calls = Calls::open(&mut setup, device, style, bytes)?;
                calls.run(side, warm_up(count), window)?;
                let outcome = moved(|| calls.run(side, count, window))?;
                calls.close(&mut setup).map(|()| outcome)
            }
            Work::Requests { endpoints, count, together, pause_us } => {
                let mut server = Server::open(&mut setup, device, style, endpoints, together)?;
                server.warm_up(side)?;
                let outcome = if together {
                    moved(|| server.together(side, count))?
                } else {
                    timed(|| server.one_by_one(side, count, Duration::from_micros(pause_us)))?
                };
                server.close(&mut setup).map(|()| outcome)
            }
            Work::Matching { wires, count } => {
                let outcome = match side {
                    Side::A => {
                        let [alone, among] = matching(wires, count, style == Style::Overlapping)?;
                        let outcome = moved(|| Ok(among))?;
                        Outcome { base_ns: alone.elapsed_ns, ..outcome }
                    }
                    Side::B => Outcome::default(),
                };
                setup.barrier().map(|()| outcome)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Protects frames in memory, while the other side waits.
    fn protection(&mut self, security: Mode, work: Work) -> io::Result<Outcome> {
        let (side, mut setup) = (self.side, self.setup(System::Protection { security }));
        let outcome = match (side, work) {
            (Side::A, Work::Copies { bytes, count }) => moved(|| Ok(protect(security, bytes, count)))?,
            (Side::B, Work::Copies { .. }) => Outcome::default(),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        setup.barrier().map(|()| outcome)
    }

    fn shared(&mut self, limit: Shared, work: &Work) -> io::Result<Outcome> {
        let system = System::Shared { limit };
        match (limit, *work) {
            (Shared::TwoCopyStream, Work::Tune { bytes, count, trial_bytes, parts }) => {
                let touch = if parts { shm::Touch::InPlace } else { shm::Touch::Both };
                let plan = shm::Plan { touch, ..shm::Plan::new(bytes, count) };
                let best = shm::best_plan(&mut self.setup(system), &plan, trial_bytes)?;
                self.chunks.insert((bytes, parts), best);
                Ok(Outcome::default())
            }
            (_, Work::PingPong { bytes, count, warm: false }) => {
                let hand_off = match limit {
                    Shared::Line => shm::HandOff::Line,
                    Shared::HandOver => shm::HandOff::CopyInCopyOut,
                    Shared::Pipelined => shm::HandOff::Pipelined,
                    _ => shm::HandOff::WriteFlagCopy,
                };
                timed(|| shm::ping_pong(&mut self.setup(system), hand_off, bytes, warm_up(count), count))
            }
            (Shared::Memcpy, Work::Copies { bytes, count }) => {
                moved(|| shm::copies(&mut self.setup(system), bytes, count))
            }
            (_, Work::Copies { bytes, count }) => {
                let how = limit.transfer().ok_or(io::ErrorKind::Unsupported)?;
                moved(|| shm::transfers(&mut self.setup(system), how, bytes, count))
            }
            (_, Work::Stream { bytes, count, window, touch, .. }) => {
                let touch = match touch {
                    Touch::Both | Touch::Scattered => shm::Touch::Both,
                    Touch::InPlace => shm::Touch::InPlace,
                    Touch::Unread => shm::Touch::Unread,
                };
                let key = (bytes, touch == shm::Touch::InPlace);
                let plan = self.chunks.get(&key).copied().unwrap_or(shm::Plan::new(bytes, count));
                let mut setup = self.setup(system);
                moved(|| match (limit, window) {
                    (Shared::Ring, Some(_)) => shm::ring_window(&mut setup, count.div_ceil(shm::WINDOW)),
                    (Shared::Ring, None) => shm::ring_stream(&mut setup, count),
                    (Shared::Memcpy, _) => shm::copies(&mut setup, bytes, count),
                    _ => shm::two_copies(&mut setup, &shm::Plan { count, touch, ..plan }),
                })
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn plain(
        &mut self,
        transport: &mut dyn tautline_baseline::Transport,
        case: &Case,
    ) -> io::Result<Outcome> {
        let side = self.side;
        match case.work {
            Work::PingPong { bytes, count, warm } => {
                let content = if warm { Content::Warm } else { Content::Rewritten };
                drive::ping_pong(transport, side, bytes, warm_up(count), content)?;
                timed(|| drive::ping_pong(transport, side, bytes, count, content))
            }
            Work::Paced { bytes, count, period_us } => {
                let period = Duration::from_micros(period_us);
                timed(|| drive::paced(transport, side, bytes, count, period, case.system.is_blocking()))
            }
            Work::Stream { bytes, count, window, .. } => {
                drive::stream(transport, side, bytes, warm_up(count), window, Content::Rewritten)?;
                moved(|| drive::stream(transport, side, bytes, count, window, Content::Rewritten))
            }
            Work::Flood { bytes, count, junk } => {
                let mut setup = self.setup(case.system);
                moved(|| flood::plain(&mut setup, transport, bytes, count, junk))
            }
            Work::Calls { bytes, count, window } => {
                drive::calls(transport, side, bytes, warm_up(count), window)?;
                moved(|| drive::calls(transport, side, bytes, count, window))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The best plan for such messages. Small ones share packets, so that the plan of others that do will do.
    fn plan(&self, bytes: usize, gso: bool, parts: bool) -> Option<Plan> {
        let shared = || {
            let others = self.plans.iter().filter(|(key, _)| tune::shares_packets(key.0) && key.1 == gso);
            let (_, plan) = others.min_by_key(|(key, _)| key.0).filter(|_| tune::shares_packets(bytes))?;
            Some(Plan { bytes: tune::together(bytes), ..*plan })
        };
        // Where nothing better was searched for, messages are written in parts of one chunk.
        let in_chunks = || self.plans.get(&(tune::CHUNK, gso, false)).copied().filter(|_| parts);
        self.plans.get(&(bytes, gso, parts)).copied().or_else(in_chunks).or_else(shared)
    }

    /// Streams that have drivers of their own.
    fn stream(&mut self, case: &Case) -> io::Result<Outcome> {
        let gso = matches!(case.system, System::Gso { .. });
        if let Work::Tune { bytes, count, trial_bytes, parts } = case.work {
            let best = tune::best(&mut self.setup(case.system), bytes, count, trial_bytes, gso, parts)?;
            self.plans.insert((bytes, gso, parts), best);
            return Ok(Outcome::default());
        }
        let Work::Stream { bytes, count, window, touch, .. } = case.work else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let plan = self.plan(bytes, gso, touch == Touch::InPlace);
        let mut setup = self.setup(case.system);
        match case.system {
            System::Bare { flow } => moved(|| frames::stream(&mut setup, bytes, count, flow)),
            System::Packed { .. } if window.is_some() => {
                moved(|| packed::window(&mut setup, count.div_ceil(packed::WINDOW as u64)))
            }
            System::Packed { .. } => moved(|| packed::stream(&mut setup, count, packed::STREAM_WINDOW)),
            _ => {
                let plan = plan.unwrap_or_else(|| tune::untuned(bytes, gso));
                let plan = tune::for_bytes(&plan, count * bytes as u64);
                let plan = Plan { unread: touch == Touch::Unread, ..plan };
                moved(|| udp_gso::stream(&mut setup, &plan))
            }
        }
    }
}

fn warm_up(count: u64) -> u64 {
    (count / 10).clamp(2, 500)
}

fn ours(taut: &mut Taut, side: Side, case: &Case) -> io::Result<Outcome> {
    match case.work {
        Work::PingPong { count, warm, .. } => {
            taut.ping_pong(side, warm_up(count), warm)?;
            timed(|| taut.ping_pong(side, count, warm))
        }
        Work::Paced { count, period_us, .. } => {
            let period = Duration::from_micros(period_us);
            timed(|| taut.paced(side, count, period, case.system.is_blocking()))
        }
        Work::Stream { count, window, batch, touch, .. } => {
            taut.stream(side, warm_up(count), window, batch, touch)?;
            moved(|| taut.stream(side, count, window, batch, touch))
        }
        Work::Idle { milliseconds } => moved(|| {
            taut.idle(Duration::from_millis(milliseconds))?;
            Ok(Measured { elapsed_ns: milliseconds * 1_000_000, ..Measured::default() })
        }),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Measures round trips that `run` returns, and the CPU time of the whole process.
fn timed(run: impl FnOnce() -> io::Result<Vec<u64>>) -> io::Result<Outcome> {
    let before = CpuTime::of_process();
    let round_trips = run()?;
    let one_way = Summary::of(&round_trips).scaled(0.5 / 1000.0);
    Ok(Outcome {
        median_us: one_way.median,
        p99_us: one_way.p99,
        p999_us: one_way.p999,
        mean_us: one_way.mean,
        messages: round_trips.len() as u64,
        cpu_ns: cpu_since(before),
        system_ns: system_since(before),
        ..Outcome::default()
    })
}

/// Measures messages that `run` moves one way.
fn moved(run: impl FnOnce() -> io::Result<Measured>) -> io::Result<Outcome> {
    let before = CpuTime::of_process();
    let measured = run()?;
    Ok(Outcome {
        messages: measured.messages,
        bytes: measured.bytes,
        elapsed_ns: measured.elapsed_ns,
        drops: measured.drops,
        cpu_ns: cpu_since(before),
        system_ns: system_since(before),
        ..Outcome::default()
    })
}

fn system_since(before: CpuTime) -> u64 {
    CpuTime::of_process().since(before).system_ns
}

fn cpu_since(before: CpuTime) -> u64 {
    let used = CpuTime::of_process().since(before);
    used.user_ns + used.system_ns
}
