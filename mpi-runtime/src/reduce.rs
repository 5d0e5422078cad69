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

/// As [`sum_f32`], the same bits, a piece after the other: at no time does more than [`PIECE`] of it stand before other
/// messages to a rank, so that rows of embeddings need not wait behind a whole replica on a slow link.
pub fn sum_f32_in_pieces(comm: &Comm, values: &mut [f32], scratch: &mut Vec<f32>, what: &str) {
    for piece in values.chunks_mut(comm.size() * PIECE / size_of::<f32>()) {
        sum_f32(comm, piece, scratch, what);
    }
}

/// Bytes of a large message that are handed to MPI for one rank at a time: just below the size from which Open MPI
/// asks over TCP before it sends (`btl_tcp_eager_limit`), so that no round trip is lost between pieces.
pub const PIECE: usize = 60_000;

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
