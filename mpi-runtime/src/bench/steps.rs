//! Training steps, sampled: every combination of source, batch size, optimizers and number of
//! workers.
//!
//! Combinations are measured in turn, one sample each, round after round, so that a ratio of two of
//! them compares neighbours in time. A sample is a number of steps, found beforehand, after a few
//! steps that are not counted and bring the caches into their usual state; in those the reader, if
//! there is one, falls back to its usual distance too.
//!
//! All combinations of one optimizer train the same replica and tables.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use umbra_core::kernel::Precision;
use umbra_datasets::{BatchBuffer, Pipeline};

use super::ready::{self, Ready};
use super::report::{Source, StepFigure};
use super::trained::Trained;
use super::{Settings, Subject, work};
use crate::dense::meeting::Meeting;
use crate::dense::replica_sync::StepEnd;
use crate::error::Error;
use crate::launch::environment::Cores;
use crate::launch::processor::{peak_gflops, stay_on, thread_time};
use crate::measure::counters::WorkerCounters;
use crate::trainer::batches::Batches;
use crate::trainer::buffers::StepBuffers;
use crate::trainer::{Segment, Trainer, Worker};

/// Some workers that trained together.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Examples of all workers.
    pub examples: u64,
    /// From the common start to the end of the last worker.
    pub seconds: f64,
    /// Time for which the workers had a core, summed.
    pub cpu_seconds: f64,
    /// Peaks of their cores just before and after. `[2 * workers]`
    pub peaks: Vec<f64>,
    /// Seconds that the rows of an example take at least, just before and after. `[2 * workers]`
    pub row_seconds: Vec<f64>,
}

