//! A rank of a job of many: does what `job.c` of `tautline-baseline` does over an MPI, line for line.

use std::cell::{Cell, OnceCell};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use tautline::Endpoint;
use tautline::group::{Call, Form, Group, Multicast, MulticastConfig, Reduction, Sum};
use tautline_baseline::cpu::CpuTime;

use super::grid::{Grid, SIDE};
use super::varied::Parts;
use crate::bench::side::Fault;

const END: u32 = 1;
const DATA: u32 = 2;
/// Calls before a collective is measured: as many as in the job of the rivals.
const WARM_UP: usize = 8;
/// A collective is called again until this time is over, in nanoseconds: hundreds of them may take less than
/// a thread's turn on a core.
const ENOUGH: u64 = 20_000_000;
/// Parts of a computation during which an all-reduce goes on, and the length of each.
const PARTS: usize = 16;
const PART: u64 = 4_000;

/// The arguments of a rank.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// The socket of whoever measures
    socket: PathBuf,
    /// NAME:BYTES:COUNT
    experiments: Vec<String>,
    /// A fault to inject
    #[arg(long)]
    sabotage: Option<Fault>,
}

pub(super) struct Rank {
    pub(super) world: Group,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Words that were read and compared since the time began.
    words_read: Cell<u64>,
    /// The forms of multicasts, made when they are needed.
    multicasts: [OnceCell<Multicast>; 3],
    fault: Option<Fault>,
}

/// Takes part in a job, does the experiments, and has rank 0 report each.
pub fn rank(args: &RankArgs) -> Result<ExitCode> {
    let ep = Endpoint::builder().join()?;
    let world = ep.world()?;
    let (member, size) = (world.member(), world.size());
    let (words_read, fault) = (Cell::new(0), args.sabotage);
    let rank = Rank { rank: member, size, world, words_read, multicasts: Default::default(), fault };
    let mut desk = (rank.rank == 0).then(|| UnixStream::connect(&args.socket)).transpose()?;
    rank.world.barrier()?;
    let mut report = |line: String| desk.as_mut().map_or(Ok(()), |desk| desk.write_all(line.as_bytes()));
    report("joined\n".into())?;
    for word in &args.experiments {
        let [steps, ns, cpu_ns, sum, read] =
            rank.experiment(word).with_context(|| format!("experiment {word}"))?;
        report(format!("{word} {steps} {ns} {cpu_ns} {sum} {read}\n"))?;
    }
    rank.world.barrier()?;
    drop(rank);
    ep.close()?;
    Ok(ExitCode::SUCCESS)
}

/// What rank `from` has for rank `to` in a step.
fn content(step: u64, from: usize, to: usize, i: usize) -> u64 {
    step * 1_000_003 + from as u64 * 4_099 + to as u64 * 17 + i as u64
}

impl Rank {
    /// Writes what rank `from` has for rank `to`.
    pub(super) fn fill(&self, words: &mut [u64], step: u64, from: usize, to: usize) {
        if self.fault != Some(Fault::SkipWriting) {
            for (i, word) in words.iter_mut().enumerate() {
                *word = content(step, from, to, i);
            }
        }
    }

    /// Reads words, and compares each with what it must be.
    fn read(&self, words: &[u64], must: impl Fn(usize) -> u64) -> Result<()> {
        if self.fault == Some(Fault::SkipReading) {
            return Ok(());
        }
        let differs = words.iter().enumerate().fold(0, |bits, (i, word)| bits | (word ^ must(i)));
        self.words_read.set(self.words_read.get() + words.len() as u64);
        ensure!(differs == 0, "what was received is not what was sent");
        Ok(())
    }

    pub(super) fn check(&self, words: &[u64], step: u64, from: usize, to: usize) -> Result<()> {
        self.read(words, |i| content(step, from, to, i))
    }

