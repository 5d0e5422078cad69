//! A trainer's side of a run: its replica, its workers, and the threads beside them for a stretch
//! of training.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use umbra_core::dense::replica::{element, load, store};
use umbra_datasets::{Pipeline, train_on_request};

use crate::comm::watch::{Backoff, Lost, Waiting, Watch};
use crate::comm::{Comm, loss};
use crate::config::BatchNormScope;
use crate::dense::bsp::Bsp;
use crate::dense::parts::{Parts, WholeOn};
use crate::dense::replica_sync::{DenseSync, StepEnd, TrainerEnd};
use crate::dense::seat::Gaps;
use crate::dense::served::ServedStretch;
use crate::error::Error;
use crate::launch::processor::Pins;
use crate::launch::signals::Signals;
use crate::measure::counters::{Counters, Reading, WorkerCounters};
use crate::measure::trace::{Trace, Track};
use crate::rows::router::Router;
use crate::run::plan::Plan;
use crate::run::sections::Begin;
use crate::score::progressive::Progressive;
use crate::trainer::batches::{Batches, STREAMS_OF_A_WORKER};
use crate::trainer::{Segment, Trainer, Worker};

/// A trainer of this rank.
pub(super) struct TrainerThreads {
    /// What its workers share.
    pub(super) shared: Trainer,
    /// Its workers.
    pub(super) workers: Vec<Worker>,
    /// Loss of every step over the global batch, where the method knows it (`bsp`).
    pub(super) losses: Vec<f64>,
    /// The reader.
    pub(super) pipeline: Option<Pipeline>,
    /// Share of its data that a test leaves it.
    short_share: Option<f64>,
    /// Steps of the next stretches that each worker has made before this run went on. `[workers]`
    ahead: Vec<u64>,
    /// This trainer's own replica while the published model is in its place.
    pub(super) own: Option<Vec<f32>>,
    /// How far that was from the mean of all, over its norm, when the mean was last taken.
    pub(super) distance: Option<f64>,
    /// Optimizer state that is saved in the place of this trainer's own: the mean of all.
    pub(super) mean_state: Option<Vec<AtomicU32>>,
}

impl TrainerThreads {
    pub(super) fn new(
        plan: &Plan,
        rank: usize,
        clients: Vec<crate::rows::client::Client>,
        training: Option<&Begin>,
        (signals, watch): (&Arc<Signals>, &Arc<Watch>),
        before: Option<Left>,
        of_replica: Option<Comm>,
    ) -> Result<Self, Error> {
        let config = &plan.job.config;
        let (mut shared, losses) = match before {
            Some(Left { mut shared, losses }) => {
                shared.watch = Arc::clone(watch);
                (shared, losses)
            }
            None => (Trainer::new(plan.model, config, signals, watch)?, vec![]),
        };
        let number = plan.roles.trainers.number_of(rank).unwrap_or(0);
        let inject = &config.recovery.inject;
        shared.nan_step = inject.nan_step.filter(|_| inject.nan_trainer == Some(number));
        let from_the_beginning = training.is_some_and(|begin| begin.state.step == 0);
        shared.panic_step = inject
            .panic_step
            .filter(|_| inject.panic_trainer == Some(number) && from_the_beginning);
        let first_time = from_the_beginning && loss::epoch() == 0;
        shared.kill_step =
            inject.kill_step.filter(|_| inject.kill_trainer == Some(number) && first_time);
        let is_slow = inject.slow_trainer.is_none_or(|trainer| trainer == number);
        let slow = inject.slow_factor.filter(|_| is_slow);
        let steps = inject.slow_from.unwrap_or(0)..inject.slow_to.unwrap_or(u64::MAX);
        shared.slow = slow.map(|factor| ((factor - 1.0).max(0.0), steps));
        let short_share = inject.short_share.filter(|_| inject.short_trainer == Some(number));
        let first = plan.roles.replica_of(rank).unwrap_or(0) * plan.workers_per_trainer();
        let mut ahead = vec![0; clients.len()];
        let (pipeline, batches) = if let Some(Begin { state, worker_steps, .. }) = training {
            let workers = first..first + plan.workers_per_trainer();
            let reading = config.data.reading();
            let epochs = 0..config.train.epochs;
            let mut first_steps = vec![state.step; workers.len()];
            if worker_steps.len() == workers.len() {
                first_steps.copy_from_slice(worker_steps);
                ahead = worker_steps.iter().map(|made| made.saturating_sub(state.step)).collect();
            }
            let (data, order) = (&plan.train, &plan.order);
            let (pipeline, batches): (_, Vec<_>) = if plan.job.method.is_served() {
                let (streams, workers) = (STREAMS_OF_A_WORKER * workers.len(), workers.len());
                let (pipeline, batches) =
                    train_on_request(data, order, workers, epochs, streams, reading)?;
                (pipeline, batches.into_iter().map(Batches::Requested).collect())
            } else {
                let (pipeline, batches) =
                    Pipeline::resume(data, order, workers, epochs, first_steps, reading)?;
                (pipeline, batches.into_iter().map(Batches::Read).collect())
            };
            (Some(pipeline), batches.into_iter().map(Some).collect())
        } else {
            (None, (0..clients.len()).map(|_| None).collect::<Vec<_>>())
        };
        let mut parts = plan.parts(rank, of_replica)?;
        let workers = clients
            .into_iter()
            .zip(batches)
            .enumerate()
            .map(|(local, (client, batches))| {
                let parts = parts.take();
                let buffers = plan.step_buffers(local, parts.as_ref());
                let progressive = config.train.progressive.then(Progressive::default);
                Worker { local, batches, client, buffers, parts, progressive }
            })
            .collect();
        let side = Self {
            shared,
            workers,
            losses,
            pipeline,
            short_share,
            ahead,
            own: None,
            distance: None,
            mean_state: None,
        };
        side.release_parts();
        Ok(side)
    }

