//! The training loop of a worker.
//!
//! A worker takes a batch whose rows have arrived, computes on the dense replica where it stands,
//! pushes the row gradients, and updates every dense parameter once. It calls no MPI. How replicas
//! stay together is the [`StepEnd`]'s affair: `bsp` hands the gradient to the meeting of all
//! workers; everywhere else a worker updates the shared replica at once, Hogwild fashion, and at
//! most stands at a gate now and then.
//!
//! Map: `batches.rs` where batches come from · `buffers.rs` a worker's memory · `pass.rs` scores
//! a dataset · `handed.rs` trains what it is handed · `part.rs` a part of a model · `first_step.rs`
//! when it began.

pub mod batches;
pub mod buffers;
mod first_step;
mod handed;
mod part;
pub mod pass;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::{Signal, getpid, kill_process};
use umbra_core::dense::replica::{Update, all_finite, interpolate, store, update};
use umbra_core::model::{Gradients, Model, StepKey};
use umbra_core::optim::{Optimizer, Rate, StepSize};
use umbra_datasets::BatchBuffer;

use crate::comm::watch::{Lost, Watch};
use crate::config::Config;
use crate::config::convert;
use crate::dense::bsp::STEP_SUMS;
use crate::dense::parts::Parts;
use crate::dense::replica_sync::StepEnd;
use crate::error::Error;
use crate::launch::signals::Signals;
use crate::measure::counters::{Reading, WorkerCounters};
use crate::measure::trace::Track;
use crate::memory::Words;
use crate::rows::client::Client;
use crate::rows::lookup::Lookup;
use crate::score::progressive::Progressive;
use crate::state::RateFactor;
use crate::trainer::batches::Batches;
use crate::trainer::buffers::StepBuffers;
use crate::trainer::first_step::FirstStep;

/// What the workers of a trainer share.
pub struct Trainer {
    /// The model's plan.
    pub model: Model,
    /// Seed of the run.
    pub seed: u64,
    /// The dense replica. `[replica_len]`
    pub replica: Words,
    /// Its optimizer state. `[planes * parameters_len]`
    pub state: Words,
    /// The dense optimizer.
    pub optimizer: Optimizer,
    /// Updates of the replica so far: Adam's step count.
    pub updates: AtomicU64,
    /// Learning rate of dense parameters.
    pub dense_rate: Rate,
    /// Learning rate of embedding rows.
    pub sparse_rate: Rate,
    /// Factor on both, lowered by early stopping.
    pub rate_factor: RateFactor,
    /// Share of a new batch in the running statistics.
    pub statistics_momentum: f32,
    /// A test's wish: the replica gets a NaN before this step.
    pub nan_step: Option<u64>,
    /// A test's wish: a worker panics in this step.
    pub panic_step: Option<u64>,
    /// A test's wish: this process is killed in this step.
    pub kill_step: Option<u64>,
    /// A test's wish: the run is asked to stop in this step.
    pub stop_step: Option<u64>,
    /// A test's wish: steps take so many times longer than they do, while they have these numbers.
    pub slow: Option<(f64, Range<u64>)>,
    /// When it made its first step.
    pub first_step: FirstStep,
    /// Requests to stop.
    pub signals: Arc<Signals>,
    /// Deadlines.
    pub watch: Arc<Watch>,
}

