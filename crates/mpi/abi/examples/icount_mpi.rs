//! What a short message costs an MPI program, sent by `MPI_Send` and received by `MPI_Recv`: two ranks in one
//! process, which share memory. Each has a copy of the library, with variables of its own, so that one thread
//! can be both ranks and nobody waits.
//!
//! `icount_mpi mpi-8 N` passes N messages of 8 bytes, in turns, `mpi-64` messages of 64 bytes; `mpi-threads`:
//! 8 bytes by two threads in turn. `cargo xtask icount` counts the instructions of the two functions for two
//! different N and divides the difference. `icount_mpi SCENARIO N time` prints nanoseconds.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Instant;

use tautline_mpi::constants::{BYTE, COMM_WORLD, SUCCESS};

const USAGE: &str = "usage: icount_mpi mpi-8|mpi-64|mpi-threads N [time]";
/// Names the rank of the copy that joins next.
const RANK: &str = "ICOUNT_RANK";
const TAG: c_int = 7;

type Ptr = *mut c_void;
type SendFn = unsafe extern "C" fn(Ptr, c_int, usize, c_int, c_int, usize) -> c_int;
type RecvFn = unsafe extern "C" fn(Ptr, c_int, usize, c_int, c_int, usize, Ptr) -> c_int;

/// A rank: the functions of its copy of the library.
#[derive(Clone, Copy)]
struct Rank {
    init: unsafe extern "C" fn(Ptr, Ptr, c_int, Ptr) -> c_int,
    send: SendFn,
    recv: RecvFn,
    iprobe: unsafe extern "C" fn(c_int, c_int, usize, Ptr, Ptr) -> c_int,
    isend: unsafe extern "C" fn(Ptr, c_int, usize, c_int, c_int, usize, Ptr) -> c_int,
    test: unsafe extern "C" fn(Ptr, Ptr, Ptr) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
}

impl Rank {
    /// Loads a copy of the library under a name of its own; the dynamic linker loads one file only once.
    fn load(library: &Path, copy: &Path) -> Rank {
        std::fs::copy(library, copy).expect("the library is copied");
        let name = CString::new(copy.as_os_str().as_encoded_bytes()).expect("a path has no zero byte");
        // SAFETY: the library's initializers have no requirements.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", copy.display());
        let find = |name: &str| {
            let text = CString::new(name).expect("a name has no zero byte");
            // SAFETY: the library stays loaded.
            let at = unsafe { libc::dlsym(handle, text.as_ptr()) };
            assert!(!at.is_null(), "{name} is missing");
            at
        };
        // SAFETY: the functions have the parameters of the standard; handles are pointers.
        unsafe {
            Rank {
                init: std::mem::transmute::<Ptr, unsafe extern "C" fn(Ptr, Ptr, c_int, Ptr) -> c_int>(find(
                    "MPI_Init_thread",
                )),
                send: std::mem::transmute::<Ptr, SendFn>(find("MPI_Send")),
                recv: std::mem::transmute::<Ptr, RecvFn>(find("MPI_Recv")),
                iprobe: std::mem::transmute::<
                    Ptr,
                    unsafe extern "C" fn(c_int, c_int, usize, Ptr, Ptr) -> c_int,
                >(find("MPI_Iprobe")),
                isend: std::mem::transmute::<Ptr, RecvFn>(find("MPI_Isend")),
                test: std::mem::transmute::<Ptr, unsafe extern "C" fn(Ptr, Ptr, Ptr) -> c_int>(find(
                    "MPI_Test",
                )),
                finalize: std::mem::transmute::<Ptr, unsafe extern "C" fn() -> c_int>(find("MPI_Finalize")),
            }
        }
    }
}

/// Loads a rank and has it join the job.
fn join(rank: usize, folder: &Path) -> Rank {
    let program = std::env::current_exe().expect("this program has a path");
    let library = program.ancestors().nth(2).expect("examples have a folder").join("deps/libmpi_abi.so");
    let loaded = Rank::load(&library, &folder.join(format!("icount_mpi.{rank}.so")));
    let (mut provided, none) = (0_i32, std::ptr::null_mut());
    // SAFETY: no other thread uses the environment meanwhile; the arguments are as the standard says.
    let code = unsafe {
        std::env::set_var("TAUTLINE_JOB_FILE", folder.join("job"));
        std::env::set_var(RANK, rank.to_string());
        let multiple = tautline_mpi::constants::THREAD_MULTIPLE;
        (loaded.init)(none, none, multiple, (&raw mut provided).cast())
    };
    assert_eq!(code, SUCCESS);
    loaded
}

