//! Programs that others have compiled for the ABI of MPICH, and kernels of our own: each checks its results
//! and says so.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use super::{Place, call, pip, progress};
use crate::{run, setup};

fn name(program: &Path) -> Cow<'_, str> {
    program.file_name().unwrap_or_default().to_string_lossy()
}

/// Runs a program under `mpiexec` and returns what it wrote; fails with the end of that.
fn mpiexec(place: &Place, args: &[&str], program: &Path, options: &[&str], folder: &Path) -> Result<String> {
    let mut command = Command::new(place.prefix.join("bin/mpiexec"));
    command.args(["-timeout", "900"]).args(args).arg(program).args(options).current_dir(folder);
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    if !status.success() {
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(20)..].join("\n");
        bail!("{} {args:?} failed: {status}\n{end}", program.display());
    }
    Ok(text)
}

/// NetPIPE of Debian with 2 ranks: it sends messages of many sizes and compares their bytes: plain, with
/// receives posted in advance, and with synchronous sends; then it measures. Its other modes hang with MPICH,
/// too: they send in both directions without room, or mix up messages from any source.
pub fn netpipe(place: &Place) -> Result<String> {
    setup::install_package("netpipe-mpich2", "NPmpich2")?;
    let program = Path::new("NPmpich2");
    let mut checks = 0;
    for mode in [&[][..], &["-a"], &["-S"]] {
        let mut options = vec!["-i", "-n", "20", "-u", "1048576", "-o", "netpipe.out"];
        options.extend(mode);
        let text = mpiexec(place, &["-n", "2"], program, &options, &place.folder)?;
        let passed = text.matches("Integrity check passed").count();
        if passed < 30 || text.contains("failed") {
            bail!("NPmpich2 {options:?}: {passed} sizes passed\n{text}");
        }
        checks += passed;
    }
    let options = ["-u", "1048576", "-n", "200", "-o", "netpipe.out"];
    let text = mpiexec(place, &["-n", "2"], program, &options, &place.folder)?;
    let sizes = text.matches("Mbps").count();
    if sizes < 40 {
        bail!("NPmpich2 {options:?}: it measured {sizes} sizes\n{text}");
    }
    Ok(format!("{checks} checks of data, {sizes} sizes measured"))
}

/// ScaLAPACK's own tests of Debian, with 4 ranks, and with 1 and 2 those whose input allows it.
pub fn scalapack(place: &Place) -> Result<String> {
    const TESTS: &str = "/usr/lib/x86_64-linux-gnu/scalapack/mpich-tests";
    setup::install_package("scalapack-mpi-test", &format!("{TESTS}/xdlu"))?;
    // The programs read their input from the folder that they run in, and write there.
    let folder = place.folder.join("scalapack");
    std::fs::create_dir_all(&folder)?;
    call(Command::new("cp").args(["-rL", "--"]).arg(format!("{TESTS}/.")).arg(&folder))?;
    let mut programs = Vec::new();
    for place in [folder.clone(), folder.join("PBLAS")] {
        for entry in std::fs::read_dir(place)? {
            programs.push(entry?.path());
        }
    }
    programs.retain(|path| is_linear_algebra(path));
    programs.sort();
    let (mut passed, mut runs, mut failed) = (0, 0, Vec::new());
    for ranks in ["1", "2", "4"] {
        for program in programs.iter().filter(|program| ranks == "4" || !needs_four(program)) {
            progress(&format!("{} with {ranks} ranks", name(program)));
            let judge = if compares_unset_variables(program) { residuals } else { verdict };
            let folder = program.parent().unwrap_or(&folder);
            match mpiexec(place, &["-n", ranks], program, &[], folder).and_then(|text| judge(&text)) {
                Ok(count) => passed += count,
                Err(error) => failed.push(failure(program, ranks, &error)),
            }
            runs += 1;
        }
    }
    ensure_none(&failed)?;
    Ok(format!("{} programs, {runs} runs, {passed} tests passed", programs.len()))
}

