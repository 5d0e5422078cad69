//! What saving and recovering take of a job's time, and how far apart saves should be.
//!
//! arXiv 2011.02999: with saves every T seconds that take s each, failures every F
//! seconds in the mean, and l + r seconds until a lost shard is there again,
//!
//! - a *full* recovery takes everybody back to the last save: s·L/T + (l + r + T/2)·L/F of a job of
//!   L seconds, least at T = √(2sF) (J. W. Young, "A first order approximation to the optimum
//!   checkpoint interval", CACM 17, 1974);
//! - a *partial* one takes the lost shard back alone: s·L/T + (l + r)·L/F, the less the larger T
//!   is. What bounds T is what is lost: of N shards the lost one misses half an interval in the
//!   mean, so the expected portion of lost samples is T / (2FN).
//!
//! Where even the interval that the allowed loss leaves makes a partial recovery the dearer one,
//! the full one is chosen.
//!
//! Invariants: all times are seconds of one clock, greater than 0; shares are of the job's length.

use crate::float::sqrt_f64;

/// A job as failures see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// Seconds that it trains.
    pub length: f64,
    /// Mean seconds between failures of any of its shards.
    pub mtbf: f64,
    /// Shards of the rows, one of which a failure takes.
    pub shards: u32,
    /// Share of the rows that a save has, and of an interval that lies between two: 1, or less
    /// where some rows are saved first.
    pub part: f64,
    /// What it pays.
    pub costs: Costs,
}

/// Seconds that everybody waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// For a save of everything.
    pub save: f64,
    /// For what was saved to be read.
    pub load: f64,
    /// For a process in the place of the lost one.
    pub reschedule: f64,
}

/// Who goes back to the last save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Everybody.
    Full,
    /// The lost shard.
    Partial,
}

/// A way to recover, and what is to be expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Who goes back.
    pub recovery: Recovery,
    /// Seconds from save to save.
    pub interval: f64,
    /// Share of the job's length that saving and recovering take.
    pub overhead: f64,
    /// Expected portion of lost samples.
    pub loss: f64,
}

/// The ways to recover, side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Everybody goes back, at the interval that suits that best.
    pub full: Outlook,
    /// The lost shard goes back; saves are as far apart as for the full way.
    pub partial: Outlook,
    /// The lost shard goes back; saves are as far apart as the allowed loss permits.
    pub allowed: Outlook,
    /// The cheaper one of the first and the last.
    pub chosen: Outlook,
}

impl Job {
    /// The ways to recover, with a portion of lost samples of at most `loss` in the mean.
    #[must_use]
    pub fn choose(&self, loss: f64) -> Choice {
        let young = self.young_interval();
        let full = self.outlook(Recovery::Full, young);
        let partial = self.outlook(Recovery::Partial, young);
        let allowed = self.outlook(Recovery::Partial, self.interval_for_loss(loss));
        let chosen = if allowed.overhead < full.overhead { allowed } else { full };
        Choice { full, partial, allowed, chosen }
    }

    /// What is to be expected of one way.
    #[must_use]
    pub fn outlook(&self, recovery: Recovery, interval: f64) -> Outlook {
        let (overhead, loss) = match recovery {
            Recovery::Full => (self.overhead_full(interval), 0.0),
            Recovery::Partial => (self.overhead_partial(interval), self.expected_loss(interval)),
        };
        Outlook { recovery, interval, overhead: overhead / self.length, loss }
    }

    /// The interval with the least overhead of a full recovery.
    #[must_use]
    pub fn young_interval(&self) -> f64 {
        sqrt_f64(2.0 * self.costs.save * self.mtbf)
    }

    /// The interval at which a portion of `loss` is lost in the mean. The first save comes before
    /// half the job is over, since until then there are but initial values to come back to.
    #[must_use]
    pub fn interval_for_loss(&self, loss: f64) -> f64 {
        let interval = 2.0 * loss * f64::from(self.shards) * self.mtbf;
        interval.min(self.length / 2.0 / self.part)
    }

    /// Seconds that saves and full recoveries take in the mean.
    #[must_use]
    pub fn overhead_full(&self, interval: f64) -> f64 {
        self.overhead_partial(interval) + interval / 2.0 * self.length / self.mtbf
    }

