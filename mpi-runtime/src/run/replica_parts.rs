//! A rank's part of a dense replica that is dealt to several ranks (`dense/parts.rs`).

use umbra_core::kernel::PANEL;
use umbra_core::model::Model;

use crate::comm::Comm;
use crate::dense::parts::Parts;
use crate::error::Error;
use crate::run::plan::Plan;

impl Plan {
    /// A rank's part of its replica, where that is dealt to several ranks: those of `comm`.
    ///
    /// # Errors
    /// When the model has nothing to deal.
    pub fn parts(&self, rank: usize, comm: Option<Comm>) -> Result<Option<Parts>, Error> {
        let (Some(model), Some(comm)) = (self.part(rank)?, comm) else { return Ok(None) };
        let coding = self.job.config.crossing();
        Ok(self
            .roles
            .part_of(rank)
            .map(|of| Parts::new(model, of, coding, self.batch_max(0), comm)))
    }

    /// What a rank trains of the model, where that is a part.
    ///
    /// # Errors
    /// When the model has nothing to deal.
    pub(super) fn part(&self, rank: usize) -> Result<Option<Model>, Error> {
        let Some(of) = self.roles.part_of(rank).filter(|of| of.parts > 1) else { return Ok(None) };
        let part = self.model.part(of).map_err(|_| {
            Error::Usage(format!(
                "roles.dense_partitions = {}: no layer can be split; between the first and the \
                 last hidden layer of an MLP there must be one of {} outputs or more, and no batch \
                 norm",
                of.parts,
                2 * PANEL * of.parts
            ))
        });
        part.map(Some)
    }
}
