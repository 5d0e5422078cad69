//! The seam between a synchronization method and whatever runs it.
//!
//! A protocol is a state machine: the outcome of the last action in, the next action out. It acts
//! on endpoints, which a driver provides:
//!
//! | endpoint | what it is | actions |
//! | --- | --- | --- |
//! | replica | the live slice of a trainer's dense parameters | `Load`, `Read`, `Store`, `Add` |
//! | gradient | a queue of gradients, one a step, that workers fill and wait for | `Take`, `Give` |
//! | worker | one that trains the batches it is handed | `Train` |
//! | peers | other instances of the method, by number | `Send`, `Receive`, `Await` |
//! | rows | the partitions of rows that are here | `Tell` |
//! | a group | trainers that reduce together | `ReduceMean`, `ReduceSum` |
//!
//! | action | answered by |
//! | --- | --- |
//! | `Load`, `Take` | `Loaded`, `Taken`, or `Stop` when the workers have ended and nothing is left |
//! | `Read` | `Loaded` |
//! | `ReduceMean` | `Reduced` |
//! | `Receive` | `Received`, or `Noted` for a message with a note |
//! | `Await` | the same, or `Late` |
//! | `Train` | `Trained` |
//! | `Store`, `Add`, `Send`, `ReduceSum`, `Give`, `Tell` | `Done` |
//!
//! Invariants: exactly one action is outstanding; a completion of another kind than the action asks
//! for is refused with [`OutOfTurn`] and leaves the machine as it was; [`Action::Finish`] is the
//! last action and stays the answer for ever after.
//!
//! What a driver promises, and tests hold both drivers to:
//!
//! - A `Send` is done when the message is on its way: a peer that stands still delays nobody but
//!   itself, and messages to one peer arrive in the order in which they were sent.
//! - A `Receive` selects: a message of another sender waits its turn.
//! - No time is decided by a driver: when a round begins, the [`Conductor`](super::Conductor) says.
//! - What a method remembers from round to round (`Memory` in `method.rs`) is lent, and valid from
//!   one protocol to the next.
//! - An action that a driver has no endpoint for is an error, never "done".

use core::fmt;

use super::token::{Aggregate, Ticket};
use crate::units::Nanos;

/// A synchronization method.
pub trait Protocol {
    /// The outcome of the last action in, the next action out.
    ///
    /// # Errors
    /// When `last` does not answer the outstanding action; the state is unchanged.
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn>;

    /// The one buffer that actions read and write: lent at construction, never grown. `[slice +
    /// TAIL]`: a slice of the replica, and what a reduction carries beside it (`reduction.rs`).
    /// Empty where a protocol never asks for the replica: gradients stay where workers put them.
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

/// What goes with the word of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// The slice in staging, as it is.
    Whole,
    /// A change in staging, which the receiver adds up: what a message leaves out can come with a
    /// later one.
    Change,
    /// The state in staging of what the receiver has an older copy of: a message can leave out what
    /// has hardly moved.
    State,
    /// A few numbers.
    Note(Note),
}

impl Payload {
    /// The slice in staging goes with the word, or what matters of it.
    #[must_use]
    pub const fn has_values(self) -> bool {
        matches!(self, Self::Whole | Self::Change | Self::State)
    }
}

/// What partitions of rows are told of aggregates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum News {
    /// A stretch of training begins with the rows of this version.
    Begin {
        /// Aggregates applied.
        version: u64,
    },
    /// A push is a member, or dropped: [`member`](super::server::member) reads which.
    Member(Note),
    /// The aggregate in hand is applied as it is.
    Flush(Aggregate),
    /// A stretch of training is over, and all that was told is to be applied.
    End,
}

/// A few numbers that go with a word.
pub type Note = [u64; 4];

/// What a protocol asks its driver to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A round begins, as soon as the conductor lets it: copy the live replica into staging. With
    /// gated workers (a foreground method) the driver first lets those of the last round go.
    Load,
    /// Copy the live replica into staging now: the workers have ended, and it stands still.
    Read,
    /// replica += alpha · (staging − replica), against the replica as it is then.
    Store {
        /// 1 replaces, 0 leaves.
        alpha: f32,
    },
    /// replica += alpha · staging, against the replica as it is then. Running statistics, elements
    /// from `parameters` on, move alpha of the way to staging instead, as in [`Self::Store`]: what
    /// was measured meanwhile is no work to be kept, and a variance must not overshoot.
    Add {
        /// −1 subtracts.
        alpha: f32,
        /// Elements that are no running statistics.
        parameters: usize,
    },
    /// Take the gradient of the next step from the workers, when all of this trainer have brought
    /// theirs.
    Take,
    /// Replace the gradient that was taken by its sum over the group.
    ReduceSum {
        /// Who takes part.
        group: Group,
    },
    /// Hand the gradient back: the workers update the replica with it and go on.
    Give,
    /// Send a word, and what goes with it.
    Send {
        /// Receiving instance.
        to: usize,
        /// What the message is.
        word: u64,
        /// What goes with it.
        payload: Payload,
    },
    /// Receive a word, and into staging what comes with it.
    Receive {
        /// From this instance, or from any.
        from: Option<usize>,
    },
    /// The same from any instance, but not for longer than until then.
    Await {
        /// By the driver's clock.
        until: Nanos,
    },
    /// Tell the partitions of rows. The last news of a stretch is told when they have applied all.
    Tell {
        /// What.
        news: News,
    },
    /// Let the worker read this batch, and ask for its rows.
    Announce {
        /// Which batch.
        ticket: Ticket,
    },
    /// Let the worker train this batch with the live replica, and take its gradient into staging.
    Train {
        /// Which batch.
        ticket: Ticket,
    },
    /// Wait until all who hold rows of the batch have what it has for them.
    Settle,
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
    /// The replica is in staging.
    Loaded {
        /// Every value is finite.
        finite: bool,
        /// The workers have ended, and this is all they did: the next `Load` is answered with
        /// `Stop`.
        last: bool,
    },
    /// The gradient of a step is there.
    Taken,
    /// A message was received.
    Received {
        /// Sending instance.
        from: usize,
        /// The word it sent.
        word: u64,
        /// Elements that came with it, which are in staging.
        elements: usize,
    },
    /// A message with a note was received.
    Noted {
        /// Sending instance.
        from: usize,
        /// The word it sent.
        word: u64,
        /// What went with it.
        note: Note,
        /// The driver's clock.
        now: Nanos,
    },
    /// Nothing was received in time.
    Late {
        /// The driver's clock.
        now: Nanos,
    },
    /// The gradient of the batch is in staging.
    Trained {
        /// Every value is finite.
        finite: bool,
        /// The trainer was asked to stop.
        stop: bool,
    },
    /// Staging is the mean.
    Reduced {
        /// Sum of all weights; if it is 0 there is no mean, and staging is of no use.
        weight: f32,
        /// The least of the group; of all ranks, whether it is 0.
        silent: u32,
    },
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
