//! Scoring a dataset: every row once, on the workers of all trainers, with running statistics and
//! without dropout.

use umbra_core::metrics::Scored;
use umbra_core::model::Input;
use umbra_datasets::{Dataset, Pipeline, Reading};

use crate::dense::parts::Parts;
use crate::error::Error;
use crate::score::figures::Scores;
use crate::trainer::batches::next_read;
use crate::trainer::{Trainer, Worker};

/// This trainer's share of a dataset, and how it is read.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Its number among the replicas.
    pub trainer: usize,
    /// How many replicas there are.
    pub trainers: usize,
    /// Examples per batch, at most the `batch_max` of the workers' buffers.
    pub batch_size: usize,
    /// How rows are read.
    pub reading: Reading,
    /// With what passes the thresholds of training: of the outputs of layers that are split, or
    /// else of the vectors of bags, which are then pooled by those who hold their rows.
    pub masked: bool,
}

/// Scores this trainer's share of `dataset`; of the parts of a replica the first has the scores.
/// *Collective over the ranks of a replica; embedding PSs must be serving.*
///
/// # Errors
/// When the data can't be read.
pub fn score(
    trainer: &Trainer,
    workers: &mut [Worker],
    dataset: &Dataset,
    share: Share,
) -> Result<Scores, Error> {
    let (pipeline, batches) = Pipeline::evaluate(
        dataset,
        share.trainer,
        share.trainers,
        workers.len(),
        share.batch_size,
        share.reading,
    )?;
    let grouped = dataset.has_groups();
    let parts: Vec<Result<Scores, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .zip(batches)
            .map(|(worker, mut batches)| {
                scope.spawn(move || {
                    let mut scores = Scores::default();
                    let (mut ticket, mut ended) = (0, false);
                    loop {
                        while !ended && worker.client.ahead() < AHEAD {
                            let read = next_read(&mut batches, &trainer.watch).map_err(Error::from);
                            if let (Err(error), Some(_)) = (&read, &worker.parts) {
                                // The other parts would wait for this one.
                                trainer.watch.end_job(error.exit_code(), error);
                            }
                            match read? {
                                Some(batch) if share.masked && worker.parts.is_none() => {
                                    worker.client.ask_pooled_now(batch, ticket);
                                }
                                Some(batch) => worker.client.ask_now(batch, ticket),
                                None => ended = true,
                            }
                            ticket += 1;
                        }
                        let taken = trainer.watch.or_end(worker.client.take());
                        let Some((lookup, _)) = taken else { break };
                        let input = lookup.input();
                        let buffers = &mut worker.buffers;
                        let logits = &mut buffers.logits[..lookup.batch.len()];
                        let workspace = &mut buffers.workspace.lend();
                        if let Some(parts) = &mut worker.parts {
                            let on = (&*trainer.replica, share.masked);
                            let done = parts.forward(on, &input, workspace, logits);
                            done.unwrap_or_else(|error| trainer.watch.end_job(1, &error));
                        } else {
                            trainer.model.forward(&trainer.replica, &input, workspace, logits);
                        }
                        if worker.parts.as_ref().is_none_or(Parts::is_first) {
                            collect(&mut scores, &input, logits);
                            if grouped {
                                scores.group.extend_from_slice(&lookup.batch.group);
                            }
                        }
                        batches.recycle(worker.client.recycle(lookup));
                    }
                    Ok(scores)
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Scores, Error>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    pipeline.join();
    let mut scores = Scores::default();
    for part in parts {
        scores.append(part?);
    }
    Ok(scores)
}

/// Lookups under way while a batch is scored.
const AHEAD: usize = 2;

fn collect(scores: &mut Scores, input: &Input<'_>, logits: &[f32]) {
    let batch = &input.batch;
    for (i, score) in logits.iter().enumerate() {
        // Rows without labels are predicted, and never measured.
        let label = batch.label.get(i).copied().unwrap_or(0.0);
        let weight = if batch.weight.is_empty() { 1.0 } else { batch.weight[i] };
        scores.scored.push(Scored { score: *score, label, weight });
    }
    scores.row.extend_from_slice(batch.row);
}
