//! Where a worker's batches come from: the reader thread, or memory.

use std::collections::VecDeque;

use umbra_datasets::{BatchBuffer, DatasetError, WorkerBatches};

/// The batches of one worker, in order.
#[derive(Debug)]
pub enum Batches {
    /// Read from files by the reader thread.
    Read(WorkerBatches),
    /// Ready in memory, over and over: a used batch goes to the end of the line.
    Cycled(VecDeque<BatchBuffer>),
}

impl Batches {
    /// The next batch, or `None` after the last; of a cycle, when all batches are in use.
    ///
    /// # Errors
    /// When the data could not be read.
    #[expect(clippy::should_implement_trait, reason = "fallible: Result<Option<_>>")]
    pub fn next(&mut self) -> Result<Option<BatchBuffer>, DatasetError> {
        match self {
            Self::Read(batches) => batches.next(),
            Self::Cycled(batches) => Ok(batches.pop_front()),
        }
    }

    /// Gives a used batch back.
    pub fn recycle(&mut self, batch: BatchBuffer) {
        match self {
            Self::Read(batches) => batches.recycle(batch),
            Self::Cycled(batches) => batches.push_back(batch),
        }
    }
}
