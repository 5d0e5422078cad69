//! Bags of a batch whose tables are cut into strips (`umbra_core::sparse::cut`): one for every
//! strip of a field.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use umbra_core::batch::Jagged;
use umbra_core::sparse::{CutInto, cut, cut_len};

/// Tables that are cut by columns, as checkpoints say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strips {
    /// How many every field's table is. `[fields]`
    pub of_field: Vec<u32>,
    /// Values of a row before those of its strip: the first-order parameter, which only the first
    /// strip uses.
    pub first_order: usize,
}

/// The bags of strips, if tables have several.
#[derive(Debug, Default)]
pub struct CutBags {
    /// The first strip of every field and the end of the last; empty where nothing is cut.
    strips: Arc<[u32]>,
    values: Vec<u32>,
    offsets: Vec<u32>,
    weights: Vec<f32>,
}

impl CutBags {
    /// Cuts the `bags` of fields into such `strips`; empty: they stay as they are.
    pub fn fill(&mut self, strips: &Arc<[u32]>, bags: Jagged<'_>) {
        self.strips = Arc::clone(strips);
        if strips.is_empty() {
            return;
        }
        let fields = strips.len() - 1;
        let bags_len = (bags.offsets.len() - 1) / fields.max(1) * last(strips);
        let values_len = cut_len(strips, bags);
        self.values.resize(values_len, 0);
        self.weights.resize(if bags.weights.is_empty() { 0 } else { values_len }, 0.0);
        self.offsets.resize(bags_len + 1, 0);
        let Self { values, offsets, weights, .. } = self;
        cut(strips, bags, CutInto { values, offsets, weights });
    }

    /// What stands in the place of the `bags` of fields.
    #[must_use]
    pub fn instead<'a>(&'a self, bags: Jagged<'a>) -> Jagged<'a> {
        if self.strips.is_empty() {
            return bags;
        }
        Jagged { values: &self.values, offsets: &self.offsets, weights: &self.weights }
    }

    /// The first strip of every field and the end of the last, or none.
    #[must_use]
    pub fn strips(&self) -> &[u32] {
        &self.strips
    }
}

fn last(strips: &[u32]) -> usize {
    strips.last().map_or(0, |last| *last as usize)
}

/// Most values of an example in bags of `strips`, of one with up to `values` in bags of fields.
#[must_use]
pub fn values_max(strips: &[u32], values: usize) -> usize {
    let fields = strips.len().saturating_sub(1);
    match strips.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max() {
        None => values,
        // One for each field.
        Some(_) if values == fields => last(strips),
        Some(most) => values * most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_cut_one_after_the_other() {
        let (mut cut, strips) = (CutBags::default(), Arc::from([0, 1, 3]));
        let long = Jagged { values: &[1, 2, 3, 4], offsets: &[0, 1, 2, 3, 4], weights: &[] };
        cut.fill(&strips, long);
        assert_eq!(cut.instead(long).values, [1, 2, 2, 3, 4, 4]);
        let short = Jagged { values: &[5, 6], offsets: &[0, 0, 2], weights: &[0.5, 0.25] };
        cut.fill(&strips, short);
        let got = cut.instead(short);
        assert_eq!((got.values, got.offsets), (&[5, 6, 5, 6][..], &[0, 0, 2, 4][..]));
        assert_eq!(got.weights, [0.5, 0.25, 0.5, 0.25]);
        cut.fill(&Arc::from([]), short);
        assert_eq!((cut.instead(short).values, cut.strips().len()), (&[5, 6][..], 0));
    }

    #[test]
    fn as_many_values_as_there_can_be() {
        assert_eq!(values_max(&[], 7), 7);
        assert_eq!(values_max(&[0, 1, 5], 2), 5);
        assert_eq!(values_max(&[0, 1, 5], 3), 12);
    }
}
