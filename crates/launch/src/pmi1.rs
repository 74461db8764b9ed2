//! PMI-1, the protocol of hydra's `mpiexec`: lines of `key=value` words on an inherited socket, one request
//! and one answer at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;

use tautline_node::Rank;

use crate::key_value::{Admitted, KeyValueSpace, unexpected};

/// Longer than any answer of a launcher.
const LINE_MAX: u64 = 64 << 10;

/// A connection with the launcher.
#[derive(Debug)]
pub(crate) struct Pmi1 {
    connection: BufReader<File>,
    /// The name of the job's space.
    space: String,
}

/// Introduces this process to the launcher at the other end of `fd`.
pub(crate) fn init(fd: OwnedFd, rank: Rank, size: u32) -> io::Result<Admitted> {
    let mut pmi = Pmi1 { connection: BufReader::new(File::from(fd)), space: String::new() };
    pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    let answer = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
    pmi.space = word(&answer, "kvsname").ok_or_else(|| unexpected("get_my_kvsname", &answer))?.to_owned();
    Ok(Admitted { rank, size, space: Box::new(pmi) })
}

impl Pmi1 {
    /// Sends a request and returns the answer, which must be of this kind and not report a failure.
    fn ask(&mut self, request: &str, kind: &str) -> io::Result<String> {
        write_line(self.connection.get_mut(), request)?;
        let answer = read_line(&mut self.connection)?;
        let succeeded = word(&answer, "rc").is_none_or(|rc| rc == "0");
        if word(&answer, "cmd") != Some(kind) || !succeeded {
            return Err(unexpected(request, &answer));
        }
        Ok(answer)
    }
}

impl KeyValueSpace for Pmi1 {
    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        let request = format!("cmd=put kvsname={} key={key} value={value}", self.space);
        self.ask(&request, "put_result").map(drop)
    }

    fn fence(&mut self) -> io::Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    fn get(&mut self, _: Rank, key: &str) -> io::Result<String> {
        let request = format!("cmd=get kvsname={} key={key}", self.space);
        let answer = self.ask(&request, "get_result")?;
        word(&answer, "value").map(str::to_owned).ok_or_else(|| unexpected(&request, &answer))
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    fn abort(&mut self, code: i32) -> io::Result<()> {
        // There is no answer.
        write_line(self.connection.get_mut(), &format!("cmd=abort exitcode={code}"))
    }

    fn program_index(&mut self) -> Option<u32> {
        let answer = self.ask("cmd=get_appnum", "appnum").ok()?;
        word(&answer, "appnum")?.parse().ok()
    }

    fn universe_size(&mut self) -> Option<u32> {
        let answer = self.ask("cmd=get_universe_size", "universe_size").ok()?;
        word(&answer, "size")?.parse().ok()
    }
}

/// The value of a word of a line.
pub(crate) fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|word| word.split_once('=').filter(|(name, _)| *name == key).map(|w| w.1))
}

pub(crate) fn write_line(connection: &mut File, line: &str) -> io::Result<()> {
    connection.write_all(format!("{line}\n").as_bytes())
}

pub(crate) fn read_line(connection: &mut BufReader<File>) -> io::Result<String> {
    let mut line = String::new();
    connection.take(LINE_MAX).read_line(&mut line)?;
    if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A launcher that has given all its answers beforehand.
    fn init_with(answers: &str) -> io::Result<Admitted> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(answers.as_bytes()).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        init(ours.into(), 0, 1)
    }

    /// J-12: answers that make no sense, failures and a launcher that goes away are errors, not panics.
    #[test]
    fn answers_are_checked() {
        let init = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
        assert!(init_with(&format!("{init}cmd=my_kvsname kvsname=kvs_1\n")).is_ok());
        for (answers, said) in [
            ("cmd=response_to_init rc=-1\n", "answered with \"cmd=response_to_init rc=-1\""),
            ("nonsense\n", "nonsense"),
            (&format!("{init}cmd=my_kvsname\n"), "my_kvsname"),
            (&format!("{init}cmd=my_kvsname kvsn"), "end of file"),
            ("", "end of file"),
        ] {
            let error = init_with(answers).err().unwrap().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
