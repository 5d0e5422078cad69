//! Dropout: N. Srivastava et al., "Dropout: a simple way to prevent neural networks from
//! overfitting", JMLR 15, 2014; the inverted form, in which kept units are scaled by 1 / (1 − p)
//! during training and nothing happens in evaluation.
//!
//! Invariant: whether a unit is kept is a function of (seed, layer, step, row of the dataset,
//! unit). It does not depend on the example's place in the batch, so cutting a batch among ranks
//! does not change the answer.
//!
//! A probability is a multiple of 2^-16, the nearest: 16 random bits decide about a unit.

use core::ops::Range;

use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::{ActivationsMut, PANEL};
use crate::rng::{BLOCKS, HASHES, Purpose, Stream, hash, hashes};

/// Key of the random numbers of one training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepKey {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the global step, counted over all epochs.
    pub step: u64,
}

/// The masks of examples in one layer and step.
#[derive(Clone, Copy, Debug)]
pub struct Masks<'a> {
    stream: Stream,
    /// A unit is dropped when its 16 random bits are below this.
    threshold: u32,
    scale: f32,
    rows: &'a [u64],
}

/// Examples at a time: their values in two blocks stay in the first cache level.
pub(super) const TOGETHER: usize = 64;

/// Keys of the random numbers of so many examples, or fewer.
pub(super) type Keys = [[u32; 2]; TOGETHER];

impl<'a> Masks<'a> {
    /// Those of layer number `layer`, which drops units with `probability`. `rows: [n]`
    #[must_use]
    pub fn new(key: StepKey, rows: &'a [u64], layer: u32, probability: f32) -> Self {
        let purpose = Purpose::Dropout(layer);
        let step_seed = Stream::new(key.seed, purpose).word(key.step);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..=2^16")]
        let threshold = (probability * 65_536.0 + 0.5) as u32;
        let stream = Stream::new(step_seed, purpose);
        Self { stream, threshold, scale: kept_scale(probability), rows }
    }

    /// Keys of some of the examples, at most [`TOGETHER`].
    #[inline(always)]
    pub(super) fn keys(&self, examples: Range<usize>) -> Keys {
        let mut keys = [[0; 2]; TOGETHER];
        let rows = self.rows[examples].chunks(BLOCKS);
        for (keys, rows) in keys.chunks_exact_mut(BLOCKS).zip(rows) {
            let mut indices = [0; BLOCKS];
            indices[..rows.len()].copy_from_slice(rows);
            for (key, [a, b, ..]) in keys.iter_mut().zip(self.stream.blocks(indices)) {
                *key = [a, b];
            }
        }
        keys
    }

    /// Drops units of the block that begins with `unit` and of the next one, if there is one, and
    /// scales the others. `values`: of the examples that have these keys
    #[inline(always)]
    pub(super) fn apply(&self, keys: &Keys, unit: usize, values: &mut ActivationsMut<'_>) {
        let n = values.view().n();
        for (i, key) in keys.iter().enumerate().take(n) {
            #[expect(clippy::cast_possible_truncation, reason = "no layer is so wide")]
            let words = hashes(*key, (unit / 2) as u32);
            let (low, high) = values.row_pair_mut(i, unit);
            if high.len() == PANEL {
                self.drop_below::<0>(&words, &mut low[..PANEL]);
                self.drop_below::<16>(&words, &mut high[..PANEL]);
            } else {
                self.drop_below::<0>(&words, low);
                self.drop_below::<16>(&words, high);
            }
        }
    }

    /// The word of value number `j` of a row of the block that begins with `unit`, and of the next
    /// one, of the example that has this key.
    #[inline(always)]
    pub(super) const fn word(key: [u32; 2], unit: usize, j: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "no layer is so wide")]
        let number = (unit / 2 + j) as u32;
        hash(key, number)
    }

    /// What becomes of a value by the 16 bits of a word from bit `FROM` on: 0 in the first block,
    /// 16 in the next.
    #[inline(always)]
    pub(super) fn dropped<const FROM: u32>(&self, word: u32, value: f32) -> f32 {
        if (word >> FROM) & 0xFFFF < self.threshold { 0.0 } else { value * self.scale }
    }

    /// [`Self::dropped`] of a row of a block.
    #[inline(always)]
    fn drop_below<const FROM: u32>(&self, words: &[u32; HASHES], values: &mut [f32]) {
        for (value, word) in values.iter_mut().zip(words) {
            *value = self.dropped::<FROM>(*word, *value);
        }
    }
}

