//! How fast programs of others and kernels of our own are with our MPI, beside MPICH and Open MPI as Debian
//! has them: the same binary where both have its ABI, else the same source. The libraries take turns, and the
//! median of the rounds counts. Nothing is judged here: the machine may be busy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Place, binaries, call, mpi4py, progress};
use crate::{run, setup};

const ROUNDS: usize = 5;
/// A run that takes longer has no result: ranks that poll may need minutes where they outnumber the cores.
const SECONDS: &str = "60";

/// The kernels in `examples/mpi`, with their sizes.
const KERNELS: [(&str, &str); 5] = [
    ("cg.c", "128"),
    ("sort.c", "200000"),
    ("workers.c", "5000"),
    ("mg.f90", "16384"),
    ("stencil.f90", "256"),
];

/// An MPI: how programs are built and started.
struct Mpi {
    name: &'static str,
    mpiexec: PathBuf,
    options: &'static [&'static str],
    compilers: [PathBuf; 2],
    /// Where programs with the ABI of MPICH find it, if it has that.
    libraries: Option<PathBuf>,
}

impl Mpi {
    fn all(place: &Place) -> Result<Vec<Mpi>> {
        for (package, program) in [
            ("libmpich-dev", "mpicc.mpich"),
            ("mpich", "mpiexec.hydra"),
            ("libopenmpi-dev", "mpicc.openmpi"),
            ("openmpi-bin", "mpirun.openmpi"),
            ("gfortran", "gfortran"),
        ] {
            setup::install_package(package, program)?;
        }
        let find =
            |program: &str| run::find_program(program).with_context(|| format!("{program} is missing"));
        let bin = |program: &str| place.prefix.join("bin").join(program);
        Ok(vec![
            Mpi {
                name: "tautline",
                mpiexec: bin("mpiexec"),
                options: &[],
                compilers: ["mpicc", "mpifort"].map(bin),
                libraries: Some(place.prefix.join("lib")),
            },
            Mpi {
                name: "mpich",
                mpiexec: find("mpiexec.hydra")?,
                options: &[],
                compilers: [find("mpicc.mpich")?, find("mpifort.mpich")?],
                libraries: Some(mpich_libraries(&place.folder)?),
            },
            Mpi {
                name: "openmpi",
                mpiexec: find("mpirun.openmpi")?,
                options: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
                compilers: [find("mpicc.openmpi")?, find("mpifort.openmpi")?],
                libraries: None,
            },
        ])
    }

    /// What a program wrote, unless it has failed or taken too long.
    fn run(&self, ranks: &str, words: &[&str], python: &Path) -> Option<String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS]).arg(&self.mpiexec).args(self.options);
        command.args(["-n", ranks]).args(words).stdin(Stdio::null());
        command.env("KERNEL_TIME", "1").env("PYTHONPATH", python);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        let output = command.output().ok().filter(|output| output.status.success())?;
        let text = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Debian's library has another name than programs of its ABI ask for.
fn mpich_libraries(folder: &Path) -> Result<PathBuf> {
    let libraries = folder.join("mpich-libraries");
    std::fs::create_dir_all(&libraries)?;
    let link = libraries.join("libmpi.so.12");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink("/usr/lib/x86_64-linux-gnu/libmpich.so.12", &link)?;
    Ok(libraries)
}

/// Times by row and library.
#[derive(Default)]
struct Table(BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>);

impl Table {
    fn add(&mut self, row: String, mpi: &'static str, value: f64) {
        self.0.entry(row).or_default().entry(mpi).or_default().push(value);
    }

