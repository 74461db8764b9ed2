//! What is done here for others: requests are obeyed as soon as their slot is due.

use tautline_mem::ApertureMemory;
use tautline_wire::memory::{ASK, Atomic, Memory as Message, Refusal, Target};
use tautline_wire::record::{Record, Records};

use super::answers::Answer;
use super::news::{MemoryEvent, OutOfBand};
use super::tables::Rights;
use super::wires::Access;
use crate::Rank;
use crate::lane::Lane;

/// Part of a put, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    target: Target,
    rest: u64,
    len: u64,
    flags: u8,
}

impl Lane {
    /// Obeys the records of a memory slot. False if the peer sent what no correct peer sends.
    #[inline]
    pub(crate) fn handle_memory(&mut self, rank: Rank, bytes: &[u8]) -> bool {
        self.memory.served += 1;
        for record in Records::new(bytes, 0) {
            let Ok(record) = record else { return false };
            let Record::Memory { flags, .. } = record else { return false };
            let good = match Message::of(&record) {
                Ok(Message::Put(target, data)) => self.serve_put(rank, target, data, flags),
                Ok(message) => self.serve_other(rank, message, flags),
                Err(_) => false,
            };
            if !good {
                return false;
            }
        }
        true
    }

    fn serve_other(&mut self, rank: Rank, message: Message<'_>, flags: u8) -> bool {
        match message {
            Message::Put(target, data) => self.serve_put(rank, target, data, flags),
            Message::Part(target, rest, data) => self.serve_part(rank, target, rest, data, flags),
            Message::Open { handle, cookie, epoch, secret } => {
                self.admit(rank, handle, (cookie, epoch, secret))
            }
            Message::Get(target, len) => self.serve_get(rank, target, len, flags),
            Message::Atomic(target, atomic) => self.serve_atomic(rank, target, atomic, flags),
            Message::Notice { target, len, value } => self.serve_notice(rank, target, (len, value), flags),
            Message::Flush { id } => self.count(rank, id) && self.done(rank, id, flags),
            Message::OutOfBand(bytes) => {
                if let Some(out_of_band) = OutOfBand::new(bytes) {
                    self.memory.news.unasked(MemoryEvent::OutOfBand { peer: rank, out_of_band });
                }
                true
            }
            Message::Done { id } => self.heard_done(rank, id),
            Message::Failed { id, why } => self.heard_failed(rank, id, why),
            Message::Value { id, value } => self.heard_value(rank, id, value),
            Message::Data { id, at, data } => self.heard_data(rank, id, at, data),
            Message::Lent(target, rest, piece) => self.serve_lent(rank, (target, rest), piece, flags),
        }
    }

    /// Requests are numbered without gaps.
    #[inline]
    fn count(&mut self, rank: Rank, id: u32) -> bool {
        self.peers.member_mut(rank).memory.count(id)
    }

    /// A request is done; its peer may want to know.
    #[inline]
    pub(crate) fn done(&mut self, rank: Rank, id: u32, flags: u8) -> bool {
        if flags & ASK != 0 { self.owe(rank, Answer::Done { id }) } else { true }
    }

    /// A request is refused; nothing was touched.
    #[cold]
    fn refuse(&mut self, rank: Rank, id: u32, why: Refusal) -> bool {
        self.memory.counters.refused += 1;
        self.memory.counters.forged += u64::from(matches!(why, Refusal::Forged | Refusal::Stale));
        self.owe(rank, Answer::Failed { id, why })
    }

    #[inline]
    fn serve_put(&mut self, rank: Rank, target: Target, data: &[u8], flags: u8) -> bool {
        self.serve_whole(rank, (target, flags), data.len() as u64, |memory, at| {
            // A cookie never reaches beyond its aperture.
            let _ = memory.write(at, data);
        })
    }

    /// A whole put of `len` bytes, which `write` writes to their place if that is allowed.
    #[inline]
    pub(crate) fn serve_whole(
        &mut self,
        rank: Rank,
        (target, flags): (Target, u8),
        len: u64,
        write: impl FnOnce(&ApertureMemory, usize),
    ) -> bool {
        if !self.count(rank, target.id) {
            return false;
        }
        match self.access(rank, (target.handle, target.at), len, Rights::WRITE) {
            Ok((granted, at)) => {
                let aperture = granted.aperture;
                write(&granted.memory, at as usize);
                self.memory.counters.puts += 1;
                self.memory.counters.bytes_put += len;
                self.trip((rank, aperture), Access::WRITE, (at, at + len), at + len);
            }
            Err(why) => {
                if !self.refuse(rank, target.id, why) {
                    return false;
                }
            }
        }
        self.done(rank, target.id, flags)
    }

    fn serve_part(&mut self, rank: Rank, target: Target, rest: u64, data: &[u8], flags: u8) -> bool {
        let part = Placed { target, rest, len: data.len() as u64, flags };
        self.take_part(rank, part, |memory, at| {
            // A cookie never reaches beyond its aperture.
            let _ = memory.write(at, data);
        })
    }

    /// As [`Lane::serve_part`], of `len` bytes that `write` writes to their place if that is allowed.
    pub(crate) fn take_lent(
        &mut self,
        rank: Rank,
        (target, rest, flags): (Target, u64, u8),
        len: u64,
        write: impl FnOnce(&ApertureMemory, usize),
    ) -> bool {
        self.take_part(rank, Placed { target, rest, len, flags }, write)
    }

