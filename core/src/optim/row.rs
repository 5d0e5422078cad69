//! Optimizers of embedding rows.
//!
//! A row travels as one record, `[values | state]`, so that the two are saved and recovered
//! together. Row-wise Adagrad keeps one accumulator per row, the mean of the squared gradient over
//! its elements (FBGEMM's and the reference DLRM's `RWSAdagrad`). Adam is lazy: a row's moments
//! move only when the row is touched, and its bias correction counts the row's own steps.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use super::rule::{Optimizer, OptimizerKind, StepSize};
use crate::float;
use crate::kernel::isa::{FLUSHED_BELOW, Isa};
use crate::kernel::row_values::RowValues;
use crate::kernel::update::{sum_of_squares, sum_of_squares_decayed, update_row};

/// The optimizers for rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparseOptimizer {
    /// An element rule, the same as for dense parameters.
    Elementwise(Optimizer),
    /// Adagrad with one accumulator per row.
    RowwiseAdagrad {
        /// Added to the root.
        eps: f32,
        /// Accumulator at the start.
        initial: f32,
        /// λ of `g ← g + λp`.
        weight_decay: f32,
    },
}

impl SparseOptimizer {
    const fn counts_steps(&self) -> bool {
        matches!(self, Self::Elementwise(Optimizer { kind: OptimizerKind::Adam(_), .. }))
    }

    /// f32s of state behind a row of `width` values.
    #[must_use]
    pub const fn state_len(&self, width: usize) -> usize {
        match self {
            Self::Elementwise(rule) => {
                rule.state_planes() * width + if self.counts_steps() { 1 } else { 0 }
            }
            Self::RowwiseAdagrad { .. } => 1,
        }
    }

    /// State of a row that was never updated. `[state_len]`
    pub fn initialize(&self, state: &mut [f32]) {
        match self {
            Self::Elementwise(rule) => state.fill(rule.initial_state()),
            Self::RowwiseAdagrad { initial, .. } => state.fill(*initial),
        }
    }

    /// Runs a loop over rows with this optimizer, as one whose kind the compiler knows there: what
    /// kind it is, is asked once and not of every row, and a rule keeps what it works on in
    /// registers.
    #[inline(always)]
    pub(crate) fn run<I: Isa>(&self, isa: I, rows: impl RowLoop) {
        match self {
            Self::Elementwise(rule) => match rule.kind {
                OptimizerKind::Sgd => rows.run(isa, rule.of_kind(OptimizerKind::Sgd)),
                OptimizerKind::Momentum { beta } => {
                    rows.run(isa, rule.of_kind(OptimizerKind::Momentum { beta }));
                }
                OptimizerKind::Adagrad { eps, initial } => {
                    rows.run(isa, rule.of_kind(OptimizerKind::Adagrad { eps, initial }));
                }
                OptimizerKind::Adam(adam) => {
                    rows.run(isa, rule.of_kind(OptimizerKind::Adam(adam)));
                }
            },
            &Self::RowwiseAdagrad { eps, weight_decay, .. } => {
                rows.run(isa, RowwiseAdagrad { eps, weight_decay });
            }
        }
    }
}

/// How a row is updated, by an optimizer of a known kind.
pub(crate) trait RowRule: Copy {
    /// What is the same for all rows that are updated with one gradient.
    type Known: Copy;

    /// Finds it out. `gradient: [width]`
    fn know<I: Isa>(self, isa: I, gradient: &[f32]) -> Self::Known;

    /// Updates a row with its whole gradient of one step (duplicates coalesced), of which that is
    /// `known`: its values, of as many elements, and its `state` behind them. `gradient: [width]`,
    /// `state: [state_len(width)]`
    fn update_row<I: Isa>(
        self,
        isa: I,
        rate: f32,
        row: (impl RowValues, &[AtomicU32]),
        of: (&[f32], Self::Known),
    );
}

/// A loop that updates rows.
pub(crate) trait RowLoop {
    /// Runs it.
    fn run<I: Isa>(self, isa: I, rule: impl RowRule);
}

impl Optimizer {
    /// This, as a rule of that kind: its own, told where the compiler sees it.
    #[inline(always)]
    const fn of_kind(self, kind: OptimizerKind) -> Self {
        Self { kind, ..self }
    }
}

impl RowRule for Optimizer {
    type Known = ();

    #[inline(always)]
    fn know<I: Isa>(self, _: I, _: &[f32]) {}

