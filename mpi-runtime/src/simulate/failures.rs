//! Failures that a virtual cluster has: what they cost in time, and what of rows they take back.
//!
//! As in real runs (`recovery::played`) a run stands for a job of `recovery.inject.job_s` seconds.
//! A save, and a recovery, keeps every trainer from working for as long as it does that job: a step
//! needs rows of all stores. After a full one the work since the last save is done again. With a
//! real model, lost rows go back to how they were saved, at the same step.
//!
//! Invariants: how long a job takes without failures is simulated first, so when they come is known
//! before it begins. They are played between two steps of all trainers, or of as many as there are
//! trainers' workers where these make as many as they can.

use umbra_core::sim::{Cluster, Outcome, Pause};
use umbra_core::units::Nanos;

use crate::config::{RecoveryConfig, RecoveryMode};
use crate::record::RecoveryFigures;
use crate::recovery::played::{Played, Saved};
use crate::rows::tables::{Partition, TableLayout};
use crate::run::plan::Plan;

/// The failures of a simulated run.
pub(super) struct Failures {
    played: Played,
    mode: RecoveryMode,
    /// Virtual seconds without them.
    seconds: f64,
    /// Steps of a worker.
    steps: u64,
    /// Workers of all trainers, and the steps that they have made.
    workers: u64,
    made: u64,
    /// Played up to this step.
    at: u64,
    rows: Option<u64>,
}

impl Failures {
    /// Those of a run of `plan` with `steps` steps, which takes `seconds` without them; `None`
    /// where it has none. With a real model, `rows` are its rows on one rank.
    pub(super) fn new(
        plan: &Plan,
        (steps, seconds): (u64, f64),
        rows: Option<(&TableLayout, &[Partition])>,
    ) -> Option<Self> {
        let (config, seed) = (&plan.job.config.recovery, plan.job.config.seed);
        let mode = config.mode.filter(|_| config.inject.failures.is_some())?;
        // Rows stand in one place here, and on the stores of the cluster there.
        let mut inject = config.inject.clone();
        inject.shards.get_or_insert(plan.layout.partitioning.partitions);
        let config = RecoveryConfig { inject, ..config.clone() };
        let (layout, partitions) = rows.unwrap_or((&plan.layout, &[]));
        let played = Played::new(&config, seed, steps, layout, partitions)?;
        let all = u64::from(plan.layout.numbering().rows());
        Some(Self {
            played,
            mode,
            seconds,
            steps,
            workers: plan.job.batches_per_step() as u64,
            made: 0,
            at: 0,
            rows: rows.is_none().then_some(all),
        })
    }

    /// `cluster`, whose trainers stand still for saves and recoveries.
    pub(super) fn on(&self, cluster: &Cluster) -> Cluster {
        let mut cluster = cluster.clone();
        let virtual_second = self.seconds / self.played.plan.job.length;
        let mut stopped = 0.0;
        let pauses = self.played.stops().into_iter().map(|(step, seconds)| {
            let from = self.seconds * step as f64 / self.steps.max(1) as f64 + stopped;
            stopped += seconds * virtual_second;
            let to = from + seconds * virtual_second;
            Pause { from: nanoseconds(from), to: nanoseconds(to) }
        });
        let pauses: Vec<Pause> = pauses.collect();
        for trainer in &mut cluster.trainers {
            trainer.pauses = either(&trainer.pauses, &pauses);
        }
        cluster
    }

    /// A worker has made a step: what is due is played.
    pub(super) fn step(&mut self) {
        self.made += 1;
        self.reach(self.made / self.workers.max(1));
    }

    /// Something is to be played up to step `step`.
    pub(super) fn is_due(&self, step: u64) -> bool {
        self.played.next(self.at).is_some_and(|next| next <= step)
    }

    /// All workers have made `step` steps: what is due is played.
    pub(super) fn reach(&mut self, step: u64) {
        while let Some(next) = self.played.next(self.at).filter(|next| *next <= step) {
            self.played.play(next);
            self.at = next;
        }
    }

    /// What came of them.
    pub(super) fn figures(mut self, outcome: &Outcome) -> RecoveryFigures {
        self.reach(self.steps);
        let saved = self.played.saved();
        // Without rows: as many as the plan saves.
        let planned = |rows: u64| self.played.rows_of_saves(rows);
        let rows = self.rows.map_or(saved.rows, planned);
        let figures = self.played.figures(self.mode.name(), Saved { rows, ..saved });
        let overhead = outcome.seconds / self.seconds - 1.0;
        RecoveryFigures { overhead_simulated: Some(overhead), ..figures }
    }
}

/// Times of one or the other, ascending and without overlap.
fn either(one: &[Pause], other: &[Pause]) -> Vec<Pause> {
    let mut all = [one, other].concat();
    all.sort_unstable_by_key(|pause| (pause.from, pause.to));
    let mut merged: Vec<Pause> = vec![];
    for pause in all {
        match merged.last_mut().filter(|last| last.to >= pause.from) {
            Some(last) => last.to = last.to.max(pause.to),
            None => merged.push(pause),
        }
    }
    merged
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn nanoseconds(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_that_meet_are_one() {
        let pauses = |all: &[(u64, u64)]| -> Vec<Pause> {
            all.iter().map(|(from, to)| Pause { from: Nanos(*from), to: Nanos(*to) }).collect()
        };
        let (one, other) = (pauses(&[(0, 3), (10, 20), (40, 41)]), pauses(&[(3, 5), (12, 15)]));
        assert_eq!(either(&one, &other), pauses(&[(0, 5), (10, 20), (40, 41)]));
    }
}