    /// Compares with the sum of the contents of ranks 0 to `last`, all meant for rank `to`.
    fn check_sum(&self, words: &[u64], step: u64, last: usize, to: usize) -> Result<()> {
        let ranks = last as u64 + 1;
        self.read(words, |i| ranks * content(step, 0, to, i) + 4_099 * (ranks * (ranks - 1) / 2))
    }

    /// Steps, and their nanoseconds; of all ranks together: CPU nanoseconds, the sum of the halo exchange,
    /// words read.
    fn experiment(&self, word: &str) -> Result<[u64; 5]> {
        let mut parts = word.split(':');
        let (Some(name), Some(bytes), Some(count)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("it is not NAME:BYTES:COUNT");
        };
        let (bytes, count): (usize, u64) = (bytes.parse()?, count.parse()?);
        let mut steps = count;
        self.world.barrier()?;
        let (mut cpu, mut begin) = (CpuTime::of_process(), Instant::now());
        let elapsed = |begin: Instant| begin.elapsed().as_nanos() as u64;
        self.words_read.set(0);
        let mut sum = 0;
        let ns = match name {
            "first" => self.ping_pong(self.size - 1, 1)?,
            "beside" => self.ping_pong(1, count)?,
            "halo" => {
                sum = self.halo(count)?;
                elapsed(begin)
            }
            "asleep" => {
                // Once before, to open the channels: that costs more than a long wait.
                self.let_others_wait(Duration::ZERO)?;
                self.world.barrier()?;
                (cpu, begin) = (CpuTime::of_process(), Instant::now());
                self.let_others_wait(Duration::from_millis(count))?;
                elapsed(begin)
            }
            _ => {
                let (mut mine, mut all) = (vec![0; bytes / 8], vec![0; 2 * self.size * (bytes / 8)]);
                // Some before, so that channels are open and what is set up on demand is there.
                (0..WARM_UP).try_for_each(|_| self.collective(name, count, &mut mine, &mut all))?;
                self.world.barrier()?;
                self.words_read.set(0);
                cpu = CpuTime::of_process();
                let (mut ns, mut first) = (0, 0);
                loop {
                    begin = Instant::now();
                    for step in first..steps {
                        self.collective(name, step, &mut mine, &mut all)?;
                    }
                    ns += elapsed(begin);
                    // Rank 0 decides for all whether to do as many again.
                    let mut more = [u8::from(ns < ENOUGH)];
                    self.world.broadcast(0, &mut more)?;
                    if more == [0] {
                        break ns;
                    }
                    (first, steps) = (steps, 2 * steps);
                }
            }
        };
        let used = CpuTime::of_process().since(cpu);
        let mut totals = [used.user_ns + used.system_ns, sum, self.words_read.get()];
        self.world.reduce(0, &mut totals, Sum)?;
        Ok([steps, ns, totals[0], totals[1], totals[2]])
    }

    /// Rank 0 sleeps for some time and then sends to all others, which wait for that.
    fn let_others_wait(&self, time: Duration) -> Result<()> {
        if self.rank == 0 {
            std::thread::sleep(time);
            self.end((1..self.size).collect())
        } else {
            self.wait_for_end().map(drop)
        }
    }

    fn wait_for_end(&self) -> Result<u64> {
        self.world.tags().receive(0, END, &mut vec![0; 8])?;
        Ok(0)
    }

    fn end(&self, ranks: Vec<usize>) -> Result<()> {
        for rank in ranks {
            self.world.tags().send(rank as u32, END, &[0; 8])?;
        }
        Ok(())
    }

