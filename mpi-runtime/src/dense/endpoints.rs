//! What the protocols of a thread act through, and why they cannot go on.
//!
//! Invariant: a protocol that asks for an endpoint which its thread has not is refused.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use umbra_core::sync::{Action, OutOfTurn};
use umbra_core::units::Nanos;

use crate::comm::Comm;
use crate::comm::post::Post;
use crate::comm::reduce::Sums;
use crate::comm::watch::{Lost, Watch};
use crate::dense::coded_links::CodedLinks;
use crate::dense::coded_sum::CodedSum;
use crate::dense::gradients::GradientQueue;
use crate::dense::group_sums::GroupSums;
use crate::rows::router::Router;

/// What the protocols of a thread act through. A protocol that asks for what is `None` is refused.
pub struct Endpoints<'a> {
    /// Reductions of all trainers, of a trainer alone too; only this thread uses it.
    pub comm: Option<&'a mut Comm>,
    /// Reductions of groups; they go by messages.
    pub groups: Option<GroupSums<'a>>,
    /// How reductions of all trainers are coded, where they are.
    pub coded_sum: Option<&'a mut CodedSum>,
    /// Messages.
    pub post: Option<&'a mut Post>,
    /// How values in messages are coded, where they are.
    pub coded_links: Option<&'a mut CodedLinks>,
    /// Gradients.
    pub gradients: Option<GradientQueue<'a>>,
    /// The partitions of rows that are here.
    pub rows: Option<Arc<Router>>,
    /// First sleep between two looks at the post.
    pub poll: Duration,
    /// Longest sleep while a message may come.
    pub longest: Duration,
    /// By how much longer than the watch allows others may take, whose rounds their pace holds
    /// back.
    pub grace: Duration,
    /// Deadlines.
    pub watch: &'a Watch,
}

impl<'a> Endpoints<'a> {
    /// None of them.
    #[must_use]
    pub const fn none(watch: &'a Watch) -> Self {
        Self {
            comm: None,
            groups: None,
            coded_sum: None,
            post: None,
            coded_links: None,
            gradients: None,
            rows: None,
            poll: Duration::ZERO,
            longest: Duration::MAX,
            grace: Duration::ZERO,
            watch,
        }
    }
}

/// What the seats of a thread share.
pub(super) struct Ends<'a> {
    pub(super) ends: Endpoints<'a>,
    pub(super) sums: Sums,
    pub(super) start: Instant,
}

impl Ends<'_> {
    pub(super) fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Why a protocol could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// It refused a completion: a defect of the protocol.
    #[error("instance {instance}: {error}")]
    OutOfTurn {
        /// Which one.
        instance: usize,
        /// What it said.
        error: Box<OutOfTurn>,
    },
    /// It asked for an endpoint that its thread has not: a defect of whoever made the thread.
    #[error("instance {instance} asked for {action:?}, and its thread has no endpoint for it")]
    Missing {
        /// Which one.
        instance: usize,
        /// What it asked for.
        action: Action,
    },
    /// What came is longer than what was asked for, or is not what a vector is coded as: the
    /// programs of the ranks differ, or memory is damaged.
    #[error("a message that came can't be read")]
    Malformed,
    /// Others did not come in time.
    #[error(transparent)]
    Lost(#[from] Lost),
}
