//! Failures that a run plays: the evaluation of arXiv 2011.02999 on the machine at hand.
//!
//! The run stands for a job of `recovery.inject.job_s` seconds. Every partition has an image of its
//! rows, saved as the plan says. A failure takes the rows of its shards back to the image, with a
//! partial recovery; after a full one a run would have the very bits that it has without a failure,
//! so nothing is done. What saves, loads and lost work take is counted at the costs of the
//! configuration, for the saves and failures that this run had.
//!
//! Invariants: between two stretches of training. All ranks play the same failures at the same
//! steps, each on its own partitions, and train on when all have.

use core::time::Duration;
use std::time::Instant;

use umbra_core::recovery::failures::{Failure, Failures, Times};
use umbra_core::recovery::largest::Histogram;
use umbra_core::recovery::overhead::{Costs, Job, Recovery};

use super::image::PartitionImage;
use super::planner::RecoveryPlan;
use super::timeline::Timeline;
use crate::config::{FailureTimes, RecoveryConfig};
use crate::record::RecoveryFigures;
use crate::rows::tables::{Partition, TableLayout};

/// A run's played failures.
pub struct Played {
    /// What it does about them.
    pub plan: RecoveryPlan,
    failures: Failures,
    timeline: Timeline,
    layout: TableLayout,
    /// Shards that a failure takes.
    lost: u32,
    /// Saves until large tables have been saved once: of a part of them, or 1.
    cycle: u64,
    /// None where everybody goes back.
    images: Vec<PartitionImage>,
    histogram: Box<Histogram>,
    counted: Counted,
}

/// What came of saves and failures so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    saves: u64,
    /// On this rank.
    rows_saved: u64,
    failures: u64,
    pls: f64,
    seconds_lost: f64,
    /// On this rank.
    saving: Duration,
}

/// What a rank tells the others at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saved {
    /// Rows.
    pub rows: u64,
    /// What saving them took.
    pub nanoseconds: u64,
    /// Memory for choosing them.
    pub usage_bytes: u64,
}

impl Saved {
    /// As words.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        [self.rows, self.nanoseconds, self.usage_bytes]
    }

    /// Of two ranks.
    #[must_use]
    pub fn and(self, [rows, nanoseconds, usage_bytes]: [u64; 3]) -> Self {
        Self {
            rows: self.rows + rows,
            nanoseconds: self.nanoseconds.max(nanoseconds),
            usage_bytes: self.usage_bytes + usage_bytes,
        }
    }
}

impl Played {
    /// What `config` asks for in a run of `steps` steps; `None` where it asks for no failures.
    #[must_use]
    pub fn new(
        config: &RecoveryConfig,
        seed: u64,
        steps: u64,
        layout: &TableLayout,
        partitions: &[Partition],
    ) -> Option<Self> {
        let (inject, mode) = (&config.inject, config.mode?);
        let (times, length, mean) = (inject.failures?, inject.job_s?, config.mtbf_s?);
        let (save, load) = (config.save_s?, config.load_s?);
        let costs = Costs { save, load, reschedule: config.reschedule_s? };
        let shards = inject.shards.unwrap_or(layout.partitioning.partitions);
        let part = layout.save_first.as_ref().map_or(1.0, |rule| rule.share);
        let job = Job { length, mtbf: mean, shards, part, costs };
        let plan = RecoveryPlan::new(job, mode, config.pls_target);
        let times = match times {
            FailureTimes::Exponential | FailureTimes::Steps => Times::Exponential { mean },
            FailureTimes::Gamma => {
                Times::Gamma { mean, shape: inject.failure_shape.unwrap_or(1.0) }
            }
            FailureTimes::Uniform => Times::Uniform { count: count(length / mean), length },
        };
        let failures = Failures::new(seed, times);
        let interval = plan.taken.interval * part;
        let timeline = Timeline::new(steps, length, interval, failures.clone());
        let timeline = match inject.failures {
            Some(FailureTimes::Steps) => timeline.with_failures_after(&inject.failure_steps),
            _ => timeline,
        };
        let partial = plan.taken.recovery == Recovery::Partial;
        let images = if partial { partitions } else { &[] };
        Some(Self {
            plan,
            failures,
            timeline,
            layout: layout.clone(),
            lost: inject.lost_shards.min(shards),
            cycle: count(1.0 / part).into(),
            images: images.iter().map(PartitionImage::new).collect(),
            histogram: Box::new([0; 1 << 16]),
            counted: Counted::default(),
        })
    }

    /// The next step after `step` after which there is something to do.
    #[must_use]
    pub fn next(&self, step: u64) -> Option<u64> {
        self.timeline.next(step)
    }

