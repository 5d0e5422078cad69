//! Who pools a run's bags, where that is left to the bytes: `embedding.pool_at = "auto"`.
//!
//! Rows that travel are distinct, whatever the bags; a bag's vector travels from every rank that
//! has a part in it. Which is fewer bytes the first batches of the training data say
//! (`first_batches.rs`).
//!
//! Invariants: all ranks have the choice of the first. It is in the configuration from then on, so
//! a run keeps it when its method or its ranks become others; one that goes on from a checkpoint
//! takes that of the run that wrote it.

use core::fmt;

use serde::Serialize;
use umbra_core::compress::Coding;

use crate::checkpoint::Manifest;
use crate::comm::Comm;
use crate::comm::watch::Watch;
use crate::config::{Config, PoolAt};
use crate::error::Error;
use crate::rows::traffic::{Duties, Steps};
use crate::run::first_batches::FirstBatches;
use crate::run::plan::Plan;

/// Who pools, and what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolChoice {
    /// The choice.
    pub pool_at: PoolAt,
    /// Bytes that all ranks send each other for rows in a step where trainers pool.
    pub bytes_trainer: f64,
    /// And where those who hold rows do.
    pub bytes_ps: f64,
}

impl PoolChoice {
    /// By these bytes: vectors travel where they are fewer.
    const fn of([bytes_trainer, bytes_ps]: [f64; 2]) -> Self {
        let pool_at = if bytes_ps < bytes_trainer { PoolAt::Ps } else { PoolAt::Trainer };
        Self { pool_at, bytes_trainer, bytes_ps }
    }
}

impl fmt::Display for PoolChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool_at, bytes_trainer, bytes_ps } = *self;
        let name = if pool_at == PoolAt::Ps { "ps" } else { "trainer" };
        let by_bytes = Self::of([bytes_trainer, bytes_ps]).pool_at;
        let before = if pool_at == by_bytes { "" } else { ", as before it stopped" };
        write!(
            f,
            "all ranks send {:.1} KiB a step where trainers pool, {:.1} KiB where those who hold \
             rows do, expected: it is \"{name}\"{before}",
            bytes_trainer / 1024.0,
            bytes_ps / 1024.0
        )
    }
}

impl Plan {
    /// Chooses who pools, if that is open, for a run on `ranks` ranks. The first rank reads the
    /// first batches of the training data. *Collective over `control`, main thread only.*
    ///
    /// # Errors
    /// When the data can't be read, messages get too long or not all ranks come, on every rank.
    pub fn choose_pooling(&mut self, control: &Comm, ranks: usize) -> Result<(), Error> {
        if self.job.config.embedding.pool_at != PoolAt::Auto {
            return Ok(());
        }
        let first = control.rank() == 0;
        let expected = first.then(|| self.bytes_of_pooling(ranks, control.watch())).transpose();
        let mut bytes = control.agree(expected)?.unwrap_or_default();
        control.broadcast(&mut bytes, "who pools bags", false)?;
        control.agree(self.pool(PoolChoice::of(bytes)))
    }

    /// Pools as the run did that wrote `manifest`, if that was open. *Not collective; equal on all
    /// ranks.*
    ///
    /// # Errors
    /// When messages get too long.
    pub fn keep_pooling(&mut self, manifest: &Manifest) -> Result<(), Error> {
        let then = Config::saved(&manifest.config, "manifest.json".as_ref());
        let (Some(choice), Ok(then)) = (self.pool_choice, then) else { return Ok(()) };
        let pool_at = if then.pooled().is_some() { PoolAt::Ps } else { PoolAt::Trainer };
        self.pool(PoolChoice { pool_at, ..choice })
    }

    fn pool(&mut self, choice: PoolChoice) -> Result<(), Error> {
        self.job.config.embedding.pool_at = choice.pool_at;
        self.pool_choice = Some(choice);
        self.check_counts()
    }

    /// Bytes that all ranks send each other for rows in a step where trainers pool, and where those
    /// who hold rows do. *Not collective.*
    pub(super) fn bytes_of_pooling(&self, ranks: usize, watch: &Watch) -> Result<[f64; 2], Error> {
        let (shape, first) = (self.shape(), FirstBatches::count(self, Some(Coding::ALL), watch)?);
        let sent = |steps: &Steps, of: fn(Duties) -> Duties| -> f64 {
            (0..ranks).map(|rank| steps.of(&of(self.duties(rank))).sent.bytes).sum()
        };
        let rows = sent(&first.steps_of_rows(shape), |duties| duties);
        // Vectors travel between ranks of a node, too.
        let vectors = sent(&first.steps(shape), |duties| Duties { near: None, ..duties });
        Ok([rows, vectors])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_bytes_are_chosen_and_rows_where_they_are_as_many() {
        assert_eq!(PoolChoice::of([2.0, 1.0]).pool_at, PoolAt::Ps);
        assert_eq!(PoolChoice::of([1.0, 2.0]).pool_at, PoolAt::Trainer);
        assert_eq!(PoolChoice::of([1.0, 1.0]).pool_at, PoolAt::Trainer);
    }

    #[test]
    fn what_was_kept_against_the_bytes_is_told() {
        let chosen = PoolChoice::of([2048.0, 1024.0]);
        let expected = "all ranks send 2.0 KiB a step where trainers pool, 1.0 KiB where those who \
                        hold rows do, expected: it is \"ps\"";
        assert_eq!(chosen.to_string(), expected);
        let kept = PoolChoice { pool_at: PoolAt::Trainer, ..chosen };
        assert!(kept.to_string().ends_with("it is \"trainer\", as before it stopped"), "{kept}");
    }
}
