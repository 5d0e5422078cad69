//! Bags of which a rank holds some rows: partial sums there, and row gradients from those of bags.
//!
//! Pooling is linear, so what of a bag's rows is in one place is added up in that place; the sum of
//! the places' sums is the pooled vector of `bag.rs`, up to the order of additions, and the
//! gradient of that vector is the gradient of every place's sum.
//!
//! Invariant: a row's gradient is summed in the order of the values of its bags, as `bag.rs` does
//! it: its bits are the same.

use super::Partitioning;

/// Bags, each with those of its values that are in one place.
#[derive(Clone, Copy, Debug)]
pub struct PartialBags<'a> {
    /// Values of each bag here. `[bags]`
    pub counts: &'a [u32],
    /// Row numbers, bag after bag. `[values]`
    pub rows: &'a [u32],
    /// Weight of each value, or empty for all ones. `[values]` or `[0]`
    pub weights: &'a [f32],
    /// What the sum of a bag is multiplied by, or empty for all ones. `[bags]` or `[0]`
    pub scales: &'a [f32],
}

/// A value of a bag: sorted by row, then by its place among the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowUse {
    /// Row number.
    pub row: u32,
    value: u32,
    bag: u32,
}

impl PartialBags<'_> {
    /// The values that are in `partition`, in order.
    pub fn of_partition(
        &self,
        partitioning: Partitioning,
        partition: u32,
    ) -> impl Iterator<Item = RowUse> + Clone {
        let bags = (0u32..).zip(self.counts);
        let bags = bags.flat_map(|(bag, count)| core::iter::repeat_n(bag, *count as usize));
        let values = (0u32..).zip(self.rows).zip(bags);
        values
            .map(|((value, row), bag)| RowUse { row: *row, value, bag })
            .filter(move |it| partitioning.partition(it.row) == partition)
    }

    fn weight(&self, value: u32) -> f32 {
        if self.weights.is_empty() { 1.0 } else { self.weights[value as usize] }
    }

    fn scale(&self, bag: u32) -> f32 {
        if self.scales.is_empty() { 1.0 } else { self.scales[bag as usize] }
    }

    /// Adds the rows of `uses`, times their weights, to the vectors of their bags.
    /// `rows`: `[uses, width]`; `vectors`: `[bags, width]`
    pub fn pool(
        &self,
        uses: impl Iterator<Item = RowUse>,
        rows: &[f32],
        width: usize,
        vectors: &mut [f32],
    ) {
        for (it, row) in uses.zip(rows.chunks_exact(width)) {
            let weight = self.weight(it.value);
            // Nothing of it, whatever it is.
            if weight != 0.0 {
                let vector = &mut vectors[it.bag as usize * width..][..width];
                vector.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
            }
        }
    }

    /// Multiplies complete vectors `[bags, width]` by what their bags say.
    pub fn apply_scales(&self, width: usize, vectors: &mut [f32]) {
        for (scale, vector) in self.scales.iter().zip(vectors.chunks_exact_mut(width)) {
            // A bag of scale 0 counts as empty, whatever its rows.
            vector.iter_mut().for_each(|x| *x = if *scale == 0.0 { 0.0 } else { *x * scale });
        }
    }

    /// Writes the gradient `[width]` of a row from all its `uses`, in order, and the gradients
    /// `[bags, width]` of the bags' vectors.
    pub fn row_gradient(&self, uses: &[RowUse], gradients: &[f32], width: usize, out: &mut [f32]) {
        out.fill(0.0);
        for it in uses {
            let scale = self.weight(it.value) * self.scale(it.bag);
            let gradient = &gradients[it.bag as usize * width..][..width];
            out.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += scale * g);
        }
    }
}