    /// A line for each row: the medians, and ours in relation to the best of the others.
    fn print(&self, unit: &str) {
        println!("  {:<28} {:>12} {:>12} {:>12} {:>9}", unit, "tautline", "mpich", "openmpi", "ratio");
        for (row, times) in &self.0 {
            let of = |mpi: &str| times.get(mpi).map(|times| median(times));
            let shown = |mpi: &str| of(mpi).map_or("-".to_owned(), |value| format!("{value:.3}"));
            let best = ["mpich", "openmpi"].iter().filter_map(|mpi| of(mpi)).reduce(f64::min);
            let ratio =
                of("tautline").zip(best).map_or("-".to_owned(), |(ours, best)| format!("{:.2}", ours / best));
            let [ours, mpich, openmpi] = ["tautline", "mpich", "openmpi"].map(shown);
            println!("  {row:<28} {ours:>12} {mpich:>12} {openmpi:>12} {ratio:>9}");
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The sizes that are compared: of up to 64 bytes, and from 64 KiB on.
fn is_compared(bytes: u64) -> bool {
    bytes <= 64 || (64 << 10..=4 << 20).contains(&bytes)
}

/// Bytes and a number from the rows of a table; `column` counts from zero.
fn rows(text: &str, column: usize) -> Vec<(u64, f64)> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some((words.first()?.parse().ok()?, words.get(column)?.parse().ok()?))
    };
    text.lines().filter_map(row).filter(|(bytes, _)| is_compared(*bytes)).collect()
}

/// Measures everything.
pub fn run(place: &Place) -> Result<String> {
    let (python, imb) = (mpi4py::install(&place.folder)?, binaries::install_imb(&place.folder)?);
    let all = Mpi::all(place)?;
    let imb = imb.first().context("there is no IMB-MPI1")?.to_string_lossy().into_owned();
    let (mut ping_pong, mut in_python, mut kernels) = (Table::default(), Table::default(), Table::default());
    for round in 1..=ROUNDS {
        progress(&format!("round {round} of {ROUNDS}: IMB and mpi4py"));
        for mpi in all.iter().filter(|mpi| mpi.libraries.is_some()) {
            let words = [&imb, "PingPong", "-iter_policy", "off", "-iter", "2000", "-time", "1"];
            let text = mpi.run("2", &words, &python).unwrap_or_default();
            for (bytes, us) in rows(&text, 2) {
                ping_pong.add(format!("{bytes:>10} B"), mpi.name, us);
            }
            let words = [
                "python3",
                "-m",
                "mpi4py.bench",
                "pingpong",
                "--array",
                "none",
                "-n",
                "4194304",
                "--loop",
                "2000",
            ];
            let text = mpi.run("2", &words, &python).unwrap_or_default();
            for (bytes, seconds) in rows(&text, 3) {
                in_python.add(format!("{bytes:>10} B"), mpi.name, seconds * 1e6);
            }
        }
    }
    let programs = build(place, &all)?;
    for round in 1..=ROUNDS {
        progress(&format!("round {round} of {ROUNDS}: kernels"));
        for (kernel, size) in KERNELS {
            for ranks in ["2", "4", "8"] {
                for mpi in &all {
                    let Some(program) = programs.get(&(kernel, mpi.name)) else { continue };
                    let text =
                        mpi.run(ranks, &[&program.to_string_lossy(), size], &python).unwrap_or_default();
                    let seconds = text
                        .lines()
                        .find_map(|line| line.strip_suffix(" seconds")?.trim().parse::<f64>().ok());
                    if let Some(seconds) = seconds {
                        kernels.add(format!("{kernel} {ranks} ranks"), mpi.name, seconds * 1e3);
                    }
                }
            }
        }
    }
    if ping_pong.0.is_empty() || in_python.0.is_empty() || kernels.0.is_empty() {
        bail!("IMB, mpi4py or the kernels have measured nothing");
    }
    ping_pong.print("IMB PingPong, us");
    in_python.print("mpi4py pingpong, us");
    kernels.print("kernels, ms");
    Ok(format!("medians of {ROUNDS} rounds"))
}

/// The kernels, built by the compilers of each MPI.
fn build(place: &Place, all: &[Mpi]) -> Result<BTreeMap<(&'static str, &'static str), PathBuf>> {
    let mut programs = BTreeMap::new();
    for (kernel, _) in KERNELS {
        for mpi in all {
            let program = place.folder.join(format!("{}_{}", mpi.name, kernel.replace('.', "_")));
            let mut command = Command::new(&mpi.compilers[usize::from(kernel.ends_with(".f90"))]);
            command.arg("-O2").arg(place.root.join("examples/mpi").join(kernel));
            call(command.arg("-o").arg(&program).arg("-lm"))?;
            programs.insert((kernel, mpi.name), program);
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_sizes_and_other_lines_are_left_out() {
        let text = "# bytes\n 0 1000 0.41 0.00\n 128 1000 0.5 1\n 65536 640 9.5 6.9\n 8388608 1 1 1\nend\n";
        assert_eq!(rows(text, 2), [(0, 0.41), (65_536, 9.5)]);
        let python = "         8             12.00 | 6.6e-07 ± 1.0e-08      100\n";
        assert_eq!(rows(python, 3), [(8, 6.6e-7)]);
    }

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[5.0])), (2.0, 5.0));
    }
}