    /// The median of half of a round trip between rank 0 and another, while all others wait.
    fn ping_pong(&self, other: usize, count: u64) -> Result<u64> {
        let tags = self.world.tags();
        // What is sent lies in a buffer of its own, as in the other experiments.
        let (mut word, mut bytes) = ([0], vec![0; 8]);
        let received = |bytes: &[u8]| [u64::from_le_bytes(bytes.try_into().unwrap_or_default())];
        if self.rank == other {
            for step in 0..count {
                tags.receive(0, DATA, &mut bytes)?;
                self.check(&received(&bytes), step, 0, other)?;
                self.fill(&mut word, step, other, 0);
                tags.send(0, DATA, &word[0].to_le_bytes())?;
            }
            return Ok(0);
        }
        if self.rank != 0 {
            return self.wait_for_end();
        }
        let mut times = Vec::with_capacity(count as usize);
        for step in 0..count {
            let begin = Instant::now();
            self.fill(&mut word, step, 0, other);
            tags.send(other as u32, DATA, &word[0].to_le_bytes())?;
            tags.receive(other as u32, DATA, &mut bytes)?;
            self.check(&received(&bytes), step, other, 0)?;
            times.push(begin.elapsed().as_nanos() as u64);
        }
        self.end((1..self.size).filter(|rank| *rank != other).collect())?;
        times.sort_unstable();
        Ok(times[times.len() / 2] / 2)
    }

    /// Rows of a square grid, divided among the ranks; each step exchanges the outer rows with neighbours.
    fn halo(&self, steps: u64) -> Result<u64> {
        let mut grid = Grid::new(SIDE * self.rank / self.size, SIDE * (self.rank + 1) / self.size);
        let mut bytes = vec![0; 4 * SIDE];
        let up = self.rank.checked_sub(1).map(|rank| rank as u32);
        let down = (self.rank + 1 < self.size).then_some(self.rank as u32 + 1);
        let last = grid.rows();
        for _ in 0..steps {
            self.send_receive(&mut grid, (up, 1), (down, last + 1), &mut bytes)?;
            self.send_receive(&mut grid, (down, last), (up, 0), &mut bytes)?;
            grid.step();
        }
        Ok(grid.sum())
    }

