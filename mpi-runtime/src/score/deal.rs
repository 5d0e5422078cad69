//! Examples dealt to the ranks that count them.

use mpi::traits::Equivalence;

use crate::comm::Comm;
use crate::comm::watch::Lost;

/// Sends each of `items` to its rank, and returns the words of those that came, by sending rank and
/// in its order. What goes out and what comes in are held once. *Collective.*
///
/// # Errors
/// When not all come in time.
pub(super) fn deal<T: Equivalence + Copy + Default, const N: usize>(
    comm: &Comm,
    items: impl Iterator<Item = (usize, [T; N])> + Clone,
    what: &str,
) -> Result<Vec<T>, Lost> {
    let mut counts = vec![0; comm.size()];
    items.clone().for_each(|(rank, _)| counts[rank] += N);
    let mut next = counts.clone();
    let mut start = 0;
    next.iter_mut().for_each(|next| start += core::mem::replace(next, start));
    let mut sent = vec![T::default(); start];
    for (rank, words) in items {
        sent[next[rank]..][..N].copy_from_slice(&words);
        next[rank] += N;
    }
    let lengths: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
    let mut arriving = vec![0; comm.size()];
    comm.all_to_all(&lengths, &mut arriving, what)?;
    let arriving: Vec<usize> =
        arriving.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
    comm.all_to_all_varied(sent, &counts, &arriving, what)
}
