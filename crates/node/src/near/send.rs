//! Messages to peers on this host: as lines, as frames, and lent, whole or part by part.

use tautline_device::Channel;
use tautline_device::shm::{LINE_FRAME, LINE_WORDS, Lack, Piece, SLIP_FRAME, Shm};
use tautline_wire::record::{self, LEND_LEN, LEND_MORE_LEN, LONG_LEN, Record, Records, SHORT_LEN, Where};

use crate::Rank;
use crate::interface::Interface;
use crate::peer::{Key, SHORT_ONLY, UNKNOWN};

/// Bytes of a long piece that are shown to the receiver at a time: it copies them out while the next ones are copied in.
const PART: usize = 16 << 10;
/// The same, when they are lent.
const LENT_PART: usize = 32 << 10;
/// A message of up to so many bytes that is given in one piece is lent as a whole.
const MAX_WHOLE: usize = 64 << 10;
/// A piece that is so long goes in longer parts.
const MANY_PARTS: usize = 512 << 10;

/// The words of a small frame.
#[inline]
pub(crate) fn line_of<const N: usize>(bytes: &[u8; N]) -> [u64; LINE_WORDS] {
    let mut words = [0; LINE_WORDS];
    for (word, part) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

/// A piece while the program fills it: if the program panics, it is taken back.
struct Filling<'a> {
    shm: &'a mut Shm,
    piece: Option<Piece>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.shm.cancel_loan(piece);
        }
    }
}

/// Lets the program fill a piece.
#[inline]
pub(super) fn filled(shm: &mut Shm, piece: Piece, fill: impl FnOnce(&mut [u8])) -> Piece {
    let mut filling = Filling { shm, piece: Some(piece) };
    fill(filling.piece.as_mut().expect("put there just now"));
    filling.piece.take().expect("nobody else takes it")
}

impl Interface {
    /// A whole small message through shared memory, as one line: all that happens to most of them. False, with nothing done, if it takes
    /// more than that.
    #[inline(never)]
    pub(crate) fn near_short(&mut self, rank: Rank, key: Key, data: &[u8]) -> bool {
        const HEAD: usize = SHORT_LEN;
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        let number = peer.numbers.get(key.0 as usize).copied().unwrap_or(UNKNOWN);
        let Some(near) = &mut peer.near else { return false };
        if number == UNKNOWN || peer.open.is_some() || self.batch_depth > 0 || self.closed {
            return false;
        }
        let mut head = [0; HEAD];
        record::write::short(&mut head, number & !SHORT_ONLY, data.len());
        let (head, len) = (u64::from_le_bytes(head), HEAD + data.len());
        if len <= LINE_FRAME {
            near.shm.push_words([head], data)
        } else if len <= SLIP_FRAME {
            near.shm.push_many([head], data)
        } else {
            self.near_frame(rank, head, data)
        }
    }

    /// A whole message that does not fit a few lines, but one frame.
    fn near_frame(&mut self, rank: Rank, head: u64, data: &[u8]) -> bool {
        let Some(near) = &mut self.peers[rank as usize].near else { return false };
        if LONG_LEN + data.len() > near.shm.max_frame().min(self.device.arena_ref().payload_len()) {
            return false;
        }
        near.shm.push_many([head], data)
    }

