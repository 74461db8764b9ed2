//! `tautline run` where the system lacks something: it names what is missing before any rank is started.
#![allow(clippy::print_stdout)]

mod common;

use std::cell::Cell;
use std::process::{Command, Output};
use std::rc::Rc;

use common::tautline;
use tautline::{Config, Endpoint, Event, Message};

const RANKS: u64 = 24;

/// Started by [`descriptors_of_a_whole_job_are_counted`]: every rank exchanges messages with every other.
#[test]
#[ignore = "a program for other tests"]
fn program_mesh() {
    let heard = Rc::new(Cell::new(0));
    let hearing = heard.clone();
    // Of 24 ranks on few cores one may not run for long.
    let config = Config::with(|config| config.link.silence = 60_000_000_000);
    let ep = Endpoint::builder()
        .config(config)
        .on("word", move |mut message: Message| {
            let hearing = hearing.clone();
            async move {
                assert_eq!(message.read_to_end().await?, [7; 20_000]);
                hearing.set(hearing.get() + 1);
                Ok(())
            }
        })
        .join()
        .unwrap();
    let others: Vec<_> = (0..ep.size()).filter(|rank| *rank != ep.rank()).collect();
    // Loans and long messages have memory of their own.
    for peer in &others {
        let mut loan = ep.loan(*peer, 20_000).unwrap();
        loan.copy_from_slice(&[7; 20_000]);
        loan.send("word").unwrap();
    }
    ep.run_until(|| heard.get() == others.len()).unwrap();
    ep.barrier().unwrap();
    while let Some(event) = ep.poll_event() {
        // After the barrier peers close.
        let closed = matches!(&event, Event::PeerDown { why, .. } if why.to_string().contains("closed"));
        assert!(closed || !matches!(event, Event::PeerDown { .. }), "{event:?}");
        if let Event::Transport { .. } = &event {
            println!("{event:?}");
        }
    }
    ep.close().unwrap();
}

/// Runs the mesh with at most this many descriptors per process.
fn mesh(files: u64, options: &[&str]) -> Output {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_tautline");
    command.args(["-c", &format!("ulimit -n {files}; exec {program} \"$@\""), "sh", "run", "-n"]);
    command.arg(RANKS.to_string()).args(options).env_remove("TAUTLINE_JOB_FD");
    common::as_program(&mut command, "program_mesh").output().unwrap()
}

/// J-7: a limit that the ranks of a fully connected job would exceed is an error before they start; with
/// one descriptor more the job runs, and nobody is short of any.
#[test]
fn descriptors_of_a_whole_job_are_counted() {
    for options in [&[][..], &["--device", "udp"], &["--fault", "loss=0%"]] {
        let refused = mesh(20, options);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        let needed = said.split("ulimit -Hn ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let needed: u64 = needed.unwrap_or_else(|| panic!("no advice: {said}")).parse().unwrap();
        assert!(said.contains("20 are allowed (RLIMIT_NOFILE)"), "{said}");
        assert_eq!(mesh(needed - 1, options).status.code(), Some(2), "{needed} with {options:?}");
        let out = mesh(needed, options);
        let said = [String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)].concat();
        assert!(out.status.success(), "{needed} with {options:?}: {said}");
        assert!(!said.contains("ulimit"), "{options:?}: {said}");
    }
}

/// J-7: the number of processes is checked before their programs are looked up.
#[test]
fn limits_come_before_programs() {
    let script = "ulimit -n 1000; exec \"$0\" run -n 65536 /no/such/program";
    let out = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_tautline")]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("65536 processes need up to") && said.contains("1000 are allowed"), "{said}");
}

/// With fewer descriptors than the launcher itself begins with, the error names them.
#[test]
fn too_few_descriptors_for_the_launcher_are_named() {
    let out = mesh(5, &[]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot start the launcher") && said.contains("ulimit -n"), "{said}");
}

/// Without /proc the error names it, and not the number of processes.
#[test]
fn a_missing_proc_is_named() {
    let program = env!("CARGO_BIN_EXE_tautline");
    let script = format!("mount -t tmpfs none /proc && echo hidden >&2 && exec {program} run -n 2 true");
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--map-root-user"]);
    }
    let out = command.args(["--mount", "sh", "-c", &script]).env_remove("TAUTLINE_JOB_FD").output();
    let said = out.as_ref().map_or(String::new(), |out| String::from_utf8_lossy(&out.stderr).into_owned());
    if !said.contains("hidden") {
        let why = format!("no mount namespace without /proc ({})", said.trim());
        return tautline_skips::skip("a_missing_proc_is_named", why);
    }
    assert_eq!(out.unwrap().status.code(), Some(2), "{said}");
    assert!(said.contains("/proc is not mounted") && !said.contains("ulimit -u"), "{said}");
}

/// Too few processes are named as such, and those that were started are ended.
#[test]
fn too_few_processes_are_named() {
    if rustix::process::geteuid().is_root() {
        return tautline_skips::skip("too_few_processes_are_named", "the limit does not bind root");
    }
    // The option has another name in dash.
    let script = "ulimit -u 1 2>/dev/null || ulimit -p 1 || exit 1; exec \"$0\" run -n 2 true";
    let out = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_tautline")]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("ulimit -u"), "{said}");
    assert!(tautline().args(["run", "-n", "1", "true"]).status().unwrap().success());
}
