//! What a record of a row is: its values, and its optimizer state behind them.

use crate::kernel::Precision;

/// Lengths of the parts of a record, the same for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Values of a row.
    pub width: usize,
    /// f32s of its optimizer state.
    pub state_len: usize,
    /// What values are in memory: f32s, or bf16s, two to a word, the first in the lower half. Of
    /// an odd number the last word's upper half is 0.
    pub precision: Precision,
}

impl Record {
    /// Words of the values.
    #[must_use]
    pub const fn value_words(&self) -> usize {
        match self.precision {
            Precision::F32 => self.width,
            Precision::Bf16 => self.width.div_ceil(2),
        }
    }

    /// The same without its state.
    #[must_use]
    pub const fn without_state(&self) -> Self {
        Self { state_len: 0, ..*self }
    }

    /// Words of a record.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.value_words() + self.state_len
    }

    /// f32s of a record whose values are f32s.
    #[must_use]
    pub const fn len_f32(&self) -> usize {
        self.width + self.state_len
    }

    /// The values of a record, whose word at a place is `word(place)`.
    pub fn values<F: Fn(usize) -> u32>(self, word: F) -> impl Iterator<Item = f32> + use<F> {
        (0..self.width).map(move |at| {
            f32::from_bits(match self.precision {
                Precision::F32 => word(at),
                Precision::Bf16 if at % 2 == 0 => word(at / 2) << 16,
                Precision::Bf16 => word(at / 2) & 0xffff_0000,
            })
        })
    }

    /// Writes records as bits of f32s, exactly. `words: [records, words()]`, `out: [records,
    /// len_f32()]`
    pub fn unpack(&self, words: &[u32], out: &mut [u32]) {
        if self.precision == Precision::F32 {
            return out.copy_from_slice(words);
        }
        let records = words.chunks_exact(self.words()).zip(out.chunks_exact_mut(self.len_f32()));
        for (words, out) in records {
            let (values, state) = out.split_at_mut(self.width);
            for (pair, word) in values.chunks_mut(2).zip(words) {
                pair[0] = word << 16;
                if let Some(second) = pair.get_mut(1) {
                    *second = word & 0xffff_0000;
                }
            }
            state.copy_from_slice(&words[self.value_words()..]);
        }
    }
}