/// The tests of ScaLAPACK itself; those of its message layer, which is not MPI's, read other files. `xsllt`
/// is left out: PSLACON, which it calls, branches on values that nobody has set, so that ranks call
/// different collectives. With MPICH it hangs.
fn is_linear_algebra(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_pblas = name.ends_with("tst");
    let is_scalapack = name.starts_with('x') && !name.ends_with("btest");
    (is_pblas || is_scalapack) && !name.contains('.') && name != "xsllt"
}

/// The tests of eigenvalues, singular values and PBLAS end unless there are 4 ranks.
fn needs_four(program: &Path) -> bool {
    let name = program.to_string_lossy();
    ["sep", "svd", "syevr", "heevr", "tst"].iter().any(|end| name.ends_with(end))
}

/// The tests of P?SYEVR and P?HEEVR compare the variables VL and VU before and after a call, but do not set
/// them: a NaN that happens to be on the stack fails them, with every MPI.
fn compares_unset_variables(program: &Path) -> bool {
    let name = program.to_string_lossy();
    name.ends_with("syevr") || name.ends_with("heevr")
}

/// The number of tests in the output of such a program whose residuals are below its limit of 20. They are
/// rounded to two digits: what is printed as 20 is below it if the program says so.
fn residuals(text: &str) -> Result<usize> {
    let rows = text.lines().filter(|line| line.contains("PASSED ") || line.contains("FAILED "));
    let mut good = 0;
    for row in rows {
        let words: Vec<&str> = row.split_whitespace().collect();
        let values: Option<Vec<f64>> =
            words.get(8..10).and_then(|words| words.iter().map(|word| word.parse().ok()).collect());
        match values {
            Some(values) if values.iter().all(|value| is_small(*value, row)) => good += 1,
            _ => bail!("the residuals are too large: {row}"),
        }
    }
    if good == 0 {
        bail!("no test was done:\n{text}");
    }
    Ok(good)
}

fn is_small(residual: f64, row: &str) -> bool {
    (0.0..20.0).contains(&residual) || residual == 20.0 && row.contains("PASSED ")
}

/// The number of tests that passed in the output of a program of ScaLAPACK, each of which has a line.
fn verdict(text: &str) -> Result<usize> {
    let failed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("FAILED") || line.contains("tests completed and failed"))
        .filter(|line| line.split_whitespace().next() != Some("0"))
        // The head of a table.
        .filter(|line| !line.contains("SKIPPED"))
        .collect();
    if !failed.is_empty() {
        bail!("{} lines tell of failures:\n{}", failed.len(), failed.join("\n"));
    }
    let passed = text.to_uppercase().matches("PASSED").count();
    if passed == 0 {
        bail!("no test was done:\n{text}");
    }
    Ok(passed)
}

/// Intel's benchmarks, from the package with the runtime of Intel MPI.
pub fn install_imb(folder: &Path) -> Result<Vec<PathBuf>> {
    const PACKAGE: &str = "impi-rt==2021.19.0";
    let target = folder.join("imb");
    let find = || -> Option<Vec<PathBuf>> {
        ["IMB-MPI1", "IMB-P2P", "IMB-NBC"].iter().map(|program| find_below(&target, program)).collect()
    };
    if find().is_none() {
        call(pip().args(["install", "--no-deps", "--target"]).arg(&target).arg(PACKAGE))?;
    }
    find().with_context(|| format!("{PACKAGE} has no IMB below {}", target.display()))
}

/// All that they do by default.
pub fn imb(place: &Place) -> Result<String> {
    let programs = install_imb(&place.folder)?;
    let (mut tables, mut failed) = (0, Vec::new());
    for ranks in ["2", "4"] {
        for program in &programs {
            progress(&format!("{} with {ranks} ranks", name(program)));
            let output = mpiexec(place, &["-n", ranks], program, &[], &place.folder);
            match output.and_then(|text| finished_tables(&text)) {
                Ok(count) => tables += count,
                Err(error) => failed.push(failure(program, ranks, &error)),
            }
        }
    }
    ensure_none(&failed)?;
    Ok(format!("{} programs with 2 and 4 ranks, {tables} tables", programs.len()))
}

