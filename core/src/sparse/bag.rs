//! Pooling: the rows of a bag become one vector.
//!
//! The operator is `EmbeddingBag` of Naumov et al., "Deep Learning Recommendation Model for
//! Personalization and Recommendation Systems", arXiv 1906.00091, section 2.1.1: sum or mean of the
//! bag's rows. An empty bag pools to zeros and passes no gradient on. An id that stands twice in a
//! bag counts twice.
//!
//! Ids may have weights: then a row is multiplied by its own, and a mean is over the sum of the
//! weights (TensorFlow, `tf.nn.embedding_lookup_sparse`, combiner `mean`). They are data: no
//! gradient is theirs. A bag without a weight above 0 is as an empty one; so is, for a mean, one
//! whose sum of weights or its reciprocal is beyond f32. Weights of 1 change no bit.

use core::ops::Range;

use crate::batch::Jagged;
use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::pool::{Bag, Rows, add_scaled, set_scaled, sum_rows};

/// How the rows of a bag become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their sum divided by how many there are.
    Mean,
}

impl Pooling {
    /// What every row of a bag of `len` ids is multiplied by.
    #[inline]
    fn scale(self, len: usize) -> f32 {
        match self {
            Self::Mean if len > 1 => 1.0 / len as f32,
            _ => 1.0,
        }
    }

    /// What the sum of the rows of a bag of `len` ids, times their `weights` if there are any, is
    /// multiplied by.
    #[must_use]
    pub fn scale_of(self, len: usize, weights: &[f32]) -> f32 {
        if weights.is_empty() { self.scale(len) } else { self.scale_weighted(weights) }
    }

    /// What the sum of weight times row of a bag is multiplied by; 0 for one that counts as empty.
    fn scale_weighted(self, weights: &[f32]) -> f32 {
        let scale = match self {
            Self::Sum => f32::from(u8::from(weights.iter().any(|weight| *weight > 0.0))),
            Self::Mean => 1.0 / weights.iter().sum::<f32>(),
        };
        if scale.is_finite() { scale } else { 0.0 }
    }
}

/// Bags whose ids have been resolved to gathered rows.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    /// Bags, example-major; `offsets` may start anywhere in `values`.
    pub bags: Jagged<'a>,
    /// Index of every value's row among the gathered rows. As long as `bags.values`.
    pub slot: &'a [u32],
    /// Fields of one example, or strips of all of them.
    pub fields: usize,
    /// The fields that have a first-order parameter for every id, ascending, and any number behind
    /// them: the first strip of each; empty where all have. `[S + 1]`
    pub firsts: &'a [u32],
    /// The operator.
    pub pooling: Pooling,
    /// Elements of one gathered row.
    pub row_width: usize,
}

/// Where pooled vectors stand in a buffer: that of example `i`, field `s` is
/// `buffer[i * stride + at + s * columns.len()..][..columns.len()]`.
#[derive(Clone, Debug)]
pub struct Pooled {
    /// The columns of a row that are pooled; the others are left out.
    pub columns: Range<usize>,
    /// Elements between examples.
    pub stride: usize,
    /// Place of field 0 within an example.
    pub at: usize,
}

/// Gradients of gathered rows, which tiles add to. A row is set to 0 when it is first named, just
/// before it is added to: rows are named in their order, nearly, and a pass over all of them would
/// bring them near once more.
#[derive(Debug)]
pub struct RowGradients<'a> {
    /// `[U, row_width]`, of which the first `set` rows hold sums, and those from `end` on; the
    /// others anything.
    elements: &'a mut [f32],
    /// Rows that have been named, and all before them.
    set: &'a mut usize,
    /// Behind the rows that are set when they are named.
    end: usize,
}

impl<'a> RowGradients<'a> {
    /// `elements: [U, row_width]`, of which the first `set` rows hold sums: 0 at first.
    pub const fn new(elements: &'a mut [f32], set: &'a mut usize) -> Self {
        Self { elements, set, end: usize::MAX }
    }

    /// The same where the rows from `end` on hold sums as well.
    pub(crate) const fn before(self, end: usize) -> Self {
        Self { end, ..self }
    }
}

impl RowGradients<'_> {
    /// The same once more.
    pub const fn again(&mut self) -> RowGradients<'_> {
        RowGradients { elements: self.elements, set: self.set, end: self.end }
    }

    /// Whether `slot` is the first row that has not been named.
    #[inline(always)]
    const fn is_next(&self, slot: u32) -> bool {
        slot as usize == *self.set && *self.set < self.end
    }

    /// The first row that has not been named, to be set. `[width]`
    #[inline(always)]
    fn take_next(&mut self, width: usize) -> &mut [f32] {
        let row = &mut self.elements[*self.set * width..][..width];
        *self.set += 1;
        row
    }

    /// The sum of row `slot` so far. `[width]`
    #[inline(always)]
    fn of(&mut self, slot: u32, width: usize) -> &mut [f32] {
        let slot = slot as usize;
        if slot >= *self.set && slot < self.end {
            self.elements[*self.set * width..(slot + 1) * width].fill(0.0);
            *self.set = slot + 1;
        }
        &mut self.elements[slot * width..][..width]
    }

    /// Sets the rows that nothing has named to 0.
    pub fn finish(self, width: usize) {
        let end = self.end.min(self.elements.len() / width.max(1));
        self.elements[*self.set * width..end * width].fill(0.0);
    }
}

