//! PMI-2, the protocol of `srun --mpi=pmi2`: after a line as in PMI-1, frames of six digits with the length
//! and `key=value;` words.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;

use tautline_node::Rank;

use crate::key_value::{Admitted, KeyValueSpace, unexpected};
use crate::pmi1;

/// Longer than any answer of a launcher.
const FRAME_MAX: usize = 64 << 10;

/// A connection with the launcher.
#[derive(Debug)]
pub(crate) struct Pmi2 {
    connection: BufReader<File>,
    job: String,
    /// Which of the programs of the job this process runs.
    program: Option<u32>,
}

/// Introduces this process, of the launcher's job `job`, to the launcher at the other end of `fd`.
pub(crate) fn init(fd: OwnedFd, rank: Rank, size: u32, job: &str) -> io::Result<Admitted> {
    let mut pmi = Pmi2 { connection: BufReader::new(File::from(fd)), job: job.to_owned(), program: None };
    let greeting = "cmd=init pmi_version=2 pmi_subversion=0";
    pmi1::write_line(pmi.connection.get_mut(), greeting)?;
    let answer = pmi1::read_line(&mut pmi.connection)?;
    if pmi1::word(&answer, "rc") != Some("0") || pmi1::word(&answer, "pmi_version") != Some("2") {
        return Err(unexpected(greeting, &answer));
    }
    let request = format!("cmd=fullinit;pmijobid={job};pmirank={rank};threaded=FALSE;");
    let answer = pmi.ask(&request, "fullinit-response")?;
    pmi.program = word(&answer, "appnum").and_then(|number| number.parse().ok());
    Ok(Admitted { rank, size, space: Box::new(pmi) })
}

impl Pmi2 {
    /// Sends a request and returns the answer, which must be of this kind and not report a failure.
    fn ask(&mut self, request: &str, kind: &str) -> io::Result<String> {
        let frame = format!("{:6}{request}", request.len());
        self.connection.get_mut().write_all(frame.as_bytes())?;
        let answer = self.read_frame()?;
        let succeeded = word(&answer, "rc").is_none_or(|rc| rc == "0");
        if word(&answer, "cmd") != Some(kind) || !succeeded {
            return Err(unexpected(request, &answer));
        }
        Ok(answer)
    }

    fn read_frame(&mut self) -> io::Result<String> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a frame of PMI-2");
        let mut digits = [0; 6];
        self.connection.read_exact(&mut digits)?;
        let len = std::str::from_utf8(&digits).ok().and_then(|text| text.trim().parse().ok());
        let len = len.filter(|len| *len <= FRAME_MAX).ok_or_else(invalid)?;
        let mut frame = vec![0; len];
        self.connection.read_exact(&mut frame)?;
        String::from_utf8(frame).map_err(|_| invalid())
    }
}

impl KeyValueSpace for Pmi2 {
    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.ask(&format!("cmd=kvs-put;key={key};value={value};"), "kvs-put-response").map(drop)
    }

    fn fence(&mut self) -> io::Result<()> {
        self.ask("cmd=kvs-fence;", "kvs-fence-response").map(drop)
    }

    fn get(&mut self, from: Rank, key: &str) -> io::Result<String> {
        let request = format!("cmd=kvs-get;jobid={};srcid={from};key={key};", self.job);
        let answer = self.ask(&request, "kvs-get-response")?;
        let found = word(&answer, "found").is_none_or(|found| found == "TRUE");
        let value = word(&answer, "value").filter(|_| found).map(str::to_owned);
        value.ok_or_else(|| unexpected(&request, &answer))
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.ask("cmd=finalize;", "finalize-response").map(drop)
    }

    fn abort(&mut self, code: i32) -> io::Result<()> {
        // There is no answer, and no word for the code: it is that of this process's end.
        let request = format!("cmd=abort;isworld=TRUE;msg=aborted with the code {code};");
        self.connection.get_mut().write_all(format!("{:6}{request}", request.len()).as_bytes())
    }

    fn program_index(&mut self) -> Option<u32> {
        self.program
    }

    fn universe_size(&mut self) -> Option<u32> {
        let answer = self.ask("cmd=info-getjobattr;key=universeSize;", "info-getjobattr-response").ok()?;
        word(&answer, "value").filter(|_| word(&answer, "found") == Some("TRUE"))?.parse().ok()
    }
}

/// The value of a word of a frame. Our own values have no semicolons, which would be doubled.
fn word<'a>(frame: &'a str, key: &str) -> Option<&'a str> {
    frame.split(';').find_map(|word| word.split_once('=').filter(|(name, _)| *name == key).map(|w| w.1))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// J-12: lengths and answers that make no sense are errors, not panics or large buffers.
    #[test]
    fn answers_are_checked() {
        let greeting = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n";
        for (answers, said) in [
            (format!("{greeting}    35cmd=fullinit-response;rc=0;rank=0;x;"), None),
            (format!("{greeting}    28cmd=fullinit-response;rc=14;"), Some("rc=14")),
            (format!("{greeting}999999cmd"), Some("not a frame")),
            (format!("{greeting}    -1cmd"), Some("not a frame")),
            (format!("{greeting}    99cmd"), Some("fill whole buffer")),
            ("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(), Some("pmi_version=1")),
        ] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&theirs).write_all(answers.as_bytes()).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let error = init(ours.into(), 0, 1, "1.0").err().map(|error| error.to_string());
            assert_eq!(error.is_some(), said.is_some(), "{answers} {error:?}");
            assert!(said.is_none_or(|said| error.as_ref().unwrap().contains(said)), "{error:?}");
        }
    }
}