/// The number of tables in the output of one of Intel's benchmarks that has come to its end.
fn finished_tables(text: &str) -> Result<usize> {
    let tables = text.matches("# Benchmarking").count();
    if tables == 0 || !text.contains("All processes entering MPI_Finalize") {
        bail!("it did not come to its end:\n{text}");
    }
    Ok(tables)
}

/// Prints why a program failed, and returns its name for the summary.
fn failure(program: &Path, ranks: &str, error: &anyhow::Error) -> String {
    let what = format!("{} with {ranks} ranks", name(program));
    println!("{what}: {error:#}");
    what
}

fn ensure_none(failed: &[String]) -> Result<()> {
    if failed.is_empty() { Ok(()) } else { bail!("{} runs failed: {}", failed.len(), failed.join(", ")) }
}

/// A file with this name, in a folder or below it.
fn find_below(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.is_file() && path.file_name().is_some_and(|at| at == name));
    let below = || entries.iter().filter(|path| path.is_dir()).find_map(|path| find_below(path, name));
    here.cloned().or_else(below)
}

/// The kernels in `examples/mpi`, with 1 to 4 ranks over shared memory and 2 over UDP, larger than in the
/// tests.
pub fn kernels(place: &Place) -> Result<String> {
    setup::install_package("gfortran", "gfortran")?;
    let sources = run::root().join("examples/mpi");
    let mut runs = 0;
    for (name, compiler, size) in [
        ("cg.c", "mpicc", "256"),
        ("sort.c", "mpicc", "500000"),
        ("workers.c", "mpicc", "20000"),
        ("mg.f90", "mpifort", "65536"),
        ("stencil.f90", "mpifort", "512"),
    ] {
        let program = place.folder.join(name.replace('.', "_"));
        let mut command = Command::new(place.prefix.join("bin").join(compiler));
        call(command.arg("-O2").arg(sources.join(name)).arg("-o").arg(&program).arg("-lm"))?;
        for args in
            [&["-n", "1"][..], &["-n", "2"], &["-n", "3"], &["-n", "4"], &["--device", "udp", "-n", "2"]]
        {
            let text = mpiexec(place, args, &program, &[size], &place.folder)?;
            if text.trim() != "passed" {
                bail!("{name} {args:?}: {text}");
            }
            runs += 1;
        }
    }
    Ok(format!("{runs} runs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_scalapack_is_seen() {
        let good = "WALL 13 13 PASSED\n  240 tests completed and passed residual checks.\n    \
                    0 tests completed and failed residual checks.\n";
        assert_eq!(verdict(good).unwrap(), 2);
        assert!(verdict(&good.replace("    0 ", "    3 ")).is_err());
        assert!(verdict("WALL 13 13 FAILED\n").is_err() && verdict("").is_err());
        let check = "***** Computational check: PDNRM2         PASSED  *****\n";
        assert_eq!(verdict(&format!("{check}TOTAL TESTS  PASSED   FAILED  SKIPPED\n")).unwrap(), 2);
        assert!(verdict(&check.replace("PASSED", "FAILED")).is_err());
    }

    #[test]
    fn a_residual_decides_where_unset_variables_are_compared() {
        let row = "     6   1   3   1   8   N     0.01    -1.00   2.2      0.64     FAILED        \n";
        assert_eq!(residuals(&row.repeat(2)).unwrap(), 2);
        assert!(residuals(&row.replace("0.64", " 64.")).is_err() && residuals("").is_err());
        assert!(residuals(&row.replace("0.64", " NaN")).is_err());
        // 19.6 is printed so.
        let rounded = row.replace("0.64", " 20.");
        assert_eq!(residuals(&rounded.replace("FAILED", "PASSED")).unwrap(), 1);
        assert!(residuals(&rounded.replace("PASSED", "FAILED")).is_err());
    }

    #[test]
    fn only_programs_of_linear_algebra_are_run() {
        let runs = |name: &str| is_linear_algebra(Path::new(name));
        assert!(runs("a/xdlu") && runs("a/dpb1tst") && !runs("a/xCbtest"));
        assert!(!runs("LU.dat") && !runs("x.dat") && !runs("a/PBLAS"));
    }
}