    /// Sends bytes of a message to a peer on this host, part by part; `fill` writes each where the peer reads it. Returns how many; nothing if the peer is not on this host, or
    /// nothing can be lent to it now.
    pub(crate) fn near_fill(
        &mut self,
        (rank, message): (Rank, u32),
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<usize> {
        self.peers[rank as usize].near.as_ref()?;
        if len <= MAX_WHOLE
            && let Some(handler) = self.unbegun(rank, message, len)
        {
            return self.near_whole((rank, handler), len, fill);
        }
        self.close_slot(rank);
        let peer = &mut self.peers[rank as usize];
        let near = peer.near.as_mut()?;
        let limit = peer.windows.get(&message).map_or(u64::MAX, |limit| limit.saturating_sub(offset));
        let len = (len as u64).min(limit) as usize;
        // Short parts for the sake of latency; long ones are worth it when there are many.
        let part = if len < MANY_PARTS { LENT_PART } else { 2 * LENT_PART };
        let mut done = 0;
        while done < len {
            if !near.shm.is_clear() {
                near.stalled = true;
                break;
            }
            let piece = match near.shm.loan_part(part.min(len - done)) {
                Ok(piece) => piece,
                Err(Lack::Now) => {
                    near.want();
                    break;
                }
                // What was written so far is on its way; the rest finds another one.
                Err(_) => return (done > 0).then_some(done),
            };
            let piece = filled(&mut near.shm, piece, |room| fill(done, room));
            let (number, at, size) = piece.place();
            let mut bytes = [0; LEND_MORE_LEN];
            record::write::lend_more(&mut bytes, message, offset + done as u64, (number, at, size as u32));
            near.shm.push_line(&line_of(&bytes), LEND_MORE_LEN);
            near.shm.lent(piece);
            done += size as usize;
        }
        Some(done)
    }

    /// The handler of a message of `len` bytes of which nothing has left, not even that it begins: it can still be sent in another way. (A handler for short
    /// messages cannot have one that does not fit a frame.)
    fn unbegun(&self, rank: Rank, message: u32, len: usize) -> Option<u16> {
        let peer = &self.peers[rank as usize];
        let open = peer.open.as_ref().filter(|open| open.tail == Some((message, 0)))?;
        if peer.windows.contains_key(&message) {
            return None;
        }
        match Records::new(&self.device.arena_ref().payload(open.slot)[..open.used], 0).next() {
            Some(Ok(Record::First { handler, total, data: [], .. })) if total == len as u64 => {
                (len > self.short_limit(rank)).then_some(handler)
            }
            _ => None,
        }
    }

    /// Lends a message of which nothing has left as a whole: parts would cost more than it takes to copy them one after the other. Returns its bytes if it has gone.
    fn near_whole(
        &mut self,
        (rank, handler): (Rank, u16),
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<usize> {
        let peer = &mut self.peers[rank as usize];
        let near = peer.near.as_mut()?;
        // Room was there when the slot was opened; nothing has been sent since.
        let piece = match near.shm.loan_part(len) {
            Ok(piece) => piece,
            Err(Lack::Now) => {
                near.want();
                return Some(0);
            }
            Err(_) => return None,
        };
        let piece = filled(&mut near.shm, piece, |room| fill(0, room));
        let (number, at, size) = piece.place();
        let mut bytes = [0; LEND_LEN];
        record::write::lend(&mut bytes, handler, number, Where::Pool(at), size);
        if !near.shm.push_line(&line_of(&bytes), LEND_LEN) {
            // Spoilt: the channel ends.
            near.shm.cancel_loan(piece);
            return None;
        }
        near.shm.lent(piece);
        if let Some(open) = peer.open.take() {
            self.device.arena().give(open.slot);
        }
        Some(len)
    }

    /// Sends bytes of a message to a peer on this host, from where they are to where the peer finds them, part by part. Returns how many; nothing if
    /// the peer is not on this host.
    pub(crate) fn near_piece(&mut self, to: (Rank, u32), offset: u64, bytes: &[u8]) -> Option<usize> {
        let copy = |at: usize, room: &mut [u8]| room.copy_from_slice(&bytes[at..at + room.len()]);
        self.near_fill(to, offset, bytes.len(), copy).or_else(|| self.near_copy(to, offset, bytes))
    }

    /// As [`Interface::near_piece`], through the ring, which has room when there is nothing to lend.
    fn near_copy(&mut self, (rank, message): (Rank, u32), offset: u64, bytes: &[u8]) -> Option<usize> {
        self.peers[rank as usize].near.as_ref()?;
        self.close_slot(rank);
        let peer = &mut self.peers[rank as usize];
        let near = peer.near.as_mut()?;
        let limit = peer.windows.get(&message).map_or(u64::MAX, |limit| limit.saturating_sub(offset));
        let bytes = &bytes[..(bytes.len() as u64).min(limit) as usize];
        let mut done = 0;
        for part in bytes.chunks(PART) {
            let mut head = [0; LONG_LEN];
            record::write::more(&mut head, message, offset + done as u64, part.len());
            if near.shm.push(&head, part).is_err() {
                near.stalled = true;
                break;
            }
            near.shm.flush();
            done += part.len();
        }
        Some(done)
    }
}
