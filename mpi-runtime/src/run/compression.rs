//! Whether what a job wants compressed is, and what that keeps in memory (`docs/compression.md`).

use umbra_core::compress::Coding;

use crate::comm::Comm;
use crate::dense::coding_trial::Trial;
use crate::dense::endpoints::DriveError;
use crate::error::Error;
use crate::record::say;
use crate::run::plan::Plan;

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
            say(&format!("umbra: {trial}"));
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