    #[inline(always)]
    fn update_row<I: Isa>(
        self,
        isa: I,
        rate: f32,
        (values, state): (impl RowValues, &[AtomicU32]),
        (gradient, ()): (&[f32], ()),
    ) {
        let (planes, own_steps) = state.split_at(self.state_planes() * gradient.len());
        let mut count = 1;
        if let Some(word) = own_steps.first() {
            // The count is kept as an integer's bits: exact beyond 2^24 steps.
            let own = word.load(Relaxed).saturating_add(1);
            word.store(own, Relaxed);
            count = u64::from(own);
        }
        let rule = self.at(StepSize { rate, count });
        update_row(isa, &rule, values, planes, gradient);
    }
}

/// [`SparseOptimizer::RowwiseAdagrad`].
#[derive(Clone, Copy)]
struct RowwiseAdagrad {
    eps: f32,
    weight_decay: f32,
}

impl RowRule for RowwiseAdagrad {
    /// Without weight decay, the sum of its squares.
    type Known = Option<f32>;

    #[inline(always)]
    fn know<I: Isa>(self, isa: I, gradient: &[f32]) -> Option<f32> {
        // No closure: what is not inlined has none of the set's instructions.
        if self.weight_decay == 0.0 { Some(sum_of_squares(isa, gradient)) } else { None }
    }

    #[inline(always)]
    fn update_row<I: Isa>(
        self,
        isa: I,
        rate: f32,
        (values, state): (impl RowValues, &[AtomicU32]),
        (gradient, known): (&[f32], Option<f32>),
    ) {
        let squares = match known {
            Some(squares) => squares,
            None => sum_of_squares_decayed(isa, self.weight_decay, values, gradient),
        };
        let sum = f32::from_bits(state[0].load(Relaxed)) + squares / gradient.len() as f32;
        let kept = if sum < FLUSHED_BELOW { 0.0 } else { sum };
        state[0].store(kept.to_bits(), Relaxed);
        let rate = rate / (float::sqrt(sum) + self.eps);
        let descent = Optimizer { kind: OptimizerKind::Sgd, weight_decay: self.weight_decay };
        let rule = descent.at(StepSize { rate, count: 1 });
        update_row(isa, &rule, values, &[], gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Adam;
    use super::*;
    use crate::kernel::isa::Plain;
    use crate::kernel::row_values::Whole;
    use crate::kernel::shared;

    /// One row.
    struct Row<'a>(&'a [AtomicU32], &'a [f32]);

    impl RowLoop for Row<'_> {
        fn run<I: Isa>(self, isa: I, rule: impl RowRule) {
            let Self(record, gradient) = self;
            let (values, state) = record.split_at(gradient.len());
            rule.update_row(isa, 0.1, (Whole(values), state), (gradient, rule.know(isa, gradient)));
        }
    }

    fn update(optimizer: &SparseOptimizer, record: &mut [f32], gradient: &[f32]) {
        optimizer.run(Plain::new(), Row(shared(record), gradient));
    }

    #[test]
    fn rowwise_adagrad_divides_by_the_root_of_the_mean_square() {
        let optimizer =
            SparseOptimizer::RowwiseAdagrad { eps: 0.0, initial: 0.0, weight_decay: 0.0 };
        let mut record = [1.0, 1.0, 0.0];
        update(&optimizer, &mut record, &[3.0, 4.0]);
        assert_eq!(record[2], 12.5);
        assert!((record[0] - (1.0 - 0.1 * 3.0 / 12.5f32.sqrt())).abs() < 1e-6);
    }

    #[test]
    fn the_sum_of_a_row_does_not_stay_denormal() {
        let optimizer =
            SparseOptimizer::RowwiseAdagrad { eps: 0.0, initial: 0.0, weight_decay: 0.0 };
        let mut record = [1.0, 1.0, f32::MIN_POSITIVE / 2.0];
        update(&optimizer, &mut record, &[0.0, 0.0]);
        assert_eq!(record, [1.0, 1.0, 0.0]);
    }

    #[test]
    fn rows_of_adam_count_their_own_steps() {
        let adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
        let rule = Optimizer { kind: OptimizerKind::Adam(adam), weight_decay: 0.0 };
        let optimizer = SparseOptimizer::Elementwise(rule);
        assert_eq!(optimizer.state_len(2), 5);
        let mut record = [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let (mut p, mut m, mut v) = ([1.0, -1.0], [0.0; 2], [0.0; 2]);
        for count in 1..=3 {
            let gradient = [0.5 * count as f32, -0.25];
            update(&optimizer, &mut record, &gradient);
            rule.update(StepSize { rate: 0.1, count }, &mut p, &mut m, &mut v, &gradient);
        }
        assert_eq!(record[..2], p);
        assert_eq!(record[6].to_bits(), 3);
    }
}