/// Measures all combinations. `progress` is told the samples taken and how many there will be.
///
/// # Errors
/// Data that can't be read; threads that are not there.
pub fn measure(
    subject: &Subject,
    settings: &Settings,
    trained: &[Trained<'_>],
    ready: &mut Ready,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<StepFigure>, Error> {
    let sources = if subject.data.is_some() { &Source::ALL[..] } else { &[Source::Memory] };
    let mut tracks = vec![];
    for trained in trained {
        for &batch in &settings.batches {
            for &workers in &settings.workers {
                for &source in sources {
                    let batches = &*ready.of_size(batch);
                    tracks.push(Track::new(subject, trained, (source, batch, workers), batches)?);
                }
            }
        }
    }
    let total = (tracks.len() * (settings.samples + 1)) as u64;
    let mut taken = 0;
    progress(taken, total);
    let target = settings.seconds / settings.samples as f64;
    for round in 0..=settings.samples {
        for track in &mut tracks {
            let batches = ready.of_size(track.batch_size);
            if round == 0 {
                track.choose_steps(target, batches)?;
            } else {
                let sample = track.sample(track.steps, batches)?;
                track.samples.push(sample);
            }
            taken += 1;
            progress(taken, total);
        }
    }
    let flop = work::flop_per_example(&subject.model);
    Ok(tracks.into_iter().map(|track| track.finish(&subject.name, flop)).collect())
}

/// One combination and its samples so far.
struct Track<'a> {
    source: Source,
    batch_size: usize,
    trained: &'a Trained<'a>,
    workers: Vec<Worker>,
    /// The reader, where batches come from a file.
    pipeline: Option<Pipeline>,
    /// Cores of the workers, where there is one for each.
    cores: Option<Vec<usize>>,
    /// Distinct rows of some batches: what the floor of rows is measured with.
    rows: Vec<Vec<u32>>,
    /// Of which batch it was measured last.
    measured: usize,
    /// Steps of a worker so far.
    first_step: u64,
    /// Steps of a worker in a sample.
    steps: u64,
    samples: Vec<Sample>,
}

impl<'a> Track<'a> {
    fn new(
        subject: &Subject,
        trained: &'a Trained<'a>,
        (source, batch_size, workers): (Source, usize, usize),
        ready: &VecDeque<BatchBuffer>,
    ) -> Result<Self, Error> {
        let config = &trained.variant.config;
        let values = subject
            .data
            .as_ref()
            .map_or(subject.cardinality.len() * subject.bag, |data| data.values_per_row_max());
        let (mut pipeline, mut read) = (None, vec![]);
        if let (Source::Hdf5, Some(data)) = (source, &subject.data) {
            let reading = config.data.reading();
            let order = ready::order(config, batch_size, workers);
            let (reader, batches) = Pipeline::train(data, &order, 0..workers, EPOCHS, reading)?;
            (pipeline, read) = (Some(reader), batches);
        }
        let mut read = read.into_iter();
        let worker = |local| Worker {
            local,
            batches: read.next().map(Batches::Read),
            client: trained.client(),
            parts: None,
            buffers: StepBuffers::new(&trained.trainer.model, batch_size, batch_size * values),
            progressive: None,
        };
        let cores: Vec<usize> = Cores::allowed().numbers().take(workers).collect();
        let count = ready.len().min(FLOORS * workers);
        Ok(Self {
            source,
            batch_size,
            trained,
            workers: (0..workers).map(worker).collect(),
            pipeline,
            cores: (cores.len() == workers).then_some(cores),
            rows: (0..count).map(|i| trained.rows_of(&ready[i * ready.len() / count])).collect(),
            measured: 0,
            first_step: 0,
            steps: 1,
            samples: vec![],
        })
    }

    /// Finds how many steps take about `target` seconds.
    fn choose_steps(
        &mut self,
        target: f64,
        batches: &mut VecDeque<BatchBuffer>,
    ) -> Result<(), Error> {
        let mut steps = 1;
        loop {
            let seconds = self.sample(steps, batches)?.seconds;
            if seconds > target / 8.0 {
                #[expect(clippy::cast_possible_truncation, reason = "a small number of steps")]
                #[expect(clippy::cast_sign_loss, reason = "a quotient of positive numbers")]
                let enough = (steps as f64 * target / seconds).ceil() as u64;
                self.steps = enough.max(1);
                return Ok(());
            }
            steps *= 2;
        }
    }

    /// Lets every worker train `steps` steps. `batches` are those in memory, for the combinations
    /// that take from there.
    fn sample(&mut self, steps: u64, batches: &mut VecDeque<BatchBuffer>) -> Result<Sample, Error> {
        let before = Segment { first_step: self.first_step, steps: steps / 8 + 1 };
        let timed = Segment { first_step: before.first_step + before.steps, steps };
        self.first_step = timed.first_step + timed.steps;
        if self.source == Source::Memory {
            deal(batches, &mut self.workers);
        }
        let (trainer, cores) = (&self.trained.trainer, self.cores.as_deref());
        let workers = self.workers.len();
        let start = Meeting::new(workers, Arc::clone(&trainer.watch));
        let (first, batch_size) = (self.measured, self.batch_size as f64);
        self.measured += 2 * workers;
        let floor = |local: usize, time: usize| {
            let rows = &self.rows[(first + time * workers + local) % self.rows.len()];
            self.trained.row_floor(rows) / batch_size
        };
        let train = |worker| part((trainer, &floor), worker, cores, [before, timed], &start);
        let train = &train;
        let parts: Vec<Result<Part, Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.workers.iter_mut().map(|worker| scope.spawn(move || train(worker))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        if self.source == Source::Memory {
            collect(batches, &mut self.workers);
        }
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (from, to) =
            (parts.iter().map(|part| part.from).min(), parts.iter().map(|part| part.to).max());
        let wall = from.zip(to).map_or(Duration::ZERO, |(from, to)| to - from);
        Ok(Sample {
            examples: parts.iter().map(|part| part.examples).sum(),
            seconds: wall.as_secs_f64(),
            cpu_seconds: parts.iter().map(|part| part.cpu.as_secs_f64()).sum(),
            peaks: parts.iter().flat_map(|part| part.peaks).collect(),
            row_seconds: parts.iter().flat_map(|part| part.row_seconds).collect(),
        })
    }

    /// The figure; ends the reader.
    fn finish(self, model: &str, flop_per_example: u64) -> StepFigure {
        let workers = self.workers.len();
        drop(self.workers);
        if let Some(pipeline) = self.pipeline {
            pipeline.join();
        }
        let what = (model.to_owned(), self.trained.variant.name.clone(), self.source);
        let sizes = (self.batch_size, workers);
        StepFigure::new(what, sizes, flop_per_example, &self.samples)
    }
}

/// Batches of a worker whose rows the floor is measured with in turn: rows that it has just touched
/// would be nearer than those of the next step are.
const FLOORS: usize = 8;

/// More than anyone waits for.
const EPOCHS: core::ops::Range<u32> = 0..u32::MAX;

/// What one worker did in a sample.
struct Part {
    examples: u64,
    from: Instant,
    to: Instant,
    cpu: Duration,
    peaks: [f64; 2],
    row_seconds: [f64; 2],
}

/// One worker's thread: trains `before` uncounted, meets the others, trains `timed`.
fn part(
    (trainer, row_floor): (&Trainer, &(dyn Fn(usize, usize) -> f64 + Sync)),
    worker: &mut Worker,
    cores: Option<&[usize]>,
    [before, timed]: [Segment; 2],
    start: &Meeting<()>,
) -> Result<Part, Error> {
    let (counters, uncounted) = (WorkerCounters::default(), WorkerCounters::default());
    let ready = cores.map_or(Ok(()), |cores| stay_on(cores[worker.local]));
    let before_it = (peak_gflops(Precision::F32), row_floor(worker.local, 0));
    let warm = worker.train(
        trainer,
        StepEnd::Free,
        before,
        &uncounted,
        crate::measure::trace::Track::of(None, ""),
    );
    // Who failed comes too: the others wait.
    let met = start.meet(worker.local, (), "the start of a sample", |_| Ok(()));
    trainer.watch.or_end(met);
    ready?;
    warm?;
    let (from, cpu_from) = (Instant::now(), thread_time());
    worker.train(
        trainer,
        StepEnd::Free,
        timed,
        &counters,
        crate::measure::trace::Track::of(None, ""),
    )?;
    let (to, cpu) = (Instant::now(), thread_time() - cpu_from);
    let after_it = (peak_gflops(Precision::F32), row_floor(worker.local, 1));
    Ok(Part {
        examples: counters.read().examples,
        from,
        to,
        cpu,
        peaks: [before_it.0, after_it.0],
        row_seconds: [before_it.1, after_it.1],
    })
}

/// Deals batches to the workers in turn.
fn deal(batches: &mut VecDeque<BatchBuffer>, workers: &mut [Worker]) {
    let mut dealt = vec![VecDeque::new(); workers.len()];
    for (number, batch) in batches.drain(..).enumerate() {
        dealt[number % workers.len()].push_back(batch);
    }
    for (worker, batches) in workers.iter_mut().zip(dealt) {
        worker.batches = Some(Batches::Cycled(batches));
    }
}

/// Takes them back.
fn collect(batches: &mut VecDeque<BatchBuffer>, workers: &mut [Worker]) {
    for worker in workers {
        if let Some(Batches::Cycled(cycled)) = worker.batches.take() {
            batches.extend(cycled);
        }
    }
}
