//! When shards are lost, and which: drawn.
//!
//! Times between failures are exponential, which have no memory, or gamma: with shape 1 these are
//! the same, below 1 failures come in bursts.
//!
//! Gamma: G. Marsaglia, W. W. Tsang, "A simple method for generating gamma variables", ACM TOMS 26,
//! 2000. Invariant: a function of the seed alone.

use crate::float::{exp_f64, ln_f64, sqrt_f64};
use crate::rng::{Purpose, Stream};

/// How times between failures are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Times {
    /// Without memory.
    Exponential {
        /// Mean seconds.
        mean: f64,
    },
    /// Gamma.
    Gamma {
        /// Mean seconds.
        mean: f64,
        /// 1: exponential.
        shape: f64,
    },
    /// So many, anywhere in a job: what exponential times are, given how many come.
    Uniform {
        /// How many.
        count: u32,
        /// Seconds of the job.
        length: f64,
    },
}

/// One failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// Its number, from 0.
    pub number: u64,
    /// Seconds since the job's begin.
    pub time: f64,
}

/// Failures of a job, one after the other; without end, unless they are counted.
#[derive(Clone, Debug)]
pub struct Failures {
    stream: Stream,
    victims: Stream,
    times: Times,
    number: u64,
    time: f64,
    /// Random numbers used so far.
    used: u64,
}

impl Failures {
    /// The failures of `seed`.
    #[must_use]
    pub fn new(seed: u64, times: Times) -> Self {
        let stream = |kind| Stream::new(seed, Purpose::Failure(kind));
        Self { stream: stream(0), victims: stream(1), times, number: 0, time: 0.0, used: 0 }
    }

    /// Of each of `shards` shards whether it is among the `lost` ones of failure number `number`.
    /// Each is as likely as any other.
    pub fn taken(&self, number: u64, shards: u32, lost: u32) -> impl Iterator<Item = bool> {
        // Selection sampling (Knuth, TAOCP 2, algorithm S): with as many shards to look at and as
        // many to take as are left.
        let (victims, mut left) = (self.victims, lost);
        (0..shards).map(move |shard| {
            let index = number * u64::from(shards) + u64::from(shard);
            let taken = victims.below(index, u64::from(shards - shard)) < u64::from(left);
            left -= u32::from(taken);
            taken
        })
    }

    fn uniform(&mut self) -> f64 {
        self.used += 1;
        // In (0, 1], so logarithms are finite.
        1.0 - self.stream.uniform_f64(self.used)
    }

    fn normal(&mut self) -> f64 {
        self.used += 1;
        f64::from(self.stream.normal(self.used))
    }

    /// Gamma with mean `shape`.
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let power = exp_f64(ln_f64(self.uniform()) / shape);
            return self.gamma(shape + 1.0) * power;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / sqrt_f64(9.0 * d);
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            let v = v * v * v;
            if v > 0.0 && ln_f64(self.uniform()) < x * x / 2.0 + d * (1.0 - v + ln_f64(v)) {
                return d * v;
            }
        }
    }
}

impl Iterator for Failures {
    type Item = Failure;

    fn next(&mut self) -> Option<Failure> {
        self.time += match self.times {
            Times::Exponential { mean } => -mean * ln_f64(self.uniform()),
            Times::Gamma { mean, shape } => mean / shape * self.gamma(shape),
            Times::Uniform { count, length } => {
                // The first of those that are left, all of them anywhere in what is left.
                let left = u64::from(count).checked_sub(self.number).filter(|left| *left > 0)?;
                let none = exp_f64(ln_f64(self.uniform()) / left as f64);
                (length - self.time) * (1.0 - none)
            }
        };
        self.number += 1;
        Some(Failure { number: self.number - 1, time: self.time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_variance(times: Times) -> (f64, f64) {
        let count = 100_000;
        let (mut before, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for failure in Failures::new(5, times).take(count) {
            let gap = failure.time - before;
            before = failure.time;
            sum += gap;
            squares += gap * gap;
        }
        let mean = sum / count as f64;
        (mean, squares / count as f64 - mean * mean)
    }

    #[test]
    fn gaps_have_the_mean_and_the_variance_of_their_distribution() {
        let mean = 28.0;
        let gamma = |shape| Times::Gamma { mean, shape };
        for (times, shape) in [
            (Times::Exponential { mean }, 1.0),
            (gamma(1.0), 1.0),
            (gamma(0.6), 0.6),
            (gamma(4.0), 4.0),
        ] {
            let (found, variance) = mean_and_variance(times);
            assert!((found / mean - 1.0).abs() < 0.02, "{times:?}: {found}");
            let expected = mean * mean / shape;
            assert!((variance / expected - 1.0).abs() < 0.04, "{times:?}: {variance}");
        }
    }

    #[test]
    fn counted_failures_are_anywhere_in_the_job() {
        let (count, length, draws) = (3, 12.0, 4000);
        let mut by_quarter = [0u32; 4];
        for seed in 0..draws {
            let failures = Failures::new(seed, Times::Uniform { count, length });
            assert_eq!(failures.clone().count(), 3);
            for failure in failures {
                let quarter = |it: u32| failure.time < length / 4.0 * f64::from(it + 1);
                let at = (0..4).find(|it| quarter(*it)).unwrap();
                by_quarter[at as usize] += 1;
            }
        }
        assert!(by_quarter.iter().all(|count| (2850..3150).contains(count)), "{by_quarter:?}");
    }

    #[test]
    fn every_shard_is_lost_as_often_and_as_many_at_once_as_asked() {
        let failures = Failures::new(3, Times::Exponential { mean: 1.0 });
        let (shards, lost, draws) = (7, 3, 7000);
        let mut counts = [0u32; 7];
        for number in 0..draws {
            let taken = failures.taken(number, shards, lost);
            assert_eq!(
                taken
                    .zip(&mut counts)
                    .map(|(it, count)| {
                        *count += u32::from(it);
                        u32::from(it)
                    })
                    .sum::<u32>(),
                lost
            );
        }
        assert!(counts.iter().all(|count| (2800..3200).contains(count)), "{counts:?}");
    }
}
