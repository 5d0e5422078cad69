//! Sums over ranks in a fixed order.
//!
//! MPI leaves the order of a reduction to the library, so the same run could give other bits on
//! another day (MPI 3.1 section 5.9.1, advice to implementors). Here every element is summed as a
//! binary tree over the ranks (`umbra_core::sync::reduction`): a reduce-scatter by personalised exchange, then an all-gather, 2 (R − 1)/R of the buffer
//! per rank, as much as a ring moves.
//!
//! Invariant: every rank ends with the same bits, the same in every run.

use crate::comm::Comm;
use umbra_core::sync::reduction::{add, sum_into_first};

/// Sums `values` over the ranks, in place. *Collective over `comm`; lengths equal on all ranks.*
pub fn sum_f32(comm: &Comm, values: &mut [f32], scratch: &mut Vec<f32>, what: &str) {
    let ranks = comm.size();
    if ranks == 1 {
        return;
    }
    let stretch = |rank: usize| values.len() * rank / ranks;
    let counts: Vec<usize> = (0..ranks).map(|rank| stretch(rank + 1) - stretch(rank)).collect();
    let own = counts[comm.rank()];
    scratch.clear();
    scratch.resize(own * ranks, 0.0);
    comm.all_to_all_varied(values, &counts, scratch, &vec![own; ranks], what);
    let mut parts: Vec<&mut [f32]> = scratch.chunks_exact_mut(own.max(1)).collect();
    sum_into_first(&mut parts, |to, from| add(to, from));
    comm.all_gather_stretches(&scratch[..own], values, &counts, what);
}

/// Sums a few f64s over the ranks, in place. *Collective over `comm`; lengths equal on all ranks.*
pub fn sum_f64(comm: &Comm, values: &mut [f64], scratch: &mut Vec<f64>, what: &str) {
    let (n, ranks) = (values.len(), comm.size());
    if ranks == 1 || n == 0 {
        return;
    }
    scratch.clear();
    scratch.resize(n * ranks, 0.0);
    comm.all_gather(values, scratch, what);
    let mut parts: Vec<&mut [f64]> = scratch.chunks_exact_mut(n).collect();
    sum_into_first(&mut parts, |to, from| add(to, from));
    values.copy_from_slice(&scratch[..n]);
}
