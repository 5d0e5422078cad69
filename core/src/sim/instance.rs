//! A protocol and where it runs.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use crate::sync::{Dealing, Pace, Protocol};

/// One protocol on a thread of its own. Messages name instances by their place in the list that is
/// run.
pub struct Instance<'a> {
    /// What runs.
    pub protocol: &'a mut dyn Protocol,
    /// What its thread is for.
    pub duty: Duty,
    /// Instances of trainers that reduce together have the same number: the number of the slice.
    pub channel: u32,
    /// How the groups of its channel are dealt, if its protocol reduces in groups.
    pub dealing: Option<Dealing<'a>>,
    /// Elements of the replica that it synchronizes; empty when only time is simulated.
    pub slice: Range<usize>,
    /// Bytes of these elements, also when they are not there.
    pub bytes: u64,
}

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Duty {
    /// Synchronizes a trainer in the background.
    Shadow {
        /// Whose.
        trainer: usize,
        /// When rounds may begin.
        pace: Pace,
    },
    /// Synchronizes a trainer while its workers stand at the gate. All instances of a trainer are
    /// of this kind and of the same `every`, or none is.
    Gated {
        /// Whose.
        trainer: usize,
        /// Steps of a worker between two rounds.
        every: u64,
    },
    /// Serves trainers.
    Center {
        /// Where: a trainer's number, or the number of trainers plus a sync PS's.
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
    /// The replica, where it was given.
    pub replica: &'a [AtomicU32],
}
