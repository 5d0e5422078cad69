//! What each thread counts while a run trains: the figures of the summary are sums of these.
//!
//! One writer per counter, any reader: relaxed atomics, no lock.
//!
//! What a rank says of itself while it trains, readings and the marks at its points (`points.rs`),
//! it says through [`Counters::tell`].

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use umbra_core::sync::server::Tally;

use super::points::{Mark, Marks, Points, Said};

/// Counters of a rank.
#[derive(Debug)]
pub struct Counters {
    /// One per worker; none on a rank that does not train.
    pub workers: Box<[WorkerCounters]>,
    /// Of the protocols that synchronize the dense replica.
    pub rounds: Box<[RoundCounters]>,
    /// Slices of the replica, which these take side by side.
    slices: usize,
    /// Of the thread that serves a slice of the center, where there is one.
    pub center: RoundCounters,
    /// Where the dispatcher is: what became of gradients.
    pub gradients: GradientCounters,
    /// Where what was counted is kept.
    pub points: Arc<Points>,
    /// What was counted before all these, steps left out.
    before: Reading,
    /// What was told; nobody who trains waits for it.
    said: Mutex<Said>,
}

impl Counters {
    /// Counters of so many workers, and protocols that synchronize so many slices, of a run with
    /// these points.
    #[must_use]
    pub fn new(workers: usize, protocols: usize, slices: usize, points: Vec<u64>) -> Self {
        let points = Arc::new(Points::new(points));
        Self {
            workers: (0..workers).map(|_| WorkerCounters::new(&points)).collect(),
            rounds: (0..protocols).map(|_| RoundCounters::default()).collect(),
            slices,
            center: RoundCounters::default(),
            gradients: GradientCounters::default(),
            points,
            before: Reading::default(),
            said: Mutex::default(),
        }
    }

    /// Counts on where others stopped, a rank's and a center's; steps begin anew.
    #[must_use]
    pub fn after(self, before: Reading, center: RoundReading) -> Self {
        self.center.add(&RoundReading { bytes: 0, ..center });
        Self { before: Reading { steps: 0, ..before }, ..self }
    }

    /// Where each worker counts its steps: batches that it has taken. `[workers]`
    pub fn worker_steps(&self) -> impl Iterator<Item = &AtomicU64> {
        self.workers.iter().map(|worker| &worker.steps)
    }

    /// All workers have made all steps before `step` that they make. *They stand still.*
    pub fn reach(&self, step: u64) {
        self.workers.iter().for_each(|worker| worker.reach(step));
    }

    /// The counters now, for somebody who hears of marks too.
    pub fn tell(&self) -> Reading {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the look at points: what was read of workers that wait for each other is then not
        // past a point that is not marked.
        let now: Vec<Reading> = self.workers.iter().map(WorkerCounters::read).collect();
        said.mark(self.workers.iter().map(|worker| &worker.marks), &self.before);
        self.sum(said.hear(now).iter().copied())
    }

    /// The marks that were there at the last [`tell`](Self::tell), without the first `heard`.
    #[must_use]
    pub fn marks(&self, heard: usize) -> Vec<Mark> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.marks[heard.min(said.marks.len())..].to_vec()
    }

    /// All that was counted, where the workers have counted that.
    fn sum(&self, workers: impl Iterator<Item = Reading>) -> Reading {
        let slices = self.rounds.iter().map(RoundCounters::read);
        let sum = slices.fold(RoundReading::default(), RoundReading::plus);
        // Slices have rounds of their own, side by side, which come about as often.
        let slices = self.slices.max(1) as u64;
        let (rounds, round_ns) = (sum.rounds / slices, sum.round_ns / slices);
        let bytes = sum.bytes + self.center.read().bytes;
        let rounds = RoundReading { rounds, bytes, round_ns, ..sum };
        let gradients = self.gradients.read();
        let beside = Reading { rounds, gradients, ..Reading::default() };
        workers.fold(self.before, Reading::plus).plus(beside)
    }

    /// Steps of all workers.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.workers.iter().map(|worker| worker.steps.load(Relaxed)).sum()
    }
}

/// Counters of a thread that runs a protocol.
#[derive(Debug, Default)]
pub struct RoundCounters {
    rounds: AtomicU64,
    bytes: AtomicU64,
    round_ns: AtomicU64,
    busy_ns: AtomicU64,
    refused: AtomicU64,
    disagreement: AtomicU64,
    disagreements: AtomicU64,
}

