//! The output of ranks on other hosts: to standard output and error, line by line with the rank in front, or
//! to a file per rank.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;

use super::control::Stream;
use crate::run::{RunArgs, output_file};

/// The longest line that is kept together.
const LINE_MAX: usize = 64 << 10;

/// Where output goes.
pub struct Output {
    mode: Mode,
    /// Where that of ranks goes that joined through a command of their own.
    joined: HashMap<u32, Rc<[File; 2]>>,
    /// The first error, unless our own reader is gone.
    result: io::Result<()>,
    /// Our own reader is gone.
    unread: bool,
}

enum Mode {
    Plain,
    /// Lines that are not complete.
    Tagged(HashMap<(u32, Stream), Vec<u8>>),
    /// By rank, in a directory.
    Files(PathBuf, Vec<File>),
}

impl Output {
    /// For the output of `n` ranks.
    pub fn new(args: &RunArgs, n: usize) -> Result<Output> {
        let mode = match &args.output {
            Some(folder) => {
                let files = (0..n).map(|rank| output_file(folder, rank, false)).collect::<Result<_>>()?;
                Mode::Files(folder.clone(), files)
            }
            None if args.tag => Mode::Tagged(HashMap::new()),
            None => Mode::Plain,
        };
        Ok(Output { mode, joined: HashMap::new(), result: Ok(()), unread: false })
    }

    /// The next rank has joined: its output goes to these streams, or to where that of the others does.
    pub fn add(&mut self, rank: u32, streams: Option<Rc<[File; 2]>>) -> Result<()> {
        if let Mode::Files(folder, files) = &mut self.mode {
            files.push(output_file(folder, rank as usize, false)?);
        }
        self.joined.extend(streams.map(|streams| (rank, streams)));
        Ok(())
    }

    /// All output of a rank is written: whoever reads it may know.
    pub fn close(&mut self, rank: u32) {
        self.joined.remove(&rank);
    }

    /// Output of a rank has arrived.
    pub fn write(&mut self, rank: u32, stream: Stream, bytes: &[u8]) {
        if let Some(streams) = self.joined.get(&rank) {
            // Whose reader is gone wants no output.
            let _ = (&streams[usize::from(stream == Stream::Err)]).write_all(bytes);
            return;
        }
        let written = match &mut self.mode {
            Mode::Plain => print(stream, bytes),
            Mode::Files(_, files) => {
                files.get_mut(rank as usize).map_or(Ok(()), |file| file.write_all(bytes))
            }
            Mode::Tagged(open) => {
                let line = open.entry((rank, stream)).or_default();
                line.extend_from_slice(bytes);
                print(stream, &take_lines(rank, line))
            }
        };
        self.note(written);
    }

    fn note(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.unread = true;
        } else if self.result.is_ok() {
            self.result = Err(error);
        }
    }

    /// Whether nobody reads the output any more. It is told once.
    pub fn is_unread(&mut self) -> bool {
        std::mem::take(&mut self.unread)
    }

    /// Writes what is left of lines without an end. Returns an error if some output was lost.
    pub fn finish(mut self) -> io::Result<()> {
        if let Mode::Tagged(open) = &mut self.mode {
            let mut left: Vec<_> = open.drain().filter(|(_, line)| !line.is_empty()).collect();
            left.sort_by_key(|((rank, _), _)| *rank);
            for ((rank, stream), mut line) in left {
                line.push(b'\n');
                let written = print(stream, &take_lines(rank, &mut line));
                self.note(written);
            }
        }
        self.result
    }
}

/// Takes the complete lines out of `open`, each with its rank in front.
fn take_lines(rank: u32, open: &mut Vec<u8>) -> Vec<u8> {
    let mut lines = Vec::new();
    let mut start = 0;
    while start < open.len() {
        let rest = &open[start..];
        let (line, len) = match rest.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
            Some(end) => (&rest[..end], end + 1),
            None if rest.len() >= LINE_MAX => (&rest[..LINE_MAX], LINE_MAX),
            None => break,
        };
        lines.extend_from_slice(format!("[{rank}] ").as_bytes());
        lines.extend_from_slice(line);
        lines.push(b'\n');
        start += len;
    }
    open.drain(..start);
    lines
}

fn print(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    fn all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
        to.write_all(bytes).and_then(|()| to.flush())
    }
    match stream {
        Stream::Out => all(io::stdout().lock(), bytes),
        Stream::Err => all(io::stderr().lock(), bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_tagged_when_complete() {
        let mut open = b"one\ntwo\nthr".to_vec();
        assert_eq!(take_lines(7, &mut open), b"[7] one\n[7] two\n");
        assert_eq!(open, b"thr");
        assert!(take_lines(7, &mut open).is_empty());
        let mut long = vec![b'x'; 2 * LINE_MAX + 1];
        let lines = take_lines(0, &mut long);
        assert_eq!((lines.len(), long.len()), (2 * (LINE_MAX + 5), 1));
    }
}
