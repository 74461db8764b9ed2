//! The slots that one side pushed on one channel, and their state.

use super::Rng;

pub struct Slot {
    pub bytes: Vec<u8>,
    /// The receiver's link accepted it, in order or ahead of a gap.
    pub accepted: bool,
    pub freed: bool,
}

/// All slots of one channel and direction. The token of a slot is its index here.
pub struct Stream {
    pub channel: u32,
    pub slots: Vec<Slot>,
    /// How many were delivered to the receiving program, in order.
    pub delivered: usize,
}

impl Stream {
    pub fn new(channel: u32) -> Stream {
        Stream { channel, slots: Vec::new(), delivered: 0 }
    }

    pub fn add(&mut self, len: usize) -> u32 {
        let number = self.slots.len() as u32;
        self.slots.push(Slot { bytes: content(self.channel, number, len), accepted: false, freed: false });
        number
    }

    /// Records that the receiver's link accepted slot `number`.
    pub fn accept(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        assert!(!slot.accepted, "slot {number} was accepted twice");
        slot.accepted = true;
    }

    /// Records that the receiving program got the next slot in order.
    pub fn deliver(&mut self, bytes: &[u8]) {
        let number = self.delivered;
        let slot = self.slots.get_mut(number).unwrap_or_else(|| panic!("slot {number} was never pushed"));
        assert!(slot.accepted, "slot {number} was delivered but not accepted");
        assert!(slot.bytes == bytes, "slot {number} was altered, or is out of order");
        self.delivered += 1;
        if slot.freed {
            slot.bytes = Vec::new();
        }
    }

    /// Records that the sender's link freed a token. Its slot must be accepted, unless the link is over.
    pub fn free(&mut self, token: u32, over: bool) {
        let slot = &mut self.slots[token as usize];
        assert!(!slot.freed, "token {token} was freed twice");
        assert!(slot.accepted || over, "token {token} was freed before its slot arrived");
        slot.freed = true;
        if (token as usize) < self.delivered {
            slot.bytes = Vec::new();
        }
    }
}

/// Returns the bytes of a slot. They depend on channel, number and length.
fn content(channel: u32, number: u32, len: usize) -> Vec<u8> {
    let mut rng = Rng(u64::from(channel) << 32 | u64::from(number));
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
