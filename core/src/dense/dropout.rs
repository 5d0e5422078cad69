//! Dropout: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
//! overfitting", JMLR 15, 2014; the inverted form, in which kept units are scaled by 1 / (1 − p)
//! during training and nothing happens in evaluation.
//!
//! Invariant: whether a unit is kept is a function of (seed, layer, step, row of the dataset,
//! unit). It does not depend on the example's place in the batch, so cutting a batch among ranks
//! does not change the answer.

use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::{ActivationsMut, PANEL};
use crate::rng::{BLOCKS, Purpose, Stream};

/// Key of the random numbers of one training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepKey {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the global step, counted over all epochs.
    pub step: u64,
}

/// Drops units of `values` `[n, units]` in place and scales the kept ones. `rows: [n]`
pub fn drop_units(
    key: StepKey,
    layer: u32,
    probability: f32,
    rows: &[u64],
    values: &mut ActivationsMut<'_>,
) {
    run(DropUnits { key, layer, probability, rows, values });
}

struct DropUnits<'a, 'b> {
    key: StepKey,
    layer: u32,
    probability: f32,
    rows: &'a [u64],
    values: &'a mut ActivationsMut<'b>,
}

impl Kernel for DropUnits<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Self { key, layer, probability, rows, values } = self;
        let purpose = Purpose::Dropout(layer);
        let step_seed = Stream::new(key.seed, purpose).word(key.step);
        let stream = Stream::new(step_seed, purpose);
        // A unit is dropped when its 32 random bits are below probability · 2^32.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..2^32")]
        let threshold = (probability * 4_294_967_296.0) as u32;
        let scale = kept_scale(probability);
        let blocks = values.view().width().div_ceil(WORDS) as u64;
        for unit in values.firsts() {
            for (row, values) in rows.iter().zip(values.block_mut(unit)) {
                // Wrapping: rows are far below 2^64 / blocks, and a key of random bits may wrap.
                let first = row.wrapping_mul(blocks).wrapping_add((unit / WORDS) as u64);
                let words = stream.blocks(first);
                for (value, word) in values.iter_mut().zip(words.as_flattened()) {
                    *value = if *word < threshold { 0.0 } else { *value * scale };
                }
            }
        }
    }
}

/// What kept units are multiplied by.
#[must_use]
pub fn kept_scale(probability: f32) -> f32 {
    1.0 / (1.0 - probability)
}

/// Random words of one block of the generator.
const WORDS: usize = 4;
// A row of a block of the layout takes the words of blocks that are made together.
const _: () = assert!(PANEL == WORDS * BLOCKS);

#[cfg(test)]
mod tests {
    use std::vec;

    use super::{ActivationsMut, StepKey};
    use crate::kernel::Strides;

    const KEY: StepKey = StepKey { seed: 3, step: 11 };

    /// [`super::drop_units`] on row-major values.
    fn drop_units(
        key: StepKey,
        layer: u32,
        probability: f32,
        rows: &[u64],
        units: usize,
        values: &mut [f32],
    ) {
        let mut values = ActivationsMut::new(values, rows.len(), units, Strides::row_major(units));
        super::drop_units(key, layer, probability, rows, &mut values);
    }

    #[test]
    fn the_place_in_the_batch_does_not_matter() {
        // Two blocks of the layout of activations.
        let units = 39;
        let rows = [5, 900, 6, 1 << 40];
        let mut whole = vec![1.0; rows.len() * units];
        drop_units(KEY, 2, 0.4, &rows, units, &mut whole);
        for (i, row) in rows.iter().enumerate() {
            let mut alone = vec![1.0; units];
            drop_units(KEY, 2, 0.4, &[*row], units, &mut alone);
            assert_eq!(alone, whole[i * units..][..units], "row {row}");
        }
    }

    #[test]
    fn layers_steps_and_seeds_have_masks_of_their_own() {
        let mask = |key, layer| {
            let mut values = vec![1.0; 64];
            drop_units(key, layer, 0.5, &[1], 64, &mut values);
            values
        };
        let first = mask(KEY, 0);
        assert_ne!(first, mask(KEY, 1));
        assert_ne!(first, mask(StepKey { step: 12, ..KEY }, 0));
        assert_ne!(first, mask(StepKey { seed: 4, ..KEY }, 0));
    }

    #[test]
    fn the_mean_is_kept() {
        let n = 1000;
        let rows = core::array::from_fn::<u64, 1000, _>(|i| i as u64);
        for probability in [0.1, 0.5, 0.9] {
            let mut values = vec![1.0; n * 10];
            drop_units(KEY, 0, probability, &rows, 10, &mut values);
            let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / (n * 10) as f64;
            // Standard error sqrt(p / (1 - p) / 10^4): at most 0.03; five of them.
            assert!((mean - 1.0).abs() < 0.15, "p {probability}: {mean}");
        }
    }
}
