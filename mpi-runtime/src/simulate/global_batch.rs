//! Steps of `bsp` in one process: slices of a global batch, whose gradients become one update.
//!
//! The twin of the meetings of `dense/bsp.rs`, with the same sums in the same order: trees over the
//! slices of a trainer, and over the trainers.
//!
//! Invariant: all trainers have ended a step before one of them begins the next. So whoever makes
//! the first slice of a step can ask for the rows of all, which come together as those of real
//! ranks do, and knows the weight of the global batch before the first gradient.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use umbra_core::dense::replica::{load, store};
use umbra_core::sync::reduction::sum_into_first;

use crate::dense::bsp::Contribution;
use crate::error::Error;
use crate::measure::counters::WorkerCounters;
use crate::trainer::{Trainer, Worker};

/// The slices of all trainers, and the step they are at.
pub(super) struct GlobalBatch<'a> {
    trainers: &'a [Trainer],
    /// A slice each, trainer by trainer.
    workers: &'a mut [Worker],
    counters: &'a [WorkerCounters],
    /// Gradient and statistics of batch norms, by trainer. `[replica_len]` each
    sums: &'a [Vec<AtomicU32>],
    /// Steps begun.
    steps: u64,
    /// Of the global batch in hand.
    weight: f64,
    /// Slices of the step in hand that are made, by trainer.
    made: Vec<usize>,
}

impl<'a> GlobalBatch<'a> {
    /// Before the first step.
    pub(super) fn new(
        trainers: &'a [Trainer],
        workers: &'a mut [Worker],
        counters: &'a [WorkerCounters],
        sums: &'a [Vec<AtomicU32>],
    ) -> Self {
        let made = vec![0; trainers.len()];
        Self { trainers, workers, counters, sums, steps: 0, weight: 0.0, made }
    }

    /// Makes `slices` of a trainer's in `step`; the last of them leaves the trainer's sum.
    ///
    /// # Errors
    /// Data that can't be read.
    pub(super) fn make(
        &mut self,
        trainer: usize,
        slices: Range<usize>,
        step: u64,
    ) -> Result<(), Error> {
        if step == self.steps {
            self.begin(step)?;
        }
        self.made[trainer] += slices.len();
        for slice in slices {
            let (worker, counters) = (&mut self.workers[slice], &self.counters[slice]);
            worker.contribute(&self.trainers[trainer], self.weight, step, counters)?;
        }
        if self.made[trainer] == self.each() {
            self.made[trainer] = 0;
            self.add_up(trainer);
        }
        Ok(())
    }

    /// Waits until the rows have what was pushed.
    ///
    /// # Errors
    /// When they did not take it in time.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        for worker in &mut *self.workers {
            worker.client.settle(true)?;
        }
        Ok(())
    }

    /// Slices of a trainer.
    const fn each(&self) -> usize {
        self.workers.len() / self.trainers.len()
    }

    fn begin(&mut self, step: u64) -> Result<(), Error> {
        let (each, watch) = (self.each(), &self.trainers[0].watch);
        let weights = self.workers.iter_mut().map(|worker| worker.ask(watch, step));
        let mut weights: Vec<f64> = weights.collect::<Result<_, Error>>()?;
        let mut of_trainers: Vec<f64> = weights.chunks_mut(each).map(tree).collect();
        (self.weight, self.steps) = (tree(&mut of_trainers), step + 1);
        Ok(())
    }

    fn add_up(&mut self, trainer: usize) {
        let each = self.each();
        let workers = &mut self.workers[trainer * each..][..each];
        let mut items: Vec<&mut Contribution> =
            workers.iter_mut().map(|worker| &mut worker.buffers.contribution).collect();
        sum_into_first(&mut items, |to, from| to.add(from, true));
        let (gradient, statistics) = self.sums[trainer].split_at(items[0].gradient.len());
        if self.weight <= 0.0 {
            // A batch without weights changes nothing: what is no number is refused by all.
            items[0].gradient.fill(f32::NAN);
        }
        store(gradient, &items[0].gradient);
        store(statistics, &items[0].statistics);
    }
}

/// Updates a trainer with `sum`, that of all trainers over so many `slices`. `scratch` is as long.
pub(super) fn update(
    trainer: &Trainer,
    sum: &[AtomicU32],
    slices: usize,
    step: u64,
    scratch: &mut [f32],
) {
    load(sum, scratch);
    let (gradient, statistics) = scratch.split_at_mut(trainer.model.parameters_len());
    statistics.iter_mut().for_each(|x| *x /= slices as f32);
    // What is not finite all trainers refuse alike.
    trainer.finish_step((gradient, statistics), 1.0, step);
}

fn tree(values: &mut [f64]) -> f64 {
    sum_into_first(values, |to, from| *to += *from);
    values[0]
}
