//! Cores, CPU time, the CPU burner, and the state of the machine.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::thread::CpuSet;

/// Returns the cores that this thread may run on.
///
/// # Errors
/// Whatever the system reports.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Pins this thread to one core.
///
/// # Errors
/// Whatever the system reports, such as a core that does not exist.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such core"));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Both sides of what is measured run on one core.
static CORE_IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Empty turns before a shared core is offered.
const OFFER_EVERY: u32 = 64;

/// From now on [`spin`] offers the core now and then, if there is only one: nothing else would run the other
/// side before a whole time slice has passed.
///
/// # Errors
/// Whatever the system reports.
pub fn share_single_core() -> io::Result<()> {
    CORE_IS_SHARED.store(allowed_cores()?.len() == 1, Ordering::Relaxed);
    Ok(())
}

/// An empty turn of a loop that waits for the other side; `turns` counts them.
#[inline]
pub fn spin(turns: u32) {
    std::hint::spin_loop();
    if turns.is_multiple_of(OFFER_EVERY) && CORE_IS_SHARED.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

/// CPU time used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In the program itself.
    pub user_ns: u64,
    /// In the kernel on its behalf.
    pub system_ns: u64,
}

impl CpuTime {
    /// CPU time of the calling thread so far.
    #[must_use]
    pub fn of_thread() -> Self {
        Self::usage(libc::RUSAGE_THREAD)
    }

    /// CPU time of the whole process so far.
    #[must_use]
    pub fn of_process() -> Self {
        Self::usage(libc::RUSAGE_SELF)
    }

    /// The CPU time used after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }

    fn usage(who: libc::c_int) -> Self {
        // The kernel updates a running thread's accounting for this call only, else at its next tick.
        let _ = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        // SAFETY: `rusage` is plain old data for which all zeroes are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live `rusage`. The call fails only for an unknown `who`; it stays zero
        // then.
        let _ = unsafe { libc::getrusage(who, &raw mut usage) };
        let ns = |t: libc::timeval| (t.tv_sec as u64) * 1_000_000_000 + (t.tv_usec as u64) * 1_000;
        Self { user_ns: ns(usage.ru_utime), system_ns: ns(usage.ru_stime) }
    }
}

/// What one side of a stream did, and what it cost this side's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Messages (or records) moved.
    pub messages: u64,
    /// Their bytes, without any header.
    pub bytes: u64,
    /// From the first send (side A) or the first arrival (side B) to the last acknowledgement.
    pub elapsed_ns: u64,
    /// CPU time of this side's thread in that time.
    pub user_ns: u64,
    /// CPU time of the kernel for this side's thread in that time.
    pub system_ns: u64,
    /// How often something was lost and sent again; lost messages are in no other figure.
    pub drops: u64,
}

impl Measured {
    /// Bandwidth in gigabytes (10⁹) per second.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed_ns.max(1) as f64
    }

    /// Messages per second.
    #[must_use]
    pub fn messages_per_second(&self) -> f64 {
        self.messages as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// CPU seconds of this side per gigabyte (10⁹ bytes).
    #[must_use]
    pub fn cpu_seconds_per_gigabyte(&self) -> f64 {
        (self.user_ns + self.system_ns) as f64 / self.bytes.max(1) as f64
    }

    /// CPU seconds of this side per million messages.
    #[must_use]
    pub fn cpu_seconds_per_million(&self) -> f64 {
        (self.user_ns + self.system_ns) as f64 / 1e3 / self.messages.max(1) as f64
    }
}

/// Measures wall time and this thread's CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
    cpu: CpuTime,
}

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { cpu: CpuTime::of_thread(), started: Instant::now() }
    }

    /// Ends now; `messages` and `bytes` were moved.
    #[must_use]
    pub fn stop(self, messages: u64, bytes: u64, drops: u64) -> Measured {
        let elapsed_ns = self.started.elapsed().as_nanos() as u64;
        let used = CpuTime::of_thread().since(self.cpu);
        Measured { messages, bytes, elapsed_ns, user_ns: used.user_ns, system_ns: used.system_ns, drops }
    }
}

/// One busy process of normal priority on each of some cores, until dropped.
///
/// Processes and not threads, so that a switch to and from them costs as much as between programs. They end
/// with the thread that started them, even if that is killed.
#[derive(Debug)]
pub struct Burner {
    children: Vec<Child>,
}

