//! Which rows the workers of a planned run reach themselves (`rows/near.rs`), and which ranks they
//! ask for the others.

use crate::comm::Comm;
use crate::launch::roles::Roles;
use crate::rows::near::Reach;
use crate::rows::traffic::{Duties, NearRanks};
use crate::run::plan::Plan;

/// Most partitions of a rank that others of its node can see: each is a file that stays open.
pub(super) const LENT_MAX: usize = 64;

impl Plan {
    /// Whether workers use rows that are near where they are: where pushes are applied as they
    /// come, rows travel and not vectors, and nobody counts the updates of his own.
    #[must_use]
    pub fn uses_rows_in_place(&self) -> bool {
        let at_once = !self.synchronous() && !self.job.method.is_served();
        let travel = self.job.config.pooled().is_none() && self.layout.save_first.is_none();
        at_once && travel && !self.local
    }

    /// How far workers of a rank reach for rows themselves. `control`: of all ranks; `host`: of
    /// this one.
    #[must_use]
    pub fn reach<'a>(&self, control: &'a Comm, host: &'a str) -> Reach<'a> {
        match self.uses_rows_in_place() {
            false => Reach::Nowhere,
            true if self.layout.lent => Reach::Node(control, host),
            true => Reach::Rank,
        }
    }

    /// What of that `rank` does.
    pub(super) fn duties(&self, rank: usize) -> Duties {
        let Roles { trainers, embedding_ps, .. } = &self.roles;
        let node = self.node_of.get(rank).filter(|_| self.layout.lent);
        let beside =
            |other: &&usize| **other != rank && node.is_some() && self.node_of.get(**other) == node;
        let near = self.uses_rows_in_place().then(|| NearRanks {
            trainers: trainers.ranks().iter().filter(beside).count(),
            servers: embedding_ps
                .ranks()
                .iter()
                .filter(beside)
                .filter_map(|rank| embedding_ps.number_of(*rank))
                .collect(),
        });
        Duties { trains: trainers.contains(rank), serves: embedding_ps.number_of(rank), near }
    }
}
