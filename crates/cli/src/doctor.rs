//! `tautline doctor`: which devices work here and why the others do not. Every line says what to do next.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tautline::Config;
use tautline::node::device::{shm, udp, xdp};
use tautline::node::xdp_chunks;
use tautline_baseline::cpu::{self, Machine};
use tautline_baseline::rivals;

use crate::bench::can_make_namespaces;

const EXAMPLES: &str = "\
Examples:
  tautline doctor
        One line per finding: ok, warn or no, the reason, and what to do about it.
  tautline doctor --json
        The same for programs: one object per line.
  tautline doctor --choices
        The table by which groups choose the algorithms of collectives, as TAUTLINE_CHOICES takes it.

The exit code is 0 if messages can be sent here at all, else 1. Nothing is changed on the machine.";

/// The arguments of `tautline doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Print the table by which groups choose the algorithms of collectives, and nothing else
    #[arg(long, conflicts_with = "json")]
    choices: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    No,
}

/// One finding.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    status: Status,
    reason: String,
    /// What to do about it, if anything.
    next: Option<String>,
}

/// Examines the machine.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    if args.choices {
        for line in tautline::group::Choices::from_environment()?.lines() {
            println!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let findings = examine();
    for finding in &findings {
        if args.json {
            println!("{}", serde_json::to_string(finding)?);
        } else {
            show(finding);
        }
    }
    let works = findings.iter().any(|f| f.name.starts_with("udp ipv") && f.status == Status::Ok);
    if !args.json {
        println!();
        println!(
            "{}",
            if works {
                "Messages can be sent here."
            } else {
                "No device works here: see the lines marked no."
            }
        );
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(finding: &Finding) {
    let status = match finding.status {
        Status::Ok => "ok  ",
        Status::Warn => "warn",
        Status::No => "no  ",
    };
    println!("{status}  {:16} {}", finding.name, finding.reason);
    if let Some(next) = &finding.next {
        println!("{:24}→ {next}", "");
    }
}

fn examine() -> Vec<Finding> {
    let mut findings = Vec::new();
    devices(&mut findings);
    af_xdp(&mut findings);
    buffers(&mut findings);
    machine(&mut findings);
    launcher(&mut findings);
    choices(&mut findings);
    rights(&mut findings);
    extras(&mut findings);
    findings
}

fn finding(name: &'static str, status: Status, reason: impl Into<String>, next: Option<&str>) -> Finding {
    Finding { name, status, reason: reason.into(), next: next.map(str::to_owned) }
}

/// Which algorithms collectives use.
fn choices(findings: &mut Vec<Finding>) {
    let set = std::env::var_os(tautline::group::CHOICES).is_some();
    findings.push(match tautline::group::Choices::from_environment() {
        Ok(choices) if set => {
            let own = choices.lines().len() - tautline::group::DEFAULT_CHOICES.len();
            let plural = if own == 1 { "" } else { "s" };
            let name = tautline::group::CHOICES;
            let reason = format!("{own} line{plural} of {name} before the default table of algorithms");
            finding("collectives", Status::Ok, reason, Some("tautline doctor --choices prints all lines"))
        }
        Ok(_) => {
            let next =
                "tautline doctor --choices prints it; tautline bench --tune measures what is fastest here";
            finding("collectives", Status::Ok, "the default table of algorithms", Some(next))
        }
        Err(why) => {
            let next = "tautline bench --tune writes a table";
            finding("collectives", Status::Warn, why.to_string(), Some(next))
        }
    });
}

/// The result of a trial; `otherwise` says how bad a refusal is, and what to do then.
fn tried(name: &'static str, result: Result<(), String>, well: &str, otherwise: (Status, &str)) -> Finding {
    match result {
        Ok(()) => finding(name, Status::Ok, well, None),
        Err(why) => finding(name, otherwise.0, why, Some(otherwise.1)),
    }
}

/// What AF_XDP can do here, interface by interface.
fn af_xdp(findings: &mut Vec<Finding>) {
    // As a node of a small job with the default configuration would open it.
    let udp = udp::UdpConfig::with(|config| config.tx_slots = Config::default().tx_slots);
    let probe =
        xdp::probe(&xdp::XdpConfig::with(|config| (config.udp, config.rx_chunks) = (udp, xdp_chunks(2))));
    let allowed = probe.allowed.is_ok();
    findings.push(tried(
        "xdp",
        probe.allowed,
        "this process has the privileges for AF_XDP; request it with --device xdp where an interface below is ok",
        (Status::Warn, "udp is used instead"),
    ));
    for interface in probe.interfaces {
        let (status, reason, next) = match interface.verdict {
            Ok(what) if allowed => (Status::Ok, what, None),
            Ok(what) => (Status::Warn, what, Some("needs the privileges named above")),
            Err(why) => (Status::Warn, why, Some("udp is used for this interface")),
        };
        findings.push(finding("xdp interface", status, format!("{}: {reason}", interface.name), next));
    }
}

fn devices(findings: &mut Vec<Finding>) {
    let probe = udp::probe();
    findings.push(tried(
        "udp ipv4",
        probe.ipv4,
        "frames went out and came back over 127.0.0.1",
        (Status::No, "is loopback up? ip link set lo up"),
    ));
    findings.push(tried(
        "udp ipv6",
        probe.ipv6,
        "frames went out and came back over ::1",
        (Status::Warn, "only needed for IPv6 addresses; check sysctl net.ipv6.conf.all.disable_ipv6"),
    ));
    findings.push(tried(
        "udp gso",
        probe.gso,
        "the kernel segments trains of frames when sending",
        (Status::Warn, "large messages are slower without; Linux 4.18 or newer has it"),
    ));
    findings.push(tried(
        "udp gro",
        probe.gro,
        "the kernel coalesces frames when receiving",
        (Status::Warn, "large messages are slower without; Linux 5.0 or newer has it"),
    ));
    findings.push(tried(
        "udp busy poll",
        probe.busy_poll,
        "the kernel may poll the card for us",
        (Status::Warn, "only useful with real cards; needs CAP_NET_ADMIN above net.core.busy_read"),
    ));
    let shm = shm::probe();
    findings.push(tried(
        "shm",
        shm.works,
        "a frame went through shared memory; processes of one host and user use it automatically",
        (Status::Warn, "processes of one host use udp over loopback instead"),
    ));
    let lean = if shm.asymmetric { Ok(()) } else { Err("the kernel has no expedited membarrier".to_owned()) };
    findings.push(tried(
        "shm barriers",
        lean,
        "only sleeping nodes pay for barriers (membarrier)",
        (Status::Warn, "each small message costs a fence more; Linux 4.16 or newer has it"),
    ));
}

/// Receive buffers that hold at least this much rarely drop.
const BUFFER_GOOD: usize = 1 << 20;

fn buffers(findings: &mut Vec<Finding>) {
    let default = udp::probe().receive_buffer;
    let now = format!("{default} B buffer frames while a program computes; credit is sized from it");
    findings.push(if default >= BUFFER_GOOD {
        finding("receive buffer", Status::Ok, now, None)
    } else {
        finding(
            "receive buffer",
            Status::Warn,
            now,
            Some("enough for most; for long pauses with much traffic: sysctl -w net.core.rmem_max=4194304"),
        )
    });
    match Machine::examine().rmem_max {
        Some(max) if max >= BUFFER_GOOD => {
            findings.push(finding(
                "buffer limit",
                Status::Ok,
                format!("a program may request up to {max} B"),
                None,
            ));
        }
        max => findings.push(finding(
            "buffer limit",
            Status::Warn,
            format!(
                "a program may request no more than {} B",
                max.map_or_else(|| "an unknown number of".into(), |m| m.to_string())
            ),
            Some("sysctl -w net.core.rmem_max=4194304"),
        )),
    }
}

fn machine(findings: &mut Vec<Finding>) {
    let machine = Machine::examine();
    findings.push(if machine.cores >= 2 {
        finding(
            "cores",
            Status::Ok,
            format!("{} may be used: {}, {}", machine.cores, machine.cpu, machine.kernel),
            None,
        )
    } else {
        finding(
            "cores",
            Status::Warn,
            "only one may be used: a spinning process keeps the other from running",
            Some("use the policies spin-then-park (the default) or park"),
        )
    });
    findings.push(if machine.virtualised {
        finding(
            "virtual machine",
            Status::Warn,
            "there is a hypervisor: times vary with its other guests",
            Some("compare ratios within one run of tautline bench; bench --compare says when other systems changed, too"),
        )
    } else {
        finding("virtual machine", Status::Ok, "there is no hypervisor", None)
    });
    findings.push(clock());
    let core = cpu::allowed_cores().ok().and_then(|cores| cores.first().copied());
    // In a thread of its own, so that this one stays unpinned.
    let pinned =
        std::thread::spawn(move || core.is_some_and(|core| cpu::pin(core).is_ok())).join().unwrap_or(false);
    findings.push(if pinned {
        finding("pinning", Status::Ok, "threads may be pinned to a core", None)
    } else {
        finding(
            "pinning",
            Status::Warn,
            "threads cannot be pinned to a core; figures will vary",
            Some("does a cpuset or container forbid it?"),
        )
    });
}

fn clock() -> Finding {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let cost = tautline_baseline::limits::clock_read_ns(20);
    let reason = format!("{source}: {cost:.0} ns to read");
    if cost < 200.0 {
        finding("clock", Status::Ok, reason, None)
    } else {
        finding(
            "clock",
            Status::Warn,
            format!("{reason}, a system call each time"),
            Some("boot with clocksource=tsc if the machine's TSC is reliable"),
        )
    }
}

/// The launcher that a program started like this command would join through.
fn launcher(findings: &mut Vec<Finding>) {
    findings.push(match tautline_launch::launcher_of_environment() {
        Ok(launcher) if launcher.name == "job file" => job_file(&launcher.to_string()),
        Ok(launcher) => {
            let next =
                "start jobs with tautline run, mpiexec of MPICH or srun --mpi=pmi2, or set TAUTLINE_JOB_FILE";
            finding("launcher", Status::Ok, launcher.to_string(), (launcher.name == "alone").then_some(next))
        }
        Err(error) => finding("launcher", Status::Warn, error.to_string(), None),
    });
}

/// The job file that a program started like this command would read.
fn job_file(launcher: &str) -> Finding {
    let path = std::env::var_os(tautline_launch::JOB_FILE).unwrap_or_default();
    match tautline_launch::job_file::check(Path::new(&path)) {
        Ok(job) => {
            let reason = format!("{launcher}; rank {} of {}", job.rank, job.size());
            finding("launcher", Status::Ok, reason, None)
        }
        Err(error) => {
            let next = "programs started like this command cannot join: correct the file that TAUTLINE_JOB_FILE names, or unset \
                        TAUTLINE_JOB_FILE; the README shows a job file under \"Across hosts\"";
            finding("launcher", Status::No, format!("job file: {error}"), Some(next))
        }
    }
}

fn rights(findings: &mut Vec<Finding>) {
    findings.push(match can_make_namespaces() {
        Ok(()) => finding("namespaces", Status::Ok, "tautline bench --netns works", None),
        Err(error) => {
            let text = error.to_string();
            let (why, next) = text.split_once('\n').unwrap_or((&text, "run it as root"));
            finding("namespaces", Status::Warn, why, Some(next))
        }
    });
}

fn extras(findings: &mut Vec<Finding>) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let wireshark = ["wireshark", "tshark"]
        .iter()
        .any(|tool| std::env::split_paths(&path).any(|f| f.join(tool).is_file()));
    let next = "tautline run --pcap DIR writes captures; the dissector is extras/wireshark/tautline.lua of the sources: wireshark -X lua_script:tautline.lua FILE";
    findings.push(if wireshark {
        finding("wireshark", Status::Ok, "it is installed", Some(next))
    } else {
        finding("wireshark", Status::Warn, "it is not installed; only needed to inspect frames", Some(next))
    });
    let found: Vec<_> = rivals::detect().into_iter().filter(|found| found.version.is_some()).collect();
    let reason = if found.is_empty() {
        "none is installed; bench compares with pipes, sockets, TCP and raw UDP".to_owned()
    } else {
        found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    findings.push(finding("rivals", Status::Ok, reason, None));
    if !Path::new("/proc/self/fd").is_dir() {
        findings.push(finding(
            "proc",
            Status::Warn,
            "/proc is not mounted",
            Some("mount -t proc proc /proc"),
        ));
    }
}
