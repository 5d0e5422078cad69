//! Sums over ranks in a fixed order.
//!
//! MPI leaves the order of a reduction to the library, so the same run could give other bits on
//! another day (MPI 3.1 section 5.9.1, advice to implementors). Here every element is summed as a
//! binary tree over the ranks (`umbra_core::sync::reduction`): a reduce-scatter by personalised
//! exchange, then an all-gather, 2 (R − 1)/R of the buffer per rank, as much as a ring moves, in
//! two hops.
//!
//! Invariant: every rank ends with the same bits, the same in every run, whatever the pieces.

use std::collections::VecDeque;

use crate::comm::traffic::{Traffic, of_exchange};
use crate::comm::watch::Lost;
use crate::comm::{Buffers, Comm, Few, Piece};

/// Sums, and the memory that the last left for the next.
#[derive(Default)]
pub struct Sums {
    spare: Vec<Buffers>,
    all: Vec<f64>,
}

impl Sums {
    /// [`sum`](Self::sum), and beside it, on the same way, that of a few f64s. Either may be empty,
    /// on all ranks. *Collective over `comm`.*
    ///
    /// # Errors
    /// When not all come in time; `values` and `few` are then neither what they were nor sums.
    pub fn sum_with_few(
        &mut self,
        comm: &Comm,
        values: &mut [f32],
        few: &mut Vec<f64>,
        under_way: usize,
        what: &str,
    ) -> Result<(), Lost> {
        let beside = (comm.size() > 1 && !few.is_empty())
            .then(|| Few::gather(comm, core::mem::take(few), core::mem::take(&mut self.all)));
        self.sum(comm, values, under_way, what)?;
        if let Some(beside) = beside {
            (*few, self.all) = beside.add(comm, what)?;
        }
        Ok(())
    }

    /// Sums `values` over the ranks, in place, in pieces of [`PIECE`] bytes to a rank, of which
    /// `under_way` are on the links at a time. *Collective over `comm`; lengths and `under_way`
    /// equal on all ranks.*
    ///
    /// # Errors
    /// When not all come in time; `values` are then neither what they were nor sums.
    pub fn sum(
        &mut self,
        comm: &Comm,
        values: &mut [f32],
        under_way: usize,
        what: &str,
    ) -> Result<(), Lost> {
        if comm.size() == 1 {
            return Ok(());
        }
        let mut pieces = values.chunks_mut(comm.size() * PIECE / size_of::<f32>());
        let (mut scattered, mut gathered) = (VecDeque::new(), VecDeque::new());
        loop {
            while scattered.len() + gathered.len() < under_way {
                let Some(values) = pieces.next() else { break };
                let buffers = self.spare.pop().unwrap_or_default();
                scattered.push_back((Piece::scatter(comm, values, buffers), values));
            }
            if let Some((piece, values)) = scattered.pop_front() {
                gathered.push_back((piece.gather(comm, what)?, values));
            } else if let Some((piece, values)) = gathered.pop_front() {
                self.spare.push(piece.finish(comm, values, what)?);
            } else {
                return Ok(());
            }
        }
    }
}

/// What rank `rank` of `ranks` sends and receives while it sums `values` f32s and, beside them,
/// `few` f64s, as [`Sums::sum_with_few`] does.
#[must_use]
pub fn of_sum(ranks: usize, rank: usize, values: usize, few: usize) -> Traffic {
    let each = |bytes: usize| core::iter::repeat_n(bytes, ranks);
    let few = of_exchange(rank, each(8 * few), each(8 * few));
    let piece = ranks * PIECE / size_of::<f32>();
    let of_piece = |len: usize| {
        let stretch = |rank: usize| 4 * (len * (rank + 1) / ranks - len * rank / ranks);
        // Terms to those who add them; then sums, which go the opposite way.
        let there = of_exchange(rank, (0..ranks).map(stretch), each(stretch(rank)));
        let back = of_exchange(rank, each(stretch(rank)), (0..ranks).map(stretch));
        there.plus(back)
    };
    let whole = of_piece(piece).times((values / piece) as u64);
    few.plus(whole).plus(of_piece(values % piece))
}

/// Bytes of a large message that are handed to MPI for one rank at a time: just below the size from
/// which Open MPI asks over TCP before it sends (`btl_tcp_eager_limit`), so that no round trip is
/// lost between pieces.
pub const PIECE: usize = 60_000;

/// Pieces under way where rows need not pass between them: enough that links are busy while the
/// first are added.
pub const MANY: usize = 4;