    /// Does what is to be done after step `step`. True when that was anything: nobody may train
    /// until all ranks have done it.
    pub fn play(&mut self, step: u64) -> bool {
        // A failure and a save in one step come in the order of their times.
        let save = self.timeline.save_at(step).map(|number| self.timeline.time_of(number));
        let failures: Vec<Failure> = self.timeline.failures_at(step).collect();
        let early = failures.iter().filter(|it| save.is_some_and(|time| it.time < time)).count();
        let (early, late) = failures.split_at(early);
        early.iter().for_each(|failure| self.fail(*failure, step, step - 1));
        if save.is_some() {
            self.save();
        }
        late.iter().for_each(|failure| self.fail(*failure, step, step));
        save.is_some() || !failures.is_empty()
    }

    /// The steps after which a job stands still, and for how many of its seconds: saves, recoveries
    /// and the work that is done again.
    #[must_use]
    pub fn stops(&self) -> Vec<(u64, f64)> {
        let job = &self.plan.job;
        let Costs { save, load, reschedule } = job.costs;
        let (mut stops, mut at) = (vec![], 0);
        while let Some(step) = self.timeline.next(at) {
            let save_at = self.timeline.save_at(step).map(|number| self.timeline.time_of(number));
            let mut seconds = save_at.map_or(0.0, |_| job.part * save);
            for failure in self.timeline.failures_at(step) {
                let early = save_at.is_some_and(|time| failure.time < time);
                let again = if self.plan.taken.recovery == Recovery::Full {
                    self.since(step, if early { step - 1 } else { step })
                } else {
                    0.0
                };
                seconds += load + reschedule + again;
            }
            stops.push((step, seconds));
            at = step;
        }
        stops
    }

    /// Seconds of the job from the last save up to step `saved_until` until step `step`.
    fn since(&self, step: u64, saved_until: u64) -> f64 {
        self.timeline.seconds(step - self.timeline.saved(saved_until, self.cycle))
    }

    /// Rows of all saves so far, of `rows`, by the plan.
    #[must_use]
    pub fn rows_of_saves(&self, rows: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number")]
        let rows = (rows as f64 * self.plan.job.part * self.counted.saves as f64) as u64;
        rows
    }

    fn save(&mut self) {
        let Self { images, layout, histogram, counted, .. } = self;
        counted.saves += 1;
        let start = Instant::now();
        for image in images {
            counted.rows_saved += image.save(layout, histogram);
        }
        counted.saving += start.elapsed();
    }

    /// Shards are lost after step `step`; the last save was up to step `saved_until`.
    fn fail(&mut self, failure: Failure, step: u64, saved_until: u64) {
        let since = self.since(step, saved_until);
        let Self { plan, images, layout, counted, failures, lost, .. } = self;
        counted.failures += 1;
        if plan.taken.recovery == Recovery::Full {
            counted.seconds_lost += since;
            return;
        }
        counted.pls += plan.job.loss(since, *lost);
        let shards = plan.job.shards;
        let taken: Vec<bool> = failures.taken(failure.number, shards, *lost).collect();
        for image in images {
            image.revert(layout, |row| taken[(row % shards) as usize]);
        }
    }

    /// What this rank has saved.
    #[must_use]
    pub fn saved(&self) -> Saved {
        let Counted { rows_saved, saving, .. } = self.counted;
        let nanoseconds = u64::try_from(saving.as_nanos()).unwrap_or(u64::MAX);
        let usage_bytes = self.images.iter().map(PartitionImage::usage_bytes).sum();
        Saved { rows: rows_saved, nanoseconds, usage_bytes }
    }

    /// What came of it, with what all ranks have saved.
    #[must_use]
    pub fn figures(&self, mode: &str, saved: Saved) -> RecoveryFigures {
        let Self { plan, counted, layout, .. } = self;
        let Counted { saves, failures, pls, seconds_lost, .. } = *counted;
        let partial = plan.taken.recovery == Recovery::Partial;
        let full_saves = if partial {
            saved.rows as f64 / f64::from(layout.numbering().rows().max(1))
        } else {
            saves as f64
        };
        let Costs { save, load, reschedule } = plan.job.costs;
        let seconds = full_saves * save + failures as f64 * (load + reschedule) + seconds_lost;
        RecoveryFigures {
            failures,
            mode: mode.to_owned(),
            pls: partial.then_some(pls),
            pls_expected: partial.then_some(plan.taken.loss),
            seconds_lost: Some(seconds_lost),
            overhead_fraction: Some(seconds / plan.job.length),
            overhead_simulated: None,
            interval_s: Some(plan.taken.interval),
            saves: Some(saves),
            full_saves: Some(full_saves),
            seconds_saving: partial.then(|| Duration::from_nanos(saved.nanoseconds).as_secs_f64()),
            usage_bytes: Some(saved.usage_bytes).filter(|bytes| *bytes > 0),
            losses: vec![],
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
fn count(number: f64) -> u32 {
    number.round() as u32
}