/// Has two ranks join a job, connects them, and leaves it when `work` is done. Ranks wait for each other when
/// they leave, and the thread that joined leaves: so the second rank joins and leaves by a thread of its own.
fn with_ranks(folder: &Path, work: impl FnOnce(&[Rank; 2])) {
    write_job(&folder.join("job"));
    let first = join(0, folder);
    let (to_main, joined) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let rank = join(1, folder);
            to_main.send(rank).expect("the main thread waits");
            let _ = wait.recv();
            // SAFETY: this thread has initialized it.
            assert_eq!(unsafe { (rank.finalize)() }, SUCCESS);
        });
        let ranks = [first, joined.recv().expect("the second rank joins")];
        connect(&ranks);
        work(&ranks);
        drop(done);
        // SAFETY: this thread has initialized it.
        assert_eq!(unsafe { (ranks[0].finalize)() }, SUCCESS);
    });
}

/// A list of members that is the same for both ranks.
fn write_job(path: &Path) {
    use std::io::Write;
    // Ports that were free a moment ago.
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback"));
    let mut text = format!("tautline-job 1\nkey {}\nrank ${RANK}\ndevice shm\n", "ab".repeat(32));
    for (rank, socket) in sockets.iter().enumerate() {
        text += &format!("member {rank} {}\n", socket.local_addr().expect("it is bound"));
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).expect("the job's file");
    file.write_all(text.as_bytes()).expect("the job's file is written");
}

/// Passes the first message, which connects the ranks, without waiting in either.
fn connect(ranks: &[Rank; 2]) {
    let (mut bytes, mut request, mut status) = ([1_u8; 8], 0_usize, [0_i32; 8]);
    let (mut sent, mut arrived) = (0_i32, 0_i32);
    let (request, status) = ((&raw mut request).cast(), status.as_mut_ptr().cast());
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let at = bytes.as_mut_ptr().cast();
        assert_eq!((ranks[0].isend)(at, 8, BYTE.0, 1, TAG, COMM_WORLD.0, request), SUCCESS);
        while sent == 0 || arrived == 0 {
            assert_eq!((ranks[0].test)(request, (&raw mut sent).cast(), status), SUCCESS);
            let flag = (&raw mut arrived).cast();
            assert_eq!((ranks[1].iprobe)(0, TAG, COMM_WORLD.0, flag, status), SUCCESS);
        }
        assert_eq!((ranks[1].recv)(at, 8, BYTE.0, 0, TAG, COMM_WORLD.0, status), SUCCESS);
    }
}

/// Bytes of the longest message.
const LONGEST: usize = 64;

/// Passes the message number `i` of `len` bytes, whose sender changes from one to the next.
fn pass(ranks: &[Rank; 2], i: u64, len: usize) {
    let from = (i % 2) as usize;
    let (mut bytes, mut room, mut status) = ([0_u8; LONGEST], [0_u8; LONGEST], [0_i32; 8]);
    bytes[..8].copy_from_slice(&i.to_le_bytes());
    bytes[len - 8..len].copy_from_slice(&i.to_le_bytes());
    // A program's messages have all lengths: no code is to be made for this one.
    let count = black_box(len as c_int);
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let at = bytes.as_mut_ptr().cast();
        assert_eq!((ranks[from].send)(at, count, BYTE.0, 1 - from as c_int, TAG, COMM_WORLD.0), SUCCESS);
        let (at, status) = (room.as_mut_ptr().cast(), status.as_mut_ptr().cast());
        let code = (ranks[1 - from].recv)(at, count, BYTE.0, from as c_int, TAG, COMM_WORLD.0, status);
        assert_eq!(code, SUCCESS);
    }
    assert_eq!((room, status[0], status[1]), (bytes, from as i32, TAG));
}

/// Every second message is passed by another thread.
fn pass_by_turns(ranks: &[Rank; 2], count: u64) {
    let (to_worker, from_main) = mpsc::channel();
    let (to_main, from_worker) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(i) = from_main.recv() {
                pass(ranks, i, 8);
                to_main.send(()).expect("the main thread waits");
            }
        });
        for i in (0..count).step_by(2) {
            pass(ranks, i, 8);
            to_worker.send(i + 1).expect("the other thread waits");
            from_worker.recv().expect("the other thread answers");
        }
        drop(to_worker);
    });
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let count = args.get(2).and_then(|count| count.parse::<u64>().ok());
    let (Some("mpi-8" | "mpi-64" | "mpi-threads"), Some(count)) = (args.get(1).map(String::as_str), count)
    else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let folder = std::env::temp_dir().join(format!("tautline-icount-mpi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let folder = Folder(folder);
    with_ranks(&folder.0, |ranks| {
        let start = Instant::now();
        match &*args[1] {
            "mpi-8" => (0..count).for_each(|i| pass(ranks, i, 8)),
            "mpi-64" => (0..count).for_each(|i| pass(ranks, i, 64)),
            _ => pass_by_turns(ranks, count),
        }
        if args.get(3).is_some() {
            println!("{:.1} ns each, sent and received", start.elapsed().as_nanos() as f64 / count as f64);
        }
    });
    ExitCode::SUCCESS
}
