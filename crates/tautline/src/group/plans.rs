//! The plans that a group used last: programs repeat their collectives, and a plan takes longer to write than
//! a short message to send.

use std::sync::{Arc, Mutex, PoisonError};

use super::call::{Call, Shape};
use super::choice::Choices;
use super::plan::Plan;
use crate::error::Result;

/// Plans that are kept.
const KEPT: usize = 8;
/// The steps of the longest plan that is kept.
const STEPS: usize = 256;

/// Plans by what they depend on, the last one used first.
#[derive(Debug, Default)]
pub(super) struct Plans(Mutex<Vec<(Shape, Arc<Plan>)>>);

impl Plans {
    /// The plan of a call, of member `me` of `members`.
    pub(super) fn get(
        &self,
        call: &Call,
        (me, members): (usize, usize),
        choices: &Choices,
    ) -> Result<Arc<Plan>> {
        call.check(me, members)?;
        let Some(shape) = call.shape() else { return Ok(Arc::new(call.plan(me, members, choices))) };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(of, _)| *of == shape) {
            kept[..=at].rotate_right(1);
            return Ok(kept[0].1.clone());
        }
        let plan = Arc::new(call.plan(me, members, choices));
        if let Some((kind, bytes)) = call.choice(members) {
            let one_host = choices.algorithm(kind, bytes, members).name();
            let hosts = choices.between_hosts(kind, bytes, members).name();
            tracing::debug!(
                kind = kind.name(),
                bytes,
                members,
                algorithm = one_host,
                between_hosts = hosts,
                "collective"
            );
        }
        if plan.steps.len() <= STEPS {
            kept.truncate(KEPT - 1);
            kept.insert(0, (shape, plan.clone()));
        }
        Ok(plan)
    }
}
