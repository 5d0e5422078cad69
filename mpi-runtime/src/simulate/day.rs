//! A job that changes its method, in virtual time: a simulation for every stretch between two looks
//! or two changes.
//!
//! What differs from a real run: a stretch begins and ends with all workers standing still, and a
//! trainer is as slow as it is when the stretch begins. Times of trainers' own steps are those that
//! the simulation has drawn; the same watcher looks at them (`run/stragglers.rs`).

use umbra_core::sim::{self, Outcome, Simulated};
use umbra_core::sync::server::Tally;

use super::{Simulation, Virtual, synchronized, timing};
use crate::config::SyncMethod;
use crate::error::Error;
use crate::record::SyncSwitch;
use crate::run::stragglers::{Watch, why};

impl Virtual {
    /// Simulates stretch after stretch.
    pub(super) fn run_in_turn(&self) -> Result<Simulation, Error> {
        let job = &self.plan.job;
        let sync = &job.config.sync;
        let batch = job.config.train.batch_size as u64;
        let mut watch = Watch::new(&self.plan);
        let mut method = sync.method_at(0).unwrap_or(job.method);
        let (mut made, mut stretch) = (0, 0);
        let mut total = Outcome::default();
        let (mut tally, mut switches) = (Tally::EMPTY, vec![]);
        while made < self.steps {
            let length = if watch.is_some() { sync.switch.window } else { u64::MAX };
            let change = sync.next_switch(made).unwrap_or(u64::MAX);
            let end = self.steps.min(change).min(made.saturating_add(length));
            let mut steps = end - made;
            let mut done = self.stretch(method, made, steps, stretch)?;
            // Until a look that would have come before its end.
            let seconds = done.outcome.seconds / steps as f64;
            let looks =
                |watch: &Watch, made: u64| watch.is_over(made as f64, made as f64 * seconds);
            let look = watch.as_ref().and_then(|watch| (1..steps).find(|made| looks(watch, *made)));
            if let Some(look) = look {
                steps = look;
                done = self.stretch(method, made, steps, stretch)?;
            }
            (made, stretch) = (made + steps, stretch + 1);
            tally.add(&done.tally);
            let found = watch.as_mut().and_then(|watch| {
                let trainers = &done.outcome.trainers;
                let each = trainers.iter().map(|it| (it.steps * batch, it.compute_seconds));
                watch.window(each, done.outcome.seconds)
            });
            append(&mut total, done.outcome);
            let other = match &found {
                Some(_) => sync.methods().find(|other| *other != method),
                None => sync.method_at(made).filter(|other| *other != method),
            };
            if let Some(to) = other.filter(|_| made < self.steps) {
                total.seconds += self.change_s;
                total.seconds_all += self.change_s;
                method = to;
                let (method, reason) = (to.name().to_owned(), found.as_ref().map(why));
                switches.push(SyncSwitch { step: made, method, seconds: self.change_s, reason });
            }
        }
        let mut summary = self.summary(&total, None, &tally)?;
        if let Some(sync) = &mut summary.sync {
            let served = job.config.sync.methods().any(SyncMethod::is_served);
            let figures = core::mem::take(sync);
            *sync = if served { figures.with_gradients(&tally) } else { figures };
            sync.switches = switches;
        }
        Ok(Simulation { summary, outcome: total })
    }

    /// `steps` steps from `first` on, as stretch number `stretch`.
    fn stretch(
        &self,
        method: SyncMethod,
        first: u64,
        steps: u64,
        stretch: u64,
    ) -> Result<Simulated, Error> {
        let cluster = self.cluster_at(first, steps, stretch);
        let simulated = synchronized(&self.plan, method, self.leaf, None);
        timing(&cluster, &simulated, false)
    }

    /// The cluster for `steps` steps from `first` on.
    fn cluster_at(&self, first: u64, steps: u64, stretch: u64) -> sim::Cluster {
        let mut cluster = self.cluster.clone();
        // Other times of steps than in the stretch before.
        cluster.seed = cluster.seed.wrapping_add(stretch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for (number, trainer) in cluster.trainers.iter_mut().enumerate() {
            trainer.steps = steps;
            let slow = self.slow.iter().filter(|entry| entry.is_at(number, first));
            trainer.slowdown *= slow.map(|entry| entry.factor).product::<f64>();
        }
        cluster
    }
}

/// What comes after.
fn append(total: &mut Outcome, next: Outcome) {
    total.trainers.resize_with(next.trainers.len(), Default::default);
    for (sum, own) in total.trainers.iter_mut().zip(next.trainers) {
        sum.steps += own.steps;
        sum.rounds += own.rounds;
        sum.exposed_seconds += own.exposed_seconds;
        sum.background_seconds += own.background_seconds;
        sum.processor_seconds += own.processor_seconds;
        sum.rows_seconds += own.rows_seconds;
        sum.compute_seconds += own.compute_seconds;
        sum.seconds = total.seconds + own.seconds;
        sum.sync_bytes += own.sync_bytes;
    }
    total.seconds += next.seconds;
    total.seconds_all += next.seconds_all;
    total.center_seconds += next.center_seconds;
    total.center_bytes += next.center_bytes;
    total.rows_bytes += next.rows_bytes;
    total.events += next.events;
}
