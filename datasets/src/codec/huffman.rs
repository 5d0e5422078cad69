//! Canonical Huffman codes of limited length (RFC 1951 §3.2.2).
//!
//! Lengths by the in-place algorithm of Moffat and Katajainen ("In-place calculation of
//! minimum-redundancy codes", WADS 1995); codes above the limit are then shortened at the least
//! expense of the others that keeps the sum of 2^-length at 1.

/// A code, or extra bits: the lowest `length` bits of `bits`, in the order they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) bits: u16,
    pub(super) length: u8,
}

impl Code {
    /// A code of no bits.
    pub(super) const EMPTY: Self = Self { bits: 0, length: 0 };
}

/// Lengths of the codes of symbols seen `frequency` times, at most `limit`; 0 for symbols never
/// seen. A code has two words or more, so a lone symbol has length 1.
///
/// `2^limit` must not be below the number of symbols. `frequency` and `lengths`: `[N]`
pub(super) fn lengths<const N: usize>(frequency: &[u32; N], limit: u8, lengths: &mut [u8; N]) {
    *lengths = [0; N];
    let mut storage = [(0u32, 0u16); N];
    let mut used = 0;
    for (&count, symbol) in frequency.iter().zip(0..) {
        if count > 0 {
            storage[used] = (count, symbol);
            used += 1;
        }
    }
    // Equal counts in the order of symbols: the same lengths on every platform.
    storage[..used].sort_unstable();
    let counts = match used {
        0 => return,
        1 => {
            lengths[usize::from(storage[0].1)] = 1;
            return;
        }
        _ => {
            let mut weights: [u32; N] = storage.map(|(count, _)| count);
            limited(codes_by_length(&mut weights[..used]), usize::from(limit))
        }
    };
    // The rarest symbols get the longest codes.
    let mut rarest_first = storage[..used].iter();
    for length in (1..=limit).rev() {
        for &(_, symbol) in rarest_first.by_ref().take(counts[usize::from(length)]) {
            lengths[usize::from(symbol)] = length;
        }
    }
}

/// Number of codes of every length, without a limit, for `weights` of two symbols or more in
/// ascending order, which are overwritten. Their sum is below 2^32, so no length is above
/// [`LENGTH_MAX`].
#[expect(clippy::cast_possible_truncation, reason = "symbols of deflate are few")]
fn codes_by_length(weights: &mut [u32]) -> [usize; LENGTH_MAX + 1] {
    let n = weights.len();
    // Inner nodes take the places of the leaves they were made of; a node that has a parent holds
    // the number of its parent instead of its weight.
    let (mut leaf, mut root) = (0, 0);
    for node in 0..n - 1 {
        let mut weight = 0;
        for _ in 0..2 {
            if leaf >= n || root < node && weights[root] < weights[leaf] {
                weight += weights[root];
                weights[root] = node as u32;
                root += 1;
            } else {
                weight += weights[leaf];
                leaf += 1;
            }
        }
        weights[node] = weight;
    }
    // Parents, from the last, to depths.
    weights[n - 2] = 0;
    for node in (0..n - 2).rev() {
        weights[node] = weights[weights[node] as usize] + 1;
    }
    let mut inner = [0; LENGTH_MAX + 1];
    for &depth in &weights[..n - 1] {
        inner[depth as usize] += 1;
    }
    // Of the places below the inner nodes of a depth, those that are not inner nodes are leaves.
    core::array::from_fn(|depth| if depth == 0 { 0 } else { 2 * inner[depth - 1] - inner[depth] })
}

/// Moves codes above `limit` to it, and lengthens others until all fit.
fn limited(mut counts: [usize; LENGTH_MAX + 1], limit: usize) -> [usize; LENGTH_MAX + 1] {
    counts[limit] = counts[limit..].iter().sum();
    counts[limit + 1..].fill(0);
    let sum = |counts: &[usize]| -> usize {
        counts.iter().enumerate().skip(1).map(|(length, &n)| n << (limit - length)).sum()
    };
    for _ in 1 << limit..sum(&counts[..=limit]) {
        // The longest code below the limit becomes two codes of one bit more, and one of them takes
        // the place of a code at the limit: the sum falls by one unit.
        let Some(above) = (1..limit).rev().find(|&length| counts[length] > 0) else { break };
        counts[limit] -= 1;
        counts[above] -= 1;
        counts[above + 1] += 2;
    }
    counts
}

