//! The seam between a synchronization method and whatever runs it.
//!
//! Invariants: exactly one action is outstanding; a completion of another kind than the action asks
//! for is refused with [`OutOfTurn`] and leaves the machine as it was; [`Action::Finish`] is the last
//! action and stays the answer for ever after.

use core::fmt;

use crate::units::Nanos;

/// A synchronization method.
pub trait Protocol {
    /// The outcome of the last action in, the next action out.
    ///
    /// # Errors
    /// When `last` does not answer the outstanding action; the state is unchanged.
    fn step(&mut self, now: Nanos, last: Completion) -> Result<Action, OutOfTurn>;

    /// The one buffer that actions read and write: lent at construction, never grown.
    fn staging(&mut self) -> &mut [f32];
}

/// Ranks that reduce together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Every trainer.
    All,
}

/// What a protocol asks its driver to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Copy the live dense replica into staging.
    Load,
    /// replica += alpha · (staging − replica), against the replica as it is then.
    Store {
        /// 1 replaces, 0 leaves.
        alpha: f32,
    },
    /// Send staging and a word (a token, a step) to a rank.
    Send {
        /// Receiving trainer or center.
        to: usize,
        /// Travels with the staging buffer.
        word: u64,
    },
    /// Receive into staging.
    Receive {
        /// From this rank, or from any.
        from: Option<usize>,
        /// Give up then.
        until: Nanos,
    },
    /// Replace staging by its mean over the group.
    ReduceMean {
        /// Who takes part.
        group: Group,
    },
    /// Do nothing until then.
    Sleep {
        /// When to go on.
        until: Nanos,
    },
    /// Nothing more will come.
    Finish,
}

/// How the last action went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// There was no action yet.
    Start,
    /// It is done.
    Done,
    /// Staging was received.
    Received {
        /// Sender.
        from: usize,
        /// The word it sent.
        word: u64,
    },
    /// A receive reached its deadline.
    TimedOut,
    /// The last action is done, and the run ends: finish as soon as the method allows.
    Stop,
}

/// A completion that does not answer the outstanding action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfTurn {
    /// The action whose outcome was expected; `None` before the first.
    pub expected: Option<Action>,
    /// What came.
    pub got: Completion,
}

impl fmt::Display for OutOfTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected the outcome of {:?}, got {:?}", self.expected, self.got)
    }
}

impl core::error::Error for OutOfTurn {}
