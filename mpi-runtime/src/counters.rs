//! What each worker counts while it trains: the figures of the summary are sums of these.
//!
//! One writer per counter, any reader: relaxed atomics, no lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    steps: AtomicU64,
    examples: AtomicU64,
    loss_sum: AtomicU64,
    weight_sum: AtomicU64,
    data_ns: AtomicU64,
    embedding_ns: AtomicU64,
    sync_ns: AtomicU64,
}

/// A reading of counters, or a sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Training steps.
    pub steps: u64,
    /// Examples trained on.
    pub examples: u64,
    /// Weighted sum of losses before each step's update.
    pub loss_sum: f64,
    /// Sum of the weights.
    pub weight_sum: f64,
    /// Nanoseconds waited for the reader.
    pub data_ns: u64,
    /// Nanoseconds waited for embedding rows and permits.
    pub embedding_ns: u64,
    /// Nanoseconds waited for other workers and trainers.
    pub sync_ns: u64,
}

impl WorkerCounters {
    /// Adds what a step brought.
    pub fn add(&self, step: &Reading) {
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.steps, step.steps);
        add(&self.examples, step.examples);
        add(&self.data_ns, step.data_ns);
        add(&self.embedding_ns, step.embedding_ns);
        add(&self.sync_ns, step.sync_ns);
        let add = |counter: &AtomicU64, x: f64| {
            let sum = f64::from_bits(counter.load(Relaxed)) + x;
            counter.store(sum.to_bits(), Relaxed);
        };
        add(&self.loss_sum, step.loss_sum);
        add(&self.weight_sum, step.weight_sum);
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading {
            steps: self.steps.load(Relaxed),
            examples: self.examples.load(Relaxed),
            loss_sum: f64::from_bits(self.loss_sum.load(Relaxed)),
            weight_sum: f64::from_bits(self.weight_sum.load(Relaxed)),
            data_ns: self.data_ns.load(Relaxed),
            embedding_ns: self.embedding_ns.load(Relaxed),
            sync_ns: self.sync_ns.load(Relaxed),
        }
    }
}

/// Words of a reading on the wire.
pub const READING_WORDS: usize = 7;

impl Reading {
    /// The sum of two readings.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            examples: self.examples + other.examples,
            loss_sum: self.loss_sum + other.loss_sum,
            weight_sum: self.weight_sum + other.weight_sum,
            data_ns: self.data_ns + other.data_ns,
            embedding_ns: self.embedding_ns + other.embedding_ns,
            sync_ns: self.sync_ns + other.sync_ns,
        }
    }

    /// The sum of the readings of all workers of a rank.
    #[must_use]
    pub fn of(workers: &[WorkerCounters]) -> Self {
        workers.iter().map(WorkerCounters::read).fold(Self::default(), Self::plus)
    }

    /// As words, to be sent.
    #[must_use]
    pub const fn to_words(&self) -> [u64; READING_WORDS] {
        [
            self.steps,
            self.examples,
            self.loss_sum.to_bits(),
            self.weight_sum.to_bits(),
            self.data_ns,
            self.embedding_ns,
            self.sync_ns,
        ]
    }

    /// From words.
    #[must_use]
    pub const fn from_words(words: [u64; READING_WORDS]) -> Self {
        let [steps, examples, loss, weight, data_ns, embedding_ns, sync_ns] = words;
        let (loss_sum, weight_sum) = (f64::from_bits(loss), f64::from_bits(weight));
        Self { steps, examples, loss_sum, weight_sum, data_ns, embedding_ns, sync_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_add_up_and_survive_the_wire() {
        let step = Reading {
            steps: 1,
            examples: 128,
            loss_sum: 61.5,
            weight_sum: 128.0,
            data_ns: 3,
            embedding_ns: 4,
            sync_ns: 5,
        };
        let counters = [WorkerCounters::default(), WorkerCounters::default()];
        counters[0].add(&step);
        counters[1].add(&step);
        let sum = Reading::of(&counters);
        assert_eq!((sum.steps, sum.loss_sum), (2, 123.0));
        assert_eq!(Reading::from_words(sum.to_words()), sum);
    }
}
