//! Training steps, sampled: every combination of source, batch size, optimizers and number of workers.
//!
//! Combinations are measured in turn, one sample each, round after round, so that a ratio of two of
//! them compares neighbours in time. A sample is a number of steps, found beforehand, after a few steps
//! that are not counted and bring the caches into their usual state; in those the reader, if there is
//! one, falls back to its usual distance too.
//!
//! All combinations of one optimizer train the same replica and tables.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use umbra_datasets::{BatchBuffer, Pipeline, TrainOrder};

use super::processor::{peak_gflops, stay_on, thread_time};
use super::report::{Source, StepFigure};
use super::subject::Variant;
use super::{Settings, Subject, ready, work};
use crate::batches::Batches;
use crate::buffers::StepBuffers;
use crate::convert;
use crate::counters::WorkerCounters;
use crate::embedding_client::Client;
use crate::error::Error;
use crate::group::Group;
use crate::launch::Cores;
use crate::signals::Signals;
use crate::tables::{Partition, TableLayout};
use crate::trainer::{Method, Segment, Trainer, Worker};
use crate::watch::Watch;

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
}

/// Measures all combinations. `progress` is told the samples taken and how many there will be.
///
/// # Errors
/// Data that can't be read or is too small; memory or threads that are not there.
pub fn measure(
    subject: &Subject,
    settings: &Settings,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<StepFigure>, Error> {
    let sources = if subject.data.is_some() { &Source::ALL[..] } else { &[Source::Memory] };
    let mut pool = BTreeMap::new();
    let mut tracks = vec![];
    for variant in &subject.variants {
        let shared = Shared::new(subject, variant)?;
        for &batch in &settings.batches {
            for &workers in &settings.workers {
                for &source in sources {
                    tracks.push(Track::new(subject, &shared, (source, batch, workers))?);
                }
            }
        }
    }
    let most = settings.workers.iter().copied().max().unwrap_or(1);
    for track in &tracks {
        if track.source == Source::Memory && !pool.contains_key(&track.order.batch_size) {
            pool.insert(track.order.batch_size, ready::batches(subject, &track.order, most)?);
        }
    }
    let total = (tracks.len() * (settings.samples + 1)) as u64;
    let mut taken = 0;
    progress(taken, total);
    let target = settings.seconds / settings.samples as f64;
    for round in 0..=settings.samples {
        for track in &mut tracks {
            let batches = pool.entry(track.order.batch_size).or_default();
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

/// What all combinations of one optimizer share.
struct Shared<'a> {
    variant: &'a Variant,
    trainer: Arc<Trainer>,
    layout: TableLayout,
    partition: Partition,
}

impl<'a> Shared<'a> {
    fn new(subject: &Subject, variant: &'a Variant) -> Result<Self, Error> {
        let (config, model) = (&variant.config, subject.model);
        let watch = Arc::new(Watch::new(WATCHDOG, "bench:".into()));
        let trainer = Trainer::new(model, config, &Arc::new(Signals::none()), &watch)?;
        let optimizer = convert::sparse_optimizer(&config.optim.sparse);
        let layout = TableLayout::new(&subject.cardinality, 1, model.row_width(), optimizer)
            .map_err(|error| Error::Data(error.to_string()))?;
        let partition = Partition::initialized(0, &layout, &model, config.seed)
            .map_err(|error| Error::Launch(error.to_string()))?;
        Ok(Self { variant, trainer: Arc::new(trainer), layout, partition })
    }
}

/// Longest wait of a worker for the others.
const WATCHDOG: Duration = Duration::from_secs(300);

/// One combination and its samples so far.
struct Track {
    source: Source,
    optimizer: String,
    order: TrainOrder,
    trainer: Arc<Trainer>,
    workers: Vec<Worker>,
    /// The reader, where batches come from a file.
    pipeline: Option<Pipeline>,
    /// Cores of the workers, where there is one for each.
    cores: Option<Vec<usize>>,
    /// Steps of a worker so far.
    first_step: u64,
    /// Steps of a worker in a sample.
    steps: u64,
    samples: Vec<Sample>,
}

impl Track {
    fn new(
        subject: &Subject,
        shared: &Shared<'_>,
        (source, batch_size, workers): (Source, usize, usize),
    ) -> Result<Self, Error> {
        let config = &shared.variant.config;
        let order = TrainOrder {
            seed: config.seed,
            workers_total: workers,
            lanes: config.data.lanes,
            batch_size,
            shuffle: config.data.shuffle,
        };
        let values = subject
            .data
            .as_ref()
            .map_or(subject.cardinality.len(), |data| data.values_per_row_max());
        let (mut pipeline, mut read) = (None, vec![]);
        if let (Source::Hdf5, Some(data)) = (source, &subject.data) {
            let prefetch = config.data.prefetch_batches;
            let (reader, batches) = Pipeline::train(data, &order, 0..workers, EPOCHS, prefetch)?;
            (pipeline, read) = (Some(reader), batches);
        }
        let mut read = read.into_iter();
        let worker = |local| Worker {
            local,
            batches: read.next().map(Batches::Read),
            client: Client::local(shared.layout.clone(), shared.partition.clone()),
            buffers: StepBuffers::new(&subject.model, batch_size, batch_size * values),
        };
        let cores: Vec<usize> = Cores::allowed().numbers().take(workers).collect();
        Ok(Self {
            source,
            optimizer: shared.variant.name.clone(),
            order,
            trainer: Arc::clone(&shared.trainer),
            workers: (0..workers).map(worker).collect(),
            pipeline,
            cores: (cores.len() == workers).then_some(cores),
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

    /// Lets every worker train `steps` steps. `batches` are those in memory, for the combinations that
    /// take from there.
    fn sample(&mut self, steps: u64, batches: &mut VecDeque<BatchBuffer>) -> Result<Sample, Error> {
        let before = Segment { first_step: self.first_step, steps: steps / 8 + 1 };
        let timed = Segment { first_step: before.first_step + before.steps, steps };
        self.first_step = timed.first_step + timed.steps;
        if self.source == Source::Memory {
            deal(batches, &mut self.workers);
        }
        let (trainer, cores) = (&*self.trainer, self.cores.as_deref());
        let start = Group::new(self.workers.len(), Arc::clone(&trainer.watch));
        let train = |worker| part(trainer, worker, cores, [before, timed], &start);
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
        })
    }

    /// The figure; ends the reader.
    fn finish(self, model: &str, flop_per_example: u64) -> StepFigure {
        let workers = self.workers.len();
        drop(self.workers);
        if let Some(pipeline) = self.pipeline {
            pipeline.join();
        }
        let what = (model.to_owned(), self.optimizer, self.source);
        let sizes = (self.order.batch_size, workers);
        StepFigure::new(what, sizes, flop_per_example, &self.samples)
    }
}

/// More than anyone waits for.
const EPOCHS: core::ops::Range<u32> = 0..u32::MAX;

/// What one worker did in a sample.
struct Part {
    examples: u64,
    from: Instant,
    to: Instant,
    cpu: Duration,
    peaks: [f64; 2],
}

/// One worker's thread: trains `before` uncounted, meets the others, trains `timed`.
fn part(
    trainer: &Trainer,
    worker: &mut Worker,
    cores: Option<&[usize]>,
    [before, timed]: [Segment; 2],
    start: &Group<()>,
) -> Result<Part, Error> {
    let (counters, uncounted) = (WorkerCounters::default(), WorkerCounters::default());
    let ready = cores.map_or(Ok(()), |cores| stay_on(cores[worker.local]));
    let peak_before = peak_gflops();
    let warm = worker.train(trainer, Method::Alone, before, &uncounted);
    // Who failed comes too: the others wait.
    start.meet(worker.local, (), "the start of a sample", |_| {});
    ready?;
    warm?;
    let (from, cpu_from) = (Instant::now(), thread_time());
    worker.train(trainer, Method::Alone, timed, &counters)?;
    let (to, cpu) = (Instant::now(), thread_time() - cpu_from);
    let peaks = [peak_before, peak_gflops()];
    Ok(Part { examples: counters.read().examples, from, to, cpu, peaks })
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
