//! Operations of reductions.

use std::sync::Arc;

/// The function of a reduction: its second argument becomes `first ∘ second`, element by element. Both have
/// the same length, a multiple of the element's size.
type Function = dyn Fn(&[u8], &mut [u8]) + Send + Sync;

/// How elements are combined, and what may be assumed of it.
#[derive(Clone)]
pub struct Reduction {
    function: Arc<Function>,
    unit: usize,
    commutative: bool,
}

impl std::fmt::Debug for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reduction { unit, commutative, .. } = self;
        f.debug_struct("Reduction")
            .field("unit", unit)
            .field("commutative", commutative)
            .finish_non_exhaustive()
    }
}

impl Reduction {
    /// A reduction of elements of `unit` bytes.
    ///
    /// `function(a, b)` replaces `b` by `a ∘ b`, for as many elements as the slices have. It must be
    /// associative. If it is not `commutative`, operands are combined in the order of the members. It may run
    /// on any thread that waits for a collective, and must not call this library.
    ///
    /// # Panics
    /// If `unit` is zero.
    pub fn new(
        unit: usize,
        commutative: bool,
        function: impl Fn(&[u8], &mut [u8]) + Send + Sync + 'static,
    ) -> Reduction {
        assert!(unit > 0, "elements have at least one byte");
        Reduction { function: Arc::new(function), unit, commutative }
    }

    /// Bytes of an element.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Whether operands may be exchanged.
    pub fn is_commutative(&self) -> bool {
        self.commutative
    }

    pub(super) fn apply(&self, lower: &[u8], upper: &mut [u8]) {
        (self.function)(lower, upper);
    }
}
