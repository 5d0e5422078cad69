//! The loop of a worker whose batches a dispatcher hands out (`umbra_core::sync::server`).
//!
//! Invariant: a batch is settled when every rank that holds rows has taken what it has for them:
//! what is reported is everywhere.

use core::sync::atomic::AtomicU32;
use std::time::Instant;

use umbra_core::sync::token::Ticket;

use super::{Trainer, Worker, clock, nanoseconds};
use crate::comm::watch::Watch;
use crate::dense::hand::{Hand, Word, Work};
use crate::dense::replica_sync::StepEnd;
use crate::error::Error;
use crate::measure::counters::{Reading, WorkerCounters};
use crate::measure::trace::Track;

impl Worker {
    /// Asks for the rows of its next batch, that of `step`, when all it has pushed is in; returns
    /// the weight of that batch.
    ///
    /// # Errors
    /// When the data can't be read, or a push was not taken in time.
    pub fn ask(&mut self, watch: &Watch, step: u64) -> Result<f64, Error> {
        self.client.settle(true)?;
        let batch = self.next_batch(watch)?;
        let weight = batch.batch().weight_sum();
        self.client.ask(batch, clock(step));
        Ok(weight)
    }

    /// Makes the step whose rows it has asked for, in a global batch of `weight`, and leaves its
    /// contribution in its buffers.
    ///
    /// # Errors
    /// When the rows did not come in time.
    pub fn contribute(
        &mut self,
        trainer: &Trainer,
        weight: f64,
        step: u64,
        counters: &WorkerCounters,
    ) -> Result<(), Error> {
        let Some((lookup, waited)) = self.client.take()? else { return Ok(()) };
        let mut reading = Reading { steps: 1, embedding_ns: waited, ..Reading::default() };
        self.step_with(trainer, StepEnd::Handed { weight }, lookup, step, &mut reading);
        counters.add(&reading);
        Ok(())
    }

    /// Trains the batches that it is handed, until there are no more. True when a stop was asked
    /// for.
    pub(super) fn train_handed(
        &mut self,
        trainer: &Trainer,
        hand: &Hand<'_>,
        counters: &WorkerCounters,
        track: Track<'_>,
    ) -> Result<bool, Error> {
        let mut stop = false;
        loop {
            let start = Instant::now();
            let work = trainer.watch.receive(&hand.work, &"a batch from the dispatcher")?;
            let (ticket, spent) = match work {
                Some(Work::Batch { ticket, spent }) => (Some(ticket), spent),
                Some(Work::End { spent }) => (None, spent),
                Some(Work::Train) | None => (None, None),
            };
            if let Some(spent) = spent {
                self.buffers.contribution = spent;
            }
            let Some(ticket) = ticket else { return Ok(stop) };
            // Batches are handed out in the order of their steps.
            counters.reach(ticket.step);
            let mut reading = Reading { steps: 1, ..Reading::default() };
            reading.sync_ns = nanoseconds(start);
            let start = Instant::now();
            // Rows and parameters are on their way at the same time.
            self.begin(&trainer.watch, ticket, counters)?;
            reading.data_ns = nanoseconds(start);
            let start = Instant::now();
            let work = trainer.watch.receive(&hand.work, &"parameters from the servers")?;
            let Some(Work::Train) = work else { return Ok(stop) };
            reading.sync_ns += nanoseconds(start);
            if !self.bring(trainer, hand.replica, ticket, &mut reading, track)? {
                return Ok(stop);
            }
            stop = trainer.stop_requested();
            let contribution = core::mem::take(&mut self.buffers.contribution);
            let trained = Word::Trained { contribution, finite: reading.dropped == 0, stop };
            if hand.words.send(trained).is_err() {
                return Ok(stop);
            }
            // And so are both gradients.
            reading.embedding_ns += self.client.settle(true)?;
            counters.add(&reading);
            trainer.first_step.made();
            if hand.words.send(Word::Settled).is_err() {
                return Ok(stop);
            }
        }
    }

    /// Reads the batch of `ticket` and asks for its rows.
    ///
    /// # Errors
    /// When the data can't be read.
    pub fn begin(
        &mut self,
        watch: &Watch,
        ticket: Ticket,
        counters: &WorkerCounters,
    ) -> Result<(), Error> {
        if let Some(batches) = &self.batches {
            batches.ask(ticket.stream, ticket.step);
        }
        let batch = self.next_batch(watch)?;
        self.client.ask_for(batch, clock(counters.steps()), ticket);
        Ok(())
    }

    /// Trains the batch it has begun with the parameters in `replica`: its contribution is in its
    /// buffers then, its row gradients on their way. False without such a batch.
    ///
    /// # Errors
    /// When the rows did not come in time.
    pub fn bring(
        &mut self,
        trainer: &Trainer,
        replica: &[AtomicU32],
        ticket: Ticket,
        reading: &mut Reading,
        track: Track<'_>,
    ) -> Result<bool, Error> {
        let Some((lookup, waited)) = self.client.take()? else { return Ok(false) };
        reading.embedding_ns = waited;
        let began = Instant::now();
        self.step_with(trainer, StepEnd::Brought { replica }, lookup, ticket.step, reading);
        track.span("step", began.elapsed());
        Ok(true)
    }
}
