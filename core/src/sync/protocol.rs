//! The seam between a synchronization method and whatever runs it.
//!
//! Invariants: exactly one action is outstanding; a completion of another kind than the action asks
//! for is refused with [`OutOfTurn`] and leaves the machine as it was; [`Action::Finish`] is the
//! last action and stays the answer for ever after.
//!
//! | action | answered by |
//! | --- | --- |
//! | `Load` | `Loaded`, or `Stop` when the workers have ended: nothing was loaded |
//! | `ReduceMean` | `Reduced` |
//! | `Receive` | `Received`, `TimedOut` |
//! | `Store`, `Add`, `Send`, `Sleep` | `Done` |

use core::fmt;

use crate::units::Nanos;

/// A synchronization method.
pub trait Protocol {
    /// The outcome of the last action in, the next action out.
    ///
    /// # Errors
    /// When `last` does not answer the outstanding action; the state is unchanged.
    fn step(&mut self, now: Nanos, last: Completion) -> Result<Action, OutOfTurn>;

    /// The one buffer that actions read and write: lent at construction, never grown. `[slice +
    /// TAIL]`: a slice of the replica, and what a reduction carries beside it (`reduction.rs`).
    fn staging(&mut self) -> &mut [f32];
}

/// Ranks that reduce together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Every trainer.
    All,
    /// The group that the driver's schedule ([`Dealing`](super::Dealing)) deals this trainer.
    Dealt {
        /// Rounds before this one.
        round: u64,
    },
}

/// What a protocol asks its driver to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A round begins: copy the live dense replica into staging. With gated workers (a foreground
    /// method) the driver first lets those of the last round go, and waits for them to come again.
    Load,
    /// replica += alpha · (staging − replica), against the replica as it is then.
    Store {
        /// 1 replaces, 0 leaves.
        alpha: f32,
    },
    /// replica += alpha · staging, against the replica as it is then.
    Add {
        /// −1 subtracts.
        alpha: f32,
    },
    /// Send a word, and staging with it.
    Send {
        /// Receiving rank.
        to: usize,
        /// What the message is.
        word: u64,
        /// Whether staging goes with it.
        values: bool,
    },
    /// Receive a word, and staging if the message has it.
    Receive {
        /// From this rank, or from any.
        from: Option<usize>,
        /// Give up then.
        until: Nanos,
    },
    /// Replace staging by its weighted mean over the group.
    ReduceMean {
        /// Who takes part.
        group: Group,
        /// Weight of this rank's staging: 0 takes part without a say.
        weight: f32,
        /// 0 if this rank wants another round after this one, else the rounds for which it has
        /// heard of nobody who wanted one, this one included.
        silent: u32,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Completion {
    /// There was no action yet.
    Start,
    /// It is done.
    Done,
    /// The replica was loaded.
    Loaded {
        /// Every value is finite.
        finite: bool,
        /// The workers have ended, and this is all they did: the next `Load` is answered with
        /// `Stop`.
        last: bool,
    },
    /// Staging was received.
    Received {
        /// Sender.
        from: usize,
        /// The word it sent.
        word: u64,
    },
    /// Staging is the mean.
    Reduced {
        /// Sum of all weights; if it is 0 there is no mean and staging is all zeros.
        weight: f32,
        /// The least of the group; of all ranks, whether it is 0.
        silent: u32,
    },
    /// A receive reached its deadline.
    TimedOut,
    /// The workers of this trainer have ended: finish as soon as the method allows.
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
