//! Trainers of parameter servers in one process: batches as the dispatcher hands them out.
//!
//! Every worker has a replica and a gradient, as on real ranks. Rows are asked for when a batch is
//! handed out, and applied when the partition hears of the global batch they belong to, so they are
//! as old as in a real run.
//!
//! Invariant: questions, gradients and news of rows come to the partition's one thread in the order
//! of virtual time, and nobody waits for what is said later: the relay hears with the servers, and
//! a worker's rows are taken when its step has taken its time.

use core::cell::RefCell;
use core::sync::atomic::AtomicU32;

use umbra_core::dense::replica::store;
use umbra_core::sim::{self, Job, Rows, Simulated, Step, Training, simulate};
use umbra_core::sync::token::Ticket;

use super::defect;
use super::failures::Failures;
use super::training::Learners;
use crate::error::Error;
use crate::measure::counters::{Reading, WorkerCounters};
use crate::measure::trace::Track;
use crate::trainer::{Trainer, Worker};

impl Learners {
    /// Trains on parameter servers.
    pub(super) fn train_handed(
        &mut self,
        cluster: &sim::Cluster,
        job: &Job<'_>,
        mut failures: Option<&mut Failures>,
        trace: bool,
    ) -> Result<Simulated, Error> {
        let Self { trainers, workers, counters, services, of_trainer, .. } = self;
        let first = &trainers[0].replica;
        let copy = || -> Vec<AtomicU32> {
            first
                .iter()
                .map(|x| AtomicU32::new(x.load(core::sync::atomic::Ordering::Relaxed)))
                .collect()
        };
        let (replicas, gradients): (Vec<_>, Vec<_>) =
            workers.iter().map(|_| (copy(), copy())).unzip();
        let replicas: Vec<&[AtomicU32]> = replicas.iter().map(Vec::as_slice).collect();
        let gradients: Vec<&[AtomicU32]> = gradients.iter().map(Vec::as_slice).collect();
        let handed =
            RefCell::new(Handed { workers, counters, gradients: &gradients, made: Ok(()) });
        let mut step = |Step { trainer, worker, ticket, replica, .. }: Step<'_>| {
            let index = trainer * *of_trainer + worker;
            if let Some(ticket) = ticket {
                // The partition has heard all that was said before, and nobody says more meanwhile.
                handed.borrow_mut().bring(&trainers[trainer], index, replica, ticket);
                if let Some(failures) = &mut failures {
                    failures.step();
                }
            }
        };
        let mut rows = |rows: Rows| match rows {
            Rows::Asked { worker, ticket } => {
                handed.borrow_mut().begin(&trainers[worker / *of_trainer], worker, ticket);
            }
            Rows::News(news) => {
                if let Some(router) = services.router() {
                    router.tell(news);
                }
            }
        };
        let training = Training {
            replicas: &replicas,
            gradients: &gradients,
            step: &mut step,
            update: &mut |_| {},
            rows: &mut rows,
        };
        let simulated = simulate(cluster, job, training, trace).map_err(defect);
        handed.into_inner().made?;
        simulated
    }
}

/// The workers of all trainers, and their gradients.
struct Handed<'a> {
    workers: &'a mut [Worker],
    counters: &'a [WorkerCounters],
    gradients: &'a [&'a [AtomicU32]],
    /// After the first error the rest of the simulation only has to end.
    made: Result<(), Error>,
}

impl Handed<'_> {
    /// A worker is handed a batch.
    fn begin(&mut self, trainer: &Trainer, index: usize, ticket: Ticket) {
        if self.made.is_ok() {
            let worker = &mut self.workers[index];
            self.made = worker.begin(&trainer.watch, ticket, &self.counters[index]);
        }
    }

    /// Its step has ended.
    fn bring(&mut self, trainer: &Trainer, index: usize, replica: &[AtomicU32], ticket: Ticket) {
        if self.made.is_ok() {
            self.made = self.try_bring(trainer, index, replica, ticket);
        }
    }

    fn try_bring(
        &mut self,
        trainer: &Trainer,
        index: usize,
        replica: &[AtomicU32],
        ticket: Ticket,
    ) -> Result<(), Error> {
        let worker = &mut self.workers[index];
        let mut reading = Reading { steps: 1, ..Reading::default() };
        worker.bring(trainer, replica, ticket, &mut reading, Track::of(None, ""))?;
        worker.client.settle(true)?;
        let contribution = &mut worker.buffers.contribution;
        if reading.dropped > 0 {
            contribution.gradient.fill(f32::NAN);
        }
        let (gradient, statistics) = self.gradients[index].split_at(contribution.gradient.len());
        store(gradient, &contribution.gradient);
        store(statistics, &contribution.statistics);
        self.counters[index].add(&reading);
        Ok(())
    }
}
