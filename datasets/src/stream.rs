//! The batches of one worker, step by step: a stream of one lane or several.
//!
//! Invariant: the batch of a step depends on the order and the step alone, not on what was taken or
//! left out before.

use core::ops::Range;

use crate::dataset_reader::DatasetReader;
use crate::lane::{LaneOrder, LaneReader};
use crate::order::lane_rows;
use crate::{BatchBuffer, Dataset, DatasetError, TrainOrder};

/// The steps of a run.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// Of an epoch.
    pub(crate) each: u64,
    pub(crate) epochs: Range<u32>,
}

impl Steps {
    /// Of all epochs.
    pub(crate) fn all(&self) -> u64 {
        self.each * u64::from(self.epochs.end.saturating_sub(self.epochs.start))
    }

    /// Of a step of those of all epochs: which epoch's, and which step there.
    pub(crate) fn place(&self, step: u64) -> (u32, u64) {
        let epoch = u32::try_from(step / self.each).unwrap_or(u32::MAX);
        (self.epochs.start.saturating_add(epoch).min(self.epochs.end), step % self.each)
    }
}

/// The batches of one worker.
#[derive(Debug)]
pub(crate) struct Stream {
    lanes: Vec<Lane>,
    order: TrainOrder,
    steps: Steps,
    /// The step whose batch comes next, counted over all epochs.
    next: u64,
}

#[derive(Debug)]
struct Lane {
    number: usize,
    /// Rows of an epoch.
    length: u64,
    reader: LaneReader,
}

impl Lane {
    /// Rows of it that the steps before `step` of an epoch take.
    fn until(&self, order: &TrainOrder, step: u64) -> u64 {
        order.taken(self.number, step).min(self.length)
    }
}

impl Stream {
    /// The batches of worker `worker` over all ranks from step `next` on.
    pub(crate) fn open(
        dataset: &Dataset,
        order: &TrainOrder,
        steps: &Steps,
        worker: usize,
        next: u64,
        files: &mut DatasetReader,
    ) -> Result<Self, DatasetError> {
        let (epoch, step) = steps.place(next);
        let open = |number: usize| {
            let range = lane_rows(dataset.rows(), order.lanes_used(), number);
            let length = range.end - range.start;
            let lane_order = LaneOrder { seed: order.seed, lane: number, shuffle: order.shuffle };
            let reader = LaneReader::new(dataset, range, lane_order, epoch..steps.epochs.end);
            let mut lane = Lane { number, length, reader };
            lane.reader.skip(lane.until(order, step), files)?;
            Ok(lane)
        };
        let lanes = order.lanes_of(worker).map(open).collect::<Result<_, DatasetError>>()?;
        Ok(Self { lanes, order: *order, steps: steps.clone(), next })
    }

    /// The step whose batch comes next, counted over all epochs.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Leaves out the batches before `step`, which is not before the next.
    pub(crate) fn skip_to(
        &mut self,
        step: u64,
        files: &mut DatasetReader,
    ) -> Result<(), DatasetError> {
        let ((from_epoch, from), (to_epoch, to)) =
            (self.steps.place(self.next), self.steps.place(step));
        for lane in &mut self.lanes {
            let whole = u64::from(to_epoch - from_epoch) * lane.length;
            let (from, to) = (lane.until(&self.order, from), lane.until(&self.order, to));
            lane.reader.skip(whole + to - from, files)?;
        }
        self.next = step;
        Ok(())
    }

    /// Gives all memory back.
    pub(crate) fn close(self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        self.lanes.into_iter().try_for_each(|lane| lane.reader.close(files))
    }

    /// Appends the rows of the next step to `batch`, which knows it.
    pub(crate) fn take(
        &mut self,
        files: &mut DatasetReader,
        batch: &mut BatchBuffer,
    ) -> Result<(), DatasetError> {
        let step = batch.step;
        for lane in &mut self.lanes {
            let rows = lane.until(&self.order, step + 1) - lane.until(&self.order, step);
            lane.reader.take(files, usize::try_from(rows).unwrap_or(0), batch)?;
        }
        self.next += 1;
        Ok(())
    }
}
