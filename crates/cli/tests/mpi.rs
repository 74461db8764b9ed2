//! C programs with MPI, built with our compilers and run as jobs of several ranks.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::mpi::{compile, has, prefix, text};
use common::{folder, tautline};

fn command(prefix: &Path) -> Command {
    let mut command = tautline();
    command.env("TAUTLINE_MPI", prefix).env_remove("LD_LIBRARY_PATH");
    command
}

/// The program `ranks.c`, compiled once for all tests of this process.
fn ranks(test: &str) -> Option<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if !has("cc") {
        tautline_skips::skip(test, "there is no C compiler (cc)");
        return None;
    }
    let options = &["-O1", "-Wall", "-Werror", "-pthread"];
    Some(PROGRAM.get_or_init(|| compile("mpicc", &["crates/mpi/abi/tests/ranks.c"], options)))
}

fn mpiexec(program: &Path, args: &[&str], program_args: &[&str]) -> Output {
    let mut command = Command::new(prefix().join("bin/mpiexec"));
    command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
    command.args(["-timeout", "100"]).args(args).arg(program).args(program_args).output().unwrap()
}

fn assert_passed(output: &Output) {
    assert!(output.status.success() && output.stdout == b"passed\n", "{}", text(output));
}

#[test]
fn a_program_runs_with_one_to_four_ranks() {
    let Some(program) = ranks("a_program_runs_with_one_to_four_ranks") else { return };
    assert_passed(&Command::new(program).output().unwrap());
    for ranks in ["1", "2", "3", "4"] {
        assert_passed(&mpiexec(program, &["-n", ranks], &[]));
    }
}

#[test]
fn a_program_runs_over_udp() {
    let Some(program) = ranks("a_program_runs_over_udp") else { return };
    for ranks in ["2", "3"] {
        assert_passed(&mpiexec(program, &["--device", "udp", "-n", ranks], &[]));
    }
}

#[test]
fn abort_ends_the_job_with_its_code() {
    let Some(program) = ranks("abort_ends_the_job_with_its_code") else { return };
    let output = mpiexec(program, &["-n", "3"], &["abort"]);
    assert_eq!(output.status.code(), Some(42), "{}", text(&output));
    assert!(text(&output).contains("rank 2: MPI_Abort was called with the code 42"), "{}", text(&output));
}

/// A receive from any source fails when a rank of its communicator is lost.
#[test]
fn the_death_of_a_rank_ends_the_calls_of_the_others() {
    let Some(program) = ranks("the_death_of_a_rank_ends_the_calls_of_the_others") else { return };
    for device in ["shm", "udp"] {
        let output = mpiexec(program, &["--device", device, "-n", "3"], &["death"]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(128 + 6), "{text}");
        for part in ["rank 0", "MPI_Recv failed", "MPI_ERR_PROC_ABORTED", "rank 2", "MPI_COMM_WORLD"] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    }
}

#[test]
fn calls_before_init_and_after_finalize_are_refused() {
    let Some(program) = ranks("calls_before_init_and_after_finalize_are_refused") else { return };
    let early = "MPI_Comm_size was called before MPI_Init";
    let late = "rank 0: MPI_Comm_size was called after MPI_Finalize";
    for (when, line) in [("early", early), ("late", late)] {
        let output = mpiexec(program, &["-n", "1"], &[when]);
        assert!(!output.status.success(), "{}", text(&output));
        assert!(text(&output).contains(line), "{}", text(&output));
    }
}

/// `cargo xtask suites --only abi` installs the library of MPICH, with which the output is the same.
#[test]
fn the_output_is_that_of_mpich() {
    let test = "the_output_is_that_of_mpich";
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let theirs = target.join("suites/mpich-abi/mpich-5.0.2.data/data");
    if !theirs.join("bin/mpiexec").is_file() {
        return tautline_skips::skip(test, "MPICH's library is missing (cargo xtask suites --only abi)");
    }
    let program = compile("mpicc", &["crates/mpi/abi/tests/same_output.c"], &["-O1", "-Wall", "-Werror"]);
    for ranks in ["1", "2", "3"] {
        let [ours, theirs] = [prefix(), &theirs].map(|prefix| {
            let mut command = Command::new(prefix.join("bin/mpiexec"));
            command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
            command.args(["-n", ranks]).arg(&program).env("LD_LIBRARY_PATH", prefix.join("lib"));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            String::from_utf8(output.stdout).unwrap()
        });
        assert!(ours.lines().count() > 200, "{ours}");
        assert_eq!(ours, theirs);
    }
}

