//! Block-momentum model updating: the mean of the replicas is a proposal, and a global model
//! follows it with momentum.
//!
//! K. Chen, Q. Huo, "Scalable training of deep learning machines by incremental block training with
//! intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016 (BMUF); in
//! the background: arXiv 2003.03477, its BMUF algorithm.
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | G(t) = mean − W_g(t − 1) | what the mean adds to the global model | `[slice]` f32 |
//! | Δ(t) = μ Δ(t − 1) + ζ G(t) | `momentum` | `[slice]` f32 |
//! | W(t) = W(t − 1) + Δ(t) | `global` | `[slice]` f32 |
//! | classic: W_g(t) = W(t) | replicas move towards `global` | |
//! | Nesterov: W_g(t) = W(t) + μ Δ(t) | replicas and the next G start a step of momentum ahead: `global` += ζ G + μ Δ | |
//! | ζ, μ | `rate`, `momentum` of [`Blocks`] | 1 |
//!
//! Invariants: `global` and `momentum` have the same bits on all trainers, since they are made of
//! the same means. ζ = 1 and μ = 0 is model averaging, to the last bit. Running statistics
//! (elements from `parameters` on) are averaged without momentum: a variance must not overshoot
//! below 0.

use super::model_average::{Intake, Round};
use super::protocol::{Action, Completion, OutOfTurn, Protocol};

/// How the global model follows the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// ζ: share of the mean's step that is taken.
    pub rate: f32,
    /// μ: share of the last step that is taken again.
    pub momentum: f32,
    /// Replicas start from where momentum alone would lead.
    pub nesterov: bool,
}

/// What a trainer keeps from round to round; lent, and valid from one protocol to the next.
#[derive(Debug)]
pub struct BlockState<'a> {
    /// W_g: the model that replicas move towards; the initial model before the first round.
    /// `[slice]`
    pub global: &'a mut [f32],
    /// Δ, 0 before the first round. `[slice]`
    pub momentum: &'a mut [f32],
}

/// The rounds of one trainer.
#[derive(Debug)]
pub struct BlockMomentum<'a> {
    round: Round<'a>,
    blocks: Blocks,
    state: BlockState<'a>,
    parameters: usize,
}

impl<'a> BlockMomentum<'a> {
    /// Rounds over `staging: [slice + TAIL]` until all trainers have ended. The first `parameters`
    /// elements have momentum.
    #[must_use]
    pub const fn new(
        staging: &'a mut [f32],
        alpha: f32,
        intake: Intake<'a>,
        blocks: Blocks,
        state: BlockState<'a>,
        parameters: usize,
    ) -> Self {
        Self { round: Round::new(staging, alpha, intake, None), blocks, state, parameters }
    }

    /// What is averaged is what replicas have over the global model.
    #[must_use]
    pub const fn of_differences(mut self) -> Self {
        self.round = self.round.of_differences();
        self
    }
}

impl Protocol for BlockMomentum<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let (blocks, state, parameters) = (self.blocks, &mut self.state, self.parameters);
        let BlockState { global, momentum } = state;
        self.round.step(last, global, |mean, global| {
            follow(blocks, &mut BlockState { global, momentum }, parameters, mean);
        })
    }

    fn staging(&mut self) -> &mut [f32] {
        self.round.staging
    }
}

/// Moves the global model after `mean`, which becomes the model that replicas move towards.
pub(super) fn follow(
    blocks: Blocks,
    state: &mut BlockState<'_>,
    parameters: usize,
    mean: &mut [f32],
) {
    let Blocks { rate, momentum, nesterov } = blocks;
    let (moved, averaged) = mean.split_at_mut(parameters);
    let elements = moved.iter_mut().zip(&mut *state.global).zip(&mut *state.momentum);
    for ((x, global), velocity) in elements {
        let (gain, before) = (*x - *global, *velocity);
        *velocity = momentum * before + rate * gain;
        let ahead = momentum * if nesterov { *velocity } else { before };
        // From the mean, not from the old model: with ζ = 1 and μ = 0 there is nothing to round.
        *global = *x + ((rate - 1.0) * gain + ahead);
        *x = *global;
    }
    state.global[parameters..].copy_from_slice(averaged);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::reduction::TAIL;

    /// Two rounds towards the mean 8 from 0 with ζ = 1/2 and μ = 1/2, by hand; the second element
    /// is a statistic.
    #[test]
    fn two_rounds_by_hand() {
        for (nesterov, expected) in [(false, [4.0, 8.0]), (true, [6.0, 8.5])] {
            let (mut staging, mut global, mut momentum) = ([0.0; 2 + TAIL], [0.0; 2], [0.0; 2]);
            let blocks = Blocks { rate: 0.5, momentum: 0.5, nesterov };
            let state = BlockState { global: &mut global, momentum: &mut momentum };
            let intake = Intake::Interpolate;
            let mut machine = BlockMomentum::new(&mut staging, 0.25, intake, blocks, state, 1);
            assert_eq!(machine.step(Completion::Start), Ok(Action::Load));
            for expected in expected {
                let reduce = machine.step(Completion::Loaded { finite: true, last: false });
                assert!(matches!(reduce, Ok(Action::ReduceMean { weight: 1.0, silent: 0, .. })));
                machine.staging()[..2].copy_from_slice(&[8.0, 3.0]);
                let reduced = Completion::Reduced { weight: 2.0, silent: 0 };
                assert_eq!(machine.step(reduced), Ok(Action::Store { alpha: 0.25 }));
                assert_eq!(machine.staging()[..2], [expected, 3.0], "nesterov {nesterov}");
                assert_eq!(machine.step(Completion::Done), Ok(Action::Load));
            }
            assert_eq!(momentum[1], 0.0, "no momentum for statistics");
        }
    }

    /// Also where the mean is so far from the model that their difference is rounded.
    #[test]
    fn without_momentum_the_mean_is_the_model() {
        for (mean, model) in [(1.0, 1e8), (0.1, -3.0), (1e-9, 1.0), (0.3, 0.3)] {
            for nesterov in [false, true] {
                let (mut x, mut global, mut momentum) = ([mean], [model], [0.0]);
                let mut state = BlockState { global: &mut global, momentum: &mut momentum };
                let blocks = Blocks { rate: 1.0, momentum: 0.0, nesterov };
                follow(blocks, &mut state, 1, &mut x);
                assert_eq!((x, global), ([mean], [mean]), "from {model}");
            }
        }
    }
}
