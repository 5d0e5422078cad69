//! A piece of a buffer on its way through a sum over the ranks, straight from all to all: scattered,
//! added, gathered.
//!
//! MPI 3.1 section 5.12. All ranks start the same operations of the same pieces in the same order.
//!
//! Invariant: the buffers are the piece's own, and nothing touches them while its request is under
//! way.

use umbra_core::sync::reduction::{add, sum_into_first};
use umbra_core::sync::sum_plan::stretch_start;

use super::{Comm, Request, Stretches};

/// A piece under way. *Its methods are collective.*
pub(crate) struct Piece {
    request: Request,
    /// Of the values: a stretch per rank. Of the terms: as many of this rank's.
    stretches: [Stretches; 2],
    lengths: Vec<usize>,
    buffers: Buffers,
}

/// A piece's memory, which the next may use.
#[derive(Default)]
pub(crate) struct Buffers {
    values: Vec<f32>,
    terms: Vec<f32>,
}

impl Piece {
    /// Sends every rank its stretch of `values`.
    pub(crate) fn scatter(comm: &Comm, values: &[f32], mut buffers: Buffers) -> Self {
        let start = |rank: usize| stretch_start(values.len(), rank, comm.size);
        let lengths: Vec<usize> =
            (0..comm.size).map(|rank| start(rank + 1) - start(rank)).collect();
        let own = lengths[comm.rank];
        let stretches = [Stretches::new(&lengths), Stretches::new(&vec![own; comm.size])];
        buffers.values.clear();
        buffers.values.extend_from_slice(values);
        buffers.terms.resize(own * comm.size, 0.0);
        let Buffers { values, terms } = &mut buffers;
        let request = comm.start_all_to_all_varied(values, terms, &stretches);
        Self { request, stretches, lengths, buffers }
    }

    /// Waits for the terms of this rank's stretch, adds them as a tree over the ranks and sends all
    /// ranks the sum.
    pub(crate) fn gather(mut self, comm: &Comm, what: &str) -> Self {
        comm.complete(self.request, what, false);
        let Buffers { values, terms } = &mut self.buffers;
        let own = self.lengths[comm.rank];
        let mut parts: Vec<&mut [f32]> = terms.chunks_exact_mut(own.max(1)).collect();
        sum_into_first(&mut parts, |to, from| add(to, from));
        let request =
            comm.start_all_gather_varied(&terms[..own], values, &self.lengths, &self.stretches[0]);
        Self { request, ..self }
    }

    /// Waits for the sums, which go to `values`, and gives the memory back.
    pub(crate) fn finish(self, comm: &Comm, values: &mut [f32], what: &str) -> Buffers {
        comm.complete(self.request, what, false);
        values.copy_from_slice(&self.buffers.values);
        self.buffers
    }
}
