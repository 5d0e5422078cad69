//! When a checkpoint is due.
//!
//! A pure function of steps and of times that all ranks agree on, so that every rank decides alike.
//! Steps and examples count from the beginning of the run, so that one that goes on saves where one
//! without a stop does.

use core::time::Duration;

use crate::config::Every;

/// When a checkpoint is due.
#[derive(Clone, Debug)]
pub(super) struct Due {
    every: Option<Every>,
    /// Examples of a step, of all workers.
    global_batch: u64,
    /// Since the last one, or since the beginning.
    since: Duration,
    /// Steps per second of the last stretch; 0 before the first.
    rate: f64,
}

impl Due {
    /// Nothing has been saved or trained yet.
    #[must_use]
    pub(super) const fn new(every: Option<Every>, global_batch: u64) -> Self {
        Self { every, global_batch, since: Duration::ZERO, rate: 0.0 }
    }

    /// Another time between two.
    pub(super) const fn space(&mut self, seconds: f64) {
        self.every = Some(Every::Seconds(seconds));
    }

    /// The same, where there are any.
    pub(super) const fn respace(&mut self, seconds: f64) {
        if self.every.is_some() {
            self.space(seconds);
        }
    }

    /// A step has so many examples from now on, and nobody knows how long it takes: ranks that gave
    /// up what they were doing have counted differently.
    pub(super) const fn begin_again(&mut self, global_batch: u64) {
        (self.global_batch, self.since, self.rate) = (global_batch, Duration::ZERO, 0.0);
    }

    /// The step at which a stretch that begins at `step` should end for a checkpoint's sake, if
    /// for one's.
    #[must_use]
    pub(super) fn next(&self, step: u64) -> Option<u64> {
        let every = self.every?;
        let Some(length) = self.steps() else {
            let Every::Seconds(seconds) = every else { return None };
            let left = (seconds - self.since.as_secs_f64()).max(0.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of steps, at least one"
            )]
            let steps = if self.rate > 0.0 { (left * self.rate).ceil() as u64 } else { FIRST };
            return Some(step.saturating_add(steps.max(1)));
        };
        Some((step / length + 1).saturating_mul(length))
    }

    /// Whether one is due after step `step`, where a stretch has ended.
    #[must_use]
    pub(super) fn is_due(&self, step: u64) -> bool {
        match (self.every, self.steps()) {
            (None, _) => false,
            (_, Some(length)) => step.is_multiple_of(length),
            // A stretch that went faster than the one before ends early; it is not to be followed
            // by one of a few steps.
            (Some(Every::Seconds(seconds)), None) => self.since.as_secs_f64() >= NEARLY * seconds,
            (Some(_), None) => false,
        }
    }

    /// A stretch of `steps` steps has ended, which took `took` on the slowest rank.
    pub(super) fn trained(&mut self, steps: u64, took: Duration) {
        self.since += took;
        if steps > 0 && !took.is_zero() {
            self.rate = steps as f64 / took.as_secs_f64();
        }
    }

    /// One has been written, or has been tried.
    pub(super) const fn saved(&mut self) {
        self.since = Duration::ZERO;
    }

    /// Steps from one to the next, where these do not depend on time.
    fn steps(&self) -> Option<u64> {
        match self.every? {
            Every::Steps(steps) => Some(steps.max(1)),
            Every::Examples(examples) => Some(examples.div_ceil(self.global_batch.max(1)).max(1)),
            Every::Seconds(_) => None,
        }
    }
}

/// Steps of the first stretch, which tells how long a step takes.
const FIRST: u64 = 100;
/// Share of the seconds that is enough.
const NEARLY: f64 = 0.95;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_examples_count_from_the_beginning() {
        for (every, length) in [(Every::Steps(10), 10), (Every::Examples(33), 9)] {
            let due = Due::new(Some(every), 4);
            assert_eq!(due.next(0), Some(length));
            assert_eq!(due.next(length - 1), Some(length));
            assert_eq!(due.next(length), Some(2 * length));
            assert!(due.is_due(2 * length) && !due.is_due(2 * length + 1));
        }
        let never = Due::new(None, 4);
        assert!(never.next(0).is_none() && !never.is_due(8));
    }

    #[test]
    fn seconds_become_steps_at_the_rate_so_far() {
        let mut due = Due::new(Some(Every::Seconds(60.0)), 4);
        let first = due.next(0).unwrap();
        due.trained(first, Duration::from_secs(2));
        assert!(!due.is_due(first));
        // Fifty steps a second, and 58 seconds to go.
        assert_eq!(due.next(first), Some(first + 2900));
        due.trained(2900, Duration::from_millis(56_000));
        assert!(due.is_due(first + 2900));
        due.saved();
        assert!(!due.is_due(first + 2900));
        let next = due.next(3000).unwrap();
        assert!((6000..6200).contains(&next), "{next}");
    }
}
