//! Operations on another node's memory, as they are handed to the node.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use tautline_node::ApertureMemory;
use tautline_node::memory::{Local, MAX_OUT_OF_BAND, Operation, OutOfBand};

use super::aperture::{Aperture, Span};
use crate::error::{Error, Result};

/// For gets of more bytes than this, the system is asked first whether it has the memory.
const LARGE_GET: usize = 1 << 20;

/// An operation and its offset.
pub(super) type Placed = (u64, Operation);

/// A put of a copy of bytes.
pub(super) fn put_copied(bytes: Vec<u8>) -> Result<Operation> {
    let len = bytes.len() as u64;
    let memory = ApertureMemory::adopt(bytes).map_err(|_| Error::OutOfRange)?;
    Ok(Operation::Put(Local { memory: Arc::new(memory), aperture: None, at: 0, len }))
}

/// A range of an aperture, as source or destination.
pub(super) fn local(aperture: &Aperture, range: &impl RangeBounds<u64>) -> Result<Local> {
    let Span { start, len } = Span::new(range, aperture.len())?;
    Ok(Local { memory: aperture.memory().clone(), aperture: Some(aperture.id()), at: start, len })
}

/// Gets of pieces to consecutive places of new memory. Without pieces, an operation that only completes.
pub(super) fn gather(pieces: &[(u64, usize)]) -> Result<(Arc<ApertureMemory>, Vec<Placed>)> {
    let total = pieces.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len));
    let total = total.ok_or(Error::OutOfRange)?;
    if total > LARGE_GET {
        // `vec` aborts if there is too little memory. Eight bytes more, because apertures consist of whole
        // words.
        let room = total.checked_add(8).ok_or(Error::OutOfRange)?;
        Vec::<u8>::new().try_reserve_exact(room).map_err(Error::other)?;
    }
    let memory = Arc::new(ApertureMemory::adopt(vec![0; total]).map_err(|_| Error::OutOfRange)?);
    let mut place = 0;
    let mut operations = Vec::with_capacity(pieces.len().max(1));
    for (at, len) in pieces {
        let local = Local { memory: memory.clone(), aperture: None, at: place, len: *len as u64 };
        operations.push((*at, Operation::Get(local)));
        place += *len as u64;
    }
    if pieces.is_empty() {
        operations.push((0, Operation::Flush));
    }
    Ok((memory, operations))
}

/// Gets of bytes to ranges of an aperture. Without pieces, an operation that only completes.
pub(super) fn scatter(into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<Vec<Placed>> {
    let one = |(at, range): &(u64, Range<u64>)| Ok((*at, Operation::Get(local(into, range)?)));
    let mut operations = pieces.iter().map(one).collect::<Result<Vec<_>>>()?;
    if pieces.is_empty() {
        operations.push((0, Operation::Flush));
    }
    Ok(operations)
}

pub(super) fn out_of_band(bytes: &[u8]) -> Result<OutOfBand> {
    OutOfBand::new(bytes).ok_or_else(|| {
        let (len, limit) = (bytes.len(), MAX_OUT_OF_BAND);
        Error::other(format!("an out-of-band message has at most {limit} bytes; this one has {len}"))
    })
}
