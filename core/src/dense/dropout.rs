//! Dropout: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
//! overfitting", JMLR 15, 2014; the inverted form, in which kept units are scaled by 1 / (1 − p)
//! during training and nothing happens in evaluation.
//!
//! Invariant: whether a unit is kept is a function of (seed, layer, step, row of the dataset,
//! unit). It does not depend on the example's place in the batch, so cutting a batch among ranks
//! does not change the answer.
//!
//! A probability is a multiple of 2^-16, the nearest: 16 random bits decide about a unit.

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
        // A unit is dropped when its 16 random bits are below probability · 2^16.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..=2^16")]
        let threshold = (probability * 65_536.0 + 0.5) as u32;
        let scale = kept_scale(probability);
        let blocks = (BLOCKS * values.view().width().div_ceil(2 * PANEL)) as u64;
        for (pair, unit) in (0..).zip(values.firsts().step_by(2)) {
            for (i, row) in rows.iter().enumerate() {
                // Wrapping: rows are far below 2^64 / blocks, and a key of random bits may wrap.
                let first = row.wrapping_mul(blocks).wrapping_add(pair * BLOCKS as u64);
                let words = stream.blocks(first);
                let (low, high) = values.row_pair_mut(i, unit);
                if high.len() == PANEL {
                    drop_below::<0>(&words, threshold, scale, &mut low[..PANEL]);
                    drop_below::<16>(&words, threshold, scale, &mut high[..PANEL]);
                } else {
                    drop_below::<0>(&words, threshold, scale, low);
                    drop_below::<16>(&words, threshold, scale, high);
                }
            }
        }
    }
}

/// Drops values of whose words the 16 bits from bit `FROM` on are below `threshold`.
#[inline(always)]
fn drop_below<const FROM: u32>(
    words: &[[u32; WORDS]; BLOCKS],
    threshold: u32,
    scale: f32,
    values: &mut [f32],
) {
    for (value, word) in values.iter_mut().zip(words.as_flattened()) {
        *value = if (*word >> FROM) & 0xFFFF < threshold { 0.0 } else { *value * scale };
    }
}

/// What kept units are multiplied by.
#[must_use]
pub fn kept_scale(probability: f32) -> f32 {
    1.0 / (1.0 - probability)
}

/// Random words of one block of the generator.
const WORDS: usize = 4;
// Two rows of neighbouring blocks of the layout take the words of blocks that are made together:
// the first one the lower halves, the other the upper ones.
const _: () = assert!(PANEL == WORDS * BLOCKS);

#[cfg(test)]
mod tests {
    use std::vec;

    use super::{ActivationsMut, StepKey};
    use crate::kernel::{Strides, blocked_len};
    use crate::rng::{Purpose, Stream};

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

    /// Word by word, as it is defined: a word for units j and j + 32 of every 64.
    #[test]
    fn masks_are_those_of_the_definition() {
        let (units, rows, probability) = (75_usize, [7, 0, u64::MAX], 0.3);
        let mut values = vec![1.0; rows.len() * units];
        drop_units(KEY, 4, probability, &rows, units, &mut values);
        let step_seed = Stream::new(KEY.seed, Purpose::Dropout(4)).word(KEY.step);
        let stream = Stream::new(step_seed, Purpose::Dropout(4));
        for (i, row) in rows.into_iter().enumerate() {
            for unit in 0..units {
                let (pair, upper, place) = (unit / 64, unit / 32 % 2, unit % 32);
                let block = row.wrapping_mul(16).wrapping_add((8 * pair + place / 4) as u64);
                let bits = (stream.block(block)[place % 4] >> (16 * upper)) & 0xFFFF;
                let expected = if bits < 19_661 { 0.0 } else { super::kept_scale(probability) };
                assert_eq!(values[i * units + unit], expected, "row {row}, unit {unit}");
            }
        }
    }

    /// Whatever the width and the layout: as row by row.
    #[test]
    fn every_layout_has_the_same_masks() {
        for units in [1, 31, 32, 33, 64, 65, 96, 130] {
            let rows = [7, 0, 5];
            let mut values = vec![1.0; rows.len() * units];
            drop_units(KEY, 1, 0.4, &rows, units, &mut values);
            let mut blocked = vec![1.0; blocked_len(rows.len(), units)];
            let mut view = ActivationsMut::blocked(&mut blocked, rows.len(), units);
            super::drop_units(KEY, 1, 0.4, &rows, &mut view);
            for (i, row) in values.chunks_exact(units).enumerate() {
                let mut got = vec![0.0; units];
                view.view().copy_row(i, &mut got);
                assert_eq!(got, row, "{units} units");
            }
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