impl Trainer {
    /// A trainer of `model` before its first step: initial values, fresh optimizer state.
    ///
    /// # Errors
    /// A dense optimizer that is for rows only, or no memory.
    pub fn new(
        model: Model,
        config: &Config,
        signals: &Arc<Signals>,
        watch: &Arc<Watch>,
    ) -> Result<Self, Error> {
        let Some(optimizer) = convert::dense_optimizer(&config.optim.dense) else {
            return Err(Error::Usage("optim.dense.kind = \"rowwise_adagrad\" is for rows".into()));
        };
        let words =
            |len| Words::new(len).map_err(|error: io::Error| Error::Launch(error.to_string()));
        let replica = words(model.replica_len())?;
        let state = words(optimizer.state_planes() * model.parameters_len())?;
        let mut initial = vec![0.0; model.replica_len()];
        model.initialize(config.seed, &mut initial);
        store(&replica, &initial);
        // Words are 0, and take no memory before they are written.
        let fresh = Some(optimizer.initial_state().to_bits()).filter(|bits| *bits != 0);
        fresh.into_iter().for_each(|bits| state.iter().for_each(|word| word.store(bits, Relaxed)));
        Ok(Self {
            model,
            seed: config.seed,
            replica,
            state,
            optimizer,
            updates: AtomicU64::new(0),
            dense_rate: convert::rate(&config.optim.dense),
            sparse_rate: convert::rate(&config.optim.sparse),
            rate_factor: RateFactor::default(),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "settings are computed with in f32"
            )]
            statistics_momentum: config.model.batch_norm_momentum as f32,
            nan_step: None,
            panic_step: None,
            kill_step: None,
            stop_step: config.recovery.inject.stop_step,
            slow: None,
            first_step: FirstStep::default(),
            signals: Arc::clone(signals),
            watch: Arc::clone(watch),
        })
    }

    /// Learning rates of dense parameters and embedding rows at `step`.
    #[must_use]
    pub fn rates(&self, step: u64) -> (f32, f32) {
        let factor = self.rate_factor.get();
        let at = |rate: &Rate| factor * rate.base * rate.schedule.factor(step);
        (at(&self.dense_rate), at(&self.sparse_rate))
    }

    /// Counts an update of the dense parameters, and says how large it is.
    fn step_size(&self, step: u64) -> StepSize {
        let count = self.updates.fetch_add(1, Relaxed) + 1;
        StepSize { rate: self.rates(step).0, count }
    }

    fn parameters(&self) -> &[AtomicU32] {
        &self.replica[..self.model.parameters_len()]
    }

    fn update(&self, gradient: &[f32], step: u64) {
        let size = self.step_size(step);
        update(&self.optimizer, size, self.parameters(), &self.state, gradient);
    }

    /// Ends a step with the gradient and the statistics of the global batch, whose weights sum to
    /// `weight`: without any nothing changes. False, and nothing has changed, when they are not
    /// finite.
    pub fn finish_step(
        &self,
        (gradient, statistics): (&[f32], &[f32]),
        weight: f64,
        step: u64,
    ) -> bool {
        let sound = all_finite(gradient) && all_finite(statistics);
        if sound && weight > 0.0 {
            self.update(gradient, step);
            self.update_statistics(statistics);
        }
        sound
    }

    fn update_statistics(&self, statistics: &[f32]) {
        let running = &self.replica[self.model.parameters_len()..];
        interpolate(running, self.statistics_momentum, statistics);
    }

    /// Training is to stop, or to change its method.
    fn stop_requested(&self) -> bool {
        self.signals.ends_stretch()
    }
}

/// Waits without holding the slot to compute, where there are slots.
fn rest<T>(step_end: StepEnd<'_>, wait: impl FnOnce() -> T) -> Result<T, Lost> {
    if let StepEnd::Sum(bsp) = step_end { bsp.turns().rest(wait) } else { Ok(wait()) }
}

/// A stretch of training between two evaluations; equal on all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Steps before it.
    pub first_step: u64,
    /// Steps in it.
    pub steps: u64,
}

/// One worker and what it owns.
pub struct Worker {
    /// Its number on this rank.
    pub local: usize,
    /// Its batches; `None` when nothing is trained.
    pub batches: Option<Batches>,
    /// Its access to the tables.
    pub client: Client,
    /// Its memory for a step.
    pub buffers: StepBuffers,
    /// Its part of the dense replica, where that is dealt to several ranks.
    pub parts: Option<Parts>,
    /// How well it scored the examples of the first pass before it learnt from them, where
    /// somebody wants to know.
    pub progressive: Option<Progressive>,
}

