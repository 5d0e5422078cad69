//! Batches that workers ask for one by one: of any stream, at any step.
//!
//! Where a coordinator hands out batches (`umbra_core::sync::token`), what a worker trains next is
//! known only when it is told. The reader thread keeps the streams that were asked for last, each
//! with two windows in memory; one that goes on where it stands, or further on, is not read again.
//!
//! Invariants: a worker gets what it asked for, in the order in which it asked; each batch is that
//! of [`Pipeline::train`] for the same worker and step.

use std::sync::mpsc::{Sender, channel};

use crate::dataset_reader::DatasetReader;
use crate::in_order::OrderedReader;
use crate::pipeline::{Delivery, Halt, Outlet, rings, start};
use crate::stream::{Steps, Stream};
use crate::{
    BatchBuffer, Dataset, DatasetError, Pipeline, Reading, TrainOrder, WorkerBatches,
    steps_per_epoch,
};

/// The batches of one worker, which asks for them.
#[derive(Debug)]
pub struct RequestedBatches {
    requests: Sender<Request>,
    worker: usize,
    batches: WorkerBatches,
}

/// What a worker asks for.
#[derive(Clone, Copy, Debug)]
struct Request {
    worker: usize,
    stream: usize,
    step: u64,
}

/// Training batches for `workers` local workers, which ask for those of any worker of `order`, a
/// *stream*, in `epochs`. So many `streams` are kept open, two windows of rows each.
///
/// # Errors
/// When `order` makes no sense, or the thread cannot be started. Errors of the data come from
/// [`RequestedBatches::next`].
pub fn train_on_request(
    dataset: &Dataset,
    order: &TrainOrder,
    workers: usize,
    epochs: core::ops::Range<u32>,
    streams: usize,
    reading: Reading,
) -> Result<(Pipeline, Vec<RequestedBatches>), DatasetError> {
    order.check()?;
    let (dataset, order) = (dataset.clone(), *order);
    let (outlet, batches) = rings(workers, reading.prefetch);
    let (requests, asked) = channel();
    let (pipeline, batches) = start(outlet, batches, move |outlet| {
        let steps = Steps { each: steps_per_epoch(dataset.rows(), &order).max(1), epochs };
        let open_max = streams.max(1);
        let lanes = open_max * order.lanes_of(0).len();
        let mut files = DatasetReader::new(&dataset, lanes, reading)?;
        let asked = asked.into_iter();
        if order.shuffle {
            let mut open = OpenStreams { dataset: &dataset, order, steps, open: vec![], open_max };
            return serve(asked, outlet, &open.steps.clone(), &order, |stream, step, batch| {
                open.take(stream, step, &mut files, batch)
            });
        }
        let mut rows = OrderedReader::new(&dataset, open_max, &mut files);
        serve(asked, outlet, &steps, &order, |stream, _, batch| {
            rows.take(order.in_order(dataset.rows(), stream, batch.step), batch)?;
            if batch.step + 1 == steps.each { rows.unchanged() } else { Ok(()) }
        })
    })?;
    let requested = batches.into_iter().enumerate().map(|(worker, batches)| RequestedBatches {
        requests: requests.clone(),
        worker,
        batches,
    });
    Ok((pipeline, requested.collect()))
}

impl RequestedBatches {
    /// Asks for the batch of `stream` at `step`, counted over all epochs. Who asks for more than
    /// `prefetch` that it has not taken holds the other workers of its rank back.
    pub fn ask(&self, stream: usize, step: u64) {
        // A reader that has ended has said why, or will.
        let _ = self.requests.send(Request { worker: self.worker, stream, step });
    }

    /// The next batch that was asked for; see [`WorkerBatches::next`].
    ///
    /// # Errors
    /// When the data could not be read, or there is no such batch; once, then `None`.
    pub fn next(&mut self, waiting: &mut dyn FnMut()) -> Result<Option<BatchBuffer>, DatasetError> {
        self.batches.next(waiting)
    }

    /// Gives a used buffer back to the reader.
    pub fn recycle(&self, batch: BatchBuffer) {
        self.batches.recycle(batch);
    }
}

/// Fills what is asked for with `fill`, given the stream, the step over all epochs, and a batch
/// that knows its own.
fn serve(
    asked: impl Iterator<Item = Request>,
    outlet: &mut Outlet,
    steps: &Steps,
    order: &TrainOrder,
    mut fill: impl FnMut(usize, u64, &mut BatchBuffer) -> Result<(), DatasetError>,
) -> Result<(), Halt> {
    for Request { worker, stream, step } in asked {
        let below = |what, got: u64, bound: u64| {
            let expected = format!("below {bound}");
            if got < bound { Ok(()) } else { Err(DatasetError::Order { what, expected, got }) }
        };
        below("stream", stream as u64, order.workers_total as u64)?;
        below("step", step, steps.all())?;
        let mut batch = outlet.buffer();
        (batch.epoch, batch.step) = steps.place(step);
        fill(stream, step, &mut batch)?;
        outlet.send(worker, Delivery::Batch(batch))?;
    }
    Ok(())
}

/// The streams that were asked for last, the last one first.
struct OpenStreams<'a> {
    dataset: &'a Dataset,
    order: TrainOrder,
    steps: Steps,
    open: Vec<(usize, Stream)>,
    open_max: usize,
}

impl OpenStreams<'_> {
    fn take(
        &mut self,
        number: usize,
        step: u64,
        files: &mut DatasetReader,
        batch: &mut BatchBuffer,
    ) -> Result<(), DatasetError> {
        let found = self.open.iter().position(|(open, _)| *open == number);
        let mut stream = match found.map(|at| self.open.remove(at).1) {
            Some(mut stream) if stream.next() <= step => {
                stream.skip_to(step, files)?;
                stream
            }
            behind => {
                // What has to go back begins anew.
                let oldest = (self.open.len() == self.open_max).then(|| self.open.pop()).flatten();
                let done = behind.into_iter().chain(oldest.map(|(_, stream)| stream));
                done.into_iter().try_for_each(|stream| stream.close(files))?;
                Stream::open(self.dataset, &self.order, &self.steps, number, step, files)?
            }
        };
        stream.take(files, batch)?;
        self.open.insert(0, (number, stream));
        Ok(())
    }
}
