//! A rank's part of a dense replica that is dealt to several ranks (`dense/parts.rs`).

use umbra_core::kernel::PANEL;
use umbra_core::model::Model;

use crate::comm::Comm;
use crate::comm::watch::Lost;
use crate::dense::parts::{Parts, WholeOn};
use crate::error::Error;
use crate::run::Run;
use crate::run::plan::Plan;

impl Run<'_> {
    /// Makes the replica whole, where it is dealt to several ranks. *Collective over these.*
    ///
    /// # Errors
    /// When not all come in time.
    pub(super) fn gather_parts(&self, whole_on: WholeOn) -> Result<(), Lost> {
        self.trainer.as_ref().map_or(Ok(()), |side| side.gather_parts(whole_on))
    }

    /// Gives the memory back of what other ranks of the replica compute.
    pub(super) fn release_parts(&self) {
        if let Some(side) = &self.trainer {
            side.release_parts();
        }
    }
}

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

    /// Bytes of what a rank holds of its dense replica and the optimizer state while it trains.
    pub(super) fn own_dense_bytes(&self, rank: usize) -> Result<u64, Error> {
        let whole = self.dense_bytes();
        let Some(part) = self.part(rank)? else { return Ok(whole) };
        // Parts differ by a few columns; what none of them has alone all have.
        let own: usize = part.own_slices().map(|range| range.len()).sum();
        let others = own * (self.roles.dense_partitions - 1);
        let all = self.model.parameters_len();
        Ok(whole - whole * others.min(all) as u64 / all as u64)
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