    /// Sends a row of the grid to one neighbour, and receives one from the other, if there are such.
    fn send_receive(
        &self,
        grid: &mut Grid,
        (to, sent): (Option<u32>, usize),
        (from, received): (Option<u32>, usize),
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        if let Some(to) = to {
            if self.fault != Some(Fault::SkipWriting) {
                for (bytes, cell) in bytes.chunks_exact_mut(4).zip(grid.row(sent)) {
                    bytes.copy_from_slice(&cell.to_le_bytes());
                }
            }
            self.world.tags().send(to, DATA, bytes)?;
        }
        if let Some(from) = from {
            self.world.tags().receive(from, DATA, bytes)?;
            if self.fault != Some(Fault::SkipReading) {
                for (bytes, cell) in bytes.chunks_exact(4).zip(grid.row_mut(received)) {
                    *cell = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// One step of a collective; `mine` are the words of each rank, or of each pair of ranks.
    fn collective(&self, name: &str, step: u64, mine: &mut [u64], all: &mut [u64]) -> Result<()> {
        let (me, size, n) = (self.rank, self.size, mine.len());
        let (all, got) = all.split_at_mut(size * n);
        let parts = |words: &mut [u64], each: &dyn Fn(&mut [u64], usize)| {
            if n > 0 {
                words.chunks_exact_mut(n).enumerate().for_each(|(rank, part)| each(part, rank));
            }
        };
        let check_parts = |words: &[u64], to: usize| {
            words
                .chunks_exact(n.max(1))
                .enumerate()
                .try_for_each(|(from, part)| self.check(part, step, from, to))
        };
        match name {
            "barrier" => self.world.barrier()?,
            "broadcast" => {
                if me == 0 {
                    self.fill(mine, step, 0, 0);
                }
                self.world.broadcast(0, mine)?;
                self.check(mine, step, 0, 0)?;
            }
            "reduce" | "all-reduce" | "scan" => {
                self.fill(mine, step, me, 0);
                match name {
                    "reduce" => self.world.reduce(0, mine, Sum)?,
                    "scan" => self.world.scan(mine, Sum)?,
                    _ => self.world.all_reduce(mine, Sum)?,
                }
                if name != "reduce" || me == 0 {
                    self.check_sum(mine, step, if name == "scan" { me } else { size - 1 }, 0)?;
                }
            }
            "gather" => {
                self.fill(mine, step, me, 0);
                self.world.gather(0, mine, if me == 0 { all } else { &mut [] })?;
                if me == 0 {
                    check_parts(all, 0)?;
                }
            }
            "all-gather" => {
                self.fill(mine, step, me, 0);
                self.world.all_gather(mine, all)?;
                check_parts(all, 0)?;
            }
            "scatter" => {
                if me == 0 {
                    parts(all, &|part, to| self.fill(part, step, 0, to));
                }
                self.world.scatter(0, if me == 0 { all } else { &[] }, mine)?;
                self.check(mine, step, 0, me)?;
            }
            "reduce-scatter" => {
                parts(all, &|part, to| self.fill(part, step, me, to));
                self.world.reduce_scatter(all, mine, &vec![n; size], Sum)?;
                self.check_sum(mine, step, size - 1, me)?;
            }
            "all-to-all" => {
                parts(all, &|part, to| self.fill(part, step, me, to));
                self.world.all_to_all(all, got)?;
                check_parts(got, me)?;
            }
            "multicast" => self.multicast(Form::Tree, step, mine)?,
            "multi-send" => self.multicast(Form::MultiSend, step, mine)?,
            "repeated-send" => self.multicast(Form::RepeatedSend, step, mine)?,
            "overlap" => self.overlap(step, mine)?,
            "exclusive-scan" => {
                self.fill(mine, step, me, 0);
                self.world.exclusive_scan(mine, Sum)?;
                if me > 0 {
                    self.check_sum(mine, step, me - 1, 0)?;
                }
            }
            "gather-varied" | "scatter-varied" | "all-gather-varied" | "all-to-all-varied" => {
                Parts::new(self, step).varied(name, mine, (all, got))?;
            }
            "neighbours" => Parts::new(self, step).neighbours(n, (all, got))?,
            _ => bail!("there is no such experiment"),
        }
        Ok(())
    }

    /// The first rank's words for all others; the last rank answers.
    fn multicast(&self, form: Form, step: u64, mine: &mut [u64]) -> Result<()> {
        let made = &self.multicasts[form as usize];
        if made.get().is_none() {
            let config = MulticastConfig { form, ..MulticastConfig::default() };
            let _ = made.set(self.world.multicast(config)?);
        }
        let (multicast, last) = (made.get().context("no multicast")?, self.size - 1);
        if self.rank == 0 {
            self.fill(mine, step, 0, 0);
            multicast.send(&mine.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
            self.world.tags().receive(last as u32, END, &mut Vec::new())?;
            return Ok(());
        }
        let mut bytes = vec![0; 8 * mine.len()];
        multicast.receive(0, &mut bytes)?;
        for (word, bytes) in mine.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.check(mine, step, 0, 0)?;
        if self.rank == last {
            self.world.tags().send(0, END, &[])?;
        }
        Ok(())
    }

    /// A started all-reduce, which is tested after every part of a computation.
    fn overlap(&self, step: u64, mine: &mut [u64]) -> Result<()> {
        self.fill(mine, step, self.rank, 0);
        let input: Vec<u8> = mine.iter().flat_map(|word| word.to_le_bytes()).collect();
        let call = Call::AllReduce { len: input.len(), with: Reduction::of::<u64, _>(Sum) };
        let collective = self.world.start(&call, input)?;
        for _ in 0..PARTS {
            compute();
            collective.test();
        }
        let output = collective.wait()?;
        for (word, bytes) in mine.iter_mut().zip(output.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.check_sum(mine, step, self.size - 1, 0)
    }
}

/// A part of a computation.
fn compute() {
    let part = (0..PART).fold(std::hint::black_box(0_u64), |sum, i| sum.wrapping_mul(31).wrapping_add(i));
    std::hint::black_box(part);
}
