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
use umbra_core::sync::server::Tally;
use umbra_datasets::Dataset;

use super::{Run, TrainerThreads};
use crate::comm::watch::Lost;
use crate::config::SyncMethod;
use crate::dense::mean::average_once;
use crate::dense::served::Served;
use crate::error::Error;
use crate::score::figures::Figures;

impl Run<'_> {
    /// Puts the model that is evaluated and saved in the place of every trainer's replica, until it
    /// trains on: the center, the mean, or the first trainer's replica, whichever the method ends
    /// with.
    pub(super) fn publish(&mut self) -> Result<(), Error> {
        let published = match self.sync.published() {
            Published::Replica => return Ok(()),
            Published::Center if self.sync.served().is_some() => return self.publish_served(),
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

    /// Values, optimizer state and version of the servers in the place of every trainer's.
    fn publish_served(&self) -> Result<(), Error> {
        let Some(served) = self.sync.served() else { return Ok(()) };
        let (ranks, model) = (self.world.size, self.plan.model);
        let values = self.gather_center()?;
        let own: Vec<f32> = served.state().flatten().copied().collect();
        let mut numbers = vec![0; 2 * ranks];
        let what = "the state of servers";
        self.control.all_gather(&[own.len() as u64, served.version()], &mut numbers, what)?;
        let lengths: Vec<usize> =
            numbers.chunks(2).map(|rank| usize::try_from(rank[0]).unwrap_or(0)).collect();
        let mut state = vec![0.0; lengths.iter().sum()];
        self.control.all_gather_stretches(&own, &mut state, &lengths, what)?;
        let state = served.whole_state(&state, model.replica_len(), model.parameters_len());
        if let Some(side) = &self.trainer {
            store(&side.shared.replica, &values);
            store(&side.shared.state, &state);
            let version = numbers.chunks(2).map(|rank| rank[1]).max().unwrap_or(0);
            side.shared.updates.store(version, Relaxed);
        }
        Ok(())
    }

    /// What became of gradients on parameter servers, where there are some: known to the
    /// dispatcher's rank, told to all.
    ///
    /// # Errors
    /// When not all ranks come in time.
    pub fn gradients(&self) -> Result<Option<Tally>, Lost> {
        if !self.plan.job.config.sync.methods().any(SyncMethod::is_served) {
            return Ok(None);
        }
        let tally = self.sync.served().and_then(Served::tally).or(self.tally.as_ref());
        let own: Vec<u64> = tally.iter().flat_map(|tally| tally.words()).collect();
        let ranks = self.control.all_gather_varied(&own, "what became of gradients")?;
        Ok(ranks.iter().find_map(|words| Tally::from_words(words)))
    }

    /// Batches are handed out: workers make as many steps as they can.
    #[must_use]
    pub const fn is_served(&self) -> bool {
        self.sync.served().is_some()
    }

    /// The servers go on from what the first trainer has read.
    pub(super) fn serve_again(&mut self) -> Result<(), Error> {
        if self.sync.served().is_none() {
            return Ok(());
        }
        let values = self.gather_first()?;
        let state =
            self.gather_of(0, TrainerThreads::state, "the first trainer's optimizer state")?;
        let mut versions = vec![0; self.world.size];
        let what = "the updates of the model";
        self.control.all_gather(&[self.updates()], &mut versions, what)?;
        if let Some(served) = self.sync.served_mut() {
            served.begin_again(&values, &state, versions.into_iter().max().unwrap_or(0));
        }
        Ok(())
    }

    /// The first trainer's own replica.
    pub(super) fn gather_first(&self) -> Result<Vec<f32>, Lost> {
        self.gather_of(0, TrainerThreads::own_replica, "the first replica")
    }

    /// What the trainer of this number has, on all ranks.
    pub(super) fn gather_of(
        &self,
        trainer: usize,
        values: impl FnOnce(&TrainerThreads) -> Vec<f32>,
        what: &str,
    ) -> Result<Vec<f32>, Lost> {
        let rank = self.plan.roles.trainers.rank_of(trainer);
        let own = match &self.trainer {
            Some(side) if self.world.rank == rank => values(side),
            _ => vec![],
        };
        self.gather_from_one(&own, what)
    }

    /// What one rank has, on all; the others have nothing.
    pub(super) fn gather_from_one(&self, own: &[f32], what: &str) -> Result<Vec<f32>, Lost> {
        let mut numbers = vec![0; self.world.size];
        self.control.all_gather(&[own.len() as u64], &mut numbers, what)?;
        let lengths: Vec<usize> =
            numbers.into_iter().map(|length| usize::try_from(length).unwrap_or(0)).collect();
        let mut all = vec![0.0; lengths.iter().sum()];
        self.control.all_gather_stretches(own, &mut all, &lengths, what)?;
        Ok(all)
    }

    /// As [`evaluate`](Self::evaluate), of the first trainer's own replica as training left it;
    /// `None` when the published model is that one.
    ///
    /// # Errors
    /// As `evaluate`.
    pub fn evaluate_first_replica(&mut self, dataset: &Dataset) -> Result<Option<Figures>, Error> {
        let published = self.sync.published();
        if matches!(published, Published::Replica | Published::First) || !self.publishes() {
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
