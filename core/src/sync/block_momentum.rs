//! Block-momentum model updating: the mean of the replicas is a proposal, and a global model follows
//! it with momentum.
//!
//! K. Chen, Q. Huo, "Scalable training of deep learning machines by incremental block training with
//! intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016 (BMUF); in the
//! background: arXiv 2003.03477, its BMUF algorithm.
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
//! Invariants: `global` and `momentum` have the same bits on all trainers, since they are made of the
//! same means. ζ = 1 and μ = 0 is model averaging. Running statistics (elements from `parameters` on) are
//! averaged without momentum: a variance must not overshoot below 0.

use super::model_average::{Intake, Round};
use super::protocol::{Action, Completion, OutOfTurn, Protocol};
use crate::units::Nanos;

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
    /// W_g: the model that replicas move towards; the initial model before the first round. `[slice]`
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
}

impl Protocol for BlockMomentum<'_> {
    fn step(&mut self, _now: Nanos, last: Completion) -> Result<Action, OutOfTurn> {
        let (blocks, state, parameters) = (self.blocks, &mut self.state, self.parameters);
        self.round.step(last, |mean| follow(blocks, state, parameters, mean))
    }

    fn staging(&mut self) -> &mut [f32] {
        self.round.staging
    }
}

/// Moves the global model after `mean`, which becomes the model that replicas move towards.
fn follow(blocks: Blocks, state: &mut BlockState<'_>, parameters: usize, mean: &mut [f32]) {
    let Blocks { rate, momentum, nesterov } = blocks;
    let (moved, averaged) = mean.split_at_mut(parameters);
    let elements = moved.iter_mut().zip(&mut *state.global).zip(&mut *state.momentum);
    for ((x, global), velocity) in elements {
        let step = rate * (*x - *global);
        *velocity = momentum * *velocity + step;
        *global += if nesterov { step + momentum * *velocity } else { *velocity };
        *x = *global;
    }
    state.global[parameters..].copy_from_slice(averaged);
}
