//! How well the model of a run scores: a dataset, and what was scored before it was learnt from.

use umbra_datasets::Dataset;

use crate::comm::watch::Lost;
use crate::error::Error;
use crate::run::Run;
use crate::score::figures::{Figures, FiguresError, Scores};
use crate::score::progressive::Progressive;
use crate::trainer::pass::{Share, score};

impl Run<'_> {
    /// What was scored before it was learnt from since the last call, over all ranks; `None` when
    /// nobody wants to know.
    ///
    /// # Errors
    /// When not all ranks come in time.
    pub fn scored_before(&mut self) -> Result<Option<Progressive>, Lost> {
        if !self.plan.job.config.train.progressive {
            return Ok(None);
        }
        let mut all = Progressive::default();
        let workers = self.trainer.iter_mut().flat_map(|side| &mut side.workers);
        for counted in workers.filter_map(|worker| worker.progressive.as_mut()) {
            all.join(counted);
            counted.clear();
        }
        all.over_ranks(self.control)?;
        Ok(Some(all))
    }

    /// Scores a dataset; this trainer's share of the scores. `masked`: with what passes the
    /// thresholds of training, as they stand.
    ///
    /// # Errors
    /// When the data can't be read, on every rank.
    pub fn score(&mut self, dataset: &Dataset, masked: bool) -> Result<Scores, Error> {
        let (config, roles) = (&self.plan.job.config, &self.plan.roles);
        let scores = match &mut self.trainer {
            None => Ok(Scores::default()),
            Some(side) => score(
                &side.shared,
                &mut side.workers[..self.plan.job.worker_threads],
                dataset,
                Share {
                    // Ranks of a replica score the same examples together.
                    trainer: roles.replica_of(self.world.rank).unwrap_or(0),
                    trainers: roles.replicas(),
                    batch_size: config.train.eval_batch_size,
                    reading: config.data.reading(),
                    masked,
                },
            ),
        };
        self.control.barrier("the end of an evaluation", true)?;
        self.control.agree(scores)
    }

    /// Scores a dataset; the figures over all of it, equal on all ranks.
    ///
    /// # Errors
    /// When the data can't be read, or a score is not a number.
    pub fn evaluate(&mut self, dataset: &Dataset) -> Result<Figures, Error> {
        let scores = self.score(dataset, false)?;
        self.figures(scores)
    }

    /// As [`evaluate`](Self::evaluate), with what passes the thresholds of training; `None` where
    /// all is sent.
    ///
    /// # Errors
    /// As `evaluate`.
    pub fn evaluate_masked(&mut self, dataset: &Dataset) -> Result<Option<Figures>, Error> {
        let config = &self.plan.job.config;
        let is_split = self.plan.roles.dense_partitions > 1;
        if config.compress.mp_keep.is_none() || !is_split && config.pooled().is_none() {
            return Ok(None);
        }
        let scores = self.score(dataset, true)?;
        self.figures(scores).map(Some)
    }

    fn figures(&self, scores: Scores) -> Result<Figures, Error> {
        let figures = scores.figures(self.control).map_err(|error| match error {
            FiguresError::Lost(lost) => lost.into(),
            FiguresError::Metric(error) => Error::Failure(format!(
                "evaluation: {error}; lower the learning rates, or warm up with \
                 optim.dense.warmup_steps"
            )),
        });
        if let Err(Error::Lost(_)) = figures {
            // Nobody is left to agree with.
            return figures;
        }
        // All ranks have the same error: one of them speaks.
        self.control.agree(figures)
    }
}
