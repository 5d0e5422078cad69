//! Sums as balanced binary trees.
//!
//! A sum over the slices of a batch is ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), whoever holds them:
//! the slices of a worker, trainer or rank are a subtree when counts are powers of two, so the
//! same slices give the same bits on any number of ranks. (It is also the more accurate order:
//! N. J. Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14 (1993).)

/// Adds up `items` into the first; the others are left with partial sums.
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
}