impl Burner {
    /// Starts the processes.
    ///
    /// # Errors
    /// If a process cannot be started; none is left running then.
    pub fn start(cores: &[usize]) -> io::Result<Self> {
        let mut burner = Self { children: Vec::with_capacity(cores.len()) };
        for &core in cores {
            burner.children.push(spawn_busy(core)?);
        }
        Ok(burner)
    }

    /// How many processes run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Whether no process runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        for child in &mut self.children {
            // An error means that it is gone already, as intended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn_busy(core: usize) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        pin(core)
    };
    // SAFETY: between fork and exec this makes two system calls and touches neither heap nor locks.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// What a reader must know of the machine to judge a figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Kernel name and release.
    pub kernel: String,
    /// The frequency governor, where there is one.
    pub governor: Option<String>,
    /// Whether there is a hypervisor.
    pub virtualised: bool,
    /// The largest receive buffer that may be requested without privilege.
    pub rmem_max: Option<usize>,
}

impl Machine {
    /// Examines this machine; unknown fields stay empty.
    #[must_use]
    pub fn examine() -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let uname = rustix::system::uname();
        Self {
            cpu: field("model name").unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            cores: allowed_cores().map_or(0, |cores| cores.len()),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtualised: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            rmem_max: read("/proc/sys/net/core/rmem_max").and_then(|text| text.parse().ok()),
        }
    }
}

/// Returns how many cores of the machine are in use while this thread sleeps for `time`; `None` if the system
/// does not tell. (The load average would still count the build that came before.)
#[must_use]
pub fn cores_in_use(time: Duration) -> Option<f64> {
    let before = Ticks::parse(&read("/proc/stat")?)?;
    std::thread::sleep(time);
    let after = Ticks::parse(&read("/proc/stat")?)?;
    Some(after.in_use_since(before))
}

/// What `/proc/stat` counts over all cores since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    idle: u64,
    all: u64,
    cores: u64,
}

impl Ticks {
    fn parse(stat: &str) -> Option<Ticks> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // User, nice, system, idle, waiting for I/O, interrupts, soft interrupts, stolen; guests are in user.
        let fields: Option<Vec<u64>> = line.split_whitespace().take(8).map(|n| n.parse().ok()).collect();
        let fields = fields.filter(|fields| fields.len() == 8)?;
        let cores = stat.lines().filter(|line| line.starts_with("cpu")).count() as u64 - 1;
        Some(Ticks { idle: fields[3] + fields[4], all: fields.iter().sum(), cores })
    }

    fn in_use_since(self, before: Ticks) -> f64 {
        let (idle, all) = (self.idle.saturating_sub(before.idle), self.all.saturating_sub(before.all));
        if all == 0 { 0.0 } else { (1.0 - idle as f64 / all as f64).max(0.0) * self.cores as f64 }
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_only_its_core() {
        std::thread::spawn(|| {
            let core = *allowed_cores().unwrap().last().unwrap();
            pin(core).unwrap();
            assert_eq!(allowed_cores().unwrap(), [core]);
        })
        .join()
        .unwrap();
        assert!(pin(usize::MAX).is_err());
    }

    #[test]
    fn cores_in_use_are_computed_from_ticks() {
        let stat =
            |user, idle| format!("cpu  {user} 5 7 {idle} 11 1 2 3 4 0\ncpu0 1 2 3\ncpu1 1 2 3\nintr 12 13\n");
        let before = Ticks::parse(&stat(100, 1_000)).unwrap();
        assert_eq!(before, Ticks { idle: 1_011, all: 1_129, cores: 2 });
        assert_eq!(Ticks::parse(&stat(130, 1_010)).unwrap().in_use_since(before), 1.5);
        assert_eq!(before.in_use_since(before), 0.0, "no tick has passed");
        assert_eq!(Ticks::parse("cpu  1 2 3\n"), None);
        assert_eq!(Ticks::parse(""), None);
    }

    #[test]
    fn a_burner_runs_and_leaves_nothing_behind() {
        let core = allowed_cores().unwrap()[0];
        let burner = Burner::start(&[core]).unwrap();
        let pid = burner.children[0].id();
        assert!(fs::metadata(format!("/proc/{pid}")).is_ok());
        drop(burner);
        assert!(fs::metadata(format!("/proc/{pid}")).is_err());
    }

    #[test]
    fn the_machine_has_a_name_a_kernel_and_a_core() {
        let machine = Machine::examine();
        assert!(!machine.cpu.is_empty() && !machine.kernel.is_empty() && machine.cores > 0);
    }
}