/// The codes of `lengths`: shorter ones first, those of one length in the order of symbols.
pub(super) fn codes<const N: usize>(lengths: &[u8; N], codes: &mut [Code; N]) {
    let mut next = [0u16; CODE_BITS_MAX + 2];
    for &length in lengths {
        next[usize::from(length) + 1] += u16::from(length > 0);
    }
    for length in 1..next.len() {
        next[length] = (next[length] + next[length - 1]) << 1;
    }
    for (code, &length) in codes.iter_mut().zip(lengths) {
        *code = Code::EMPTY;
        if length > 0 {
            let number = &mut next[usize::from(length)];
            // Codes are written from their highest bit.
            *code = Code { bits: number.reverse_bits() >> (16 - length), length };
            *number += 1;
        }
    }
}

/// Longest code of deflate.
const CODE_BITS_MAX: usize = 15;

/// No sum of fewer than 2^32 makes a longer code: weights would have to grow as Fibonacci's.
const LENGTH_MAX: usize = 47;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The textbook's way: join the two least until one is left.
    fn plain_lengths(frequency: &[u32]) -> Vec<u32> {
        let mut lengths = vec![0; frequency.len()];
        let used = (0..frequency.len()).filter(|&symbol| frequency[symbol] > 0);
        let mut trees: Vec<(u32, Vec<usize>)> =
            used.map(|symbol| (frequency[symbol], vec![symbol])).collect();
        while trees.len() > 1 {
            trees.sort_by_key(|tree| core::cmp::Reverse(tree.0));
            if let (Some(a), Some(b)) = (trees.pop(), trees.pop()) {
                let symbols = [a.1, b.1].concat();
                symbols.iter().for_each(|&symbol| lengths[symbol] += 1);
                trees.push((a.0 + b.0, symbols));
            }
        }
        lengths
    }

    proptest! {
        #[test]
        fn codes_are_prefix_free_complete_and_as_short_as_can_be(
            frequency in prop::array::uniform32(prop_oneof![Just(0u32), 1u32..5, 1u32..100_000]),
            limit in 5u8..16,
        ) {
            let mut found = [0; 32];
            lengths(&frequency, limit, &mut found);
            let used = frequency.iter().filter(|&&count| count > 0).count();
            for (&length, &count) in found.iter().zip(&frequency) {
                prop_assert_eq!(length > 0, count > 0);
                prop_assert!(length <= limit);
            }
            let sum: u32 = found.iter().filter(|&&length| length > 0).map(|l| 1 << (15 - l)).sum();
            prop_assert_eq!(sum, match used { 0 => 0, 1 => 1 << 14, _ => 1 << 15 });
            let mut words = [Code::EMPTY; 32];
            codes(&found, &mut words);
            for (i, a) in words.iter().enumerate().filter(|(_, a)| a.length > 0) {
                for b in words[..i].iter().filter(|b| b.length > 0) {
                    let mask = (1u16 << a.length.min(b.length)) - 1;
                    prop_assert!((a.bits ^ b.bits) & mask != 0, "{:?} {:?}", a, b);
                }
            }
            let cost = |length: &dyn Fn(usize) -> u64| -> u64 {
                (0..32).map(|symbol| u64::from(frequency[symbol]) * length(symbol)).sum()
            };
            let plain = plain_lengths(&frequency);
            if used > 1 && plain.iter().all(|&length| length <= u32::from(limit)) {
                let best = cost(&|symbol| u64::from(plain[symbol]));
                prop_assert_eq!(cost(&|symbol| u64::from(found[symbol])), best);
            }
        }
    }
}