impl Worker {
    /// Trains a segment. True when it ended early because a stop was asked for.
    ///
    /// # Errors
    /// When the data can't be read, or those it trains with do not come in time.
    pub fn train(
        &mut self,
        trainer: &Trainer,
        step_end: StepEnd<'_>,
        segment: Segment,
        counters: &WorkerCounters,
        track: Track<'_>,
    ) -> Result<bool, Error> {
        if let StepEnd::Served(hands) = step_end {
            return self.train_handed(trainer, &hands[self.local], counters, track);
        }
        let StepEnd::Sum(bsp) = step_end else {
            return self.train_in_turn(trainer, step_end, segment, counters, track);
        };
        bsp.turns().take()?;
        let stopped = self.train_in_turn(trainer, step_end, segment, counters, track);
        bsp.turns().give();
        stopped
    }

    fn train_in_turn(
        &mut self,
        trainer: &Trainer,
        step_end: StepEnd<'_>,
        segment: Segment,
        counters: &WorkerCounters,
        track: Track<'_>,
    ) -> Result<bool, Error> {
        let (mut asked, mut since_round) = (0, 0);
        counters.reach(segment.first_step);
        for done in 0..segment.steps {
            let mut reading = Reading { steps: 1, ..Reading::default() };
            reading.embedding_ns += rest(step_end, || self.client.settle(false))??;
            while asked < segment.steps && (self.client.ahead() == 0 || self.client.may_ask()) {
                let (batch, waited) = rest(step_end, || {
                    let start = Instant::now();
                    (self.next_batch(&trainer.watch), nanoseconds(start))
                })?;
                reading.data_ns += waited;
                self.client.ask(batch?, clock(segment.first_step + asked));
                asked += 1;
            }
            let Some((lookup, waited)) = rest(step_end, || self.client.take())?? else { break };
            reading.embedding_ns += waited;
            let step = segment.first_step + done;
            let began = Instant::now();
            let mut stop = self.step_with(trainer, step_end, lookup, step, &mut reading);
            track.span("step", began.elapsed());
            since_round += 1;
            // Before the gate: the round there carries this step.
            counters.add(&reading);
            counters.reach(step + 1);
            trainer.first_step.made();
            if let StepEnd::Gate { gates, every } = step_end
                && since_round == every
            {
                let start = Instant::now();
                // One of its own, or the one of all.
                let (gate, place) = match gates {
                    [all] => (all, self.local),
                    each => (&each[self.local], 0),
                };
                stop = gate.pass(place, trainer.stop_requested(), &trainer.watch)?;
                counters.add(&Reading { sync_ns: nanoseconds(start), ..Reading::default() });
                track.span("gate", start.elapsed());
                since_round = 0;
            }
            if stop {
                trainer.watch.or_end(self.client.settle(true));
                // The reader must not wait for room in this ring while another worker waits for it.
                self.batches = None;
                return Ok(true);
            }
        }
        trainer.watch.or_end(self.client.settle(true));
        Ok(false)
    }

    /// One training step, after which the lookup's memory is free again. True when a stop was
    /// agreed on.
    fn step_with(
        &mut self,
        trainer: &Trainer,
        step_end: StepEnd<'_>,
        mut lookup: Lookup,
        step: u64,
        reading: &mut Reading,
    ) -> bool {
        // Of the ranks of a replica one counts.
        let speaks = self.parts.as_ref().is_none_or(Parts::is_first);
        reading.examples = if speaks { lookup.batch.len() as u64 } else { 0 };
        if trainer.nan_step == Some(step) && self.local == 0 {
            step_end.replica(trainer)[0].store(f32::NAN.to_bits(), Relaxed);
        }
        assert!(trainer.panic_step != Some(step) || self.local != 0, "as recovery.inject asks");
        if trainer.kill_step == Some(step) && self.local == 0 {
            // Nothing comes after it.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        if trainer.stop_step == Some(step) && self.local == 0 {
            trainer.signals.request_stop(libc::SIGUSR1);
        }
        let stop = self.step(trainer, step_end, &mut lookup, step, reading);
        let batch = self.client.recycle(lookup);
        if let Some(batches) = &mut self.batches {
            batches.recycle(batch);
        }
        stop
    }