    /// The turn of a part has come whose bytes are in place already.
    pub(crate) fn settle_placed(&mut self, rank: Rank, part: Placed) -> bool {
        self.memory.served += 1;
        self.take_part(rank, part, |_, _| {})
    }

    fn take_part(&mut self, rank: Rank, part: Placed, write: impl FnOnce(&ApertureMemory, usize)) -> bool {
        let Placed { target, rest, len, flags } = part;
        let memory = &self.peers.member(rank).memory;
        let goes_on = memory.current == Some(target.id) || memory.refused == Some(target.id);
        if !goes_on && !self.count(rank, target.id) {
            return false;
        }
        if self.peers.member_mut(rank).memory.refused != Some(target.id) {
            match self.access(rank, (target.handle, target.at), len + rest, Rights::WRITE) {
                Ok((granted, at)) => {
                    let aperture = granted.aperture;
                    write(&granted.memory, at as usize);
                    self.memory.counters.bytes_put += len;
                    self.memory.counters.puts += u64::from(rest == 0);
                    self.peers.member_mut(rank).memory.current = Some(target.id);
                    self.trip((rank, aperture), Access::WRITE, (at, at + len), at + len + rest);
                }
                Err(why) => {
                    let memory = &mut self.peers.member_mut(rank).memory;
                    (memory.current, memory.refused) = (None, Some(target.id));
                    if !self.refuse(rank, target.id, why) {
                        return false;
                    }
                }
            }
        }
        if rest > 0 {
            return true;
        }
        let memory = &mut self.peers.member_mut(rank).memory;
        (memory.current, memory.refused) = (None, None);
        self.done(rank, target.id, flags)
    }

    /// Places a part that arrived ahead of a gap, if the put that it belongs to is the one whose turn it is: then nothing that comes
    /// before it can be overtaken. What follows from it waits for its turn.
    #[cold]
    pub(crate) fn place_ahead(&mut self, rank: Rank, bytes: &[u8]) -> Option<Placed> {
        let current = self.peers.member_mut(rank).memory.current?;
        let mut records = Records::new(bytes, 0);
        let record = records.next()?.ok()?;
        let Record::Memory { flags, .. } = record else { return None };
        let Ok(Message::Part(target, rest, data)) = Message::of(&record) else { return None };
        if target.id != current || records.next().is_some() {
            return None;
        }
        let len = data.len() as u64;
        let (granted, at) = self.access(rank, (target.handle, target.at), len + rest, Rights::WRITE).ok()?;
        granted.memory.write(at as usize, data).ok()?;
        self.memory.counters.placed_ahead += 1;
        Some(Placed { target, rest, len, flags })
    }

    fn serve_get(&mut self, rank: Rank, target: Target, len: u64, flags: u8) -> bool {
        if !self.count(rank, target.id) {
            return false;
        }
        let good = match self.access(rank, (target.handle, target.at), len, Rights::READ) {
            Ok((granted, at)) => {
                let (memory, aperture) = (granted.memory.clone(), granted.aperture);
                self.memory.counters.gets += 1;
                let cookie = self.cookie_of(rank, target.handle);
                self.owe(rank, Answer::Data { id: target.id, cookie, memory, aperture, at, len, sent: 0 })
            }
            Err(why) => self.refuse(rank, target.id, why),
        };
        good && self.done(rank, target.id, flags)
    }

    fn serve_atomic(&mut self, rank: Rank, target: Target, atomic: Atomic, flags: u8) -> bool {
        if !self.count(rank, target.id) {
            return false;
        }
        let result =
            self.access(rank, (target.handle, target.at), 8, Rights::ATOMIC).and_then(|(granted, at)| {
                let place = at as usize;
                let old = match atomic {
                    Atomic::Swap(value) => granted.memory.swap(place, value),
                    Atomic::Add(value) => granted.memory.fetch_add(place, value),
                    Atomic::CompareSwap(expected, new) => {
                        granted.memory.compare_exchange(place, expected, new)
                    }
                };
                Ok((granted.aperture, at, old.map_err(|_| Refusal::Misaligned)?))
            });
        let good = match result {
            Ok((aperture, at, value)) => {
                self.memory.counters.atomics += 1;
                self.trip((rank, aperture), Access::WRITE.or(Access::READ), (at, at + 8), at + 8);
                self.owe(rank, Answer::Value { id: target.id, value })
            }
            Err(why) => self.refuse(rank, target.id, why),
        };
        good && self.done(rank, target.id, flags)
    }

    fn serve_notice(&mut self, rank: Rank, target: Target, (len, value): (u64, u64), flags: u8) -> bool {
        if !self.count(rank, target.id) {
            return false;
        }
        let good = match self.access(rank, (target.handle, target.at), len, Rights::WRITE) {
            Ok((granted, at)) => {
                let aperture = granted.aperture;
                self.memory.news.unasked(MemoryEvent::Notice { peer: rank, aperture, at, len, value });
                true
            }
            Err(why) => self.refuse(rank, target.id, why),
        };
        good && self.done(rank, target.id, flags)
    }
}
