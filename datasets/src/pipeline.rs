//! From files to the workers of a rank: one thread owns HDF5 and fills every worker's batches.
//!
//! ```text
//! reader thread ── bounded ring per worker ──▶ WorkerBatches::next
//!       ▲                                            │
//!       └────────────── used buffers ────────────────┘ recycle
//! ```
//! Batches are dealt in the order of steps, worker after worker. A worker that falls behind holds
//! the others back only when its ring of `prefetch` batches is full. Buffers come back through a
//! channel of their own, so that after the first few batches none is allocated. An error is told
//! once to every worker, after the batches before it. When all [`WorkerBatches`] are dropped the
//! thread ends. The reader itself waits without a limit, for a worker whose ring is full: that
//! worker is at work, or in a wait of its own.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::dataset_reader::DatasetReader;
use crate::in_order::OrderedReader;
use crate::lane::{LaneOrder, LaneReader};
use crate::order::lane_rows;
use crate::stream::{Steps, Stream};
use crate::{BatchBuffer, Dataset, DatasetError, Reading, TrainOrder, steps_per_epoch};

/// The reader thread of a rank.
#[derive(Debug)]
pub struct Pipeline {
    thread: JoinHandle<()>,
}

/// The batches of one worker, in order.
///
/// One thread may hold several of them if it takes from them in turn: the rings are bounded.
#[derive(Debug)]
pub struct WorkerBatches {
    ring: Receiver<Delivery>,
    used: SyncSender<BatchBuffer>,
    ended: bool,
}

/// What the reader sends.
#[derive(Debug)]
pub(crate) enum Delivery {
    Batch(BatchBuffer),
    Failed(DatasetError),
    End,
}

/// Time between two calls of what [`WorkerBatches::next`] is given to call while it waits.
pub const LOOK: Duration = Duration::from_secs(1);

impl Pipeline {
    /// Training batches of the workers `workers` (numbers over all ranks) for `epochs`.
    ///
    /// Every worker gets `steps_per_epoch` batches in every epoch; at the ragged end they may be
    /// short or empty. `reading`, or a number of batches, says how far ahead they are read for
    /// each, and how.
    ///
    /// # Errors
    /// When `order` or `workers` make no sense, or the thread cannot be started. Errors of the
    /// data come from [`WorkerBatches::next`].
    pub fn train(
        dataset: &Dataset,
        order: &TrainOrder,
        workers: Range<usize>,
        epochs: Range<u32>,
        reading: impl Into<Reading>,
    ) -> Result<(Self, Vec<WorkerBatches>), DatasetError> {
        let first_steps = vec![0; workers.len()];
        Self::resume(dataset, order, workers, epochs, first_steps, reading)
    }

    /// As [`train`](Self::train), without the first steps, so many of each worker, counted over all
    /// epochs. `first_steps: [workers]`
    ///
    /// # Errors
    /// As [`train`](Self::train).
    ///
    /// # Panics
    /// When `first_steps` has another length.
    pub fn resume(
        dataset: &Dataset,
        order: &TrainOrder,
        workers: Range<usize>,
        epochs: Range<u32>,
        first_steps: Vec<u64>,
        reading: impl Into<Reading>,
    ) -> Result<(Self, Vec<WorkerBatches>), DatasetError> {
        order.check()?;
        if workers.is_empty() || workers.end > order.workers_total {
            return Err(DatasetError::Order {
                what: "workers of this rank",
                expected: format!("a range within 0..{}", order.workers_total),
                got: workers.end as u64,
            });
        }
        assert_eq!(first_steps.len(), workers.len(), "first steps of workers");
        let (dataset, order) = (dataset.clone(), *order);
        let reading = reading.into();
        let (rings, batches) = rings(workers.len(), reading.prefetch);
        start(rings, batches, move |outlet| {
            let lanes = order.lanes_of(workers.start).start..order.lanes_of(workers.end - 1).end;
            let mut files = DatasetReader::new(&dataset, lanes.len(), reading)?;
            read_training(&dataset, &order, workers, epochs, &first_steps, &mut files, outlet)
        })
    }

