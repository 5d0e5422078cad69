//! Bulk-synchronous training: every step, the gradients of all workers of all trainers become one
//! update.
//!
//! L. G. Valiant, "A bridging model for parallel computation", CACM 33 (1990); synchronous SGD.
//!
//! The unit of work is a *slice* of the global batch, each with a worker of its own that computes
//! when it has a turn (`compute_slots.rs`). The workers of a trainer meet in a [`Meeting`]; whoever
//! comes last sums their contributions and hands the sum to the dense communicator thread, where a
//! protocol (`umbra_core::sync::StepSum`) adds the trainers. All sums are trees over the slices
//! (`umbra_core::sync::reduction`), so a step's result is a function of the examples alone: the
//! same seed gives the same bits, and so does another number of ranks or threads as long as the
//! slices are the same (`Plan::slices`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::comm::watch::Watch;
use crate::dense::compute_slots::Turns;
use crate::dense::gradients::{GradientLink, Job};
use crate::dense::meeting::Meeting;
use crate::memory::Lines;
use umbra_core::sync::reduction::{add, sum_into_first};

/// Loss, weight, and 1 if this trainer was asked to stop.
pub const STEP_SUMS: usize = 3;

/// What a worker brings to the end of a step.
#[derive(Default)]
pub struct Contribution {
    /// Its share of the gradient of the global batch. `[parameters_len]`
    pub gradient: Lines,
    /// Statistics of batch normalisation, equal for all workers when global. `[statistics]`
    pub statistics: Lines,
    /// Loss, weight, and 1 if this trainer was asked to stop: summed over all. `[STEP_SUMS]`
    pub sums: Vec<f64>,
}

impl Contribution {
    /// Adds another slice's. `statistics`: also those of batch normalisation, which slices have
    /// each of their own.
    pub fn add(&mut self, from: &Self, statistics: bool) {
        add(&mut self.gradient, &from.gradient);
        add(&mut self.sums, &from.sums);
        if statistics {
            add(&mut self.statistics, &from.statistics);
        }
    }
}

/// The meeting of all workers, once or more per step.
pub struct Bsp {
    sums: Meeting<Vec<f64>>,
    contributions: Meeting<Contribution>,
    link: Option<GradientLink>,
    turns: Turns,
    watch: Arc<Watch>,
    stalled_ns: AtomicU64,
    global_norm: bool,
    slices_total: usize,
    losses: Mutex<Vec<f64>>,
}

impl Bsp {
    /// The meeting of the workers of `slices` slices here and over all trainers, of whom `threads`
    /// compute at a time here, with other trainers behind `link`, if there are any. `global_norm`:
    /// batch norms see the global batch; else each slice its own, and the running statistics move
    /// towards the mean over all slices.
    #[must_use]
    pub fn new(
        (slices, slices_total): (usize, usize),
        threads: usize,
        link: Option<GradientLink>,
        global_norm: bool,
        watch: &Arc<Watch>,
    ) -> Self {
        Self {
            sums: Meeting::new(slices, Arc::clone(watch)),
            contributions: Meeting::new(slices, Arc::clone(watch)),
            link,
            turns: Turns::new(threads, Arc::clone(watch)),
            stalled_ns: AtomicU64::new(0),
            global_norm,
            slices_total,
            watch: Arc::clone(watch),
            losses: Mutex::new(vec![]),
        }
    }

    /// Sums `values` over all workers of all trainers. Every worker calls it with the same length,
    /// in the same order of calls. `buffer` is scratch.
    pub fn sum(&self, worker: usize, values: &mut [f64], buffer: &mut Vec<f64>) {
        let mut item = core::mem::take(buffer);
        item.clear();
        item.extend_from_slice(values);
        let meet = || {
            self.sums.meet(worker, item, "a sum over the global batch", |items| {
                sum_into_first(items, |to, from| add(to, from));
                let (total, rest) = items.split_at_mut(1);
                let few = core::mem::take(&mut total[0]);
                let what = "sums over the global batch";
                total[0] = self
                    .over_trainers(Job { values: Lines::default(), few, what, ends_step: false })
                    .few;
                rest.iter_mut().for_each(|item| item.copy_from_slice(&total[0]));
                Ok(())
            })
        };
        let item = self.watch.or_end(self.turns.rest(meet).flatten());
        values.copy_from_slice(&item);
        *buffer = item;
    }

    /// Ends a step: sums gradients and losses over all workers; `update` gets gradient, statistics
    /// and sums of the global batch, once per trainer. Returns the contribution, with the sums of
    /// all and the buffers to use again.
    pub fn finish_step(
        &self,
        worker: usize,
        contribution: Contribution,
        update: impl FnOnce(&[f32], &[f32], &[f64]),
    ) -> Contribution {
        let meet = || {
            self.contributions.meet(worker, contribution, "the end of a step", |items| {
                sum_into_first(items, |to, from| to.add(from, !self.global_norm));
                let (total, rest) = items.split_at_mut(1);
                let total = &mut total[0];
                let values = core::mem::take(&mut total.gradient);
                let few = core::mem::take(&mut total.sums);
                let done = self.over_trainers(Job {
                    values,
                    few,
                    what: "the sum of gradients",
                    ends_step: true,
                });
                (total.gradient, total.sums) = (done.values, done.few);
                if !self.global_norm && !total.statistics.is_empty() {
                    let values = core::mem::take(&mut total.statistics);
                    let what = "statistics of batch norms";
                    total.statistics = self
                        .over_trainers(Job { values, few: vec![], what, ends_step: false })
                        .values;
                    let slices = self.slices_total as f32;
                    total.statistics.iter_mut().for_each(|x| *x /= slices);
                }
                update(&total.gradient, &total.statistics, &total.sums);
                let loss = total.sums[0] / total.sums[1];
                self.losses.lock().unwrap_or_else(PoisonError::into_inner).push(loss);
                rest.iter_mut().for_each(|item| item.sums.copy_from_slice(&total.sums));
                Ok(())
            })
        };
        self.watch.or_end(self.turns.rest(meet).flatten())
    }

    /// Whether batch norms see the global batch.
    #[must_use]
    pub const fn global_norm(&self) -> bool {
        self.global_norm
    }

    /// The turns of this trainer's workers.
    #[must_use]
    pub const fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Nanoseconds in which this trainer stood still for other trainers.
    #[must_use]
    pub fn stalled_ns(&self) -> u64 {
        self.stalled_ns.load(Relaxed)
    }

    /// Ends the meetings: lets the dense communicator thread go, and returns the loss of every step
    /// over the global batch.
    #[must_use]
    pub fn close(self) -> Vec<f64> {
        self.losses.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn over_trainers(&self, job: Job) -> Job {
        let Some(link) = &self.link else { return job };
        let what = job.what;
        let start = Instant::now();
        let sent = link.jobs.send(job).is_ok();
        let done = self.watch.or_end(self.watch.receive(&link.done, &what)).filter(|_| sent);
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stalled_ns.fetch_add(waited, Relaxed);
        done.unwrap_or_else(|| panic!("the dense communicator thread has ended before {what}"))
    }
}
