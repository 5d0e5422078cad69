//! Slow momentum on averages in groups: after each round a trainer goes on from where it was before
//! its steps by their mean within the group, and by part of the last such move again.
//!
//! J. Wang, V. Tantia, N. Ballas, M. Rabbat, "SlowMo: improving communication-efficient distributed
//! SGD with slow momentum", ICLR 2020 (arXiv 1910.00643), algorithm 1 without its exact average
//! ("SlowMo-noaverage"): every trainer has an anchor and a velocity of its own. The groups are
//! those of DS-Sync (`divide_shuffle.rs`); the two together are this project's own.
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | x_{t,0} | what a trainer went on from, `global` of [`BlockState`] | `[slice]` f32 |
//! | −γ u_t | `momentum` of [`BlockState`] | `[slice]` f32 |
//! | β, α | `momentum`, `rate` of [`Blocks`] | 1 |
//!
//! Invariants: rounds, the agreed end and what a trainer that has ended does are those of
//! `divide_shuffle.rs`. Momentum 0 and rate 1 are DS-Sync, to the last bit.

use super::block_momentum::{BlockState, Blocks, follow};
use super::divide_shuffle::Spread;
use super::model_average::{Intake, Round};
use super::protocol::{Action, Completion, OutOfTurn, Protocol};

/// The rounds of one trainer.
#[derive(Debug)]
pub struct SlowGroups<'a> {
    round: Round<'a>,
    blocks: Blocks,
    state: BlockState<'a>,
    parameters: usize,
}

impl<'a> SlowGroups<'a> {
    /// Rounds over `staging: [slice + TAIL]` until all trainers have ended, in the groups that
    /// `spread` deals; `number`: of the next round. The first `parameters` elements have momentum.
    #[must_use]
    pub fn new(
        (staging, number): (&'a mut [f32], &'a mut u64),
        (alpha, intake): (f32, Intake<'a>),
        spread: Spread<'a>,
        blocks: Blocks,
        state: BlockState<'a>,
        parameters: usize,
    ) -> Self {
        let round = Round::dealt(staging, alpha, intake, spread, number);
        Self { round, blocks, state, parameters }
    }
}

impl Protocol for SlowGroups<'_> {
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
