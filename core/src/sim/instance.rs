//! A protocol and where it runs.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use crate::sync::token::Ticket;
use crate::sync::{Dealing, News, Protocol, Rounds};

/// One protocol on a thread of its own. Messages name instances by their place in the list that is
/// run.
pub struct Instance<'a> {
    /// What runs.
    pub protocol: &'a mut dyn Protocol,
    /// Where.
    pub seat: Seat,
    /// How the workers of its trainer meet its rounds; the same for all instances of a trainer.
    pub rounds: Rounds,
    /// Instances of trainers that reduce together have the same number: the number of the slice.
    pub channel: u32,
    /// How the groups of its channel are dealt, if its protocol reduces in groups.
    pub dealing: Option<Dealing<'a>>,
    /// Elements of the replica, or of the gradient, that it synchronizes; empty when only time is
    /// simulated.
    pub slice: Range<usize>,
    /// Bytes of these elements, also when they are not there.
    pub bytes: u64,
}

/// Where an instance runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Beside the workers of a trainer.
    Trainer {
        /// Which.
        trainer: usize,
        /// The gate that it keeps: 0, or the number of a worker that has one of its own.
        gate: usize,
    },
    /// On a node, for trainers anywhere.
    Center {
        /// A trainer's number, or the number of trainers plus a sync PS's.
        node: usize,
    },
}

/// A training step, at the moment of its end.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// Who trains.
    pub trainer: usize,
    /// Its worker.
    pub worker: usize,
    /// Steps this worker made before.
    pub number: u64,
    /// The batch that it was handed, where the method hands them out.
    pub ticket: Option<Ticket>,
    /// The replica, where it was given.
    pub replica: &'a [AtomicU32],
}

/// What trains while time passes.
pub struct Training<'a> {
    /// By trainer, or by worker where the method hands out batches; empty when only time is
    /// simulated.
    pub replicas: &'a [&'a [AtomicU32]],
    /// As `replicas`, where a method exchanges gradients: `step` leaves there what the workers of a
    /// trainer have added up so far, or the gradient of the batch.
    pub gradients: &'a [&'a [AtomicU32]],
    /// Is told of every step when it ends.
    pub step: &'a mut dyn FnMut(Step<'_>),
    /// Is told, by trainer, when `gradients` holds the sum of all trainers.
    pub update: &'a mut dyn FnMut(usize),
    /// Is told what becomes of rows, where the method hands out batches.
    pub rows: &'a mut dyn FnMut(Rows),
}

/// What happens to rows of tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rows {
    /// A worker asks for those of a batch that it is handed.
    Asked {
        /// The worker, numbered over all trainers.
        worker: usize,
        /// The batch.
        ticket: Ticket,
    },
    /// What is said to the partitions.
    News(News),
}
