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

/// What a worker is told.
pub enum Work {
    /// To read this batch and to ask for its rows.
    Batch {
        /// Which.
        ticket: Ticket,
        /// The memory of its last gradient.
        spent: Option<Contribution>,
    },
    /// To train it: its parameters are there.
    Train,
    /// There are no more.
    End {
        /// The memory of its last gradient.
        spent: Option<Contribution>,
    },
}

/// What a worker says.
pub enum Word {
    /// What it made of a batch.
    Trained {
        /// Its gradient and its statistics.
        contribution: Contribution,
        /// The loss and the gradients of rows are numbers.
        finite: bool,
        /// The trainer was asked to stop.
        stop: bool,
    },
    /// All who hold rows of it have their gradients.
    Settled,
}

/// The worker's end.
pub struct Hand<'a> {
    /// Batches.
    pub work: Receiver<Work>,
    /// What becomes of them.
    pub words: Sender<Word>,
    /// The replica that the batches are trained with. `[replica_len]`
    pub replica: &'a [AtomicU32],
}

/// The protocol's end.
pub struct Desk {
    work: Sender<Work>,
    words: Receiver<Word>,
    /// A batch is in training.
    begun: bool,
    spent: Option<Contribution>,
}

impl Desk {
    /// Both ends, about batches that are trained with `replica`.
    #[must_use]
    pub fn new(replica: &Words) -> (Self, Hand<'_>) {
        let ((work, batches), (said, words)) = (unbounded(), unbounded());
        let desk = Self { work, words, begun: false, spent: None };
        (desk, Hand { work: batches, words: said, replica })
    }

    /// Says which batch is next.
    pub(super) fn announce(&mut self, ticket: Ticket) {
        // A worker that has gone has ended the job.
        let _ = self.work.send(Work::Batch { ticket, spent: self.spent.take() });
    }

    /// Has the batch trained, once, and brings its gradient with the statistics behind it into
    /// `staging` when it is there: whether all are numbers, and whether the trainer was asked to
    /// stop.
    pub(super) fn train(&mut self, staging: &mut [f32]) -> Option<(bool, bool)> {
        if !self.begun {
            let _ = self.work.send(Work::Train);
            self.begun = true;
        }
        let Ok(Word::Trained { contribution, finite, stop }) = self.words.try_recv() else {
            return None;
        };
        let (parameters, statistics) = staging.split_at_mut(contribution.gradient.len());
        parameters.copy_from_slice(&contribution.gradient);
        statistics.copy_from_slice(&contribution.statistics);
        self.spent = Some(contribution);
        self.begun = false;
        Some((finite && all_finite(staging), stop))
    }

    /// All who hold rows of the batch have their gradients: said once.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.words.try_recv(), Ok(Word::Settled))
    }
}

/// The worker gets its memory back with the word that there are no more batches.
impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.work.send(Work::End { spent: self.spent.take() });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A batch is announced, trained once its parameters are there, and comes back with its memory;
    /// a gradient that is not finite is known as such whatever the worker says.
    #[test]
    fn a_batch_there_and_its_gradient_back() {
        let replica = Words::new(3).unwrap();
        let (mut desk, hand) = Desk::new(&replica);
        let mut staging = [9.0; 3];
        for (batch, value, finite, expected) in
            [(0, 1.0, true, true), (1, 2.0, false, false), (2, f32::NAN, true, false)]
        {
            desk.announce(Ticket { batch, ..Ticket::default() });
            let Ok(Work::Batch { ticket, spent }) = hand.work.try_recv() else {
                panic!("it is announced")
            };
            assert_eq!((ticket.batch, spent.is_some()), (batch, batch > 0));
            assert!(hand.work.is_empty(), "its parameters are on their way");
            assert_eq!(desk.train(&mut staging), None);
            assert_eq!(desk.train(&mut staging), None, "it is with the worker");
            assert!(matches!(hand.work.try_recv(), Ok(Work::Train)) && hand.work.is_empty());
            let contribution = Contribution {
                gradient: (&[value, 4.0][..]).into(),
                statistics: (&[5.0][..]).into(),
                sums: vec![],
            };
            let stop = batch == 1;
            hand.words.send(Word::Trained { contribution, finite, stop }).unwrap();
            assert_eq!(desk.train(&mut staging), Some((expected, stop)));
            assert_eq!(staging[1..], [4.0, 5.0]);
            assert!(!desk.is_settled(), "rows are on their way");
            hand.words.send(Word::Settled).unwrap();
            assert!(desk.is_settled() && !desk.is_settled());
        }
        drop(desk);
        let Ok(Work::End { spent }) = hand.work.recv() else { panic!("there are no more") };
        assert_eq!(spent.unwrap().gradient.len(), 2);
    }
}
