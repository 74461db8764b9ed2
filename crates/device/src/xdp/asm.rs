//! An assembler for the eBPF instructions that the steering program needs.
//!
//! A program is a sequence of calls, one per instruction, with named labels; [`Asm::build`] resolves them.
//! The encodings are those of the kernel's instruction set document: eight bits of operation, two registers,
//! an offset, an immediate.

use std::collections::HashMap;

/// A register. `R0` is the result, `R1` to `R5` are arguments and clobbered by calls, `R6` to `R9` are
/// preserved, `R10` is the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The width of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// An unsigned comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum If {
    Equal = 0x10,
    Greater = 0x20,
    Less = 0xa0,
    NotEqual = 0x50,
    /// Any common bit.
    Bits = 0x40,
}

/// An operation on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add = 0x00,
    Sub = 0x10,
    And = 0x50,
    ShiftRight = 0x70,
    Move = 0xb0,
}

const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_ALU64: u8 = 0x07;
const FROM_REGISTER: u8 = 0x08;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const TO_BIG_ENDIAN: u8 = 0xd8;
const JUMP: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// What the number of a 64-bit load means: a map's descriptor, or an offset in its first value.
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Asm {
    code: Vec<u64>,
    labels: HashMap<&'static str, usize>,
    jumps: Vec<(usize, &'static str)>,
}

impl Asm {
    fn put(&mut self, operation: u8, to: Reg, from: u8, offset: i16, immediate: i32) {
        let registers = to as u8 | from << 4;
        self.code.push(
            u64::from(operation)
                | u64::from(registers) << 8
                | u64::from(offset.cast_unsigned()) << 16
                | u64::from(immediate.cast_unsigned()) << 32,
        );
    }

    /// Names the next instruction.
    pub(crate) fn label(&mut self, name: &'static str) {
        let before = self.labels.insert(name, self.code.len());
        assert!(before.is_none(), "the label {name} is defined once");
    }

    /// Whether anything jumps to a label: the kernel refuses unreachable instructions.
    pub(crate) fn leads_to(&self, name: &'static str) -> bool {
        self.jumps.iter().any(|(_, label)| *label == name)
    }

    /// `to = *(from + offset)`.
    pub(crate) fn load(&mut self, size: Size, to: Reg, from: Reg, offset: i16) {
        self.put(CLASS_LDX | size as u8 | MODE_MEM, to, from as u8, offset, 0);
    }

    /// `to = *(from + offset)`, for a number in network order.
    pub(crate) fn load_be16(&mut self, to: Reg, from: Reg, offset: i16) {
        self.load(Size::Half, to, from, offset);
        self.put(CLASS_ALU | TO_BIG_ENDIAN, to, 0, 0, 16);
    }

    /// `*(to + offset) = from`.
    pub(crate) fn store(&mut self, size: Size, to: Reg, offset: i16, from: Reg) {
        self.put(CLASS_STX | size as u8 | MODE_MEM, to, from as u8, offset, 0);
    }

    /// `*(to + offset) += from`, atomically, for 64 bits.
    pub(crate) fn atomic_add(&mut self, to: Reg, offset: i16, from: Reg) {
        self.put(CLASS_STX | Size::Double as u8 | MODE_ATOMIC, to, from as u8, offset, 0);
    }

    /// `to = to op from`.
    pub(crate) fn op(&mut self, op: Op, to: Reg, from: Reg) {
        self.put(CLASS_ALU64 | FROM_REGISTER | op as u8, to, from as u8, 0, 0);
    }

    /// `to = to op number`.
    pub(crate) fn op_number(&mut self, op: Op, to: Reg, number: i32) {
        self.put(CLASS_ALU64 | op as u8, to, 0, 0, number);
    }

    /// Jumps to the label.
    pub(crate) fn jump(&mut self, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.put(CLASS_JMP | JUMP, Reg::R0, 0, 0, 0);
    }

    /// Jumps to the label if the comparison of `left` and `right` holds.
    pub(crate) fn jump_if(&mut self, left: Reg, test: If, right: Reg, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.put(CLASS_JMP | FROM_REGISTER | test as u8, left, right as u8, 0, 0);
    }

    /// Jumps to the label if the comparison of `left` and a number holds.
    pub(crate) fn jump_if_number(&mut self, left: Reg, test: If, number: i32, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.put(CLASS_JMP | test as u8, left, 0, 0, number);
    }

    /// Jumps to the label unless the 32 bits at `at + offset` are these, in memory order. Uses `R4` and `R5`.
    pub(crate) fn jump_unless_word(&mut self, at: Reg, offset: i16, word: [u8; 4], label: &'static str) {
        self.load(Size::Word, Reg::R4, at, offset);
        self.wide(Reg::R5, 0, u64::from(u32::from_ne_bytes(word)));
        self.jump_if(Reg::R4, If::NotEqual, Reg::R5, label);
    }

    fn wide(&mut self, to: Reg, kind: u8, number: u64) {
        self.put(CLASS_LD | Size::Double as u8, to, kind, 0, (number as u32).cast_signed());
        self.code.push(number >> 32 << 32);
    }

    /// `to =` the map with this descriptor.
    pub(crate) fn map(&mut self, to: Reg, fd: i32) {
        self.wide(to, PSEUDO_MAP_FD, u64::from(fd.cast_unsigned()));
    }

    /// `to =` the address of the map's first value, plus `offset`.
    pub(crate) fn map_value(&mut self, to: Reg, fd: i32, offset: u32) {
        self.wide(to, PSEUDO_MAP_VALUE, u64::from(fd.cast_unsigned()) | u64::from(offset) << 32);
    }

    /// Calls a function of the kernel by its number.
    pub(crate) fn call(&mut self, function: i32) {
        self.put(CLASS_JMP | CALL, Reg::R0, 0, 0, function);
    }

    /// Returns the verdict in `R0`.
    pub(crate) fn exit(&mut self) {
        self.put(CLASS_JMP | EXIT, Reg::R0, 0, 0, 0);
    }

    /// Resolves the labels.
    ///
    /// # Panics
    /// If a label is missing: programs are written in this crate, not read from elsewhere.
    pub(crate) fn build(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let to = *self.labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            let offset = i16::try_from(to as i64 - at as i64 - 1).expect("programs are short");
            self.code[at] |= u64::from(offset.cast_unsigned()) << 16;
        }
        self.code
    }
}