/// Drops units of `values` `[n, units]` in place and scales the kept ones.
pub fn drop_units(masks: Masks<'_>, values: &mut ActivationsMut<'_>) {
    run(DropUnits { masks, values });
}

struct DropUnits<'a, 'b> {
    masks: Masks<'a>,
    values: &'a mut ActivationsMut<'b>,
}

impl Kernel for DropUnits<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Self { masks, values } = self;
        let n = values.view().n();
        for start in (0..n).step_by(TOGETHER) {
            let examples = start..n.min(start + TOGETHER);
            let keys = masks.keys(examples.clone());
            let mut values = values.examples(examples);
            for unit in values.firsts().step_by(2) {
                masks.apply(&keys, unit, &mut values);
            }
        }
    }
}

/// What kept units are multiplied by.
#[must_use]
pub fn kept_scale(probability: f32) -> f32 {
    1.0 / (1.0 - probability)
}

// Two rows of neighbouring blocks of the layout take the words that are made together: the first
// one the lower halves, the other the upper ones.
const _: () = assert!(PANEL == HASHES && TOGETHER.is_multiple_of(BLOCKS));

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use std::vec;
    use std::vec::Vec;

    use super::{ActivationsMut, Masks, StepKey};
    use crate::dense::norm::Norm;
    use crate::kernel::{Activations, Strides, blocked_len};
    use crate::rng::{Purpose, Stream, hashes};

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
        super::drop_units(Masks::new(key, rows, layer, probability), &mut values);
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

    /// Behind a norm, two blocks of a few examples at a time: as of a whole output.
    #[test]
    fn a_norm_drops_what_is_dropped_behind_it() {
        let n = super::TOGETHER + 6;
        let rows = (0..n as u64).map(|i| i * 977 % 101).collect::<Vec<u64>>();
        let masks = Masks::new(KEY, &rows, 5, 0.3);
        for units in [1, 31, 32, 33, 64, 65, 96, 130] {
            let norm = Norm { units, scale: 0, shift: units, mean: 0, variance: units };
            let numbers = (0..2 * units).map(|i| 0.5 + (i % 7) as f32);
            let parameters = numbers.map(|x| AtomicU32::new(x.to_bits())).collect::<Vec<_>>();
            let kept = (0..norm.kept_len()).map(|i| 0.1 * i as f64 % 3.0).collect::<Vec<f64>>();
            let x = (0..blocked_len(n, units)).map(|i| (i * 31 % 17) as f32 - 8.0);
            let x = x.collect::<Vec<f32>>();
            let x = Activations::blocked(&x, n, units);
            let output = |masks: Option<Masks<'_>>| {
                let mut y = vec![0.0; blocked_len(n, units)];
                let mut view = ActivationsMut::blocked(&mut y, n, units);
                norm.apply(&parameters, &kept, x, (true, masks), &mut view);
                y
            };
            let mut expected = output(None);
            let mut view = ActivationsMut::blocked(&mut expected, n, units);
            super::drop_units(masks, &mut view);
            assert_eq!(output(Some(masks)), expected, "{units} units");
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
            let [a, b, ..] = stream.block(row);
            for unit in 0..units {
                let (pair, upper, place) = (unit / 64, unit / 32 % 2, unit % 32);
                let words = hashes([a, b], u32::try_from(32 * pair).unwrap());
                let bits = (words[place] >> (16 * upper)) & 0xFFFF;
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
            super::drop_units(Masks::new(KEY, &rows, 1, 0.4), &mut view);
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
