//! Job descriptions: any text is read or refused, and what is read reads the same after it was written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline::job_file::{describe, parse};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A descriptor's number would make the job take one of this process's own.
    if text.contains("socket") {
        return;
    }
    let Ok(job) = parse(text) else { return };
    assert!(job.rank < job.size());
    let again = parse(&describe(job.rank, &job.key, &job.members, job.security, job.device, None))
        .expect("our own words");
    assert_eq!((again.rank, &again.members, again.security), (job.rank, &job.members, job.security));
    assert_eq!(again.key.bytes(), job.key.bytes());
});
