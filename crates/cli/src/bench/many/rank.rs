//! A rank of a job of many: does what `job.c` of `tautline-baseline` does over an MPI, line for line.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use tautline::Endpoint;
use tautline::group::{Group, Sum};
use tautline_baseline::cpu::CpuTime;

const END: u32 = 1;
const DATA: u32 = 2;
/// The side of the grid.
const SIDE: usize = 256;

/// The arguments of a rank.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// The socket of whoever measures
    socket: PathBuf,
    /// NAME:BYTES:COUNT
    experiments: Vec<String>,
}

struct Rank {
    world: Group,
    rank: usize,
    size: usize,
}

/// Takes part in a job, does the experiments, and has rank 0 report each.
pub fn rank(args: &RankArgs) -> Result<ExitCode> {
    let ep = Endpoint::builder().join()?;
    let world = ep.world()?;
    let rank = Rank { rank: world.member(), size: world.size(), world };
    let mut desk = (rank.rank == 0).then(|| UnixStream::connect(&args.socket)).transpose()?;
    rank.world.barrier()?;
    let mut report = |line: String| desk.as_mut().map_or(Ok(()), |desk| desk.write_all(line.as_bytes()));
    report("joined\n".into())?;
    for word in &args.experiments {
        let (ns, cpu_ns, sum) = rank.experiment(word).with_context(|| format!("experiment {word}"))?;
        report(format!("{word} {ns} {cpu_ns} {sum}\n"))?;
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

fn fill(words: &mut [u64], step: u64, from: usize, to: usize) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = content(step, from, to, i);
    }
}

fn check(words: &[u64], step: u64, from: usize, to: usize) -> Result<()> {
    let differs =
        words.iter().enumerate().fold(0, |bits, (i, word)| bits | (word ^ content(step, from, to, i)));
    ensure!(differs == 0, "what rank {from} sent to rank {to} in step {step} arrived otherwise");
    Ok(())
}

/// Compares with the sum of the contents of ranks 0 to `last`, all meant for rank `to`.
fn check_sum(words: &[u64], step: u64, last: usize, to: usize) -> Result<()> {
    let ranks = last as u64 + 1;
    let must = |i| ranks * content(step, 0, to, i) + 4_099 * (ranks * (ranks - 1) / 2);
    let differs = words.iter().enumerate().fold(0, |bits, (i, word)| bits | (word ^ must(i)));
    ensure!(differs == 0, "the sum of step {step} is wrong");
    Ok(())
}

impl Rank {
    /// Nanoseconds, CPU nanoseconds of all ranks, and the sum of the results where they depend on all ranks.
    fn experiment(&self, word: &str) -> Result<(u64, u64, u64)> {
        let mut parts = word.split(':');
        let (Some(name), Some(bytes), Some(count)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("it is not NAME:BYTES:COUNT");
        };
        let (bytes, count): (usize, u64) = (bytes.parse()?, count.parse()?);
        self.world.barrier()?;
        let (mut cpu, mut begin) = (CpuTime::of_process(), Instant::now());
        let elapsed = |begin: Instant| begin.elapsed().as_nanos() as u64;
        let mut sum = 0;
        let ns = match name {
            "first" => self.ping_pong(self.size - 1, 1)?,
            "beside" => self.ping_pong(1, count)?,
            "halo" => {
                sum = self.halo(count)?;
                elapsed(begin)
            }
            "asleep" if self.rank == 0 => {
                std::thread::sleep(Duration::from_millis(count));
                let ns = elapsed(begin);
                self.end((1..self.size).collect())?;
                ns
            }
            "asleep" => self.wait_for_end()?,
            _ => {
                let (mut mine, mut all) = (vec![0; bytes / 8], vec![0; 2 * self.size * (bytes / 8)]);
                // Once before, so that channels are open.
                self.collective(name, count, &mut mine, &mut all)?;
                self.world.barrier()?;
                (cpu, begin) = (CpuTime::of_process(), Instant::now());
                for step in 0..count {
                    self.collective(name, step, &mut mine, &mut all)?;
                }
                elapsed(begin)
            }
        };
        let used = CpuTime::of_process().since(cpu);
        let mut totals = [used.user_ns + used.system_ns, sum];
        self.world.reduce(0, &mut totals, Sum)?;
        Ok((ns, totals[0], totals[1]))
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
        let mut bytes = vec![0; 8];
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        if self.rank == other {
            for _ in 0..count {
                tags.receive(0, DATA, &mut bytes)?;
                let answer = word(&bytes) + 1;
                tags.send(0, DATA, &answer.to_le_bytes())?;
            }
            return Ok(0);
        }
        if self.rank != 0 {
            return self.wait_for_end();
        }
        let mut times = Vec::with_capacity(count as usize);
        for i in 0..count {
            let begin = Instant::now();
            tags.send(other as u32, DATA, &i.to_le_bytes())?;
            tags.receive(other as u32, DATA, &mut bytes)?;
            ensure!(word(&bytes) == i + 1, "an answer is wrong");
            times.push(begin.elapsed().as_nanos() as u64);
        }
        self.end((1..self.size).filter(|rank| *rank != other).collect())?;
        times.sort_unstable();
        Ok(times[times.len() / 2] / 2)
    }