    fn next_batch(&mut self, watch: &Watch) -> Result<BatchBuffer, Error> {
        let next = self.batches.as_mut().map_or(Ok(None), |batches| batches.next(watch))?;
        next.ok_or_else(|| {
            Error::Failure("the reader ended before the epoch did: a defect of the reader".into())
        })
    }

    /// One training step. True when a stop was agreed on.
    fn step(
        &mut self,
        trainer: &Trainer,
        step_end: StepEnd<'_>,
        lookup: &mut Lookup,
        step: u64,
        reading: &mut Reading,
    ) -> bool {
        let buffers = &mut self.buffers;
        let (model, local) = (&trainer.model, self.local);
        let places = lookup.prepare_tiles(model.tile_len(lookup.batch.len(), false));
        let lookup = &*lookup;
        let rows_len = places.map_or(lookup.rows.len(), |places| places * model.row_width());
        if places.is_some() {
            // Room for all rows, so that no batch needs more than the one before.
            buffers.row_copies.fit(buffers.row_gradients.len());
            buffers.row_copies.fit(rows_len);
        }
        let (copies, rate) = (&mut buffers.row_copies, trainer.rates(step).1);
        let mut tiled = self.client.rows_for_step(lookup, copies, rate);
        let batch = lookup.batch.batch();
        let input = lookup.input();
        let (mut calls, sums) = (0, &mut buffers.sums);
        let (began, mut waited) = (Instant::now(), 0);
        let mut reduce = |values: &mut [f64]| {
            match step_end {
                StepEnd::Sum(bsp) if bsp.global_norm() || calls == 0 => {
                    let start = Instant::now();
                    bsp.sum(local, values, sums);
                    waited += nanoseconds(start);
                }
                StepEnd::Handed { weight } if calls == 0 => values.fill(weight),
                _ => {}
            }
            calls += 1;
        };
        // Alone with its batch, a worker updates the replica as its gradients come.
        let alone =
            !matches!(step_end, StepEnd::Sum(_) | StepEnd::Handed { .. } | StepEnd::Brought { .. });
        let update = (alone && batch.weight_sum() > 0.0).then(|| {
            let size = trainer.step_size(step);
            Update::new(&trainer.optimizer, size, trainer.parameters(), &trainer.state)
        });
        let updated = update.is_some();
        let StepBuffers { contribution, gradient_of_part, .. } = buffers;
        let mut gradients = Gradients {
            parameters: match self.parts {
                Some(_) => gradient_of_part,
                None => &mut contribution.gradient,
            },
            update,
            rows: &mut buffers.row_gradients[..rows_len],
            statistics: &mut contribution.statistics,
            logits: &mut buffers.logits[..batch.len()],
        };
        let (replica, workspace) = (step_end.replica(trainer), &mut buffers.workspace.lend());
        let key = StepKey { seed: trainer.seed, step };
        let (loss, crossing) = match (&mut self.parts, &mut tiled) {
            (None, None) => {
                let out = &mut gradients;
                (model.train_step(replica, &input, key, &mut reduce, workspace, out), 0)
            }
            (None, Some(rows)) => {
                let (by, out) = ((&mut reduce as &mut dyn FnMut(&mut [f64]), rows), &mut gradients);
                (model.train_on_table(replica, &input, key, by, workspace, out), 0)
            }
            (Some(parts), _) => {
                let on = (replica, &input, key);
                part::train(parts, on, &mut reduce, workspace, &mut gradients, &trainer.watch)
            }
        };
        waited += crossing;
        reading.sync_ns += crossing;
        if let Some((factor, steps)) = &trainer.slow
            && steps.contains(&step)
        {
            std::thread::sleep(Duration::from_nanos(nanoseconds(began) - waited).mul_f64(*factor));
        }
        reading.compute_ns = nanoseconds(began) - waited;
        // A step without a finite loss has changed nothing, and must not move rows either; one
        // whose row gradients are not finite would spoil them for all; one without weights has
        // gradients of 0, and would move their state all the same. A step that updates rows itself
        // sees to that.
        let row_gradients = &buffers.row_gradients[..rows_len];
        let changed = updated && loss.loss_sum.is_finite();
        if updated && !changed {
            trainer.updates.fetch_sub(1, Relaxed);
        }
        let finite = tiled.map_or_else(|| all_finite(row_gradients), |rows| !rows.spoilt);
        let sound = loss.loss_sum.is_finite() && finite;
        // Of the ranks of a replica one speaks: all have found the same.
        let speaks = self.parts.as_ref().is_none_or(Parts::is_first);
        let scored = speaks && sound && lookup.batch.epoch == 0;
        if let (Some(progressive), true) = (&mut self.progressive, scored) {
            progressive.add(&batch, &buffers.logits[..batch.len()]);
        }
        if sound && speaks {
            (reading.loss_sum, reading.weight_sum) = (loss.loss_sum, loss.weight_sum);
        }
        let pushed = if speaks && sound && loss.weight_sum > 0.0 { row_gradients } else { &[] };
        self.client.push(lookup, pushed, rate);
        let mut contribution = core::mem::take(&mut buffers.contribution);
        let stop = match step_end {
            StepEnd::Sum(bsp) => {
                contribution.sums.clear();
                let stop = f64::from(u8::from(trainer.stop_requested()));
                // What is no number here is none in the sum: all trainers drop the step, or none.
                let loss_sum = if sound { loss.loss_sum } else { f64::NAN };
                let sums: [f64; STEP_SUMS] = [loss_sum, loss.weight_sum, stop];
                contribution.sums.extend(sums);
                if let Some(parts) = &self.parts {
                    parts.pack(&buffers.gradient_of_part, &mut contribution.gradient);
                }
                let mut stop = false;
                contribution =
                    bsp.finish_step(local, contribution, |gradient, statistics, sums| {
                        let sound = if let Some(parts) = &mut self.parts {
                            let sound;
                            (sound, stop) =
                                trainer.finish_step_of_part(parts, gradient, sums, step);
                            sound
                        } else {
                            sums[0].is_finite()
                                && trainer.finish_step((gradient, statistics), sums[1], step)
                        };
                        reading.dropped = u64::from(!sound && speaks);
                    });
                stop || contribution.sums[2] > 0.0
            }
            StepEnd::Handed { .. } => {
                reading.dropped = u64::from(!sound);
                if !sound {
                    // What is no number here is none in the sum: all trainers drop the step.
                    contribution.gradient.fill(f32::NAN);
                }
                false
            }
            StepEnd::Brought { .. } => {
                reading.dropped = u64::from(!sound);
                false
            }
            StepEnd::Free | StepEnd::Gate { .. } | StepEnd::Served(_) => {
                reading.dropped = u64::from(!sound);
                if changed {
                    trainer.update_statistics(&contribution.statistics);
                }
                matches!(step_end, StepEnd::Free) && trainer.stop_requested()
            }
        };
        buffers.contribution = contribution;
        stop
    }
}

impl StepEnd<'_> {
    /// What a step is trained with.
    fn replica<'a>(&'a self, trainer: &'a Trainer) -> &'a [AtomicU32] {
        match self {
            Self::Brought { replica } => replica,
            _ => &trainer.replica,
        }
    }
}

/// The step as it travels. The plan refuses runs of more steps than a `u32` counts.
fn clock(step: u64) -> u32 {
    u32::try_from(step).unwrap_or(u32::MAX)
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
