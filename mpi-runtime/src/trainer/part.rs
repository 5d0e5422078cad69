//! A step of a part of the model, on one of the ranks of a replica (`dense/parts.rs`).
//!
//! Invariant: whether a step counts, and whether it is the last, is the same for all parts.

use core::sync::atomic::AtomicU32;
use std::time::Instant;

use umbra_core::dense::replica::{Update, all_finite};
use umbra_core::model::{Crossing, Gradients, Input, StepKey, StepLoss, Workspace};

use crate::comm::watch::Watch;
use crate::dense::parts::Parts;
use crate::trainer::{Trainer, nanoseconds};

/// Loss and gradients of a part, and the nanoseconds in which it sent and waited. *Collective over
/// the replica; whoever does not come in time ends the job.*
pub(super) fn train(
    parts: &mut Parts,
    (replica, input, key): (&[AtomicU32], &Input<'_>, StepKey),
    reduce: &mut dyn FnMut(&mut [f64]),
    workspace: &mut Workspace<'_>,
    out: &mut Gradients<'_>,
    watch: &Watch,
) -> (StepLoss, u64) {
    let (model, mut crossing) = (*parts.model(), 0);
    let mut exchange = |it: Crossing<'_>| {
        let start = Instant::now();
        parts.cross(it).unwrap_or_else(|error| watch.end_job(1, &error));
        crossing += nanoseconds(start);
    };
    let loss = model.train_part(replica, input, key, (reduce, &mut exchange), workspace, out);
    (loss, crossing)
}

impl Trainer {
    /// As [`finish_step`](Self::finish_step), for the part of a replica; all of them
    /// agree. `sums`: as a [`Bsp`](crate::dense::bsp::Bsp) hands them out. Returns whether all
    /// found it sound, and whether one of them was asked to stop. *Collective over the replica.*
    pub(super) fn finish_step_of_part(
        &self,
        parts: &mut Parts,
        gradient: &[f32],
        sums: &[f64],
        step: u64,
    ) -> (bool, bool) {
        let sound = sums[0].is_finite() && all_finite(gradient);
        let (sound, stop) = self.watch.or_end(parts.end_step(sound, sums[2] > 0.0));
        if sound && sums[1] > 0.0 {
            let size = self.step_size(step);
            let update = Update::new(&self.optimizer, size, self.parameters(), &self.state);
            parts.update(update, gradient);
        }
        (sound, stop)
    }
}
