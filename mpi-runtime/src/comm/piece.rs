//! A piece of a buffer on its way through a sum over the ranks, straight from all to all:
//! scattered, added, gathered.
//!
//! MPI 3.1 section 5.12. All ranks start the same operations of the same pieces in the same order.
//!
//! Invariant: the buffers are the piece's own, and nothing touches them while its operation is
//! under way.

use umbra_core::sync::reduction::{add, sum_into_first};
use umbra_core::sync::sum_plan::stretch_start;

use super::pending::Pending;
use super::{Comm, Stretches};
use crate::comm::watch::Lost;

/// A piece under way to be added. *Its methods are collective.*
pub(crate) struct Piece {
    scattering: Pending<(Vec<f32>, Vec<f32>, [Stretches; 2])>,
    lengths: Vec<usize>,
}

/// A piece whose sums are under way. *Its methods are collective.*
pub(crate) struct Sum(Pending<(Vec<f32>, Vec<f32>, Stretches)>);

/// A piece's memory, which the next may use.
#[derive(Default)]
pub(crate) struct Buffers {
    values: Vec<f32>,
    terms: Vec<f32>,
}

impl Piece {
    /// Sends every rank its stretch of `values`.
    pub(crate) fn scatter(comm: &Comm, values: &[f32], buffers: Buffers) -> Self {
        let start = |rank: usize| stretch_start(values.len(), rank, comm.size);
        let lengths: Vec<usize> =
            (0..comm.size).map(|rank| start(rank + 1) - start(rank)).collect();
        let own = lengths[comm.rank];
        let stretches = [Stretches::new(&lengths), Stretches::new(&vec![own; comm.size])];
        let Buffers { values: mut sent, mut terms } = buffers;
        sent.clear();
        sent.extend_from_slice(values);
        terms.resize(own * comm.size, 0.0);
        Self { scattering: comm.start_all_to_all_varied(sent, terms, stretches), lengths }
    }

    /// Waits for the terms of this rank's stretch, adds them as a tree over the ranks and sends all
    /// ranks the sum.
    pub(crate) fn gather(self, comm: &Comm, what: &str) -> Result<Sum, Lost> {
        let (values, mut terms, [stretches, _]) = self.scattering.wait(comm, what, false)?;
        let own = self.lengths[comm.rank];
        let mut parts: Vec<&mut [f32]> = terms.chunks_exact_mut(own.max(1)).collect();
        sum_into_first(&mut parts, |to, from| add(to, from));
        terms.truncate(own);
        Ok(Sum(comm.start_all_gather_varied(terms, values, stretches)))
    }
}

impl Sum {
    /// Waits for the sums, which go to `values`, and gives the memory back.
    pub(crate) fn finish(
        self,
        comm: &Comm,
        values: &mut [f32],
        what: &str,
    ) -> Result<Buffers, Lost> {
        let (terms, sums, _) = self.0.wait(comm, what, false)?;
        values.copy_from_slice(&sums);
        Ok(Buffers { values: sums, terms })
    }
}