    /// Seconds that saves and partial recoveries take in the mean.
    #[must_use]
    pub fn overhead_partial(&self, interval: f64) -> f64 {
        let Costs { save, load, reschedule } = self.costs;
        save * self.length / interval + (load + reschedule) * self.length / self.mtbf
    }

    /// Expected portion of lost samples: with a last interval that the job's end cuts short. Where
    /// intervals are short beside the job it is T / (2FN).
    #[must_use]
    pub fn expected_loss(&self, interval: f64) -> f64 {
        let whole = libm::floor(self.length / interval);
        let rest = self.length - whole * interval;
        // Of an interval of t seconds t / F failures are to be expected, which lose t / 2 each.
        let squares = whole * interval * interval + rest * rest;
        squares / (2.0 * self.mtbf * self.length * f64::from(self.shards))
    }

    /// The portion that a failure loses `since` seconds after the last save, of `lost` shards.
    #[must_use]
    pub fn loss(&self, since: f64, lost: u32) -> f64 {
        since / self.length * f64::from(lost) / f64::from(self.shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::failures::{Failures, Times};

    const HOUR: f64 = 3600.0;

    /// 56 hours with a failure every 28, at costs at which a full recovery takes what the paper's
    /// abstract says, 8.2 to 8.5 %.
    fn job() -> Job {
        let costs = Costs { save: 336.0, load: 100.0, reschedule: 200.0 };
        Job { length: 56.0 * HOUR, mtbf: 28.0 * HOUR, shards: 18, part: 1.0, costs }
    }

    #[test]
    fn the_published_overheads_come_out() {
        let choice = job().choose(0.05);
        assert!((0.084..0.086).contains(&choice.full.overhead), "{choice:?}");
        assert!((0.043..0.045).contains(&choice.partial.overhead), "{choice:?}");
        assert_eq!(choice.chosen, choice.allowed);
        for (loss, overhead) in [(0.02, 0.0076), (0.025, 0.0067)] {
            let found = job().choose(loss).chosen.overhead;
            assert!((found / overhead - 1.0).abs() < 0.02, "{loss}: {found}");
        }
    }

    #[test]
    fn no_interval_is_better_than_youngs() {
        let (job, best) = (job(), job().young_interval());
        for factor in [0.5, 0.9, 1.1, 2.0] {
            assert!(job.overhead_full(best * factor) > job.overhead_full(best));
        }
    }

    #[test]
    fn where_little_may_be_lost_everybody_goes_back() {
        let choice = job().choose(1e-4);
        assert_eq!(choice.chosen, choice.full);
        assert!(choice.allowed.overhead > choice.full.overhead);
    }

    #[test]
    fn a_job_that_is_long_loses_half_an_interval_of_a_shard() {
        let job = Job { length: 1e9, ..job() };
        let simple = 10.0 * HOUR / (2.0 * job.mtbf * 18.0);
        assert!((job.expected_loss(10.0 * HOUR) / simple - 1.0).abs() < 1e-3);
        assert!((job.interval_for_loss(simple) / (10.0 * HOUR) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_first_save_is_in_the_first_half_of_a_job() {
        let job = job();
        assert_eq!(job.interval_for_loss(0.1), job.length / 2.0);
        let job = Job { part: 0.125, ..job };
        assert!((job.interval_for_loss(0.1) / (100.8 * HOUR) - 1.0).abs() < 1e-9);
        assert_eq!(job.interval_for_loss(1.0), 4.0 * job.length);
    }

    /// Drawn failures lose what is to be expected, however the job's end cuts the last interval.
    #[test]
    fn drawn_failures_lose_what_is_expected() {
        let job = job();
        for interval in [2.0, 11.0, 20.0, 28.0, 50.0].map(|hours| hours * HOUR) {
            let (mut lost, draws) = (0.0, 4000u32);
            for seed in 0..draws {
                let times = Failures::new(seed.into(), Times::Exponential { mean: job.mtbf });
                for failure in times.take_while(|failure| failure.time < job.length) {
                    lost += job.loss(failure.time % interval, 1);
                }
            }
            let ratio = lost / f64::from(draws) / job.expected_loss(interval);
            assert!((0.95..1.05).contains(&ratio), "{interval}: {ratio}");
        }
    }
}
