//! A weighted mean over ranks, as every driver computes it.
//!
//! Invariants: staging is `[slice + TAIL]`, and its tail carries the weight and the vote, so that
//! one reduction moves all three. Elements are summed as a balanced binary tree over the ranks of
//! the group in their order ([`sum_into_first`]), so the mean has the same bits under every driver
//! and on every rank.
//!
//! A tree is also the more accurate order: N. J. Higham, "The accuracy of floating point
//! summation", SIAM J. Sci. Comput. 14 (1993). The slices of a worker, trainer or rank are a
//! subtree when counts are powers of two, so the same slices give the same bits on any number of
//! ranks.

use super::protocol::Completion;

/// Elements of staging after the slice: weight, vote.
pub const TAIL: usize = 2;

/// From so many silent rounds on, a dealt group of which every member is as silent exchanges words
/// and no values: the first silent round of a trainer brings its last work, and after it nobody of
/// such a group has news for the others. There is no mean then (weight 0), and staging stays.
pub const QUIET: u32 = 2;

/// Makes `staging: [slice + TAIL]` this rank's term of the sum.
pub fn contribute(staging: &mut [f32], weight: f32, silent: u32) {
    let (slice, tail) = split(staging);
    if weight == 0.0 {
        // Not a product: 0 times an infinity would poison the mean.
        slice.fill(0.0);
    } else if weight != 1.0 {
        slice.iter_mut().for_each(|x| *x *= weight);
    }
    *tail = [weight, if silent == 0 { 1.0 } else { 0.0 }];
}

/// Makes `staging: [slice + TAIL]`, the sum of all terms, the mean. `silent`: the least of the
/// group, where it is known; else the votes tell whether it is 0.
pub fn conclude(staging: &mut [f32], silent: Option<u32>) -> Completion {
    let (slice, &mut [weight, votes]) = split(staging);
    if weight > 0.0 {
        slice.iter_mut().for_each(|x| *x /= weight);
    }
    Completion::Reduced { weight, silent: silent.unwrap_or(u32::from(votes <= 0.0)) }
}

/// The slice of a staging buffer, without its tail.
pub fn slice(staging: &mut [f32]) -> &mut [f32] {
    split(staging).0
}

fn split(staging: &mut [f32]) -> (&mut [f32], &mut [f32; TAIL]) {
    let Some(parts) = staging.split_last_chunk_mut() else {
        panic!("staging is shorter than its tail of {TAIL}");
    };
    parts
}

/// Adds up `items` into the first as ((0 + 1) + (2 + 3)) + …; the others are left with partial
/// sums.
pub fn sum_into_first<T>(items: &mut [T], mut add: impl FnMut(&mut T, &T)) {
    let mut stride = 1;
    while stride < items.len() {
        for left in (0..items.len() - stride).step_by(2 * stride) {
            let (head, tail) = items.split_at_mut(left + stride);
            add(&mut head[left], &tail[0]);
        }
        stride *= 2;
    }
}

/// Adds `from` to `to`, element by element.
pub fn add<T: Copy + core::ops::AddAssign>(to: &mut [T], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// A tree over eight equals a tree over the trees of two halves, four quarters, and so on.
    #[test]
    fn subtrees_do_not_change_a_bit() {
        let values: Vec<f32> = (0..8u8).map(|i| 1.0 / (1.0 + f32::from(i))).collect();
        let tree = |values: &[f32]| {
            let mut items = values.to_vec();
            sum_into_first(&mut items, |to, from| *to += from);
            items[0]
        };
        for share in [1, 2, 4, 8] {
            let parts: Vec<f32> = values.chunks(share).map(tree).collect();
            assert_eq!(tree(&parts).to_bits(), tree(&values).to_bits(), "shares of {share}");
        }
        assert!((tree(&values[..5]) - values[..5].iter().sum::<f32>()).abs() < 1e-6);
    }

    #[test]
    fn a_weight_of_nothing_keeps_what_is_not_a_number_out() {
        let mut terms = [[f32::NAN, f32::INFINITY, 9.0, 9.0], [3.0, 5.0, 9.0, 9.0]];
        contribute(&mut terms[0], 0.0, 0);
        contribute(&mut terms[1], 2.0, 1);
        sum_into_first(&mut terms, |to, from| add(to, from));
        let outcome = conclude(&mut terms[0], None);
        assert_eq!(outcome, Completion::Reduced { weight: 2.0, silent: 0 });
        assert_eq!(terms[0][..2], [3.0, 5.0]);
    }
}
