//! Between a worker and the protocol that hands it batches: a batch there, its gradient back.
//!
//! Invariant: what a worker brings is lent to the protocol until the next batch, so that neither
//! side allocates in a step.

use core::sync::atomic::AtomicU32;

use crossbeam_channel::{Receiver, Sender, unbounded};
use umbra_core::sync::token::Ticket;

use crate::dense::bsp::Contribution;
use crate::memory::Words;

/// A batch for a worker.
pub struct Work {
    /// Which.
    pub ticket: Ticket,
    /// The memory of its last gradient.
    pub spent: Option<Contribution>,
}

/// What a worker made of a batch.
pub struct Trained {
    /// Its gradient and its statistics.
    pub contribution: Contribution,
    /// They, the loss and the gradients of rows are numbers.
    pub finite: bool,
    /// The trainer was asked to stop.
    pub stop: bool,
}

/// The worker's end.
pub struct Hand<'a> {
    /// Batches; closed when there are no more.
    pub work: Receiver<Work>,
    /// Gradients.
    pub trained: Sender<Trained>,
    /// The replica that the batches are trained with. `[replica_len]`
    pub replica: &'a [AtomicU32],
}

/// The protocol's end.
pub struct Desk {
    work: Sender<Work>,
    trained: Receiver<Trained>,
    /// A batch is with the worker.
    handed: bool,
    spent: Option<Contribution>,
}

impl Desk {
    /// Both ends, about batches that are trained with `replica`.
    #[must_use]
    pub fn new(replica: &Words) -> (Self, Hand<'_>) {
        let ((work, batches), (trained, gradients)) = (unbounded(), unbounded());
        let desk = Self { work, trained: gradients, handed: false, spent: None };
        (desk, Hand { work: batches, trained, replica })
    }

    /// Hands a batch over, once, and brings its gradient with the statistics behind it into
    /// `staging` when it is there: whether all are numbers, and whether the trainer was asked to
    /// stop.
    pub(super) fn train(&mut self, ticket: Ticket, staging: &mut [f32]) -> Option<(bool, bool)> {
        if !self.handed {
            // A worker that has gone has ended the job.
            let _ = self.work.send(Work { ticket, spent: self.spent.take() });
            self.handed = true;
        }
        let Trained { contribution, finite, stop } = self.trained.try_recv().ok()?;
        let (parameters, statistics) = staging.split_at_mut(contribution.gradient.len());
        parameters.copy_from_slice(&contribution.gradient);
        statistics.copy_from_slice(&contribution.statistics);
        self.spent = Some(contribution);
        self.handed = false;
        Some((finite, stop))
    }
}