/// What a round brought.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundReading {
    /// Rounds completed.
    pub rounds: u64,
    /// Bytes sent to other ranks.
    pub bytes: u64,
    /// Nanoseconds from the start of rounds to their end.
    pub round_ns: u64,
    /// Nanoseconds for which the thread had a core, between rounds too.
    pub busy_ns: u64,
    /// Rounds in which the replica was not finite, and was kept out.
    pub refused: u64,
    /// Sum of the sampled distances between the replica and what it moves towards, relative to the
    /// latter's norm.
    pub disagreement: f64,
    /// Samples of it.
    pub disagreements: u64,
}

impl RoundCounters {
    /// Adds what a round brought.
    pub fn add(&self, round: &RoundReading) {
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.rounds, round.rounds);
        add(&self.bytes, round.bytes);
        add(&self.round_ns, round.round_ns);
        add(&self.busy_ns, round.busy_ns);
        add(&self.refused, round.refused);
        add(&self.disagreements, round.disagreements);
        let sum = f64::from_bits(self.disagreement.load(Relaxed)) + round.disagreement;
        self.disagreement.store(sum.to_bits(), Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> RoundReading {
        RoundReading {
            rounds: self.rounds.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            round_ns: self.round_ns.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            refused: self.refused.load(Relaxed),
            disagreement: f64::from_bits(self.disagreement.load(Relaxed)),
            disagreements: self.disagreements.load(Relaxed),
        }
    }
}

/// Counters of what became of gradients on parameter servers.
#[derive(Debug, Default)]
pub struct GradientCounters {
    counted: AtomicU64,
    dropped: AtomicU64,
    staleness: AtomicU64,
    lag: AtomicU64,
}

/// What became of gradients on parameter servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GradientReading {
    /// Gradients that were added.
    pub counted: u64,
    /// Gradients that were too old, or not finite.
    pub dropped: u64,
    /// Steps that the tokens of all these were behind, in sum.
    pub staleness: u64,
    /// Versions between reading and updating of all these, in sum.
    pub lag: u64,
}

impl GradientCounters {
    /// Adds what became of some.
    pub fn add(&self, some: &GradientReading) {
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.counted, some.counted);
        add(&self.dropped, some.dropped);
        add(&self.staleness, some.staleness);
        add(&self.lag, some.lag);
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> GradientReading {
        GradientReading {
            counted: self.counted.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            staleness: self.staleness.load(Relaxed),
            lag: self.lag.load(Relaxed),
        }
    }
}

impl GradientReading {
    /// What a dispatcher has counted.
    #[must_use]
    pub fn of(tally: &Tally) -> Self {
        let Tally { counted, dropped, staleness, lag, .. } = tally;
        let sum = |bins: &[u64]| (0..).zip(bins).map(|(behind, count)| behind * count).sum();
        Self { counted: *counted, dropped: *dropped, staleness: sum(staleness), lag: sum(lag) }
    }

    /// The sum of two readings.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            counted: self.counted + other.counted,
            dropped: self.dropped + other.dropped,
            staleness: self.staleness + other.staleness,
            lag: self.lag + other.lag,
        }
    }

    /// What came after an earlier reading of the same counters.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            counted: self.counted.saturating_sub(earlier.counted),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            staleness: self.staleness.saturating_sub(earlier.staleness),
            lag: self.lag.saturating_sub(earlier.lag),
        }
    }
}

/// Counters of one worker.
#[derive(Debug)]
pub struct WorkerCounters {
    steps: AtomicU64,
    examples: AtomicU64,
    loss_sum: AtomicU64,
    weight_sum: AtomicU64,
    data_ns: AtomicU64,
    embedding_ns: AtomicU64,
    sync_ns: AtomicU64,
    compute_ns: AtomicU64,
    dropped: AtomicU64,
    marks: Marks,
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
    /// Nanoseconds of forward and backward passes, without waiting for others.
    pub compute_ns: u64,
    /// Steps dropped for a loss or gradients that were not finite; under `bsp` once per trainer.
    pub dropped: u64,
    /// What the rank's rounds brought; all slices of the replica count once in `rounds`.
    pub rounds: RoundReading,
    /// What became of gradients, on the rank of the dispatcher.
    pub gradients: GradientReading,
}

impl Default for WorkerCounters {
    /// Of a run without points.
    fn default() -> Self {
        Self::new(&Arc::new(Points::new(vec![])))
    }
}

impl WorkerCounters {
    /// Counters of a worker of a run with these points.
    #[must_use]
    pub fn new(points: &Arc<Points>) -> Self {
        let zero = AtomicU64::default;
        Self {
            steps: zero(),
            examples: zero(),
            loss_sum: zero(),
            weight_sum: zero(),
            data_ns: zero(),
            embedding_ns: zero(),
            sync_ns: zero(),
            compute_ns: zero(),
            dropped: zero(),
            marks: Marks::new(points),
        }
    }