impl Bags<'_> {
    /// Those of some of the examples.
    pub(crate) fn examples(&self, some: Range<usize>) -> Self {
        let offsets = &self.bags.offsets[some.start * self.fields..=some.end * self.fields];
        Self { bags: Jagged { offsets, ..self.bags }, ..*self }
    }

    /// Slots of all bags.
    pub(crate) fn named(&self) -> &[u32] {
        let offsets = self.bags.offsets;
        let end = |at: Option<&u32>| at.map_or(0, |at| *at as usize);
        &self.slot[end(offsets.first())..end(offsets.last())]
    }

    /// Slots of bag `bag`.
    #[inline]
    fn slots(&self, bag: usize) -> &[u32] {
        let offsets = self.bags.offsets;
        &self.slot[offsets[bag] as usize..offsets[bag + 1] as usize]
    }

    /// Weights of bag `bag` and what they are scaled by; `None` where there are none.
    #[inline]
    fn weights(&self, bag: usize) -> Option<(&[f32], f32)> {
        let Jagged { offsets, weights, .. } = self.bags;
        if weights.is_empty() {
            return None;
        }
        let weights = &weights[offsets[bag] as usize..offsets[bag + 1] as usize];
        Some((weights, self.pooling.scale_weighted(weights)))
    }

    /// The bags of `example` whose ids have first-order parameters.
    fn first_bags(&self, example: usize) -> impl Iterator<Item = usize> {
        let count = if self.firsts.is_empty() { self.fields } else { self.firsts.len() - 1 };
        let firsts = self.firsts;
        let field = move |number| firsts.get(number).map_or(number, |field| *field as usize);
        let first = example * self.fields;
        (0..count).map(move |number| first + field(number))
    }

    /// Writes the vector of bag `bag` to `out`.
    #[inline(always)]
    pub(crate) fn pool_bag<I: Isa>(
        &self,
        isa: I,
        bag: usize,
        rows: &Rows<'_, f32>,
        out: &mut [f32],
    ) {
        let offsets = self.bags.offsets;
        let range = offsets[bag] as usize..offsets[bag + 1] as usize;
        let (weights, scale) = self.weights(bag).unwrap_or((&[], self.pooling.scale(range.len())));
        if range.is_empty() || scale == 0.0 {
            out.fill(0.0);
        } else {
            sum_rows(isa, &Bag { indices: self.slot, range, weights, scale }, rows, out, |_| ());
        }
    }

    /// Adds the gradient of bag `bag`'s vector, of these columns of its rows, to that of the rows.
    #[inline(always)]
    pub(crate) fn pool_bag_backward<I: Isa>(
        &self,
        isa: I,
        bag: usize,
        (gradient, columns): (&[f32], &Range<usize>),
        rows: &mut RowGradients<'_>,
    ) {
        let slots = self.slots(bag);
        let (weights, scale) = self.weights(bag).unwrap_or((&[], self.pooling.scale(slots.len())));
        if scale == 0.0 {
            return;
        }
        for (i, slot) in slots.iter().enumerate() {
            let scale = weights.get(i).map_or(scale, |weight| weight * scale);
            self.add_to_row(isa, *slot, (scale, gradient, columns), rows);
        }
    }

    /// Adds `scale` times a gradient of these columns to that of a row.
    #[inline(always)]
    fn add_to_row<I: Isa>(
        &self,
        isa: I,
        slot: u32,
        (scale, gradient, columns): (f32, &[f32], &Range<usize>),
        rows: &mut RowGradients<'_>,
    ) {
        if rows.is_next(slot) && columns.len() == self.row_width {
            set_scaled(isa, scale, gradient, rows.take_next(self.row_width));
        } else {
            let sum = &mut rows.of(slot, self.row_width)[columns.clone()];
            add_scaled(isa, scale, gradient, sum);
        }
    }

    /// The slots of all bags of `n` examples, where each has one id without a weight: its vector is
    /// the row, and what there is to ask of a bag takes longer than to copy it.
    fn single_ids(&self, n: usize) -> Option<&[u32]> {
        let Jagged { offsets, weights, .. } = self.bags;
        if !weights.is_empty() {
            return None;
        }
        let offsets = &offsets[..=n * self.fields];
        // All are looked at, many at once.
        let others = offsets.windows(2).fold(0, |others, ends| others | ((ends[1] - ends[0]) ^ 1));
        (others == 0).then(|| &self.slot[offsets[0] as usize..][..n * self.fields])
    }

    /// Pools the bags of `n` examples. `rows`: `[U, row_width]`; `out` as [`Pooled`] tells, of
    /// which every pooled element is written.
    pub fn pool(&self, n: usize, rows: &[f32], shape: &Pooled, out: &mut [f32]) {
        run(Pool { bags: *self, n, rows, shape, out });
    }

    /// Adds to the gradients of rows what the gradient `pooled` of the pooled vectors says.
    pub fn pool_backward(&self, n: usize, pooled: &[f32], shape: &Pooled, rows: RowGradients<'_>) {
        run(PoolBackward { bags: *self, n, pooled, shape, rows });
    }

    /// Sum over the fields of column `column`, pooled: the first-order term of example `example`.
    #[must_use]
    pub fn pool_column(&self, example: usize, rows: &[f32], column: usize) -> f32 {
        let mut total = 0.0;
        for bag in self.first_bags(example) {
            let slots = self.slots(bag);
            let of = |slot: &u32| rows[*slot as usize * self.row_width + column];
            total += match self.weights(bag) {
                None => slots.iter().map(of).sum::<f32>() * self.pooling.scale(slots.len()),
                Some((_, 0.0)) => 0.0,
                Some((weights, scale)) => {
                    let terms = slots.iter().zip(weights).map(|(slot, weight)| weight * of(slot));
                    terms.sum::<f32>() * scale
                }
            };
        }
        total
    }

    /// Adds to column `column` of the gradients of rows that of [`Self::pool_column`].
    pub fn pool_column_backward(
        &self,
        example: usize,
        gradient: f32,
        column: usize,
        rows: &mut RowGradients<'_>,
    ) {
        for bag in self.first_bags(example) {
            let slots = self.slots(bag);
            let mut add = |slot: &u32, gradient: f32| {
                rows.of(*slot, self.row_width)[column] += gradient;
            };
            match self.weights(bag) {
                None => {
                    let gradient = gradient * self.pooling.scale(slots.len());
                    slots.iter().for_each(|slot| add(slot, gradient));
                }
                Some((_, 0.0)) => {}
                Some((weights, scale)) => {
                    let places = slots.iter().zip(weights);
                    places.for_each(|(slot, weight)| add(slot, gradient * scale * weight));
                }
            }
        }
    }
}

