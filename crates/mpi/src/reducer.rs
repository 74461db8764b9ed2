//! A reduction of packed bytes.

use std::sync::Arc;

use crate::datatype::{Message, Type};
use crate::error::Result;
use crate::handle::Datatype;
use crate::op::Operation;

/// An operation on elements of a datatype.
#[derive(Clone)]
pub struct Reducer {
    pub operation: Arc<Operation>,
    pub of: Arc<Type>,
    /// What functions of the program get.
    pub handle: Datatype,
}

/// Memory for elements, aligned for all of them.
struct Elements {
    memory: Vec<u128>,
    /// From the first byte of the memory to the origin of the first element.
    origin: i64,
}

impl Elements {
    fn new(of: &Type, count: i64) -> Result<Elements> {
        let (begin, end) = of.bounds().repeated(0, count, of.extent())?.data.unwrap_or((0, 0));
        // The origin is aligned, and elements may lie in front of it.
        let origin = ((-begin).max(0) + 15) & !15;
        let bytes = (origin + end.max(0)) as usize;
        Ok(Elements { memory: vec![0; bytes.div_ceil(16)], origin })
    }

    fn at(&mut self) -> *mut std::ffi::c_void {
        self.memory.as_mut_ptr().cast::<u8>().wrapping_offset(self.origin as isize).cast()
    }
}

impl Reducer {
    /// The size of a packed element.
    pub fn element(&self) -> usize {
        self.of.size() as usize
    }

    /// Combines packed elements: `inout = input op inout`. The input is that of lower ranks.
    pub fn combine(&self, input: &[u8], inout: &mut [u8]) {
        // The operation was checked when the collective was called, and nothing else fails.
        let combined = self.try_combine(input, inout);
        debug_assert!(combined.is_ok(), "{combined:?}");
    }

    fn try_combine(&self, input: &[u8], inout: &mut [u8]) -> Result<()> {
        let element = self.element();
        if element == 0 || inout.is_empty() {
            return Ok(());
        }
        let count = (inout.len() / element) as i64;
        let aligned = |at: *const u8| at.addr().is_multiple_of(16.min(element.next_power_of_two()));
        let packed = Message::new(inout.as_mut_ptr().cast(), count, &self.of)?.contiguous().is_some();
        if packed && aligned(input.as_ptr()) && aligned(inout.as_ptr()) {
            let (input, inout) = (input.as_ptr().cast(), inout.as_mut_ptr().cast());
            // SAFETY: both hold `count` elements, which are packed as they lie in memory, and are aligned.
            return unsafe { self.operation.apply(input, inout, count, &self.of, self.handle) };
        }
        let (mut one, mut other) = (Elements::new(&self.of, count)?, Elements::new(&self.of, count)?);
        let (from, to) =
            (Message::new(one.at(), count, &self.of)?, Message::new(other.at(), count, &self.of)?);
        // SAFETY: both places have room for `count` elements, and are aligned for all types.
        unsafe {
            from.unpack(0, input);
            to.unpack(0, inout);
            self.operation.apply(one.at(), other.at(), count, &self.of, self.handle)?;
            to.pack(0, inout);
        }
        Ok(())
    }
}
