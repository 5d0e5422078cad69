//! The endpoint of gradients: a queue that the workers of a trainer fill at the end of every step,
//! and wait behind (`bsp.rs`).
//!
//! What workers sum in the middle of a step (the weights of the global batch, batch norms) goes the
//! same way and is summed at once, while the protocol waits for the gradient: both need the one
//! communicator between trainers.
//!
//! Invariant: jobs come in the same order on all trainers.

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::comm::Comm;
use crate::comm::reduce::{MANY, Sums};
use crate::comm::watch::Lost;
use crate::dense::coded_sum::CodedSum;
use crate::dense::endpoints::DriveError;
use crate::memory::Lines;

/// Sums over a trainer's workers, to be taken over all trainers. Either list may be empty.
pub struct Job {
    /// A gradient, or statistics.
    pub values: Lines,
    /// Loss, weights.
    pub few: Vec<f64>,
    /// What waits say they are waiting for.
    pub what: &'static str,
    /// It is the gradient that ends a step, and the protocol's; else a sum within one.
    pub ends_step: bool,
}

/// The workers' end of the queue.
pub struct GradientLink {
    /// Sums of this trainer.
    pub jobs: Sender<Job>,
    /// Sums of all trainers, in the order of the jobs.
    pub done: Receiver<Job>,
}

/// The protocol's end.
pub struct GradientQueue<'a> {
    jobs: Receiver<Job>,
    done: Sender<Job>,
    taken: Option<Job>,
    /// How gradients are summed, where what matters of them is sent.
    coded: Option<&'a mut CodedSum>,
}

impl<'a> GradientQueue<'a> {
    /// Both ends of a queue; gradients are `coded`, or sent as they are.
    #[must_use]
    pub fn new(coded: Option<&'a mut CodedSum>) -> (GradientLink, Self) {
        let ((jobs, waiting), (done, finished)) = (unbounded(), unbounded());
        (GradientLink { jobs, done: finished }, Self { jobs: waiting, done, taken: None, coded })
    }

    /// Waits for the gradient of the next step, and sums meanwhile what is summed within one.
    /// False when the workers have ended. Adds to `bytes` what leaves this rank. *Collective over
    /// `comm`.*
    ///
    /// # Errors
    /// When not all trainers come in time.
    pub(super) fn take(
        &mut self,
        sums: &mut Sums,
        comm: &Comm,
        bytes: &mut u64,
    ) -> Result<bool, Lost> {
        while let Ok(mut job) = self.jobs.recv() {
            if job.ends_step {
                self.taken = Some(job);
                return Ok(true);
            }
            *bytes += add(sums, comm, &mut job)?;
            if self.done.send(job).is_err() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Sums the gradient that was taken over all trainers. Returns the bytes that left this rank.
    /// *Collective over `comm`.*
    pub(super) fn sum(&mut self, sums: &mut Sums, comm: &Comm) -> Result<u64, DriveError> {
        match (&mut self.taken, &mut self.coded) {
            (None, _) => Ok(0),
            (Some(job), None) => Ok(add(sums, comm, job)?),
            (Some(Job { values, few, what, .. }), Some(coded)) => {
                coded.sum(comm, sums, values, few, (MANY, what))
            }
        }
    }

    /// Hands the gradient back.
    pub(super) fn give(&mut self) {
        // Workers that have gone need no answer.
        self.taken.take().into_iter().for_each(|job| drop(self.done.send(job)));
    }
}

fn add(sums: &mut Sums, comm: &Comm, job: &mut Job) -> Result<u64, Lost> {
    Ok(sums.sum_with_few(comm, &mut job.values, &mut job.few, MANY, job.what)?.bytes)
}
