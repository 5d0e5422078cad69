//! Between a worker and the protocol that hands it batches: a batch there, its gradient back.
//!
//! Invariant: what a worker brings is lent to the protocol until the next batch, so that neither
//! side allocates in a step.

use core::sync::atomic::AtomicU32;

use crossbeam_channel::{Receiver, Sender, unbounded};
use umbra_core::dense::replica::all_finite;
use umbra_core::sync::token::Ticket;

use crate::dense::bsp::Contribution;
use crate::memory::Words;

/// A batch for a worker.
pub struct Work {
    /// Which; `None` when there are no more.
    pub ticket: Option<Ticket>,
    /// The memory of its last gradient.
    pub spent: Option<Contribution>,
}

/// What a worker made of a batch.
pub struct Trained {
    /// Its gradient and its statistics.
    pub contribution: Contribution,
    /// The loss and the gradients of rows are numbers.
    pub finite: bool,
    /// The trainer was asked to stop.
    pub stop: bool,
}

/// The worker's end.
pub struct Hand<'a> {
    /// Batches.
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
            let _ = self.work.send(Work { ticket: Some(ticket), spent: self.spent.take() });
            self.handed = true;
        }
        let Trained { contribution, finite, stop } = self.trained.try_recv().ok()?;
        let (parameters, statistics) = staging.split_at_mut(contribution.gradient.len());
        parameters.copy_from_slice(&contribution.gradient);
        statistics.copy_from_slice(&contribution.statistics);
        self.spent = Some(contribution);
        self.handed = false;
        Some((finite && all_finite(staging), stop))
    }
}

/// The worker gets its memory back with the word that there are no more batches.
impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.work.send(Work { ticket: None, spent: self.spent.take() });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A batch goes there once, its gradient comes back with its memory, and one that is not finite
    /// is known as such whatever the worker says.
    #[test]
    fn a_batch_there_and_its_gradient_back() {
        let replica = Words::new(3).unwrap();
        let (mut desk, hand) = Desk::new(&replica);
        let ticket = |batch| Ticket { batch, ..Ticket::default() };
        let mut staging = [9.0; 3];
        for (batch, value, finite, expected) in
            [(0, 1.0, true, true), (1, 2.0, false, false), (2, f32::NAN, true, false)]
        {
            assert_eq!(desk.train(ticket(batch), &mut staging), None);
            assert_eq!(desk.train(ticket(batch), &mut staging), None, "it is with the worker");
            let Work { ticket: got, spent } = hand.work.try_recv().unwrap();
            assert_eq!((got, spent.is_some()), (Some(ticket(batch)), batch > 0));
            assert!(hand.work.is_empty());
            let gradient = vec![value, 4.0];
            let contribution = Contribution { gradient, statistics: vec![5.0], sums: vec![] };
            hand.trained.send(Trained { contribution, finite, stop: batch == 1 }).unwrap();
            assert_eq!(desk.train(ticket(batch), &mut staging), Some((expected, batch == 1)));
            assert_eq!(staging[1..], [4.0, 5.0]);
        }
        drop(desk);
        let Work { ticket: none, spent } = hand.work.recv().unwrap();
        assert_eq!((none, spent.unwrap().gradient.len()), (None, 2), "there are no more");
    }
}