    /// Rows of a square grid, divided among the ranks; each step exchanges the outer rows with neighbours.
    fn halo(&self, steps: u64) -> Result<u64> {
        let (first, end) = (SIDE * self.rank / self.size, SIDE * (self.rank + 1) / self.size);
        let rows = end - first;
        let start = |r: usize, c: usize| ((first + r - 1) * SIDE + c) as u32;
        let row = SIDE + 2;
        let mut old = vec![0_u32; (rows + 2) * row];
        for r in 1..=rows {
            for c in 1..=SIDE {
                old[r * row + c] = start(r, c).wrapping_mul(2_654_435_761) >> 2;
            }
        }
        let mut new = old.clone();
        let mut bytes = vec![0; 4 * SIDE];
        let up = self.rank.checked_sub(1).map(|rank| rank as u32);
        let down = (self.rank + 1 < self.size).then_some(self.rank as u32 + 1);
        for _ in 0..steps {
            self.send_receive(&mut old, (up, row + 1), (down, (rows + 1) * row + 1), &mut bytes)?;
            self.send_receive(&mut old, (down, rows * row + 1), (up, 1), &mut bytes)?;
            for r in 1..=rows {
                let (above, rest) = old[(r - 1) * row..(r + 2) * row].split_at(row);
                let (here, below) = rest.split_at(row);
                let to = &mut new[r * row + 1..r * row + 1 + SIDE];
                for (c, cell) in to.iter_mut().enumerate() {
                    let sum = above[c + 1]
                        .wrapping_add(below[c + 1])
                        .wrapping_add(here[c])
                        .wrapping_add(here[c + 2]);
                    *cell = sum / 4;
                }
            }
            std::mem::swap(&mut old, &mut new);
        }
        Ok((1..=rows).flat_map(|r| &old[r * row + 1..r * row + 1 + SIDE]).map(|cell| u64::from(*cell)).sum())
    }

    /// Sends a row of the grid to one neighbour, and receives one from the other, if there are such.
    fn send_receive(
        &self,
        grid: &mut [u32],
        (to, from_row): (Option<u32>, usize),
        (from, to_row): (Option<u32>, usize),
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        if let Some(to) = to {
            for (bytes, cell) in bytes.chunks_exact_mut(4).zip(&grid[from_row..from_row + SIDE]) {
                bytes.copy_from_slice(&cell.to_le_bytes());
            }
            self.world.tags().send(to, DATA, bytes)?;
        }
        if let Some(from) = from {
            self.world.tags().receive(from, DATA, bytes)?;
            for (bytes, cell) in bytes.chunks_exact(4).zip(&mut grid[to_row..to_row + SIDE]) {
                *cell = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
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
            words.chunks_exact(n.max(1)).enumerate().try_for_each(|(from, part)| check(part, step, from, to))
        };
        match name {
            "barrier" => self.world.barrier()?,
            "broadcast" => {
                if me == 0 {
                    fill(mine, step, 0, 0);
                }
                self.world.broadcast(0, mine)?;
                check(mine, step, 0, 0)?;
            }
            "reduce" | "all-reduce" | "scan" => {
                fill(mine, step, me, 0);
                match name {
                    "reduce" => self.world.reduce(0, mine, Sum)?,
                    "scan" => self.world.scan(mine, Sum)?,
                    _ => self.world.all_reduce(mine, Sum)?,
                }
                if name != "reduce" || me == 0 {
                    check_sum(mine, step, if name == "scan" { me } else { size - 1 }, 0)?;
                }
            }
            "gather" => {
                fill(mine, step, me, 0);
                self.world.gather(0, mine, if me == 0 { all } else { &mut [] })?;
                if me == 0 {
                    check_parts(all, 0)?;
                }
            }
            "all-gather" => {
                fill(mine, step, me, 0);
                self.world.all_gather(mine, all)?;
                check_parts(all, 0)?;
            }
            "scatter" => {
                if me == 0 {
                    parts(all, &|part, to| fill(part, step, 0, to));
                }
                self.world.scatter(0, if me == 0 { all } else { &[] }, mine)?;
                check(mine, step, 0, me)?;
            }
            "reduce-scatter" => {
                parts(all, &|part, to| fill(part, step, me, to));
                self.world.reduce_scatter(all, mine, &vec![n; size], Sum)?;
                check_sum(mine, step, size - 1, me)?;
            }
            "all-to-all" => {
                parts(all, &|part, to| fill(part, step, me, to));
                self.world.all_to_all(all, got)?;
                check_parts(got, me)?;
            }
            _ => bail!("there is no such experiment"),
        }
        Ok(())
    }
}
