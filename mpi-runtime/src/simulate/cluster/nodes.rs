//! The cluster file in the words of the core's simulator.

use umbra_core::sim::{self, Embedding, Jitter, Leaves, Link, Pause, Trainer};
use umbra_core::units::Nanos;

use super::{ClusterFile, Collective, JitterKind};
use crate::comm::reduce::WHOLE;
use crate::config::{Inject, Job};

/// What a step moves besides time: sizes that the job says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSizes {
    /// Examples of a step.
    pub batch: usize,
    /// Most ids of an example.
    pub ids: usize,
    /// f32s of a row.
    pub width: usize,
    /// f32s that all trainers reduce.
    pub replica: usize,
    /// Bytes that are sent in place of one of them, where they are coded.
    pub coded_share: Option<f64>,
}

impl ClusterFile {
    /// The cluster in the core's words: `job` is resolved on it, workers make `steps` steps of
    /// these `sizes`.
    #[must_use]
    pub fn cluster(&self, job: &Job, steps: u64, sizes: StepSizes) -> sim::Cluster {
        let link = Link {
            bytes_per_second: self.link.bytes_per_s,
            latency: time(self.link.latency_us * 1e3),
            overhead: time(self.link.overhead_us * 1e3),
        };
        let trainer = |number: usize| Trainer {
            link,
            cores: self.cores,
            workers: job.worker_threads,
            steps: self.steps_of(number, &job.config.recovery.inject, steps),
            compute: time(self.compute.example_us * 1e3 * sizes.batch as f64),
            slowdown: self
                .straggler
                .iter()
                .filter(|entry| entry.is_always() && entry.trainer == number)
                .map(|entry| entry.factor)
                .product(),
            pauses: self
                .pause
                .iter()
                .filter(|pause| pause.trainer == number)
                .map(|pause| Pause { from: time(pause.from_s * 1e9), to: time(pause.to_s * 1e9) })
                .collect(),
            ends: self.end_of(number),
        };
        let rows = self.rows.distinct * (sizes.batch * sizes.ids) as f64;
        let spread = self.compute.spread;
        sim::Cluster {
            seed: job.config.seed,
            trainers: (0..job.trainers).map(trainer).collect(),
            leaves: self.leaves.map(|leaves| Leaves {
                nodes: leaves.nodes,
                uplink: Link { bytes_per_second: leaves.uplink_bytes_per_s, ..link },
            }),
            collective: self.collective(),
            sync_ps: vec![link; if self.embedding_ps == 0 { 0 } else { job.sync_ps }],
            embedding: Some(Embedding {
                ps: self.embedding_ps,
                link,
                rows: time(rows).0.max(1),
                ask_bytes: time(4.0 * rows).0,
                rows_bytes: time(4.0 * rows * sizes.width as f64).0,
                gradient_bytes: time(4.0 * rows * (sizes.width + 1) as f64).0,
                lookup: time(rows / self.rows.lookup_per_s * 1e9),
                update: time(rows / self.rows.update_per_s * 1e9),
                prefetch: job.config.embedding.prefetch,
            }),
            jitter: match self.compute.jitter {
                JitterKind::None => Jitter::None,
                JitterKind::Uniform => Jitter::Uniform(spread),
                JitterKind::LogNormal => Jitter::LogNormal(spread),
            },
            copy_ns_per_byte: 1e9 / self.memory.copy_bytes_per_s,
            service_ns_per_byte: 1e9 / self.memory.serve_bytes_per_s,
            coded: sizes.coded_share.map(|share| sim::Coded {
                share,
                code_ns_per_byte: 1e9 / self.memory.code_bytes_per_s,
                read_ns_per_byte: 1e9 / self.memory.read_bytes_per_s,
            }),
        }
    }

    const fn collective(&self) -> sim::Collective {
        match self.collective {
            Collective::Direct => sim::Collective::Direct,
            Collective::Doubling => sim::Collective::Doubling { whole: WHOLE },
            Collective::Ring => sim::Collective::Ring,
            Collective::Tree => sim::Collective::Tree,
        }
    }

    /// Steps of a trainer's workers that the file leaves it, or the job's own test of short data.
    pub(super) fn steps_of(&self, trainer: usize, inject: &Inject, steps: u64) -> u64 {
        let here = self.short.iter().filter(|entry| entry.trainer == trainer);
        let job = inject.short_share.filter(|_| inject.short_trainer == Some(trainer));
        let share = here.map(|entry| entry.share).chain(job).fold(1.0, f64::min);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count"
        )]
        let steps = (steps as f64 * share) as u64;
        steps
    }

    pub(super) fn end_of(&self, trainer: usize) -> Nanos {
        let deaths = self.death.iter().filter(|entry| entry.trainer == trainer);
        let ends = deaths.map(|entry| entry.at_s).chain(self.seconds);
        ends.map(|seconds| time(seconds * 1e9)).min().unwrap_or(Nanos(u64::MAX))
    }
}

/// A number as a count of nanoseconds, or of anything.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
const fn time(ns: f64) -> Nanos {
    Nanos((ns + 0.5) as u64)
}
