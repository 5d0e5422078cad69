//! Whether what a job wants compressed is, what that keeps in memory and what it came to
//! (`docs/compression.md`).

use core::time::Duration;

use umbra_core::compress::Coding;

use crate::comm::Comm;
use crate::dense::coding_trial::Trial;
use crate::dense::endpoints::DriveError;
use crate::dense::ledger::{LEDGER_WORDS, Ledger};
use crate::dense::parts::Parts;
use crate::error::Error;
use crate::record::{WireFigures, note};
use crate::rows::pooling::{POOL_LEDGER_WORDS, PoolLedger};
use crate::run::Run;
use crate::run::plan::Plan;
use crate::run::trainer_threads::TrainerThreads;

/// What sending what matters came to on a rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compressed {
    /// Of gradients, parameters and replicas.
    pub dense: Ledger,
    /// Between the parts of a replica.
    pub crossed: Ledger,
    /// Of bags that this rank pools.
    pub pooled: PoolLedger,
}

/// Words of a [`Compressed`].
pub(super) const COMPRESSED_WORDS: usize = 2 * LEDGER_WORDS + POOL_LEDGER_WORDS;

impl Compressed {
    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            dense: self.dense.plus(other.dense),
            crossed: self.crossed.plus(other.crossed),
            pooled: self.pooled.plus(other.pooled),
        }
    }

    /// As words: the three, one after the other.
    pub fn to_words(self) -> impl Iterator<Item = u64> {
        let Self { dense, crossed, pooled } = self;
        dense.to_words().into_iter().chain(crossed.to_words()).chain(pooled.to_words())
    }
}

/// Figures of all ranks' [`Compressed`].
#[must_use]
pub(super) fn compressed_figures<'a>(
    ranks: impl Iterator<Item = &'a [u64; COMPRESSED_WORDS]>,
) -> WireFigures {
    let (mut sums, mut crossing, mut coding) = ([0; COMPRESSED_WORDS], 0, 0);
    for words in ranks {
        sums.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
        let [_, _, _, _, of_dense, _, _, _, _, of_crossed, .., of_bags] = *words;
        coding = coding.max(of_dense + of_bags);
        crossing = crossing.max(of_crossed);
    }
    let [kept, elements, bytes, plain, _, of_others @ ..] = sums;
    let [crossed_kept, crossed, crossed_bytes, crossed_plain, _, of_bags @ ..] = of_others;
    let [bags_kept, bags, bags_bytes, bags_plain, rows, _] = of_bags;
    let crosses = |count: u64| (crossed > 0).then_some(count);
    let some = |count: u64| (elements > 0).then_some(count);
    let pooled = |count: u64| (bags > 0).then_some(count);
    let parallel = |count: u64| (crossed + bags > 0).then_some(count);
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    let coding = (elements + bags > 0).then_some(coding).map(seconds);
    WireFigures {
        activation_elements_kept: crosses(crossed_kept),
        activation_elements_total: crosses(crossed),
        activation_bytes_coded: crosses(crossed_bytes),
        activation_bytes_uncoded: crosses(crossed_plain),
        seconds_crossing: crosses(crossing).map(seconds),
        mp_elements_kept: parallel(crossed_kept + bags_kept),
        mp_elements_total: parallel(crossed + bags),
        dense_elements_kept: some(kept),
        dense_elements_total: some(elements),
        dense_bytes_coded: some(bytes),
        dense_bytes_uncoded: some(plain),
        seconds_coding: coding,
        embedding_elements_kept: pooled(bags_kept),
        embedding_elements_total: pooled(bags),
        embedding_bytes_coded: pooled(bags_bytes),
        embedding_bytes_uncoded: pooled(bags_plain),
        embedding_bytes_rows: pooled(rows),
        ..WireFigures::default()
    }
}

impl Run<'_> {
    /// What it came to so far, by methods before too. *Not collective; nothing trains meanwhile.*
    #[must_use]
    pub fn compressed(&self) -> Compressed {
        let parts = self.trainer.as_ref().and_then(TrainerThreads::parts);
        let crossed = parts.map(Parts::ledger).copied().unwrap_or_default();
        let (dense, pooled) = (self.sync.coded(), self.services.pooled());
        self.compressed_before.plus(Compressed { dense, crossed, pooled })
    }
}

impl Plan {
    /// How what is exchanged of dense parameters is coded; `None` where it is sent as it is.
    #[must_use]
    pub fn coding(&self) -> Option<Coding> {
        self.job.config.coding().filter(|_| self.compresses)
    }

    /// With `compress.auto`, tries whether compression pays, and leaves it alone if not. `dense`:
    /// the trainers' communicator, on a trainer. *Collective over `control`, main thread only.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn try_compression(
        &mut self,
        control: &Comm,
        dense: Option<&Comm>,
    ) -> Result<Option<Trial>, Error> {
        let tries = self.job.config.compress.auto && self.roles.trainers.len() > 1;
        let Some(coding) = self.coding().filter(|_| tries) else { return Ok(None) };
        let trial = Trial::run(control, dense, coding, self.model.parameters_len());
        let trial = trial.map_err(|error| match error {
            DriveError::Lost(lost) => lost.into(),
            defect => Error::Failure(defect.to_string()),
        })?;
        self.compresses = trial.pays();
        if control.rank() == 0 {
            note(&format!("umbra: {trial}"));
        }
        Ok(Some(trial))
    }

    /// What compression keeps on `rank`: of sums and averages what was not sent, and what is to be
    /// compared with; of links that, and what the other side has, for each worker on both sides.
    #[must_use]
    pub fn coding_bytes(&self, rank: usize) -> u64 {
        if self.coding().is_none_or(Coding::is_all) {
            return 0;
        }
        let (method, elements) = (self.method(), self.model.replica_len());
        let trains = self.roles.trainers.contains(rank);
        if !method.has_centers() {
            return if trains { 4 * 3 * elements as u64 } else { 0 };
        }
        let clients = method.instances(self.roles.trainers.len(), self.workers_per_trainer());
        let own = if trains { clients.gates * elements } else { 0 };
        let slices =
            (0..method.slices()).filter(|slice| self.roles.sync_ps.rank_of(*slice) == rank);
        let slices: usize = slices.map(|slice| method.slice(slice, elements).len()).sum();
        4 * 3 * (own + clients.trainers * clients.gates * slices) as u64
    }
}
