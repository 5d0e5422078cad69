//! Columns of X as rows of a left operand whose sums are over examples.

use super::super::isa::{InPlace, Isa};
use super::super::layout::{Activations, PANEL, place, width_at};
use super::super::transpose::transpose_part;
use super::super::weight::EXAMPLES_AT_MOST;
use super::split::split_rows;
use super::{DEPTH, STEP, Thirds, thirds_len};

/// A tile of them.
#[repr(C, align(64))]
pub(in super::super) struct Turned {
    words: [f32; EXAMPLES_AT_MOST / DEPTH * STEP],
    square: [f32; DEPTH * PANEL],
}

impl Turned {
    pub(in super::super) const NEW: Self =
        Self { words: [0.0; EXAMPLES_AT_MOST / DEPTH * STEP], square: [0.0; DEPTH * PANEL] };

    /// The columns of `x` from `first` on, as many as a tile has.
    ///
    /// # Panics
    /// When there are more examples than [`EXAMPLES_AT_MOST`].
    #[inline(always)]
    pub(in super::super) fn turn<I: Isa>(
        &mut self,
        isa: I,
        x: Activations<'_>,
        first: usize,
    ) -> Thirds<'_> {
        let (n, columns, strides) = (x.n(), width_at(x.width(), first), x.strides());
        let words = &mut self.words[..thirds_len(PANEL, n)];
        let from = x.as_ptr().wrapping_add(place(strides, 0, first));
        for (start, step) in (0..n).step_by(DEPTH).zip(words.chunks_exact_mut(STEP)) {
            let examples = DEPTH.min(n - start);
            for at in (0..examples).step_by(I::LANES) {
                let down = I::LANES.min(examples - at);
                for column in (0..columns).step_by(I::LANES) {
                    let size = (down, I::LANES.min(columns - column));
                    let from = from.wrapping_add((start + at) * strides.row + column);
                    let to = self.square[column * DEPTH + at..].as_mut_ptr();
                    // SAFETY: examples and columns that there are; as many of the square.
                    unsafe {
                        transpose_part(isa, size, (InPlace(from), strides.row), (to, DEPTH));
                    }
                }
            }
            let rows = (InPlace(self.square.as_ptr()), DEPTH);
            // SAFETY: the square has as many rows and columns.
            unsafe { split_rows(isa, (columns, examples), rows, step) }
        }
        Thirds::new(words, columns, n)
    }
}
