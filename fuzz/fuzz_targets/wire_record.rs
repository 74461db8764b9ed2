//! The records of a slot: they leave no gap, can be read from any record on, and read back the same after
//! they are written. The same for memory, tag and multicast records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_wire::memory::MemoryRecord;
use tautline_wire::multicast::MulticastRecord;
use tautline_wire::record::{HandlerNames, LOAN_MORE_LEN, Record, RecordHead, Records, write};
use tautline_wire::tags::TagRecord;

fn rewrite(record: Record<'_>, out: &mut [u8]) -> usize {
    let (head, data): (usize, &[u8]) = match record {
        Record::Short { handler, data } => (write::short(out, handler, data.len()), data),
        Record::First { handler, message, total, data } => {
            (write::first(out, handler, message, total, data.len()), data)
        }
        Record::More { message, offset, data } => (write::more(out, message, offset, data.len()), data),
        Record::Abort { message } => (write::abort(out, message), &[]),
        Record::Window { message, limit } => (write::window(out, message, limit), &[]),
        Record::Loan { handler, number, at, len } => (write::loan(out, handler, number, at, len), &[]),
        Record::LoanMore { message, offset, number, at, len } => {
            (write::loan_more(out, message, offset, (number, at, len)), &[])
        }
        Record::Handlers { last, data } => (write::handlers(out, last, data.len()), data),
        Record::Memory { .. } | Record::Tag { .. } | Record::Multicast { .. } => {
            unreachable!("these have functions of their own")
        }
    };
    out[head..head + data.len()].copy_from_slice(data);
    head + data.len()
}

/// Compares what is read, not the bytes: bytes that belong to no field are not written back.
fn rewrite_memory(record: &Record<'_>, flags: u8, out: &mut [u8]) {
    let Ok(memory) = MemoryRecord::parse(record) else { return };
    let data = match memory {
        MemoryRecord::Put(_, data)
        | MemoryRecord::Part(_, _, data)
        | MemoryRecord::OutOfBand(data)
        | MemoryRecord::Data { data, .. } => data,
        _ => &[],
    };
    let head = memory.write(out, flags, data.len());
    out[head..head + data.len()].copy_from_slice(data);
    let again = Records::new(&out[..head + data.len()], 0).next().unwrap().unwrap();
    assert_eq!(MemoryRecord::parse(&again), Ok(memory));
}

/// The same for multicast records.
fn rewrite_multicast(record: &Record<'_>, out: &mut [u8]) {
    let Ok(multicast) = MulticastRecord::parse(record) else { return };
    let data = if let MulticastRecord::Packet { data, .. } = multicast { data } else { &[] };
    let head = multicast.write(out, 0, data.len());
    out[head..head + data.len()].copy_from_slice(data);
    let again = Records::new(&out[..head + data.len()], 0).next().unwrap().unwrap();
    assert_eq!(MulticastRecord::parse(&again), Ok(multicast));
}

/// The same for tag records.
fn rewrite_tag(record: &Record<'_>, out: &mut [u8]) {
    let Ok(tag) = TagRecord::parse(record) else { return };
    let data = match tag {
        TagRecord::Eager { data, .. } | TagRecord::Data { data, .. } => data,
        _ => &[],
    };
    let head = tag.write(out, 0, data.len());
    out[head..head + data.len()].copy_from_slice(data);
    let again = Records::new(&out[..head + data.len()], 0).next().unwrap().unwrap();
    assert_eq!(TagRecord::parse(&again), Ok(tag));
}

fuzz_target!(|data: &[u8]| {
    let mut records = Records::new(data, 0);
    let mut out = vec![0; data.len() + LOAN_MORE_LEN];
    loop {
        let at = records.position();
        let Some(item) = records.next() else { break };
        assert_eq!(Records::new(data, at).next(), Some(item));
        let Ok(record) = item else {
            assert!(records.next().is_none());
            break;
        };
        if let Record::Memory { flags, .. } = record {
            rewrite_memory(&record, flags, &mut out);
            continue;
        }
        if let Record::Tag { .. } = record {
            rewrite_tag(&record, &mut out);
            continue;
        }
        if let Record::Multicast { .. } = record {
            rewrite_multicast(&record, &mut out);
            continue;
        }
        let len = rewrite(record, &mut out);
        assert_eq!(len, records.position() - at);
        assert_eq!(Records::new(&out[..len], 0).next(), Some(Ok(record)));
        if let Record::Handlers { data, .. } = record {
            for name in HandlerNames::new(data) {
                let _ = name;
            }
        }
    }
    assert!(Records::new(data, data.len() + 1).next().is_none());
});