    /// Ends them; their trainer is left, with the published model for its replica.
    pub(super) fn finish(self, watch: &Watch) -> Left {
        let Self { shared, workers, losses, pipeline, .. } = self;
        drop(workers);
        let waited = end_reader(pipeline, |waiting, what| waiting.check(watch, what));
        watch.or_end(waited);
        Left { shared, losses }
    }

    /// As [`finish`](Self::finish), when a rank is lost: with its own replica.
    ///
    /// # Errors
    /// When the reader does not end in time.
    pub(super) fn abandon(self, watch: &Watch) -> Result<Left, Lost> {
        let Self { shared, workers, losses, pipeline, own, .. } = self;
        drop(workers);
        // Not a wait for those that are lost.
        end_reader(pipeline, |waiting, what| waiting.check_time(watch, what))?;
        if let Some(own) = own {
            store(&shared.replica, &own);
        }
        Ok(Left { shared, losses })
    }

    /// Its part of a replica that is dealt to several ranks.
    pub(super) fn parts(&self) -> Option<&Parts> {
        self.workers.first()?.parts.as_ref()
    }

    /// Makes the replica whole, where it is dealt to several ranks, until it is
    /// [released](Self::release_parts). *Collective over these.*
    ///
    /// # Errors
    /// When not all come in time.
    pub(super) fn gather_parts(&self, whole_on: WholeOn) -> Result<(), Lost> {
        let Some(parts) = self.parts() else { return Ok(()) };
        parts.gather(&self.shared.replica, &self.shared.state, whole_on)
    }

    /// Gives the memory back of what other ranks of the replica compute.
    pub(super) fn release_parts(&self) {
        if let Some(parts) = self.parts() {
            parts.release(&self.shared.replica, &self.shared.state);
        }
    }

    /// Keeps a copy of the replica, once, that training goes on with.
    pub(super) fn keep_own(&mut self) {
        if self.own.is_none() {
            self.own = Some(self.own_replica());
        }
    }

    /// What stands in the place of this trainer's replica and optimizer state is its own from now
    /// on. Returns the replica that was kept aside.
    pub(super) fn forget_published(&mut self) -> Option<Vec<f32>> {
        self.mean_state = None;
        self.own.take()
    }

    /// The replica as training left it.
    pub(super) fn own_replica(&self) -> Vec<f32> {
        self.own.clone().unwrap_or_else(|| loaded(&self.shared.replica))
    }

    /// Its optimizer state, as it stands. `[planes * parameters]`
    pub(super) fn state(&self) -> Vec<f32> {
        loaded(&self.shared.state)
    }

    /// How far the replica that training left is from the one in its place, over its norm.
    pub(super) fn distance_to_published(&self) -> Option<f64> {
        let (mut distance, mut norm) = (0.0, 0.0);
        for (own, word) in self.own.as_ref()?.iter().zip(&*self.shared.replica) {
            let (own, published) = (f64::from(*own), f64::from(element(word)));
            distance += (published - own) * (published - own);
            norm += own * own;
        }
        Some((distance / norm).sqrt()).filter(|distance| distance.is_finite())
    }

