//! The plans that a group used last: programs repeat their collectives, and a plan takes longer to write than
//! a short message to send.

use std::sync::{Arc, Mutex, PoisonError};

use super::call::{Call, Shape};
use super::choice::Choices;
use super::plan::Plan;
use super::sharing::Exchange;
use crate::error::Result;

/// Plans that are kept.
const KEPT: usize = 8;
/// The steps of the longest plan that is kept.
const STEPS: usize = 256;

/// Plans by what they depend on, the last one used first.
#[derive(Debug, Default)]
pub(super) struct Plans(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    shape: Shape,
    plan: Arc<Plan>,
    /// How the members exchanged bytes when it was last used.
    exchange: Exchange,
}

impl Plans {
    /// The plan of a call, of member `me` of `members`, and whether it is new, or is used in another way than
    /// before.
    pub(super) fn get(
        &self,
        call: &Call,
        (me, members): (usize, usize),
        (choices, exchange): (&Choices, Exchange),
    ) -> Result<(Arc<Plan>, bool)> {
        call.check(me, members)?;
        let Some(shape) = call.shape() else {
            return Ok((Arc::new(call.plan(me, members, choices)), true));
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|kept| kept.shape == shape) {
            kept[..=at].rotate_right(1);
            let before = std::mem::replace(&mut kept[0].exchange, exchange);
            return Ok((kept[0].plan.clone(), before != exchange));
        }
        let plan = Arc::new(call.plan(me, members, choices));
        if plan.steps.len() <= STEPS {
            kept.truncate(KEPT - 1);
            kept.insert(0, Kept { shape, plan: plan.clone(), exchange });
        }
        Ok((plan, true))
    }
}
