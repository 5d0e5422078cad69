//! Which steps of a run have saves and failures.
//!
//! A run stands for a job of so many seconds, and all its steps are equally long. Invariant: a
//! function of its arguments alone, so all ranks know it.

use umbra_core::recovery::failures::{Failure, Failures};

/// Saves and failures of a run by steps.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    steps: u64,
    /// Seconds of a step.
    step_s: f64,
    /// Seconds from save to save.
    interval: f64,
    /// Ascending.
    failures: Vec<(u64, Failure)>,
}

impl Timeline {
    /// A job of `length` seconds in `steps` steps with these `failures`, and a save every
    /// `interval` seconds, after every step at most.
    pub(super) fn new(steps: u64, length: f64, interval: f64, failures: Failures) -> Self {
        let step_s = length / steps as f64;
        let within = failures.take_while(|failure| failure.time < length);
        let failures = within.map(|failure| (step_of(failure.time, step_s), failure)).collect();
        Self { steps, step_s, interval: interval.max(step_s), failures }
    }

    /// The same with failures after these `steps`, ascending.
    pub(super) fn with_failures_after(self, steps: &[u64]) -> Self {
        let failure = |(number, step): (u64, &u64)| {
            (*step, Failure { number, time: *step as f64 * self.step_s })
        };
        let failures = (0..).zip(steps.iter().filter(|step| **step <= self.steps));
        Self { failures: failures.map(failure).collect(), ..self }
    }

    /// The next step after `step` with a save or a failure.
    pub(super) fn next(&self, step: u64) -> Option<u64> {
        let failure = self.failures.iter().map(|(at, _)| *at).find(|at| *at > step);
        self.next_save(step).into_iter().chain(failure).min()
    }

    /// The number of the save after step `step`, from 1; `None` when it has none.
    pub(super) fn save_at(&self, step: u64) -> Option<u64> {
        let number = self.number_before(step.checked_sub(1)?) + 1;
        (self.save_step(number) == step && step < self.steps).then_some(number)
    }

    /// Seconds until save number `number`.
    pub(super) fn time_of(&self, number: u64) -> f64 {
        number as f64 * self.interval
    }

    /// The failures after step `step`.
    pub(super) fn failures_at(&self, step: u64) -> impl Iterator<Item = Failure> + '_ {
        self.failures.iter().filter(move |(at, _)| *at == step).map(|(_, failure)| *failure)
    }

    /// Seconds of so many steps.
    pub(super) fn seconds(&self, steps: u64) -> f64 {
        steps as f64 * self.step_s
    }

    /// The step of the last save of every `of`th one, up to `step`; 0 where there is none.
    pub(super) fn saved(&self, step: u64, of: u64) -> u64 {
        // The end of the run is none.
        let number = self.number_before(step.min(self.steps.saturating_sub(1)));
        self.save_step(number / of * of)
    }

    fn next_save(&self, step: u64) -> Option<u64> {
        let next = self.save_step(self.number_before(step) + 1);
        (next < self.steps).then_some(next)
    }

    /// The number of the last save up to `step`.
    fn number_before(&self, step: u64) -> u64 {
        let mut number = floor(self.seconds(step) / self.interval);
        // Rounding may be one off either way.
        while self.save_step(number + 1) <= step {
            number += 1;
        }
        while self.save_step(number) > step {
            number -= 1;
        }
        number
    }

    fn save_step(&self, number: u64) -> u64 {
        if number == 0 { 0 } else { step_of(self.time_of(number), self.step_s) }
    }
}

/// The first step that has ended at `time`, at least 1.
fn step_of(time: f64, step_s: f64) -> u64 {
    // A whole number of steps stays one, however it is rounded.
    floor((time / step_s - 1e-9).ceil()).max(1)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of steps")]
const fn floor(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use umbra_core::recovery::failures::Times;

    use super::*;

    fn timeline(interval: f64) -> Timeline {
        let failures = Failures::new(1, Times::Uniform { count: 2, length: 100.0 });
        Timeline::new(1000, 100.0, interval, failures)
    }

    #[test]
    fn saves_are_as_far_apart_as_asked_and_none_is_at_the_end() {
        let cases = [
            (1e-300, 999),
            (0.7, 142),
            (1.0, 99),
            (3.3, 30),
            (33.0, 3),
            (50.0, 1),
            (100.0, 0),
            (1e3, 0),
        ];
        for (interval, count) in cases {
            let timeline = timeline(interval).with_failures_after(&[]);
            let (mut step, mut number) = (0, 0);
            while let Some(next) = timeline.next(step) {
                number += 1;
                assert_eq!(timeline.save_at(next), Some(number), "{interval}");
                let expected = f64::from(u32::try_from(number).unwrap_or(0)) * timeline.interval;
                assert!((timeline.seconds(next) - expected).abs() <= 0.1 + 1e-9, "{interval}");
                assert!((step + 1..next).all(|it| timeline.save_at(it).is_none()), "{interval}");
                assert_eq!(timeline.saved(next, 1), next);
                assert_eq!(timeline.saved(next - 1, 1), step);
                step = next;
            }
            assert_eq!(number, count, "{interval}");
        }
    }

    #[test]
    fn every_failure_has_a_step() {
        let drawn = timeline(1e9);
        let steps: Vec<u64> = (0..=1000).filter(|s| drawn.failures_at(*s).count() > 0).collect();
        assert_eq!((0..=1000).map(|step| drawn.failures_at(step).count()).sum::<usize>(), 2);
        assert_eq!(drawn.next(0), steps.first().copied());
        let given = timeline(30.0).with_failures_after(&[10, 400, 2000]);
        assert_eq!(given.next(0), Some(10));
        assert_eq!(given.next(10), Some(300));
        assert_eq!(given.next(300), Some(400));
        assert_eq!(given.failures_at(400).map(|failure| failure.number).collect::<Vec<_>>(), [1]);
        assert_eq!(given.saved(899, 2), 600);
        assert_eq!(timeline(50.0).saved(1000, 1), 500);
    }
}
