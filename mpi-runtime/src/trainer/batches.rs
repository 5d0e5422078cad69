//! Where a worker's batches come from: the reader thread, or memory.

use std::collections::VecDeque;

use umbra_datasets::{BatchBuffer, DatasetError, RequestedBatches, WorkerBatches};

use crate::comm::watch::{Waiting, Watch};

/// The batches of one worker, in order.
#[derive(Debug)]
pub enum Batches {
    /// Read from files by the reader thread.
    Read(WorkerBatches),
    /// The same, of which the worker asks for one after the other.
    Requested(RequestedBatches),
    /// Ready in memory, over and over: a used batch goes to the end of the line.
    Cycled(VecDeque<BatchBuffer>),
}

impl Batches {
    /// The next batch, or `None` after the last; of a cycle, when all batches are in use. Waits for
    /// the reader at most as long as `watch` allows.
    ///
    /// # Errors
    /// When the data could not be read.
    pub fn next(&mut self, watch: &Watch) -> Result<Option<BatchBuffer>, DatasetError> {
        match self {
            Self::Read(batches) => next_read(batches, watch),
            Self::Requested(batches) => {
                let mut waiting = Waiting::default();
                batches.next(&mut || watch.or_end(waiting.check(watch, &READER)))
            }
            Self::Cycled(batches) => Ok(batches.pop_front()),
        }
    }

    /// Asks for the batch of `stream` at `step`, where batches are asked for.
    pub fn ask(&self, stream: usize, step: u64) {
        if let Self::Requested(batches) = self {
            batches.ask(stream, step);
        }
    }

    /// Gives a used batch back.
    pub fn recycle(&mut self, batch: BatchBuffer) {
        match self {
            Self::Read(batches) => batches.recycle(batch),
            Self::Requested(batches) => batches.recycle(batch),
            Self::Cycled(batches) => batches.push_back(batch),
        }
    }
}

/// The next batch from the reader thread, which `watch` gives its time.
///
/// # Errors
/// When the data could not be read.
pub fn next_read(
    batches: &mut WorkerBatches,
    watch: &Watch,
) -> Result<Option<BatchBuffer>, DatasetError> {
    let mut waiting = Waiting::default();
    batches.next(&mut || watch.or_end(waiting.check(watch, &READER)))
}

/// Its own, and another's that it helps with.
pub const STREAMS_OF_A_WORKER: usize = 2;

/// What waits for a batch say they are waiting for.
const READER: &str = "a batch from the reader thread";
