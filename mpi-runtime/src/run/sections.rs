//! Everything that this rank would need to go on from between two stretches of training, listed
//! once.
//!
//! | scope | sections |
//! | --- | --- |
//! | job | steps so far, those of the last and the best evaluation; the stopper; the rate factor |
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
use super::change::Carried;
use super::early_stop::Stopper;
use crate::config::EarlyStop;
use crate::record::EvalFigures;
use crate::state::{RateFactor, Scope, Section, Words, section};

/// How far a job is; equal on all ranks.
pub struct JobState {
    /// Steps of every worker in the stretches so far.
    pub step: u64,
    /// How many they were at the last evaluation.
    pub evaluated: u64,
    /// How many they were at the best evaluation; 0 before the first.
    pub best_step: u64,
    /// The validation that the summary will have; see [`figures_of`].
    pub valid: [f64; FIGURES],
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
        let rate_factor = RateFactor::default();
        let valid = [f64::NAN; FIGURES];
        Self { step: 0, evaluated: 0, best_step: 0, valid, stopper, rate_factor }
    }

    /// Forgets the evaluations so far: they are another run's.
    pub fn forget_evaluations(&mut self, early_stop: Option<EarlyStop>) {
        self.rate_factor.reset();
        (self.evaluated, self.best_step, self.valid) = (self.step, 0, [f64::NAN; FIGURES]);
        self.stopper = Stopper::new(early_stop);
    }
}

/// Figures of an evaluation as numbers; what is absent is not a number.
#[must_use]
pub fn numbers_of(figures: &EvalFigures) -> [f64; FIGURES] {
    let EvalFigures { examples, auc, logloss, normalized_entropy, calibration, gauc } = *figures;
    let others = [auc, logloss, normalized_entropy, calibration, gauc];
    let [auc, logloss, entropy, calibration, gauc] = others.map(|it| it.unwrap_or(f64::NAN));
    [f64::from_bits(examples), auc, logloss, entropy, calibration, gauc]
}

/// The figures that [`numbers_of`] has made numbers of; `None` before the first evaluation.
#[must_use]
pub fn figures_of(numbers: [f64; FIGURES]) -> Option<EvalFigures> {
    let [examples, others @ ..] = numbers;
    let number = |it: f64| (!it.is_nan()).then_some(it);
    let [auc, logloss, normalized_entropy, calibration, gauc] = others.map(number);
    let examples = examples.to_bits();
    let none = examples == f64::NAN.to_bits();
    (!none).then_some(EvalFigures { examples, auc, logloss, normalized_entropy, calibration, gauc })
}

/// Numbers of an evaluation.
pub const FIGURES: usize = 6;

/// Where training begins on this rank.
pub struct Begin {
    /// How far the job is.
    pub state: JobState,
    /// Steps that each worker of this trainer has made; empty where it is as many as the job's.
    pub worker_steps: Vec<u64>,
    /// What the same run by another method has left.
    pub left: Carried,
}

impl Begin {
    /// Of a run that nothing is left of in memory.
    #[must_use]
    pub fn anew(state: JobState, worker_steps: Vec<u64>) -> Self {
        Self { state, worker_steps, left: Carried::default() }
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
        add(Scope::Job, "evaluated", one(&mut state.evaluated));
        add(Scope::Job, "best_step", one(&mut state.best_step));
        add(Scope::Job, "valid", Words::Doubles(&mut state.valid));
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