    /// Rows of shard `shard` of `shards` in the order of the files, every row once, dealt batch by
    /// batch to `workers` local workers in turn.
    ///
    /// # Errors
    /// When the numbers make no sense, or the thread cannot be started.
    pub fn evaluate(
        dataset: &Dataset,
        shard: usize,
        shards: usize,
        workers: usize,
        batch_size: usize,
        reading: impl Into<Reading>,
    ) -> Result<(Self, Vec<WorkerBatches>), DatasetError> {
        let order = TrainOrder {
            seed: 0,
            workers_total: workers,
            lanes: workers,
            batch_size,
            shuffle: false,
        };
        order.check()?;
        if shard >= shards {
            return Err(DatasetError::Order {
                what: "shard",
                expected: format!("below the number of shards, {shards}"),
                got: shard as u64,
            });
        }
        let dataset = dataset.clone();
        let range = lane_rows(dataset.rows(), shards, shard);
        let reading = reading.into();
        let (rings, batches) = rings(workers, reading.prefetch);
        start(rings, batches, move |outlet| {
            let mut files = DatasetReader::new(&dataset, 1, reading)?;
            read_in_order(&dataset, range, batch_size, &mut files, outlet)
        })
    }

    /// Waits until the reader thread has ended: after the last batch was sent, after an error, or
    /// after all [`WorkerBatches`] were dropped.
    pub fn join(self) {
        // A panic there was seen by the workers as `ReaderLost`.
        let _ = self.thread.join();
    }

