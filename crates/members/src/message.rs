//! What members send to each other, and its form on the wire (B-3).

use crate::{Fact, MAX_MEMBERS, Rank, Status};

/// Facts from one member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// A number that the sender's process drew when it started: another process of the same rank has another.
    pub process: u64,
    /// The incarnation that the sender takes itself for.
    pub incarnation: u32,
    /// These are all the facts that the sender has, and it asks for those that it lacks.
    pub sync: bool,
    /// The facts.
    pub facts: Vec<(Rank, Fact)>,
}

const VERSION: u8 = 1;
const HEADER: usize = 16;
const ENTRY: usize = 12;
/// Nobody has lived so often: a fact that claims it would leave no number for the next life.
const MAX_INCARNATION: u32 = u32::MAX / 2;

impl Message {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + ENTRY * self.facts.len());
        bytes.extend([VERSION, u8::from(self.sync), 0, 0]);
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.process.to_le_bytes());
        for (rank, fact) in &self.facts {
            bytes.extend(rank.to_le_bytes());
            bytes.extend(fact.incarnation.to_le_bytes());
            bytes.extend((fact.status as u32).to_le_bytes());
        }
        bytes
    }

    /// Reads what `encode` wrote; nothing if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (header, entries) = bytes.split_at_checked(HEADER)?;
        if header[0] != VERSION || header[1] > 1 || header[2..4] != [0; 2] || entries.len() % ENTRY != 0 {
            return None;
        }
        let incarnation = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let process = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let facts = entries.chunks_exact(ENTRY).map(decode_fact).collect::<Option<Vec<_>>>()?;
        (incarnation <= MAX_INCARNATION).then_some(Message {
            process,
            incarnation,
            sync: header[1] == 1,
            facts,
        })
    }
}

fn decode_fact(entry: &[u8]) -> Option<(Rank, Fact)> {
    let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
    let (rank, incarnation) = (word(0), word(4));
    let status = match word(8) {
        0 => Status::Alive,
        1 => Status::Died,
        2 => Status::Left,
        _ => return None,
    };
    let sane = rank < MAX_MEMBERS && incarnation <= MAX_INCARNATION;
    sane.then_some((rank, Fact { incarnation, status }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B-3: messages read back as written, and nothing else is taken for one.
    #[test]
    fn messages_round_trip() {
        let fact = |incarnation, status| Fact { incarnation, status };
        let facts = vec![(3, fact(0, Status::Died)), (9, fact(7, Status::Left)), (1, fact(2, Status::Alive))];
        let message = Message { process: 0x0123_4567_89ab_cdef, incarnation: 5, sync: true, facts };
        let bytes = message.encode();
        assert_eq!(bytes.len(), HEADER + 3 * ENTRY);
        assert_eq!(Message::decode(&bytes), Some(message));
        for length in
            (0..bytes.len()).filter(|length| *length < HEADER || !(length - HEADER).is_multiple_of(ENTRY))
        {
            assert_eq!(Message::decode(&bytes[..length]), None, "{length} bytes");
        }
        for (at, value) in
            [(0, 2), (1, 2), (3, 1), (7, 0x80), (HEADER + 2, 1), (HEADER + 7, 0x80), (HEADER + 8, 3)]
        {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert_eq!(Message::decode(&wrong), None, "byte {at}");
        }
    }
}
