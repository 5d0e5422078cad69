//! Sums over ranks in a fixed order.
//!
//! MPI leaves the order of a reduction to the library, so the same run could give other bits on
//! another day (MPI 3.1 section 5.9.1, advice to implementors). Here every element is summed as a
//! binary tree over the ranks (`umbra_core::sync::reduction`), by recursive halving and doubling
//! (`umbra_core::sync::sum_plan`, `doubling.rs`).
//!
//! Invariant: every rank ends with the same bits, the same in every run, whatever the pieces.

use bytemuck::Pod;
use umbra_core::sync::reduction::add;
use umbra_core::sync::sum_plan::{MessageSizes, Sent, SumPlan};

use crate::comm::Comm;
use crate::comm::doubling::{self, Memory, Vector};
use crate::comm::traffic::Traffic;
use crate::comm::watch::Lost;

/// Sums, and the memory that the last left for the next.
#[derive(Default)]
pub struct Sums {
    values: Vec<Memory<f32>>,
    few: Vec<Memory<f64>>,
}

impl Sums {
    /// [`sum`](Self::sum), and beside it that of a few f64s. Either may be empty, on all ranks.
    /// Returns what this rank sent. *Collective over `comm`.*
    ///
    /// # Errors
    /// When not all come in time; `values` and `few` are then neither what they were nor sums.
    pub fn sum_with_few(
        &mut self,
        comm: &Comm,
        values: &mut [f32],
        few: &mut [f64],
        under_way: usize,
        what: &str,
    ) -> Result<Sent, Lost> {
        let plans = [plan::<f32>(comm.size(), values.len()), plan::<f64>(comm.size(), few.len())];
        let sent = plans.map(|plan| plan.sends(comm.rank()));
        let values = Vector::new(&plans[0], values, add, (VALUES, under_way), &mut self.values);
        let few = Vector::new(&plans[1], few, add, (FEW, MANY), &mut self.few);
        doubling::finish(comm, values, few, what)?;
        Ok(Sent {
            messages: sent[0].messages + sent[1].messages,
            bytes: sent[0].bytes + sent[1].bytes,
        })
    }

    /// Sums `values` over the ranks, in place, in pieces of which `under_way` are on the links at a
    /// time. Returns what this rank sent. *Collective over `comm`; lengths and `under_way` equal on
    /// all ranks.*
    ///
    /// # Errors
    /// When not all come in time; `values` are then neither what they were nor sums.
    pub fn sum(
        &mut self,
        comm: &Comm,
        values: &mut [f32],
        under_way: usize,
        what: &str,
    ) -> Result<Sent, Lost> {
        self.sum_with_few(comm, values, &mut [], under_way, what)
    }
}

/// Makes the first argument first ∘ second, element by element, where ∘ is associative or a tree is
/// wanted.
pub type Combine<T> = fn(&mut [T], &[T]);

/// Combines `values` over the ranks, in place, as a balanced tree over them in their order.
/// *Collective over `comm`; lengths equal on all ranks.*
///
/// # Errors
/// When not all come in time; `values` are then neither what they were nor combined.
pub fn combine<T: Pod>(
    comm: &Comm,
    values: &mut [T],
    combine: Combine<T>,
    what: &str,
) -> Result<(), Lost> {
    let plan = plan::<T>(comm.size(), values.len());
    let (mut memory, mut nothing) = (vec![], vec![]);
    let values = Vector::new(&plan, values, combine, (VALUES, MANY), &mut memory);
    let beside = Vector::new(&plan, &mut [], combine, (FEW, MANY), &mut nothing);
    doubling::finish(comm, values, beside, what)
}

/// How `len` elements are combined over `ranks` ranks, and what that sends.
#[must_use]
pub const fn plan<T>(ranks: usize, len: usize) -> SumPlan {
    SumPlan::new(ranks, len, size_of::<T>(), SIZES)
}

/// What rank `rank` of `ranks` sends and receives while it sums `values` f32s and, beside them,
/// `few` f64s, as [`Sums::sum_with_few`] does.
#[must_use]
pub fn of_sum(ranks: usize, rank: usize, values: usize, few: usize) -> Traffic {
    let of_plan = |plan: SumPlan| {
        let (sent, received) = (plan.sends(rank), plan.receives(rank));
        Traffic {
            messages_sent: sent.messages,
            bytes_sent: sent.bytes,
            messages_received: received.messages,
            bytes_received: received.bytes,
        }
    };
    of_plan(plan::<f32>(ranks, values)).plus(of_plan(plan::<f64>(ranks, few)))
}

/// Bytes of a large message that are handed to MPI for one rank at a time: just below the size from
/// which Open MPI asks over TCP before it sends (`btl_tcp_eager_limit`), so that no round trip is
/// lost between pieces.
pub const PIECE: usize = 60_000;

/// Bytes of a stretch up to which a message of all of it costs less than two of half. With r levels
/// to go, whole stretches of s bytes move (r - 2) s more, halves take r messages more: whole ones
/// are the cheaper up to what crosses in the time that a message takes to start, about 10 us at
/// 10 Gb/s over TCP and 1 us at 100 Gb/s over RDMA, 12 kB both.
pub const WHOLE: usize = 8192;

const SIZES: MessageSizes = MessageSizes { most: PIECE, whole: WHOLE };

/// Lanes of the vectors that are on their way together.
const VALUES: usize = 0;
const FEW: usize = 1;

/// Pieces under way where rows need not pass between them: enough that links are busy while the
/// first are on a long way, 5 ms at 1 Gb/s. Where the way is short four do as well.
pub const MANY: usize = 8;
