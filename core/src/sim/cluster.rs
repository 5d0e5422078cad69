//! What is simulated, as plain data.

use alloc::vec::Vec;

use crate::float::exp_f64;
use crate::rng::{Purpose, Stream};
use crate::units::Nanos;

/// A cluster and its work.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Of everything random.
    pub seed: u64,
    /// Nodes `0..trainers.len()`.
    pub trainers: Vec<Trainer>,
    /// Links of the sync PSs, which are the nodes after the trainers.
    pub sync_ps: Vec<Link>,
    /// Switches under a common spine; `None` for one switch that never blocks.
    pub leaves: Option<Leaves>,
    /// How all trainers reduce together; groups of them do it directly.
    pub collective: Collective,
    /// Where rows are; `None` when they cost nothing.
    pub embedding: Option<Embedding>,
    /// How the time of a step varies.
    pub jitter: Jitter,
    /// Loading, storing or adding a byte of a replica takes this long. ns
    pub copy_ns_per_byte: f64,
    /// A center's answer takes this long per byte. ns
    pub service_ns_per_byte: f64,
    /// What is exchanged is coded (`crate::compress`); `None`: it is sent as it is.
    pub coded: Option<Coded>,
}

/// What coding does to what is exchanged: to its bytes and to time, not to values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coded {
    /// Bytes that are sent in place of one.
    pub share: f64,
    /// Finding out what of a byte is sent, and writing it, takes this long. ns
    pub code_ns_per_byte: f64,
    /// Adding what has come of a byte takes this long. ns
    pub read_ns_per_byte: f64,
}

impl Coded {
    /// Bytes that are sent in place of `bytes`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
    pub(super) fn sent(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.share) as u64
    }
}

/// A node's connection to all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second in each direction; infinite is allowed.
    pub bytes_per_second: f64,
    /// Half of what a ping takes.
    pub latency: Nanos,
    /// Time for which a message occupies the link beside its bytes.
    pub overhead: Nanos,
}

/// Leaf switches: nodes in their order, so many to each. Reductions cross them; other messages are
/// few and do not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leaves {
    /// Nodes of a leaf, at least 1.
    pub nodes: usize,
    /// From a leaf to the spine.
    pub uplink: Link,
}

/// How a reduction moves its values; see `collective.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collective {
    /// Everybody with everybody at once, as the MPI driver sums long vectors over few ranks.
    #[default]
    Direct,
    /// Recursive halving and doubling, as it sums short ones, or over many ranks.
    Doubling {
        /// The longest stretch that is exchanged whole. bytes
        whole: usize,
    },
    /// Around a ring of the ranks in their order.
    Ring,
    /// Up and down a binomial tree.
    Tree,
}

/// A node that trains.
#[derive(Clone, Debug, PartialEq)]
pub struct Trainer {
    /// Its connection.
    pub link: Link,
    /// Cores; 0 for one for each thread.
    pub cores: usize,
    /// Worker threads.
    pub workers: usize,
    /// Steps of each worker: this trainer's share of the data.
    pub steps: u64,
    /// Mean time in which one worker alone computes a step.
    pub compute: Nanos,
    /// Factor on the time of its steps, 1 for none: a straggler's is greater.
    pub slowdown: f64,
    /// When it stands still; ascending, without overlap.
    pub pauses: Vec<Pause>,
    /// No step begins from then on.
    pub ends: Nanos,
}

/// Time in which a trainer does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// First moment.
    pub from: Nanos,
    /// First moment after it.
    pub to: Nanos,
}

