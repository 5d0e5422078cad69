//! Bags whose rows are all in one table at hand: they are pooled as they are read, and updated as
//! their gradients are summed, so that neither is copied.
//!
//! Invariant: rows are added in the order of a bag's values, and the gradients of a row in the
//! order of its uses, as `bag.rs` does it over copies of rows: the same bits,
//! signs of zeros aside.

use core::ops::Range;

use super::Table;
use super::bag::Pooling;
use super::group::Use;
use crate::batch::Jagged;
use crate::kernel::Precision;
use crate::kernel::isa::{Isa, Kernel, Source, run};
use crate::kernel::pool::{Bag, Rows, add_scaled, sum_rows};
use crate::kernel::prefetch::{BURST, FarRows, NEXT, ROWS_AHEAD};
use crate::kernel::row_values::{Pair, Stored};
use crate::kernel::words::all_finite_with;
use crate::optim::{RowLoop, RowRule, SparseOptimizer};

/// Bags, and how each becomes a vector.
#[derive(Clone, Copy, Debug)]
pub struct DirectBags<'a> {
    /// Bags, none of them empty, whose ids are indices in the table; `offsets` begin with 0.
    pub bags: Jagged<'a>,
    /// The operator.
    pub pooling: Pooling,
}

impl DirectBags<'_> {
    /// Writes the bags' vectors. `vectors: [bags, width]`
    pub fn pool(&self, table: &Table<'_>, vectors: &mut [f32]) {
        run(Pool { bags: *self, table, vectors });
    }

    /// The values of some of the bags.
    #[inline(always)]
    pub(super) fn values(&self, bags: Range<u32>) -> Range<usize> {
        let offsets = self.bags.offsets;
        offsets[bags.start as usize] as usize..offsets[bags.end as usize] as usize
    }

    /// Weights of a bag, and what the sum of its rows is multiplied by.
    #[inline(always)]
    pub(super) fn weights(&self, range: Range<usize>) -> (&[f32], f32) {
        let len = range.len();
        let weights = if self.bags.weights.is_empty() { &[] } else { &self.bags.weights[range] };
        (weights, self.pooling.scale_of(len, weights))
    }
}

struct Pool<'a> {
    bags: DirectBags<'a>,
    table: &'a Table<'a>,
    vectors: &'a mut [f32],
}

impl Kernel for Pool<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        match self.table.precision() {
            Precision::F32 => pool(isa, self.table.words(), self),
            Precision::Bf16 => pool(isa, Pair::of(self.table.words()), self),
        }
    }
}

/// The bags' vectors, of records that consist of such elements.
#[inline(always)]
fn pool<I: Isa, T: Stored>(isa: I, elements: &[T], of: Pool<'_>)
where
    *const T: Source,
{
    let Pool { bags, table, vectors } = of;
    let rows = Rows { elements, stride: table.record_len(), columns: 0..table.width() };
    let (indices, far, mut asked) = (bags.bags.values, table.far(), 0);
    let ask = |values: &[u32]| values.iter().for_each(|index| far.ask(*index as usize));
    let ask_one = |value: usize| {
        if const { I::ONE_BY_ONE }
            && let Some(index) = indices.get(value + ROWS_AHEAD)
        {
            far.ask(*index as usize);
        }
    };
    if const { I::ONE_BY_ONE } {
        ask(&indices[..ROWS_AHEAD.min(indices.len())]);
    }
    for (bag, vector) in (0..).zip(vectors.chunks_exact_mut(table.width())) {
        let range = bags.values(bag..bag + 1);
        if const { !I::ONE_BY_ONE } && asked < range.end + BURST {
            let more = asked..indices.len().min(range.end + 2 * BURST);
            ask(&indices[more.clone()]);
            asked = more.end;
        }
        let (weights, scale) = bags.weights(range.clone());
        if scale == 0.0 {
            vector.fill(0.0);
        } else {
            sum_rows(isa, &Bag { indices, range, weights, scale }, &rows, vector, ask_one);
        }
    }
}

/// Gradients that are asked for ahead.
const GRADIENTS_AHEAD: usize = 8;

/// What is to be done to rows.
#[derive(Clone, Copy, Debug)]
pub struct DirectUpdate<'a> {
    /// The optimizer.
    pub optimizer: &'a SparseOptimizer,
    /// Its learning rate.
    pub rate: f32,
    /// Index in the table of every distinct row. `[rows]`
    pub rows: &'a [u32],
    /// Where the uses of each of them end. `[rows]`
    pub ends: &'a [u32],
    /// Row after row.
    pub uses: &'a [Use],
    /// Gradients of the vectors. `[bags, width]`
    pub gradients: &'a [f32],
}

impl DirectUpdate<'_> {
    /// Updates every row with the sum of the gradients of its uses; a row whose sum is not finite
    /// stays as it is. `scratch: [width]`
    pub fn apply(&self, table: &Table<'_>, scratch: &mut [f32]) {
        run(Apply { update: *self, table, scratch });
    }
}

struct Apply<'a> {
    update: DirectUpdate<'a>,
    table: &'a Table<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let optimizer = self.update.optimizer;
        optimizer.run(isa, self);
    }
}

impl RowLoop for Apply<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I, rule: impl RowRule) {
        let Self { update, table, scratch } = self;
        let DirectUpdate { rate, rows, ends, uses: all, gradients, .. } = update;
        // A copy that the stores below cannot reach.
        let table = *table;
        let (width, usage) = (table.width(), table.usage().of_a_call());
        let (far, vectors) = (table.far(), FarRows::new(gradients, width));
        let ask = |rows: &[u32]| {
            rows.iter().for_each(|index| far.ask(*index as usize));
            if usage.is_some() {
                rows.iter().for_each(|index| usage.prefetch(*index as usize));
            }
        };
        let mut bursts = rows.chunks(BURST);
        bursts.next().into_iter().for_each(ask);
        // Rows of a bag follow one another: the last vector whose gradient one row took as it is,
        // and what is known of that, which is finite; and the last one asked for.
        let (mut start, mut known, mut asked) = (0, None, u32::MAX);
        for (i, (row, end)) in rows.iter().zip(ends).enumerate() {
            if i.is_multiple_of(BURST) {
                bursts.next().into_iter().for_each(ask);
            }
            if let Some(next) = rows.get(i + NEXT) {
                far.fetch(*next as usize);
            }
            // Bags follow one another no more than rows do.
            if let Some(of) = all.get(start + GRADIENTS_AHEAD).filter(|of| of.vector != asked) {
                vectors.ask(of.vector as usize);
                asked = of.vector;
            }
            let uses = &all[start..*end as usize];
            start = *end as usize;
            let gradient = match uses {
                [only] if only.scale == 1.0 => &gradients[only.vector as usize * width..][..width],
                _ => {
                    scratch.fill(0.0);
                    for it in uses {
                        if it.scale != 0.0 {
                            let gradient = &gradients[it.vector as usize * width..][..width];
                            add_scaled(isa, it.scale, gradient, scratch);
                        }
                    }
                    known = None;
                    &*scratch
                }
            };
            let of = match known {
                Some((vector, of)) if vector == uses[0].vector => of,
                _ if all_finite_with(isa, gradient) => rule.know(isa, gradient),
                _ => {
                    known = None;
                    continue;
                }
            };
            known = match uses {
                [only] if only.scale == 1.0 => Some((only.vector, of)),
                _ => None,
            };
            table.update_knowing(isa, (rule, rate), *row as usize, (gradient, of));
            usage.count(*row as usize);
        }
    }
}