    /// The reader thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

impl WorkerBatches {
    /// The next batch, or `None` after the last. Waits for the reader, and calls `waiting` after
    /// every [`LOOK`] of it: how long is too long, and what happens then, is for the caller to say.
    ///
    /// # Errors
    /// When the data could not be read; once, then `None`.
    pub fn next(&mut self, waiting: &mut dyn FnMut()) -> Result<Option<BatchBuffer>, DatasetError> {
        if self.ended {
            return Ok(None);
        }
        let delivery = loop {
            match self.ring.recv_timeout(LOOK) {
                Ok(delivery) => break delivery,
                Err(RecvTimeoutError::Timeout) => waiting(),
                Err(RecvTimeoutError::Disconnected) => {
                    break Delivery::Failed(DatasetError::ReaderLost);
                }
            }
        };
        match delivery {
            Delivery::Batch(batch) => Ok(Some(batch)),
            Delivery::End => {
                self.ended = true;
                Ok(None)
            }
            Delivery::Failed(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }

    /// Gives a used buffer back to the reader.
    pub fn recycle(&self, batch: BatchBuffer) {
        match self.used.try_send(batch) {
            // Full: more buffers than the rings need. Disconnected: the reader has ended.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

/// The reader's ends of the channels.
pub(crate) struct Outlet {
    /// `None` once the worker is gone. `[workers]`
    rings: Vec<Option<SyncSender<Delivery>>>,
    used: Receiver<BatchBuffer>,
}

/// All workers are gone: nobody is left to read for.
pub(crate) struct Deserted;

/// Why reading ended early.
pub(crate) enum Halt {
    Data(DatasetError),
    Deserted(Deserted),
}

impl From<DatasetError> for Halt {
    fn from(error: DatasetError) -> Self {
        Self::Data(error)
    }
}

impl From<Deserted> for Halt {
    fn from(deserted: Deserted) -> Self {
        Self::Deserted(deserted)
    }
}

impl Outlet {
    /// An empty buffer, used if there is one.
    pub(crate) fn buffer(&self) -> BatchBuffer {
        let mut buffer = self.used.try_recv().unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn wants(&self, worker: usize) -> bool {
        self.rings[worker].is_some()
    }

    /// Sends to `worker`, waiting while its ring is full.
    pub(crate) fn send(&mut self, worker: usize, delivery: Delivery) -> Result<(), Deserted> {
        if let Some(ring) = &self.rings[worker]
            && ring.send(delivery).is_err()
        {
            self.rings[worker] = None;
            if self.rings.iter().all(Option::is_none) {
                return Err(Deserted);
            }
        }
        Ok(())
    }

    /// Tells `worker`, before the others, that there are no more.
    fn end(&mut self, worker: usize) -> Result<(), Deserted> {
        self.send(worker, Delivery::End)?;
        self.rings[worker] = None;
        Ok(())
    }
}

/// Channels for `workers` workers and `prefetch` batches each.
pub(crate) fn rings(workers: usize, prefetch: usize) -> (Outlet, Vec<WorkerBatches>) {
    let prefetch = prefetch.max(1);
    // Room for every buffer that can be about: in the ring, at the worker, one in the reader.
    let (used_sender, used) = sync_channel(workers * (prefetch + 2) + 1);
    let (rings, batches) = (0..workers)
        .map(|_| {
            let (sender, ring) = sync_channel(prefetch);
            let batches = WorkerBatches { ring, used: used_sender.clone(), ended: false };
            (Some(sender), batches)
        })
        .unzip();
    (Outlet { rings, used }, batches)
}

/// Starts the thread that runs `read` and then tells every worker how it ended.
pub(crate) fn start(
    mut outlet: Outlet,
    batches: Vec<WorkerBatches>,
    read: impl FnOnce(&mut Outlet) -> Result<(), Halt> + Send + 'static,
) -> Result<(Pipeline, Vec<WorkerBatches>), DatasetError> {
    let thread = std::thread::Builder::new()
        .name("umbra-reader".into())
        .spawn(move || {
            let ending = match read(&mut outlet) {
                Ok(()) => None,
                Err(Halt::Data(error)) => Some(error),
                Err(Halt::Deserted(Deserted)) => return,
            };
            for worker in 0..outlet.rings.len() {
                let delivery = ending.clone().map_or(Delivery::End, Delivery::Failed);
                if outlet.send(worker, delivery).is_err() {
                    return;
                }
            }
        })
        .map_err(|e| DatasetError::Thread { source: Arc::new(e) })?;
    Ok((Pipeline { thread }, batches))
}

/// Reads the rows of `workers`, step by step, each worker's from its first step on.
fn read_training(
    dataset: &Dataset,
    order: &TrainOrder,
    workers: Range<usize>,
    epochs: Range<u32>,
    first_steps: &[u64],
    files: &mut DatasetReader,
    outlet: &mut Outlet,
) -> Result<(), Halt> {
    let plan = Steps { each: steps_per_epoch(dataset.rows(), order).max(1), epochs };
    if !order.shuffle {
        let mut rows = OrderedReader::new(dataset, workers.len(), files);
        return deal(&plan, first_steps, outlet, |worker, batch| {
            rows.take(order.in_order(dataset.rows(), workers.start + worker, batch.step), batch)?;
            if batch.step + 1 == plan.each { rows.unchanged() } else { Ok(()) }
        });
    }
    let mut streams = Vec::with_capacity(workers.len());
    for (worker, first) in workers.zip(first_steps) {
        streams.push(Stream::open(dataset, order, &plan, worker, *first, files)?);
    }
    deal(&plan, first_steps, outlet, |worker, batch| streams[worker].take(files, batch))
}

/// Deals batches that `fill` fills, given the worker here and a batch that knows its step, each
/// worker's from its first step on.
fn deal(
    steps: &Steps,
    first_steps: &[u64],
    outlet: &mut Outlet,
    mut fill: impl FnMut(usize, &mut BatchBuffer) -> Result<(), DatasetError>,
) -> Result<(), Halt> {
    let all = steps.all();
    let most = first_steps.iter().map(|first| all.saturating_sub(*first)).max().unwrap_or(0);
    // The next batch of each in turn, wherever it is: nobody waits for one that is behind.
    for round in 0..most {
        for (worker, first) in first_steps.iter().enumerate() {
            let step = first + round;
            if !outlet.wants(worker) {
                continue;
            }
            if step >= all {
                outlet.end(worker)?;
                continue;
            }
            let mut batch = outlet.buffer();
            (batch.epoch, batch.step) = steps.place(step);
            fill(worker, &mut batch)?;
            outlet.send(worker, Delivery::Batch(batch))?;
        }
    }
    Ok(())
}

/// Reads `range` in the order of the files, batch by batch to one worker after the other.
fn read_in_order(
    dataset: &Dataset,
    range: Range<u64>,
    batch_size: usize,
    files: &mut DatasetReader,
    outlet: &mut Outlet,
) -> Result<(), Halt> {
    let rows = range.end - range.start;
    let in_order = LaneOrder { seed: 0, lane: 0, shuffle: false };
    let mut reader = LaneReader::new(dataset, range, in_order, 0..1);
    let workers = outlet.rings.len();
    let batches = rows.div_ceil(batch_size as u64);
    for step in 0..batches {
        let mut batch = outlet.buffer();
        (batch.epoch, batch.step) = (0, step);
        reader.take(files, batch_size, &mut batch)?;
        let worker = usize::try_from(step % workers as u64).unwrap_or(0);
        outlet.send(worker, Delivery::Batch(batch))?;
    }
    Ok(())
}
