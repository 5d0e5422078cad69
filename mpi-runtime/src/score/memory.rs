//! What an evaluation holds in memory: pure arithmetic.
//!
//! Ranks count only where each has a word for every other: figures are summed on the way
//! (`comm/reduce.rs`), and what is gathered of every rank is three numbers.

use umbra_core::metrics::{Grouped, Scored};

use crate::comm::reduce::{MANY, PIECE};
use crate::score::figures::BINS;

/// Most bytes that `Scores::figures` holds on a rank with `rows` examples, of all `ranks` ranks as
/// many, whose scores spread over the bins of the histogram as ranks want them: a rank counts whole
/// bins, so if one bin holds many examples its rank holds them all.
#[must_use]
pub const fn figures_bytes(rows: u64, ranks: u64, grouped: bool) -> u64 {
    let group = if grouped { 8 } else { 0 };
    let collected = SCORED + 8 + group;
    // What goes out and what comes in; then what comes in and the same to be sorted.
    let scores = 2 * SCORED;
    let groups = if !grouped {
        0
    } else if size_of::<Grouped>() > GROUPED_WORDS {
        (GROUPED_WORDS + size_of::<Grouped>()) as u64
    } else {
        2 * GROUPED_WORDS as u64
    };
    let dealt = if groups > scores { groups } else { scores };
    rows * (collected + dealt) + 8 * BINS as u64 + UNDER_WAY + ranks * PER_RANK
}

const SCORED: u64 = size_of::<Scored>() as u64;
/// Bytes of an example of a group on its way.
const GROUPED_WORDS: usize = 3 * size_of::<u64>();
/// Pieces of a sum under way, in each of which two roles hold twice two messages.
const UNDER_WAY: u64 = MANY as u64 * 2 * 2 * 2 * PIECE as u64;
/// Counts and starts of what goes out and comes in, ends of ranges, parts of the area.
const PER_RANK: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// The same rows per rank: sixteen times the ranks take less than two hundredths more.
    #[test]
    fn memory_does_not_grow_with_ranks() {
        for grouped in [false, true] {
            for rows in [200_000, 10_000_000] {
                let bytes = |ranks| figures_bytes(rows, ranks, grouped) as f64;
                let growth = bytes(1024) / bytes(64);
                assert!((1.0..=1.02).contains(&growth), "{rows} rows: {growth}");
            }
        }
    }
}
