//! The records of a slot: they tile it, can be read from the middle on, and read the same after they were written again; those of memory, too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_wire::record::{HandlerNames, LEND_MORE_LEN, Record, Records, write};
use tautline_wire::memory::Memory;

fn rewrite(record: Record<'_>, out: &mut [u8]) -> usize {
    let (head, data): (usize, &[u8]) = match record {
        Record::Short { handler, data } => (write::short(out, handler, data.len()), data),
        Record::First { handler, message, total, data } => {
            (write::first(out, handler, message, total, data.len()), data)
        }
        Record::More { message, offset, data } => (write::more(out, message, offset, data.len()), data),
        Record::Abort { message } => (write::abort(out, message), &[]),
        Record::Window { message, limit } => (write::window(out, message, limit), &[]),
        Record::Lend { handler, number, at, len } => (write::lend(out, handler, number, at, len), &[]),
        Record::LendMore { message, offset, number, at, len } => {
            (write::lend_more(out, message, offset, (number, at, len)), &[])
        }
        Record::Handlers { last, data } => (write::handlers(out, last, data.len()), data),
        Record::Memory { .. } => unreachable!("they are written by other means"),
    };
    out[head..head + data.len()].copy_from_slice(data);
    head + data.len()
}

/// Bytes that no field uses are not kept, so what is read is compared, not what is written.
fn memory(record: &Record<'_>, flags: u8, out: &mut [u8]) {
    let Ok(memory) = Memory::of(record) else { return };
    let data = match memory {
        Memory::Put(_, data) | Memory::Part(_, _, data) | Memory::OutOfBand(data) | Memory::Data { data, .. } => {
            data
        }
        _ => &[],
    };
    let head = memory.write(out, flags, data.len());
    out[head..head + data.len()].copy_from_slice(data);
    let again = Records::new(&out[..head + data.len()], 0).next().unwrap().unwrap();
    assert_eq!(Memory::of(&again), Ok(memory));
}

fuzz_target!(|data: &[u8]| {
    let mut records = Records::new(data, 0);
    let mut out = vec![0; data.len() + LEND_MORE_LEN];
    loop {
        let at = records.position();
        let Some(item) = records.next() else { break };
        assert_eq!(Records::new(data, at).next(), Some(item));
        let Ok(record) = item else {
            assert!(records.next().is_none());
            break;
        };
        if let Record::Memory { flags, .. } = record {
            memory(&record, flags, &mut out);
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
