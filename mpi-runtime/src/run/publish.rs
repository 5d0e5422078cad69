//! The model that is evaluated and saved, between two stretches of training.
//!
//! A trainer's replica is one of many while a run trains. What stands for all of them afterwards is
//! the center (elastic averaging), the mean (model averaging, block momentum) or the first
//! trainer's replica (trainers without synchronization).
//!
//! Invariant: training goes on from each trainer's own replica, as if nothing had been evaluated.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umbra_core::dense::replica::{load, store};
use umbra_core::sync::Published;
use umbra_datasets::Dataset;

use super::{Run, TrainerThreads};
use crate::comm::watch::Lost;
use crate::dense::replica_sync::average_once;
use crate::error::Error;
use crate::score::figures::Figures;

impl Run<'_> {
    /// Puts the model that is evaluated and saved in the place of every trainer's replica, until it
    /// trains on: the center, the mean, or the first trainer's replica, whichever the method ends
    /// with.
    pub(super) fn publish(&mut self) -> Result<(), Error> {
        let published = match self.sync.published() {
            Published::Replica => return Ok(()),
            Published::Center => self.gather_center()?,
            Published::First => self.gather_first()?,
            Published::Mean => {
                if let (Some(side), Some(dense)) = (&mut self.trainer, &mut self.dense) {
                    side.keep_own();
                    average_once(dense, &side.shared.replica)?;
                    side.distance = side.distance_to_published();
                    if self.plan.job.config.sync.average_state {
                        let own = side.shared.state.iter().map(|word| word.load(Relaxed));
                        let mean: Vec<AtomicU32> = own.map(AtomicU32::new).collect();
                        average_once(dense, &mean)?;
                        side.mean_state = Some(mean);
                    }
                }
                vec![]
            }
        };
        if let Some(side) = &mut self.trainer {
            side.keep_own();
            if !published.is_empty() {
                store(&side.shared.replica, &published);
            }
        }
        Ok(())
    }

    fn gather_center(&self) -> Result<Vec<f32>, Lost> {
        let sync = &self.sync;
        let own: Vec<f32> = sync.center().flatten().copied().collect();
        let lengths = sync.center_lengths(self.world.size);
        let mut center = vec![0.0; lengths.iter().sum()];
        let what = "the center of replicas";
        self.control.all_gather_stretches(&own, &mut center, &lengths, what)?;
        Ok(center)
    }

    /// The first trainer's own replica.
    pub(super) fn gather_first(&self) -> Result<Vec<f32>, Lost> {
        let first = self.plan.roles.trainers.rank_of(0);
        let own = match &self.trainer {
            Some(side) if self.world.rank == first => side.own_replica(),
            _ => vec![],
        };
        let mut lengths = vec![0; self.world.size];
        lengths[first] = self.plan.model.replica_len();
        let mut replica = vec![0.0; lengths[first]];
        self.control.all_gather_stretches(&own, &mut replica, &lengths, "the first replica")?;
        Ok(replica)
    }

    /// As [`evaluate`](Self::evaluate), of the first trainer's own replica as training left it;
    /// `None` when the published model is that one.
    ///
    /// # Errors
    /// As `evaluate`.
    pub fn evaluate_first_replica(&mut self, dataset: &Dataset) -> Result<Option<Figures>, Error> {
        if let Published::Replica | Published::First = self.sync.published() {
            return Ok(None);
        }
        let first = self.gather_first()?;
        let swap = |side: &TrainerThreads, values: &[f32]| {
            let mut before = vec![0.0; values.len()];
            load(&side.shared.replica, &mut before);
            store(&side.shared.replica, values);
            before
        };
        let published = self.trainer.as_ref().map(|side| swap(side, &first));
        let figures = self.evaluate(dataset);
        if let (Some(side), Some(published)) = (&self.trainer, &published) {
            swap(side, published);
        }
        figures.map(Some)
    }
}
