//! What a simulated run came to.

use alloc::vec::Vec;
use core::fmt;

use super::trace::{Deed, Span, Who};
use crate::sync::OutOfTurn;
use crate::units::Nanos;

/// Figures of a run. Seconds are virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By trainer.
    pub trainers: Vec<TrainerFigures>,
    /// From the start to the end of the last worker.
    pub seconds: f64,
    /// Until the last protocol had finished, too.
    pub seconds_all: f64,
    /// 99 of 100 gaps of all trainers are at most this long; `None` without rounds.
    pub gap_p99: Option<f64>,
    /// Time for which centers were busy. s
    pub center_seconds: f64,
    /// Bytes that centers sent to other nodes.
    pub center_bytes: u64,
    /// Bytes of ids, rows and gradients between nodes.
    pub rows_bytes: u64,
    /// Events that were simulated.
    pub events: u64,
    /// What happened, if asked for.
    pub trace: Vec<Span>,
}

/// Figures of a trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainerFigures {
    /// Steps of all its workers.
    pub steps: u64,
    /// Rounds in which its replica took something in; of the first slice, when there are several.
    pub rounds: u64,
    /// Steps of its workers from round to round, mean; 0 without rounds.
    pub gap_mean: f64,
    /// The same: 99 of 100 gaps are at most this long.
    pub gap_p99: f64,
    /// Time at gates, mean over its workers. s
    pub exposed_seconds: f64,
    /// Time in background rounds, mean over slices. s
    pub background_seconds: f64,
    /// Time for which its synchronizing threads had a core. s
    pub processor_seconds: f64,
    /// Time for which workers waited for rows, mean over its workers. s
    pub rows_seconds: f64,
    /// Time for which workers computed, mean over its workers. s
    pub compute_seconds: f64,
    /// When its last worker ended. s
    pub seconds: f64,
    /// Bytes that its synchronization sent to other nodes.
    pub sync_bytes: u64,
}

impl Outcome {
    /// Steps of all workers.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.trainers.iter().map(|trainer| trainer.steps).sum()
    }

    /// Steps of all workers per second; 0 before any time has passed.
    #[must_use]
    pub fn steps_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.steps() as f64 / self.seconds } else { 0.0 }
    }

    /// Rounds of all trainers.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.trainers.iter().map(|trainer| trainer.rounds).sum()
    }

    /// Mean gap, over the trainers that had rounds; `None` without any.
    #[must_use]
    pub fn gap_mean(&self) -> Option<f64> {
        let with_rounds = self.trainers.iter().filter(|trainer| trainer.rounds > 0);
        let count = with_rounds.clone().count();
        let sum: f64 = with_rounds.map(|trainer| trainer.gap_mean).sum();
        (count > 0).then(|| sum / count as f64)
    }

    /// A figure of every trainer, its mean.
    #[must_use]
    pub fn mean(&self, figure: impl Fn(&TrainerFigures) -> f64) -> f64 {
        self.trainers.iter().map(figure).sum::<f64>() / self.trainers.len().max(1) as f64
    }
}

/// Why a run could not be simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimError {
    /// A protocol refused a completion: a defect of the protocol.
    OutOfTurn {
        /// Which one.
        instance: u32,
        /// What it said.
        error: OutOfTurn,
    },
    /// Nothing more will happen, and somebody waits.
    Stuck {
        /// Who waits.
        who: Who,
        /// For what.
        what: Deed,
        /// Since when.
        since: Nanos,
    },
    /// An instance names a trainer or a node that the cluster has not.
    NoSuchNode {
        /// Which instance.
        instance: u32,
        /// Nodes that there are.
        nodes: usize,
    },
    /// An instance's staging is not as long as its slice and the tail.
    Staging {
        /// Which instance.
        instance: u32,
        /// Elements that fit.
        expected: usize,
        /// Elements that it has.
        got: usize,
    },
    /// An instance's slice is not in its trainer's replica.
    Slice {
        /// Which instance.
        instance: u32,
        /// Where the slice ends.
        end: usize,
        /// Elements of the replica.
        elements: usize,
    },
    /// A protocol sent to an instance that does not exist, or a center asked for a replica.
    Misplaced {
        /// Which instance.
        instance: u32,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfTurn { instance, error } => write!(f, "instance {instance}: {error}"),
            Self::Stuck { who, what, since } => write!(
                f,
                "nothing more will happen, but {who} is not done: \"{what}\" since {} ns",
                since.0
            ),
            Self::NoSuchNode { instance, nodes } => {
                write!(f, "instance {instance} is on a node that is not one of {nodes}")
            }
            Self::Staging { instance, expected, got } => {
                write!(f, "instance {instance}: staging of {got} elements, expected {expected}")
            }
            Self::Slice { instance, end, elements } => {
                write!(f, "instance {instance}: a slice to element {end} of {elements}")
            }
            Self::Misplaced { instance } => write!(
                f,
                "instance {instance} asked for a replica that its node has not, or sent to nobody"
            ),
        }
    }
}

impl core::error::Error for SimError {}
