//! Sums of rows: what becomes of a bag, and of its gradient.
//!
//! No fused operations, and rows are added in the order they are given in: the same bits on every
//! instruction set.

use core::ops::Range;

use super::isa::{Isa, Source};
use super::row_values::Stored;
use super::tile::{copy, load, store};

/// Rows in private or in shared memory.
pub(crate) struct Rows<'a, T> {
    /// One behind the other.
    pub(crate) elements: &'a [T],
    /// Elements from row to row.
    pub(crate) stride: usize,
    /// The columns that are wanted; the first is the first of an element.
    pub(crate) columns: Range<usize>,
}

impl<T: Stored> Rows<'_, T> {
    #[inline(always)]
    fn row(&self, index: u32) -> &[T] {
        let Range { start, end } = self.columns;
        &self.elements[index as usize * self.stride..][start / T::VALUES..end.div_ceil(T::VALUES)]
    }
}

impl Rows<'_, f32> {
    /// Writes the wanted columns of row `index` to `out`, which has as many.
    #[inline(always)]
    pub(crate) fn copy<I: Isa>(&self, isa: I, index: u32, out: &mut [f32]) {
        let row = self.row(index);
        assert_eq!(row.len(), out.len(), "a vector of another length");
        // SAFETY: just seen.
        unsafe { copy(isa, (row.as_ptr(), out.as_mut_ptr()), row.len()) }
    }
}

/// The values of a bag.
pub(crate) struct Bag<'a> {
    /// The row of every value of all bags.
    pub(crate) indices: &'a [u32],
    /// Its own; at least one.
    pub(crate) range: Range<usize>,
    /// Of its own; empty for all ones.
    pub(crate) weights: &'a [f32],
    /// Of its sum.
    pub(crate) scale: f32,
}

/// Writes the sum of a bag's rows to `out`, a few vectors of it at a time: they stay in registers.
/// Calls `ask` with each of its values as it comes to it first.
#[inline(always)]
pub(crate) fn sum_rows<I: Isa, T: Stored>(
    isa: I,
    bag: &Bag<'_>,
    rows: &Rows<'_, T>,
    out: &mut [f32],
    ask: impl Fn(usize),
) where
    *const T: Source,
{
    let mut at = 0;
    while out.len() - at >= 8 * I::LANES {
        put_vectors::<I, T, 8>(isa, bag, rows, (&mut at, I::LANES), out, &ask);
    }
    if out.len() - at >= 4 * I::LANES {
        put_vectors::<I, T, 4>(isa, bag, rows, (&mut at, I::LANES), out, &ask);
    }
    while out.len() > at {
        let count = I::LANES.min(out.len() - at);
        put_vectors::<I, T, 1>(isa, bag, rows, (&mut at, count), out, &ask);
    }
}

/// Writes `N` vectors of a bag's sum, the last of `count` elements, from element `at` on, and moves
/// that behind them.
#[inline(always)]
fn put_vectors<I: Isa, T: Stored, const N: usize>(
    isa: I,
    bag: &Bag<'_>,
    rows: &Rows<'_, T>,
    (at, count): (&mut usize, usize),
    out: &mut [f32],
    ask: &impl Fn(usize),
) where
    *const T: Source,
{
    let first = *at == 0;
    let sums = sum_vectors::<I, T, N>(isa, bag, rows, (*at, count), |value| {
        if first {
            ask(value);
        }
    });
    let len = (N - 1) * I::LANES + count;
    for (sum, out) in sums.into_iter().zip(out[*at..*at + len].chunks_mut(I::LANES)) {
        // SAFETY: as many elements as the piece has.
        unsafe { store(isa, out.as_mut_ptr(), out.len(), sum) }
    }
    *at += len;
}

/// The sums of `N` vectors, one behind the other, from element `at` of every row on, the last of
/// `count` elements.
#[inline(always)]
fn sum_vectors<I: Isa, T: Stored, const N: usize>(
    isa: I,
    bag: &Bag<'_>,
    rows: &Rows<'_, T>,
    (at, count): (usize, usize),
    ask: impl Fn(usize),
) -> [I::Vector; N]
where
    *const T: Source,
{
    let mut sums = [isa.zero(); N];
    for (i, value) in bag.range.clone().enumerate() {
        ask(value);
        let elements = ((N - 1) * I::LANES + count).div_ceil(T::VALUES);
        let row = &rows.row(bag.indices[value])[at / T::VALUES..][..elements];
        for (j, sum) in sums.iter_mut().enumerate() {
            let count = if j + 1 < N { I::LANES } else { count };
            // SAFETY: the row has as many elements, as was just seen.
            let mut x = unsafe { load(isa, row.as_ptr().advance(j * I::LANES), count) };
            if let Some(weight) = bag.weights.get(i) {
                x = isa.mul(isa.splat(*weight), x);
            }
            *sum = if i == 0 { x } else { isa.add(*sum, x) };
        }
    }
    if bag.scale != 1.0 {
        for sum in &mut sums {
            *sum = isa.mul(*sum, isa.splat(bag.scale));
        }
    }
    sums
}

/// `sum += scale * x`; lengths are equal.
#[inline(always)]
pub(crate) fn add_scaled<I: Isa>(isa: I, scale: f32, x: &[f32], sum: &mut [f32]) {
    assert_eq!(x.len(), sum.len(), "a sum of another length");
    let scale = isa.splat(scale);
    for (sum, x) in sum.chunks_mut(I::LANES).zip(x.chunks(I::LANES)) {
        // SAFETY: both have as many elements.
        unsafe {
            let step = isa.mul(scale, load(isa, x.as_ptr(), x.len()));
            let before = load(isa, sum.as_ptr(), x.len());
            store(isa, sum.as_mut_ptr(), x.len(), isa.add(before, step));
        }
    }
}

/// [`add_scaled`] to zeros, with the same bits; lengths are equal.
#[inline(always)]
pub(crate) fn set_scaled<I: Isa>(isa: I, scale: f32, x: &[f32], sum: &mut [f32]) {
    assert_eq!(x.len(), sum.len(), "a sum of another length");
    let scale = isa.splat(scale);
    for (sum, x) in sum.chunks_mut(I::LANES).zip(x.chunks(I::LANES)) {
        // SAFETY: both have as many elements.
        unsafe {
            let step = isa.mul(scale, load(isa, x.as_ptr(), x.len()));
            // Without a sign: 0 + -0 is 0.
            store(isa, sum.as_mut_ptr(), x.len(), isa.add(isa.zero(), step));
        }
    }
}
