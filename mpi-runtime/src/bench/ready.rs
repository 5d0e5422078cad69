//! Batches in memory: made up, or read once from a file.

use std::collections::{BTreeMap, VecDeque};

use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{BatchBuffer, Dataset, Pipeline, TrainOrder};

use super::trained::WATCHDOG;
use super::{Settings, Subject};
use crate::comm::watch::Watch;
use crate::config::Config;
use crate::error::Error;
use crate::trainer::batches::next_read;

/// Examples that are cycled: their rows of Criteo's Kaggle tables are several times the largest
/// caches.
const EXAMPLES: usize = 131_072;

/// Batches in memory, by their size.
#[derive(Debug, Default)]
pub struct Ready(BTreeMap<usize, VecDeque<BatchBuffer>>);

impl Ready {
    /// Batches of every size asked for, at least one for each of the workers: from the subject's
    /// data, else made up.
    ///
    /// # Errors
    /// When the data can't be read or has too few rows.
    pub fn new(subject: &Subject, settings: &Settings) -> Result<Self, Error> {
        let workers = settings.workers.iter().copied().max().unwrap_or(1);
        let mut ready = BTreeMap::new();
        for &size in &settings.batches {
            ready.insert(size, batches(subject, size, workers)?);
        }
        Ok(Self(ready))
    }

    /// Those of a size that was asked for.
    pub fn of_size(&mut self, size: usize) -> &mut VecDeque<BatchBuffer> {
        self.0.entry(size).or_default()
    }
}

/// How the rows of a file are dealt to `workers` with batches of `batch_size`.
#[must_use]
pub fn order(config: &Config, batch_size: usize, workers: usize) -> TrainOrder {
    TrainOrder {
        seed: config.seed,
        workers_total: workers,
        lanes: config.data.lanes,
        batch_size,
        shuffle: config.data.shuffle,
    }
}

fn batches(subject: &Subject, size: usize, workers: usize) -> Result<VecDeque<BatchBuffer>, Error> {
    let count = (EXAMPLES / size).max(workers);
    let config = &subject.variants[0].config;
    let Some(data) = &subject.data else {
        let columns = Columns::new(subject, config.seed);
        return Ok((0..count).map(|number| columns.batch(number, size)).collect());
    };
    let ready = read(data, &order(config, size, 1), count)?;
    if ready.len() < workers {
        return Err(Error::Data(format!(
            "the data has {} rows: too few for {workers} workers with batches of {size}; use more \
             rows, \
             or smaller --batch or --workers",
            data.rows()
        )));
    }
    Ok(ready)
}

/// The first `count` full batches of an epoch, or all that there are.
fn read(data: &Dataset, order: &TrainOrder, count: usize) -> Result<VecDeque<BatchBuffer>, Error> {
    let (pipeline, mut workers) = Pipeline::train(data, order, 0..1, 0..1, 4)?;
    let watch = Watch::new(WATCHDOG, "bench:".into());
    let mut ready = VecDeque::new();
    while ready.len() < count {
        let Some(batch) = next_read(&mut workers[0], &watch)? else { break };
        if batch.len() == order.batch_size {
            ready.push_back(batch);
        }
    }
    drop(workers);
    pipeline.join();
    Ok(ready)
}

/// The columns of made-up data: uniform ids, as many for every field. A row is a function of the
/// seed and its number, so batches of any size hold the same rows.
struct Columns {
    label: Stream,
    dense: Stream,
    dense_features: usize,
    /// Ids of a field.
    bag: u64,
    /// Stream and cardinality of every field. `[S]`
    fields: Vec<(Stream, u64)>,
}

impl Columns {
    fn new(subject: &Subject, seed: u64) -> Self {
        let stream = |column| Stream::new(seed, Purpose::Synthetic(column));
        let fields = (2..).zip(&subject.cardinality).map(|(column, ids)| (stream(column), *ids));
        Self {
            label: stream(0),
            dense: stream(1),
            dense_features: subject.dense_features,
            bag: subject.bag as u64,
            fields: fields.collect(),
        }
    }

    fn batch(&self, number: usize, size: usize) -> BatchBuffer {
        let (mut batch, features) = (BatchBuffer::default(), self.dense_features as u64);
        for row in (number * size) as u64..((number + 1) * size) as u64 {
            batch.row.push(row);
            batch.label.push(if self.label.below(row, 4) == 0 { 1.0 } else { 0.0 });
            batch.dense.extend((0..features).map(|at| self.dense.uniform(row * features + at)));
            for (stream, cardinality) in &self.fields {
                let ids = row * self.bag..(row + 1) * self.bag;
                let ids = ids.map(|at| stream.below(at, *cardinality));
                batch.values.extend(ids.map(|id| u32::try_from(id).unwrap_or(u32::MAX)));
                batch.offsets.push(u32::try_from(batch.values.len()).unwrap_or(u32::MAX));
            }
        }
        batch
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::{Operands, Optimizers};

    /// The programs of `make show-peers` say of their pool that it is as large.
    #[test]
    fn as_many_examples_are_cycled_as_in_the_peers() {
        let peers = include_str!("../../../hpc/bench/peers/model.py");
        let theirs = peers.lines().find_map(|line| line.strip_prefix("EXAMPLES = ")).unwrap();
        assert_eq!(theirs.parse(), Ok(EXAMPLES));
    }

    #[test]
    fn batches_of_any_size_hold_the_same_rows() {
        let subject =
            Subject::criteo_kaggle(&[(Optimizers::Sgd, Operands::F32, Operands::F32)], None)
                .unwrap();
        let columns = Columns::new(&subject, 1);
        let (large, small) = (columns.batch(1, 4), columns.batch(3, 2));
        assert_eq!(large.row, [4, 5, 6, 7]);
        assert_eq!(large.values[2 * 26..], small.values);
        assert_eq!(large.dense[2 * 13..], small.dense);
        assert_eq!(small.offsets, (0..=52).collect::<Vec<u32>>());
        let ids = large.values.chunks(26).flat_map(|row| row.iter().zip(&subject.cardinality));
        assert!(ids.into_iter().all(|(id, cardinality)| u64::from(*id) < *cardinality));
    }
}