    /// Runs the workers, and beside them the dense communicator threads that the method needs.
    /// *Collective over the trainers as far as the method is.*
    pub(super) fn train(
        &mut self,
        dense: &mut Comm,
        plan: &Plan,
        segment: Segment,
        around: Around<'_>,
    ) -> Result<(bool, Duration, Gaps), Error> {
        let (start, Around { sync, counters, trace, rows }) = (Instant::now(), around);
        let steps = self.short_share.map_or(segment.steps, |share| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a count"
            )]
            let steps = (segment.steps as f64 * share) as u64;
            steps
        });
        let segment = Segment { steps, ..segment };
        if let Some(own) = self.forget_published() {
            store(&self.shared.replica, &own);
        }
        let Self { shared, workers, losses, ahead, .. } = self;
        let global_norm = plan.job.config.sync.batch_norm == BatchNormScope::Global;
        let (sizes, threads) = ((workers.len(), plan.slices), plan.job.worker_threads);
        let watch = &shared.watch;
        let bsp = |link| Bsp::new(sizes, threads, link, global_norm, watch);
        let end = TrainerEnd { comm: dense, replica: &shared.replica, bsp: Box::new(bsp) };
        let served = ServedStretch {
            steps: (segment.first_step, segment.first_step + segment.steps),
            rate_factor: shared.rate_factor.get(),
        };
        let served = (served, rows);
        let stretch = sync.run(Some(end), counters, trace, &plan.pins, served, |step_end| {
            let stopped = run_workers(
                shared,
                (workers, ahead),
                step_end,
                segment,
                counters,
                trace,
                &plan.pins,
            );
            if let (Err(error), false) = (&stopped, plan.local) {
                // The threads beside the workers stay in rounds until all trainers have ended:
                // nobody would hear of it before.
                shared.watch.end_job(error.exit_code(), error);
            }
            if let StepEnd::Sum(bsp) = step_end {
                let stalled = Reading { sync_ns: bsp.stalled_ns(), ..Reading::default() };
                counters.workers.iter().for_each(|counters| counters.add(&stalled));
            }
            (stopped, start.elapsed())
        })?;
        losses.extend(stretch.losses);
        let (stopped, trained) = stretch.worked.unwrap_or((Ok(false), Duration::ZERO));
        Ok((stopped?, trained, stretch.gaps))
    }
}

/// Waits for the end of the reader, whose batches nobody takes any more: it must be out of HDF5
/// before the process ends.
fn end_reader(
    pipeline: Option<Pipeline>,
    check: impl Fn(&mut Waiting, &dyn core::fmt::Display) -> Result<(), Lost>,
) -> Result<(), Lost> {
    let Some(pipeline) = pipeline else { return Ok(()) };
    let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
    while !pipeline.is_finished() {
        check(&mut waiting, &"the end of the reader thread")?;
        backoff.wait();
    }
    pipeline.join();
    Ok(())
}

/// The values of words that threads share.
pub(super) fn loaded(words: &[AtomicU32]) -> Vec<f32> {
    let mut values = vec![0.0; words.len()];
    load(words, &mut values);
    values
}

/// What is left of a trainer when its threads have ended.
pub(super) struct Left {
    shared: Trainer,
    losses: Vec<f64>,
}

/// What a trainer's threads share beside the replica.
pub(super) struct Around<'a> {
    pub(super) sync: &'a mut DenseSync,
    pub(super) counters: &'a Counters,
    pub(super) trace: Option<&'a Trace>,
    /// Who tells the rows here what is applied together.
    pub(super) rows: Option<&'a Arc<Router>>,
}

/// Runs every worker on a thread of its own. True when one of them was asked to stop.
fn run_workers(
    trainer: &Trainer,
    (workers, ahead): (&mut [Worker], &mut [u64]),
    step_end: StepEnd<'_>,
    segment: Segment,
    counters: &Counters,
    trace: Option<&Trace>,
    pins: &Pins,
) -> Result<bool, Error> {
    let together = workers.len() > 1 && !matches!(step_end, StepEnd::Free);
    let train = |worker: &mut Worker, ahead: &mut u64, counters: &WorkerCounters| {
        let made = segment.steps.min(*ahead);
        *ahead -= made;
        let segment =
            Segment { first_step: segment.first_step + made, steps: segment.steps - made };
        let track = Track::of(trace, &format!("worker {}", worker.local));
        let pinned = pins.worker(worker.local);
        let result =
            pinned.and_then(|()| worker.train(trainer, step_end, segment, counters, track));
        if let (Err(error), true) = (&result, together) {
            // The other workers would wait for this one at the next meeting.
            trainer.watch.end_job(error.exit_code(), error);
        }
        result
    };
    let train = &train;
    let results: Vec<Result<bool, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .zip(ahead)
            .zip(&counters.workers)
            .map(|((worker, ahead), counters)| scope.spawn(move || train(worker, ahead, counters)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut stopped = false;
    for result in results {
        stopped |= result?;
    }
    Ok(stopped)
}
