//! Everything that this rank would need to go on from between two stretches of training, listed
//! once.
//!
//! | scope | sections |
//! | --- | --- |
//! | job | steps so far, the step of the best evaluation; the stopper; the rate factor |
//! | trainer | replica, and the model published in its place |
//! | | optimizer state, and the mean that is saved in its place; updates |
//! | | steps of each worker |
//! | slice | the method's memory: number of the next round, global model or center, velocity |
//! | partition | records of rows |
//!
//! Not in it, since it is a function of what is: the readers' place in the data (steps of the
//! workers), the epoch (steps so far), random numbers (keyed by step). Nor what is only reported:
//! times, sums of losses, gaps between rounds.

use umbra_core::sync::Part;

use super::Run;
use super::early_stop::Stopper;
use crate::config::EarlyStop;
use crate::state::{RateFactor, Scope, Section, Words, section};

/// How far a job is; equal on all ranks.
pub struct JobState {
    /// Steps of every worker in the stretches so far.
    pub step: u64,
    /// How many they were at the best evaluation; 0 before the first.
    pub best_step: u64,
    /// What the evaluations so far mean.
    pub stopper: Stopper,
    /// Factor on both learning rates.
    pub rate_factor: RateFactor,
}

impl JobState {
    /// Before the first step.
    #[must_use]
    pub fn new(early_stop: Option<EarlyStop>) -> Self {
        let stopper = Stopper::new(early_stop);
        Self { step: 0, best_step: 0, stopper, rate_factor: RateFactor::default() }
    }
}

impl Run<'_> {
    /// Everything of this rank that a run goes on from, each once. Between two stretches of
    /// training. *Not collective.*
    #[must_use]
    pub fn sections(&mut self) -> Vec<Section<'_>> {
        let Self { state, trainer, sync, services, counters, plan, world, .. } = self;
        let mut sections = vec![];
        let mut add = |scope, name, words| sections.push(Section { name, scope, words });
        let (best, without_improvement) = state.stopper.memory();
        add(Scope::Job, "step", one(&mut state.step));
        add(Scope::Job, "best_step", one(&mut state.best_step));
        add(Scope::Job, "best_figure", Words::Doubles(core::slice::from_mut(best)));
        add(Scope::Job, "without_improvement", one(without_improvement));
        add(Scope::Job, "rate_factor", Words::Shared(state.rate_factor.words()));
        if let (Some(side), Some(number)) = (trainer, plan.roles.trainers.number_of(world.rank)) {
            let (scope, shared) = (Scope::Trainer(number), &side.shared);
            // Training goes on with its own replica, which is aside while another model is in its
            // place.
            if let Some(own) = &mut side.own {
                add(scope, section::REPLICA, Words::Floats(own));
                add(scope, section::PUBLISHED, Words::Shared(&shared.replica));
            } else {
                add(scope, section::REPLICA, Words::Shared(&shared.replica));
            }
            add(scope, section::OPTIMIZER, Words::Shared(&shared.state));
            if let Some(mean) = &side.mean_state {
                add(scope, section::MEAN_OPTIMIZER, Words::Shared(mean));
            }
            add(scope, "updates", Words::SharedCounts(vec![&shared.updates]));
            let steps = counters.worker_steps().collect();
            add(scope, "worker_steps", Words::SharedCounts(steps));
        }
        for (part, owned) in sync.memory_mut() {
            let scope = Scope::Slice(part);
            add(scope, "round", one(&mut owned.round));
            let global = match part {
                Part::Trainer { .. } => "global_model",
                Part::Center { .. } => "center",
            };
            for (name, values) in [(global, &mut owned.global), ("velocity", &mut owned.velocity)] {
                if !values.is_empty() {
                    add(scope, name, Words::Floats(values));
                }
            }
        }
        for partition in &services.partitions {
            let words = Words::Shared(partition.words());
            add(Scope::Partition(partition.number), "rows", words);
        }
        sections
    }
}

const fn one(count: &mut u64) -> Words<'_> {
    Words::Counts(core::slice::from_mut(count))
}