    /// The worker has made all steps before `step` that it makes: keeps what was counted at points
    /// that it passes.
    #[inline]
    pub fn reach(&self, step: u64) {
        self.marks.reach(step, || self.read());
    }

    /// Steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Adds what a step brought.
    pub fn add(&self, step: &Reading) {
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.steps, step.steps);
        add(&self.examples, step.examples);
        add(&self.data_ns, step.data_ns);
        add(&self.embedding_ns, step.embedding_ns);
        add(&self.sync_ns, step.sync_ns);
        add(&self.compute_ns, step.compute_ns);
        add(&self.dropped, step.dropped);
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
            compute_ns: self.compute_ns.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            rounds: RoundReading::default(),
            gradients: GradientReading::default(),
        }
    }
}

/// Words of a reading on the wire.
pub const READING_WORDS: usize = 20;

impl RoundReading {
    /// The sum of two readings.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            bytes: self.bytes + other.bytes,
            round_ns: self.round_ns + other.round_ns,
            busy_ns: self.busy_ns + other.busy_ns,
            refused: self.refused + other.refused,
            disagreement: self.disagreement + other.disagreement,
            disagreements: self.disagreements + other.disagreements,
        }
    }

    /// What came after an earlier reading of the same counters.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            rounds: self.rounds.saturating_sub(earlier.rounds),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            round_ns: self.round_ns.saturating_sub(earlier.round_ns),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            refused: self.refused.saturating_sub(earlier.refused),
            disagreement: self.disagreement - earlier.disagreement,
            disagreements: self.disagreements.saturating_sub(earlier.disagreements),
        }
    }
}

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
            compute_ns: self.compute_ns + other.compute_ns,
            dropped: self.dropped + other.dropped,
            rounds: self.rounds.plus(other.rounds),
            gradients: self.gradients.plus(other.gradients),
        }
    }

    /// The sum of the readings of all threads of a rank.
    #[must_use]
    pub fn of(counters: &Counters) -> Self {
        counters.sum(counters.workers.iter().map(WorkerCounters::read))
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
            self.compute_ns,
            self.dropped,
            self.rounds.rounds,
            self.rounds.bytes,
            self.rounds.round_ns,
            self.rounds.busy_ns,
            self.rounds.refused,
            self.rounds.disagreement.to_bits(),
            self.rounds.disagreements,
            self.gradients.counted,
            self.gradients.dropped,
            self.gradients.staleness,
            self.gradients.lag,
        ]
    }

    /// From words.
    #[must_use]
    pub const fn from_words(words: [u64; READING_WORDS]) -> Self {
        let [steps, examples, loss, weight, data_ns, embedding_ns, sync_ns, rest @ ..] = words;
        let [compute_ns, dropped, rounds @ ..] = rest;
        let [rounds, bytes, round_ns, busy_ns, refused, disagreement, disagreements, rest @ ..] =
            rounds;
        let [counted, gradients_dropped, staleness, lag] = rest;
        let gradients = GradientReading { counted, dropped: gradients_dropped, staleness, lag };
        let disagreement = f64::from_bits(disagreement);
        let rounds =
            RoundReading { rounds, bytes, round_ns, busy_ns, refused, disagreement, disagreements };
        let (loss_sum, weight_sum) = (f64::from_bits(loss), f64::from_bits(weight));
        Self {
            steps,
            examples,
            loss_sum,
            weight_sum,
            data_ns,
            embedding_ns,
            sync_ns,
            compute_ns,
            dropped,
            rounds,
            gradients,
        }
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
            compute_ns: 7,
            dropped: 6,
            rounds: RoundReading::default(),
            gradients: GradientReading::default(),
        };
        let round = RoundReading {
            rounds: 3,
            bytes: 7,
            round_ns: 8,
            busy_ns: 9,
            refused: 1,
            disagreement: 0.5,
            disagreements: 2,
        };
        let counters = Counters::new(2, 2, 2, vec![]);
        counters.workers.iter().for_each(|worker| worker.add(&step));
        counters.rounds.iter().for_each(|slice| slice.add(&round));
        let mut tally = Tally::EMPTY;
        (tally.counted, tally.dropped, tally.staleness[2], tally.lag[3]) = (4, 1, 5, 6);
        counters.gradients.add(&GradientReading::of(&tally));
        let sum = Reading::of(&counters);
        let gradients = GradientReading { counted: 4, dropped: 1, staleness: 10, lag: 18 };
        assert_eq!(sum.gradients, gradients);
        assert_eq!((sum.steps, counters.steps(), sum.loss_sum), (2, 2, 123.0));
        assert_eq!((sum.rounds.rounds, sum.rounds.bytes, sum.rounds.disagreement), (3, 14, 1.0));
        assert_eq!(Reading::from_words(sum.to_words()), sum);
    }
}
