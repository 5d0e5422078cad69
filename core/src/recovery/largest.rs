//! The items with the largest keys, selected without sorting and without memory for their order.
//!
//! Two counts by halves of the key (a radix selection) find the key of the last one that is taken:
//! linear in the number of items, whatever their keys are. Items with key 0 are never taken.

/// How many items have which half of a key.
pub type Histogram = [u32; 1 << 16];

/// Calls `take` with the `count` items of `0..items` that have the largest keys, ascending; fewer
/// where fewer keys are above 0. Of equal keys the first are taken. `key` must give the same every
/// time. Returns how many were taken.
///
/// # Panics
/// When `items` is above `u32::MAX`.
pub fn largest(
    items: usize,
    count: usize,
    key: impl Fn(usize) -> u32,
    histogram: &mut Histogram,
    mut take: impl FnMut(usize),
) -> usize {
    assert!(u32::try_from(items).is_ok(), "at most {} items", u32::MAX);
    let count = count.min(items);
    if count == 0 {
        return 0;
    }
    histogram.fill(0);
    (0..items).for_each(|item| histogram[(key(item) >> 16) as usize] += 1);
    let Last { half: high, of_it } = last_half(histogram, count);
    histogram.fill(0);
    for key in (0..items).map(&key).filter(|key| key >> 16 == high) {
        histogram[(key & 0xffff) as usize] += 1;
    }
    let Last { half: low, of_it: mut equal } = last_half(histogram, of_it);
    let last = high << 16 | low;
    let mut taken = 0;
    for item in 0..items {
        let key = key(item);
        let is_last = key == last && equal > 0;
        if key > 0 && (key > last || is_last) {
            equal -= usize::from(is_last);
            taken += 1;
            take(item);
        }
    }
    taken
}

/// Where the last of the largest is.
struct Last {
    half: u32,
    /// How many of those with this half are among them.
    of_it: usize,
}

/// The half of the key of the last of the `count` largest, of at least as many.
fn last_half(histogram: &Histogram, count: usize) -> Last {
    let mut left = count;
    for (half, here) in (0..=0xffffu32).rev().zip(histogram.iter().rev()) {
        let here = *here as usize;
        if here >= left {
            return Last { half, of_it: left };
        }
        left -= here;
    }
    Last { half: 0, of_it: left }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As sorting would have it.
        #[test]
        fn takes_what_sorting_would(
            keys in prop::collection::vec(
                prop_oneof![0u32..4, 65_534u32..65_540, any::<u32>()], 0..300),
            count in 0usize..320,
        ) {
            let mut histogram = vec![0u32; 1 << 16];
            let histogram: &mut Histogram = histogram.as_mut_slice().try_into().unwrap();
            let mut taken = vec![];
            let found = largest(keys.len(), count, |item| keys[item], histogram, |item| {
                taken.push(item);
            });
            let mut sorted: Vec<usize> = (0..keys.len()).filter(|item| keys[*item] > 0).collect();
            sorted.sort_by_key(|item| (u32::MAX - keys[*item], *item));
            sorted.truncate(count);
            sorted.sort_unstable();
            prop_assert_eq!(found, taken.len());
            prop_assert_eq!(taken, sorted);
        }
    }
}
