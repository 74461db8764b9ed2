//! Output of the ranks, line by line, each with its rank in front.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Child;
use std::thread::JoinHandle;

/// The threads that forward output; none unless the ranks' output was redirected to us.
#[derive(Default)]
pub struct Output(Vec<JoinHandle<io::Result<()>>>);

impl Output {
    /// Forwards the output of this rank, if it is redirected to us.
    pub fn follow(&mut self, rank: usize, child: &mut Child) {
        if let Some(stdout) = child.stdout.take() {
            self.0.push(std::thread::spawn(move || forward(rank, stdout, || std::io::stdout().lock())));
        }
        if let Some(stderr) = child.stderr.take() {
            self.0.push(std::thread::spawn(move || forward(rank, stderr, || std::io::stderr().lock())));
        }
    }

    /// Waits until everything is forwarded; only when no process is left that could write. Returns an error
    /// if some of it was lost, unless the reader closed it.
    pub fn finish(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.0 {
            let passed = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread that forwards it ended early")));
            result = result.and(passed);
        }
        result.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
    }
}

/// The longest line that is kept together.
const LINE_MAX: u64 = 64 << 10;

fn forward<W: Write>(rank: usize, from: impl Read, to: impl Fn() -> W) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let mut result = Ok(());
    loop {
        line.clear();
        line.extend_from_slice(format!("[{rank}] ").as_bytes());
        match from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(n) if n > 0 => {}
            _ => return result,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut out = to();
        let written = out.write_all(&line).and_then(|()| out.flush());
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            // Nobody reads it: the rank is told, as if it had written to our output itself.
            return result.and(written);
        }
        // The ranks must not stall for another error.
        result = result.and(written);
    }
}
