//! What is trained while it is measured: a replica and tables for each choice of optimizers.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use umbra_datasets::BatchBuffer;

use super::Subject;
use super::subject::Variant;
use crate::comm::watch::Watch;
use crate::config::convert;
use crate::error::Error;
use crate::launch::processor::thread_time;
use crate::launch::signals::Signals;
use crate::rows::client::Client;
use crate::rows::tables::{Partition, TableLayout};
use crate::trainer::Trainer;

/// Longest wait of a worker, for the others or for the reader.
pub(super) const WATCHDOG: Duration = Duration::from_secs(300);

/// A replica and all tables, as a run on one rank has them.
pub struct Trained<'a> {
    /// Its optimizers.
    pub variant: &'a Variant,
    /// The replica.
    pub trainer: Trainer,
    layout: TableLayout,
    partition: Partition,
}

impl<'a> Trained<'a> {
    /// A model before its first step.
    ///
    /// # Errors
    /// More rows than there are row numbers, or no memory for them.
    pub fn new(subject: &Subject, variant: &'a Variant) -> Result<Self, Error> {
        let config = &variant.config;
        let (dense, fields) = (subject.dense_features, subject.cardinality.len());
        let model = convert::trained_model(config, dense, fields)
            .map_err(|error| Error::Usage(error.to_string()))?;
        let watch = Arc::new(Watch::new(WATCHDOG, "bench:".into()));
        let trainer = Trainer::new(model, config, &Arc::new(Signals::none()), &watch)?;
        let optimizer = convert::sparse_optimizer(&config.optim.sparse);
        let layout = TableLayout::new(&subject.cardinality, 1, model.row_width(), optimizer)
            .map_err(|error| Error::Data(error.to_string()))?
            .with_precision(convert::precision(config.embedding.precision));
        let partition = Partition::initialized(0, &layout, &model, config.seed)
            .map_err(|error| Error::Launch(error.to_string()))?;
        Ok(Self { variant, trainer, layout, partition })
    }

    /// The distinct rows of a batch, in the order of their first appearance.
    #[must_use]
    pub fn rows_of(&self, batch: &BatchBuffer) -> Vec<u32> {
        let (numbering, mut seen) = (self.layout.numbering(), HashSet::new());
        let fields = (0..numbering.fields()).cycle();
        let bags =
            batch.offsets.windows(2).map(|ends| ends[0] as usize..ends[1] as usize).zip(fields);
        let rows = bags.flat_map(|(bag, field)| {
            batch.values[bag].iter().map(move |id| numbering.of(field).row(*id))
        });
        rows.filter(|row| seen.insert(*row)).collect()
    }

    /// Seconds that looking `rows` up and updating them takes at least.
    #[must_use]
    pub fn row_floor(&self, rows: &[u32]) -> f64 {
        let start = thread_time();
        self.partition.table().touch(rows.iter().map(|row| *row as usize));
        (thread_time() - start).as_secs_f64()
    }

    /// A worker's way to the tables.
    #[must_use]
    pub fn client(&self) -> Client {
        let pooling = self.trainer.model.pooling();
        Client::local(self.layout.clone(), self.partition.clone(), (0, pooling))
    }
}