/// Where embedding rows are, and what a step moves.
///
/// A worker asks for the rows of a step, gets them, and pushes their gradients after the step; it
/// asks ahead, so that at most `prefetch + 1` of its steps are under way. Rows are dealt evenly to
/// the stores, so every store sees the same traffic and one stands for all. When the rows lie on
/// the trainers each is served as it serves: by itself, over a link that carries what the others
/// ask of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Embedding PSs; 0 when the rows lie on the trainers.
    pub ps: usize,
    /// Connection of an embedding PS.
    pub link: Link,
    /// Distinct rows of a step: a request is as many messages at most.
    pub rows: u64,
    /// Ids of a step, over all stores. bytes
    pub ask_bytes: u64,
    /// Rows of a step. bytes
    pub rows_bytes: u64,
    /// Gradients of a step. bytes
    pub gradient_bytes: u64,
    /// Time in which one store alone would look up the rows of a step.
    pub lookup: Nanos,
    /// Time in which one store alone would update them.
    pub update: Nanos,
    /// Steps whose rows are asked for ahead.
    pub prefetch: usize,
}

/// How the time of a step varies, around its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Not at all.
    None,
    /// Factor 1 ± up to this, evenly.
    Uniform(f64),
    /// Factor exp(σ z − σ²/2): log-normal with mean 1.
    LogNormal(f64),
}

impl Jitter {
    /// The factor on step number `step` of worker number `worker` of all.
    #[must_use]
    pub fn factor(self, seed: u64, worker: u32, step: u64) -> f64 {
        let draw = || Stream::new(seed, Purpose::Simulation(worker));
        match self {
            Self::None => 1.0,
            Self::Uniform(width) => 1.0 + width * (2.0 * draw().uniform_f64(step) - 1.0),
            Self::LogNormal(sigma) => {
                exp_f64(sigma * f64::from(draw().normal(step)) - sigma * sigma / 2.0)
            }
        }
    }
}

impl Trainer {
    /// When the trainer is next awake: `at`, unless it stands still then.
    pub(super) fn awake(&self, at: u64) -> u64 {
        let asleep = |pause: &&Pause| (pause.from.0..pause.to.0).contains(&at);
        self.pauses.iter().find(asleep).map_or(at, |pause| pause.to.0)
    }

    /// When work of `length` ns that begins at `at` or as soon as it can has ended.
    pub(super) fn worked(&self, at: u64, length: u64) -> u64 {
        let start = self.awake(at);
        let mut end = start.saturating_add(length);
        for pause in self.pauses.iter().filter(|pause| pause.from.0 > start) {
            if pause.from.0 < end {
                end = end.saturating_add(pause.to.0 - pause.from.0);
            }
        }
        end
    }
}

/// A time in ns of `amount` units of `ns` each.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
pub(super) fn nanoseconds(ns: f64, amount: f64) -> u64 {
    (ns * amount + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trainer(pauses: &[(u64, u64)]) -> Trainer {
        let pause = |&(from, to): &(u64, u64)| Pause { from: Nanos(from), to: Nanos(to) };
        let link = Link { bytes_per_second: f64::INFINITY, latency: Nanos(0), overhead: Nanos(0) };
        Trainer {
            link,
            cores: 0,
            workers: 1,
            steps: 1,
            compute: Nanos(1),
            slowdown: 1.0,
            pauses: pauses.iter().map(pause).collect(),
            ends: Nanos(u64::MAX),
        }
    }

    #[test]
    fn work_stands_still_in_pauses() {
        let trainer = trainer(&[(10, 20), (30, 35)]);
        let cases = [(0, 5, 5), (0, 10, 10), (0, 11, 21), (12, 5, 25), (5, 20, 40), (20, 3, 23)];
        for (at, length, end) in cases {
            assert_eq!(trainer.worked(at, length), end, "{length} ns from {at}");
        }
    }

    #[test]
    fn jitter_keeps_the_mean() {
        for jitter in [Jitter::None, Jitter::Uniform(0.5), Jitter::LogNormal(0.5)] {
            let sum: f64 = (0..20_000).map(|step| jitter.factor(5, 3, step)).sum();
            assert!((sum / 2e4 - 1.0).abs() < 0.02, "{jitter:?}: mean {}, seed 5", sum / 2e4);
        }
    }
}
