//! Where those that are left go on: one model of what each of them has.
//!
//! After the loss of a rank inside a job (`lost_ranks.rs`), and in a job that is started again from
//! images (`local_images.rs`).
//!
//! | method | dense parameters |
//! | --- | --- |
//! | `bsp` | those of the trainer that is furthest; a step that none has ended is made again |
//! | servers | slices stay; a lost slice is what a worker trained with last, its optimizer state as it was when training last stopped |
//! | others | every trainer keeps its own; center and global model are their mean |
//!
//! Invariants: before anything trains, and on all ranks together. Every trainer has a replica.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umbra_core::dense::replica::store;
use umbra_core::sync::Published;

use super::trainer_threads::loaded;
use super::{Run, TrainerThreads};
use crate::checkpoint::{Checkpoint, Dense, Target};
use crate::dense::mean::average_once;
use crate::dense::served::Remains;
use crate::error::Error;

impl Run<'_> {
    /// Brings together what those left have: see the table above. `step` is where they go on.
    /// Without what is left of servers, trainers have it all.
    pub(super) fn take_over(&mut self, served: Option<&Remains>, step: u64) -> Result<(), Error> {
        self.begin_at(step);
        match (self.is_served(), served) {
            (true, Some(served)) => return self.serve_what_is_left(served, step),
            (true, None) => {
                self.follow_the_furthest(true)?;
                return self.serve_again();
            }
            _ => {}
        }
        let model = match self.sync.published() {
            Published::Replica => self.follow_the_furthest(true)?,
            Published::First => self.gather_first()?,
            Published::Mean | Published::Center => self.gather_mean()?,
        };
        self.sync.begin_again(&model);
        Ok(())
    }

    /// The replica, the optimizer state and the updates of the trainer with most of them are this
    /// one's too, if it `follows`. Returns the replica.
    pub(super) fn follow_the_furthest(&mut self, follows: bool) -> Result<Vec<f32>, Error> {
        let mut updates = vec![0; self.world.size];
        self.control.all_gather(&[self.updates()], &mut updates, "updates of replicas")?;
        let trainers = self.plan.roles.trainers.ranks().iter().map(|rank| updates[*rank]);
        let (first, most) = trainers.enumerate().fold((0, 0), |(first, most), (at, updates)| {
            if updates > most { (at, updates) } else { (first, most) }
        });
        let what = "the furthest replica";
        let replica = self.gather_of(first, |side| loaded(&side.shared.replica), what)?;
        let state = self.gather_of(first, TrainerThreads::state, "its optimizer state")?;
        if let (Some(TrainerThreads { shared, .. }), true) = (&self.trainer, follows) {
            store(&shared.replica, &replica);
            store(&shared.state, &state);
            shared.updates.store(most, Relaxed);
        }
        Ok(replica)
    }

    /// The mean of all replicas.
    fn gather_mean(&mut self) -> Result<Vec<f32>, Error> {
        let mut mean = vec![];
        if let (Some(side), Some(dense)) = (&self.trainer, &mut self.dense) {
            let own = side.shared.replica.iter().map(|word| word.load(Relaxed));
            let words: Vec<AtomicU32> = own.map(AtomicU32::new).collect();
            average_once(dense, &words)?;
            mean = loaded(&words);
        }
        Ok(self.gather_of(0, |_| mean, "the mean of replicas")?)
    }

    /// Servers go on with the slices that are left, and with what a worker knows of the others.
    fn serve_what_is_left(&mut self, left: &Remains, step: u64) -> Result<(), Error> {
        let model = self.plan.model;
        let (elements, parameters) = (model.replica_len(), model.parameters_len());
        // Who has trained a batch has had parameters of this stretch; nobody else has any.
        let trained = |values: &&[f32]| values.iter().any(|value| *value != 0.0);
        let own = left.trained_with.as_deref().filter(trained);
        let mut knows = vec![0; self.world.size];
        let what = "what workers trained with";
        self.control.all_gather(&[u64::from(own.is_some())], &mut knows, what)?;
        let mut values = match knows.iter().position(|knows| *knows == 1) {
            Some(rank) => {
                let own = own.filter(|_| rank == self.world.rank).unwrap_or_default();
                self.gather_from_one(own, what)?
            }
            None => self.gather_first()?,
        };
        let mut state = self.gather_of(0, TrainerThreads::state, "optimizer state of slices")?;
        let planes = state.len().checked_div(parameters).unwrap_or(0);
        let mut own = vec![];
        for (slice, values, state) in &left.slices {
            own.push(u32::try_from(*slice).unwrap_or(u32::MAX));
            own.extend(values.iter().chain(state).map(|value| value.to_bits()));
        }
        let Some(served) = self.sync.served_mut() else { return Ok(()) };
        for words in self.control.all_gather_varied(&own, "slices that are left")? {
            let mut rest = words.as_slice();
            while let [slice, of_slice @ ..] = rest {
                let range = served.slice(*slice as usize, elements);
                let trained = range.start.min(parameters)..range.end.min(parameters);
                let (own, mut after) = of_slice.split_at(range.len());
                read(&mut values[range], own);
                for plane in 0..planes {
                    let (own, behind) = after.split_at(trained.len());
                    let at = plane * parameters;
                    read(&mut state[at + trained.start..at + trained.end], own);
                    after = behind;
                }
                rest = after;
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of updates"
        )]
        let version = (served.versions_per_step() * step as f64) as u64;
        served.begin_again(&values, &state, version);
        Ok(())
    }

    /// Reads the rows of `lost` partitions. Returns the bytes that all ranks have read together.
    pub(super) fn read_lost(&self, checkpoint: &Checkpoint, lost: &[u32]) -> Result<u64, Error> {
        let dense = Dense { model: &self.plan.model, replica: &[], state: &[] };
        let (layout, partitions) = (&self.plan.layout, &self.services.partitions);
        let target = Target { dense, layout, partitions };
        let own = checkpoint.read_lost(self.control, &target, lost)?;
        let mut all = vec![0; self.world.size];
        self.control.all_gather(&[own], &mut all, "bytes of lost rows")?;
        Ok(all.into_iter().sum())
    }
}

fn read(values: &mut [f32], words: &[u32]) {
    values.iter_mut().zip(words).for_each(|(value, word)| *value = f32::from_bits(*word));
}
