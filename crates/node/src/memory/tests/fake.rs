//! The parts that a channel whose room each test sets has lent.

use super::*;

/// The parts that a [`FakeWriter`] lent.
pub(super) struct FakeLent<'a> {
    pub(super) parts: &'a [Vec<u8>],
    pub(super) returned: Vec<u32>,
}

impl LentParts for FakeLent<'_> {
    fn is_sound(&mut self, extent: ExtentRef) -> bool {
        self.parts.get(extent.number as usize).is_some_and(|part| part.len() == extent.len as usize)
    }

    fn copy_part(&mut self, extent: ExtentRef, to: &ApertureMemory, at: usize) -> bool {
        to.write(at, &self.parts[extent.number as usize]).is_ok()
    }

    fn read_part(&mut self, extent: ExtentRef, out: &mut [u8]) {
        out.copy_from_slice(&self.parts[extent.number as usize]);
    }

    fn return_part(&mut self, extent: ExtentRef) {
        self.returned.push(extent.number);
    }
}