/// [`Bags::pool`] as a kernel. No fused operations, and rows are added in the order of the bag: the
/// same bits on every instruction set.
struct Pool<'a> {
    bags: Bags<'a>,
    n: usize,
    rows: &'a [f32],
    shape: &'a Pooled,
    out: &'a mut [f32],
}

impl Kernel for Pool<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { bags, n, rows, shape, out } = self;
        let (width, columns) = (shape.columns.len(), shape.columns.clone());
        let rows = Rows { elements: rows, stride: bags.row_width, columns };
        let single = bags.single_ids(n);
        for example in 0..n {
            let at = example * shape.stride + shape.at;
            let out = &mut out[at..at + bags.fields * width];
            if let Some(slots) = single {
                let slots = &slots[example * bags.fields..];
                for (slot, out) in slots.iter().zip(out.chunks_exact_mut(width)) {
                    rows.copy(isa, *slot, out);
                }
                continue;
            }
            for (field, out) in out.chunks_exact_mut(width).enumerate() {
                bags.pool_bag(isa, example * bags.fields + field, &rows, out);
            }
        }
    }
}

/// [`Bags::pool_backward`] as a kernel, with the same bits on every instruction set.
struct PoolBackward<'a> {
    bags: Bags<'a>,
    n: usize,
    pooled: &'a [f32],
    shape: &'a Pooled,
    rows: RowGradients<'a>,
}

impl Kernel for PoolBackward<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { bags, n, pooled, shape, mut rows } = self;
        let width = shape.columns.len();
        let single = bags.single_ids(n);
        for example in 0..n {
            let at = example * shape.stride + shape.at;
            let pooled = &pooled[at..at + bags.fields * width];
            if let Some(slots) = single {
                let slots = &slots[example * bags.fields..];
                for (slot, gradient) in slots.iter().zip(pooled.chunks_exact(width)) {
                    bags.add_to_row(isa, *slot, (1.0, gradient, &shape.columns), &mut rows);
                }
                continue;
            }
            for (field, gradient) in pooled.chunks_exact(width).enumerate() {
                let bag = example * bags.fields + field;
                bags.pool_bag_backward(isa, bag, (gradient, &shape.columns), &mut rows);
            }
        }
    }
}