#[test]
fn what_is_installed_is_found_and_removed() {
    let prefix = folder("mpi-remove");
    let output = command(&prefix).args(["mpi", "env"]).output().unwrap();
    assert!(text(&output).contains("tautline mpi install"), "{}", text(&output));
    let output = command(&prefix).args(["mpi", "install"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let output = command(&prefix).args(["mpi", "env"]).output().unwrap();
    assert!(text(&output).contains(&format!("PATH='{}'", prefix.join("bin").display())), "{}", text(&output));
    let output = command(&prefix).args(["mpicc", "-show", "a.c"]).output().unwrap();
    for part in ["a.c", "-lmpi_abi", "include"] {
        assert!(text(&output).contains(part), "{part} is missing: {}", text(&output));
    }
    let output = command(&prefix).args(["mpicc", "-show", "-c", "a.c"]).output().unwrap();
    assert!(!text(&output).contains("-lmpi_abi"), "{}", text(&output));
    let output = command(&prefix).args(["mpi", "remove"]).output().unwrap();
    assert!(output.status.success() && !prefix.exists(), "{}", text(&output));
}

/// Of several programs each has the options before it, and this host by its name takes no ssh.
#[test]
fn options_of_mpiexec_are_for_their_program() {
    let folder = folder("mpiexec-options");
    std::fs::write(folder.join("hosts"), "localhost\n127.0.0.1 slots=2\nlocalhost\n").unwrap();
    let run = |line: &str| {
        let mut command = tautline();
        command.arg("mpiexec").args(line.split_whitespace()).args(["-timeout", "60"]);
        command.current_dir(&*folder);
        command
    };
    let shown = "echo ${A-none} ${B-none} $(basename $(pwd))";
    let mut command = run("-l -genv B 5");
    command.args(["-n", "1", "-env", "A", "1", "-wdir", "/", "sh", "-c", shown]);
    command.args([":", "-n", "2", "sh", "-c", shown, ":", "-n", "1", "-env", "A", "2", "sh", "-c", shown]);
    let output = command.output().unwrap();
    let here = folder.file_name().unwrap().to_string_lossy().into_owned();
    let mut lines: Vec<_> = text(&output).lines().map(str::to_owned).collect();
    lines.sort();
    let rest: Vec<&str> =
        lines.iter().map(|line| line.split_once(' ').map_or("", |(_, rest)| rest)).collect();
    let expected =
        ["1 5 /".to_owned(), format!("none 5 {here}"), format!("none 5 {here}"), format!("2 5 {here}")];
    assert_eq!(rest, expected, "{lines:?}");

    let output = run("-hostfile hosts").args(["echo", "here"]).output().unwrap();
    assert_eq!(text(&output), "here\n".repeat(4));
    let output = run("-n 5 -hostfile hosts").args(["echo", "here"]).output().unwrap();
    assert!(text(&output).contains("5 processes do not fit: the hosts take 4"), "{}", text(&output));
    let output = run("-n 5 -hostfile hosts --oversubscribe").args(["echo", "here"]).output().unwrap();
    assert_eq!(text(&output), "here\n".repeat(5));
}

/// What people type for MPICH and Open MPI. Processes are bound to a core only where a core was asked for.
#[test]
fn options_of_other_launchers_are_taken() {
    let cores = String::from_utf8(Command::new("nproc").output().unwrap().stdout).unwrap();
    let run = |line: &str| {
        let mut command = tautline();
        command.arg("mpiexec").args(line.split_whitespace()).args(["-timeout", "60", "nproc"]);
        let output = command.env_remove("OMP_NUM_THREADS").output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for (line, ranks) in [
        ("-host localhost:1 -n 3 --oversubscribe --mca btl self,vader", 3),
        ("--np=2 --map-by slot --report-bindings -rmk user -q -genvall -x HOME", 2),
        ("-N 2 -iface lo -launcher ssh --use-hwthread-cpus --allow-run-as-root", 2),
        ("-bind-to none", 1),
    ] {
        assert_eq!(run(line), (cores.repeat(ranks), String::new()), "{line}");
    }
    let (out, err) = run("-n 2 --bind-to socket");
    assert_eq!((out, err.lines().count()), (cores.repeat(2), 1), "{err}");
    assert!(err.contains("--bind-to socket: processes are not bound"), "{err}");
    assert_eq!(run("-n 2 -bind-to core"), ("1\n1\n".to_owned(), String::new()));
}

/// Build systems ask in the words of MPICH or of Open MPI.
#[test]
fn compilers_tell_what_they_need() {
    let lib = prefix().join("lib").display().to_string();
    let include = prefix().join("include").display().to_string();
    let ask = |option: &str| {
        let output = Command::new(prefix().join("bin/mpicc")).arg(option).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output).trim_end().to_owned()
    };
    let linking = format!("-L{lib} -Wl,-rpath,{lib} -lmpi_abi");
    for (option, answer) in [
        ("-show", format!("cc -I{include} {linking}")),
        ("-compile_info", format!("cc -I{include}")),
        ("-showme:compile", format!("-I{include}")),
        ("--showme:link", linking.clone()),
        ("-showme:incdirs", include.clone()),
        ("-showme:libdirs", lib.clone()),
        ("-showme:libs", "mpi_abi".to_owned()),
        ("-showme:command", "cc".to_owned()),
    ] {
        assert_eq!(ask(option), answer, "{option}");
    }
    // Which compiler it is, in the words of either.
    let command = |compiler: &str, variables: &[(&str, &str)], options: &[&str]| {
        let mut command = Command::new(prefix().join("bin").join(compiler));
        for name in ["TAUTLINE_MPI_CC", "MPICH_CC", "OMPI_CC", "MPICH_CXX", "OMPI_FC"] {
            command.env_remove(name);
        }
        let output =
            command.envs(variables.iter().copied()).args(options).arg("-showme:command").output().unwrap();
        text(&output).trim_end().to_owned()
    };
    for (compiler, variables, options, answer) in [
        ("mpicc", &[("MPICH_CC", "one")][..], &[][..], "one"),
        ("mpicc", &[("OMPI_CC", "ccache two")], &[], "ccache two"),
        ("mpicc", &[("OMPI_CC", "two"), ("MPICH_CC", "one"), ("TAUTLINE_MPI_CC", "ours")], &[], "ours"),
        ("mpicc", &[("MPICH_CC", "one")], &["-cc=three", "-g"], "three"),
        ("mpicxx", &[("MPICH_CXX", "four")], &[], "four"),
        ("mpifort", &[("OMPI_FC", "five")], &[], "five"),
        ("mpifort", &[], &["-fc=six"], "six"),
    ] {
        assert_eq!(command(compiler, variables, options), answer, "{compiler} {variables:?} {options:?}");
    }
}
