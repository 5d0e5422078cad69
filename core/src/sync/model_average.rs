//! Model averaging: every trainer moves towards the mean of all replicas.
//!
//! Q. Zheng et al., "ShadowSync: performing synchronization in the background for highly scalable
//! distributed training", arXiv 2003.03477, its MA algorithm; with the workers gated and alpha = 1
//! it is local SGD: S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019,
//! algorithm 1.
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | w^(i) | the slice of the replica, running statistics included | `[slice]` f32 |
//! | n | trainers of the group whose replica is finite and whose workers train | ranks |
//! | α | `alpha` | 1 |
//!
//! Invariants: a round is Load, ReduceMean, Store or Add, in this order. Every trainer joins every
//! round until all have ended. One whose replica is not finite takes part with weight 0, and its
//! replica becomes the mean. One whose workers have ended has brought its work to the mean of all
//! in its last round, and follows with weight 0: at alpha 1 all have that work, below it they have
//! moved alpha of the way to it. In groups (`divide_shuffle.rs`) only its group has it, so there it
//! keeps its weight, and its replica moves like the others'.

use super::divide_shuffle::Spread;
use super::protocol::{Action, Completion, Group, OutOfTurn, Protocol};
use super::reduction::slice;

/// How a replica takes in what a round found, while workers go on changing it.
#[derive(Debug)]
pub enum Intake<'a> {
    /// replica += alpha · (found − replica): pulls back part of what workers did during the round.
    Interpolate,
    /// replica += alpha · (found − replica as loaded): keeps what workers did during the round.
    /// Running statistics interpolate ([`Action::Add`]).
    Delta {
        /// The parameters as loaded. `[slice]` without its running statistics
        loaded: &'a mut [f32],
    },
}

/// The averaging rounds of one trainer.
#[derive(Debug)]
pub struct ModelAverage<'a> {
    round: Round<'a>,
    /// Where differences are averaged, what they are differences to. `[slice]`, else `[0]`
    global: &'a mut [f32],
}

impl<'a> ModelAverage<'a> {
    /// Rounds over `staging: [slice + TAIL]` until all trainers have ended.
    #[must_use]
    pub const fn new(staging: &'a mut [f32], alpha: f32, intake: Intake<'a>) -> Self {
        Self { round: Round::new(staging, alpha, intake, None), global: &mut [] }
    }

    /// The same, which average what replicas have over `global: [slice]`, the model that all
    /// trainers have last moved towards, instead of replicas.
    #[must_use]
    pub const fn of_differences(
        staging: &'a mut [f32],
        alpha: f32,
        intake: Intake<'a>,
        global: &'a mut [f32],
    ) -> Self {
        Self { round: Round::new(staging, alpha, intake, None).of_differences(), global }
    }

    /// One round after which all replicas are the mean, bit for bit.
    #[must_use]
    pub const fn once(staging: &'a mut [f32]) -> Self {
        let round = Round::new(staging, 1.0, Intake::Interpolate, Some(1));
        Self { round, global: &mut [] }
    }
}

impl Protocol for ModelAverage<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        self.round.step(last, self.global, |_, _| {})
    }

    fn staging(&mut self) -> &mut [f32] {
        self.round.staging
    }
}

/// The rounds that averaging methods share; they differ in what they make of the mean.
#[derive(Debug)]
pub(super) struct Round<'a> {
    pub(super) staging: &'a mut [f32],
    alpha: f32,
    intake: Intake<'a>,
    /// What is averaged are differences of replicas to the global model.
    differences: bool,
    /// Rounds left; without a number, until all have ended.
    left: Option<u64>,
    /// The number of the round, and how its groups hear of each other; `None`: all in every round.
    dealt: Option<(&'a mut u64, Spread<'a>)>,
    /// Staging holds the replica of a trainer whose workers have ended.
    holds: bool,
    /// Rounds for which this trainer has heard of nobody who wanted another.
    silent: u32,
    /// This trainer's say in the round: 0 when its replica was not finite or its workers have
    /// ended.
    weight: f32,
    outstanding: Option<Action>,
}

impl<'a> Round<'a> {
    pub(super) const fn new(
        staging: &'a mut [f32],
        alpha: f32,
        intake: Intake<'a>,
        left: Option<u64>,
    ) -> Self {
        Self {
            staging,
            alpha,
            intake,
            differences: false,
            left,
            dealt: None,
            holds: false,
            silent: 0,
            weight: 0.0,
            outstanding: None,
        }
    }

    /// What is averaged are differences of replicas to the global model.
    pub(super) const fn of_differences(mut self) -> Self {
        self.differences = true;
        self
    }

    pub(super) fn dealt(
        staging: &'a mut [f32],
        alpha: f32,
        intake: Intake<'a>,
        spread: Spread<'a>,
        round: &'a mut u64,
    ) -> Self {
        let mut it = Self::new(staging, alpha, intake, None);
        it.dealt = Some((round, spread));
        it
    }

    /// The next action; `make` turns the mean in the slice into what replicas move towards.
    /// `global`: of differences, the model that they are to; else it is `make`'s alone.
    pub(super) fn step(
        &mut self,
        last: Completion,
        global: &mut [f32],
        make: impl FnOnce(&mut [f32], &mut [f32]),
    ) -> Result<Action, OutOfTurn> {
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _) => Action::Finish,
            (None, Completion::Start)
            | (Some(Action::Store { .. } | Action::Add { .. }), Completion::Done) => {
                self.next_round()
            }
            (Some(Action::Load), Completion::Loaded { finite, last }) => {
                self.loaded(finite, global);
                self.reduce(self.left.is_none() && !last)
            }
            // Of all trainers, each has the work of this one already: it follows. In groups others
            // may not: it keeps its say with what it has, until the end that all agree on.
            (Some(Action::Load), Completion::Stop) if self.dealt.is_none() => {
                self.weight = 0.0;
                self.reduce(false)
            }
            (Some(Action::Load), Completion::Stop) if self.holds => self.reduce(false),
            (Some(Action::Load), Completion::Stop) => Action::Read,
            (Some(Action::Read), Completion::Loaded { finite, .. }) => {
                self.loaded(finite, global);
                self.holds = finite;
                self.reduce(false)
            }
            (Some(Action::ReduceMean { .. }), Completion::Reduced { weight, silent }) => {
                self.heard(silent);
                // In a small group this trainer may be the only one with a say: its replica is the
                // mean.
                let own = if self.dealt.is_some() { self.weight } else { 0.0 };
                if weight > own {
                    self.holds = false;
                    self.take_in(global, make)
                } else {
                    self.next_round()
                }
            }
            (expected, got) => return Err(OutOfTurn { expected, got }),
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    /// The replica is in staging.
    fn loaded(&mut self, finite: bool, global: &[f32]) {
        let replica = slice(self.staging);
        if let Intake::Delta { loaded } = &mut self.intake {
            loaded.copy_from_slice(&replica[..loaded.len()]);
        }
        if self.differences {
            replica.iter_mut().zip(global).for_each(|(x, global)| *x -= global);
        }
        self.weight = if finite { 1.0 } else { 0.0 };
    }

    fn next_round(&mut self) -> Action {
        match &mut self.left {
            Some(0) => return Action::Finish,
            Some(left) => *left -= 1,
            None => {}
        }
        Action::Load
    }

    fn reduce(&mut self, more: bool) -> Action {
        self.silent = if more { 0 } else { self.silent + 1 };
        let group = match &self.dealt {
            None => Group::All,
            Some((round, _)) => Group::Dealt { round: **round },
        };
        Action::ReduceMean { group, weight: self.weight, silent: self.silent }
    }

    /// Counts the round, and ends the rounds when nobody can want another.
    fn heard(&mut self, silent: u32) {
        self.silent = silent;
        let over = silent > 0
            && self.dealt.as_mut().is_none_or(|(round, spread)| {
                spread.reaches_all(**round + 1 - u64::from(silent), u64::from(silent))
            });
        if let Some((round, _)) = &mut self.dealt {
            **round += 1;
        }
        if self.left.is_none() && over {
            self.left = Some(0);
        }
    }

    fn take_in(&mut self, global: &mut [f32], make: impl FnOnce(&mut [f32], &mut [f32])) -> Action {
        let found = slice(self.staging);
        if self.differences {
            found.iter_mut().zip(&*global).for_each(|(x, global)| *x += global);
        }
        make(found, global);
        if self.differences {
            global.copy_from_slice(found);
        }
        match &self.intake {
            _ if self.weight == 0.0 => Action::Store { alpha: 1.0 },
            Intake::Interpolate => Action::Store { alpha: self.alpha },
            Intake::Delta { loaded } => {
                found.iter_mut().zip(loaded.iter()).for_each(|(x, loaded)| *x -= loaded);
                Action::Add { alpha: self.alpha, parameters: loaded.len() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::reduction::TAIL;

    fn reduce(weight: f32, silent: u32) -> Result<Action, OutOfTurn> {
        Ok(Action::ReduceMean { group: Group::All, weight, silent })
    }

    const LOADED: Completion = Completion::Loaded { finite: true, last: false };

    /// A life of a trainer beside one that lives longer: a round, a round without a mean, one with
    /// a replica that is not finite, one after its workers have ended, the last.
    #[test]
    fn the_turns_of_a_trainer() {
        let (mut staging, mut loaded) = ([0.0; 1 + TAIL], [0.0]);
        let mut it = ModelAverage::new(&mut staging, 0.25, Intake::Delta { loaded: &mut loaded });
        let reduced = |weight, silent| Completion::Reduced { weight, silent };
        let bad = Completion::Loaded { finite: false, last: false };
        let rounds = [
            (
                LOADED,
                reduce(1.0, 0),
                reduced(2.0, 0),
                Some(Action::Add { alpha: 0.25, parameters: 1 }),
            ),
            (bad, reduce(0.0, 0), reduced(0.0, 0), None),
            (bad, reduce(0.0, 0), reduced(1.0, 0), Some(Action::Store { alpha: 1.0 })),
            (Completion::Stop, reduce(0.0, 1), reduced(1.0, 0), Some(Action::Store { alpha: 1.0 })),
            (Completion::Stop, reduce(0.0, 1), reduced(0.0, 1), None),
        ];
        let mut next = it.step(Completion::Start);
        for (load, reduce, reduced, intake) in rounds {
            assert_eq!(next, Ok(Action::Load));
            assert_eq!(it.step(load), reduce);
            next = it.step(reduced);
            if let Some(intake) = intake {
                assert_eq!(next, Ok(intake));
                next = it.step(Completion::Done);
            }
        }
        assert_eq!(next, Ok(Action::Finish));
        assert_eq!(it.step(Completion::Done), Ok(Action::Finish));
    }

    /// A delta is what the mean has over the replica as loaded; running statistics are the mean's.
    #[test]
    fn a_delta_is_from_what_was_loaded() {
        let (mut staging, mut loaded) = ([0.0; 2 + TAIL], [0.0]);
        let mut it = ModelAverage::new(&mut staging, 0.5, Intake::Delta { loaded: &mut loaded });
        assert_eq!(it.step(Completion::Start), Ok(Action::Load));
        it.staging()[..2].fill(3.0);
        assert_eq!(it.step(LOADED), reduce(1.0, 0));
        it.staging()[..2].fill(7.0);
        let reduced = Completion::Reduced { weight: 2.0, silent: 1 };
        assert_eq!(it.step(reduced), Ok(Action::Add { alpha: 0.5, parameters: 1 }));
        assert_eq!(it.staging()[..2], [4.0, 7.0]);
        assert_eq!(it.step(Completion::Done), Ok(Action::Finish), "nobody wants more");
    }

    /// What replicas have over the global model is averaged, and they move to it and the mean.
    #[test]
    fn differences_are_to_what_replicas_moved_towards() {
        let (mut staging, mut global) = ([0.0; 1 + TAIL], [2.0]);
        let intake = Intake::Interpolate;
        let mut it = ModelAverage::of_differences(&mut staging, 0.5, intake, &mut global);
        assert_eq!(it.step(Completion::Start), Ok(Action::Load));
        for (replica, difference, mean, towards) in [(3.0, 1.0, 4.0, 6.0), (7.0, 1.0, -2.0, 4.0)] {
            it.staging()[0] = replica;
            assert_eq!(it.step(LOADED), reduce(1.0, 0));
            assert_eq!(it.staging()[0], difference);
            it.staging()[0] = mean;
            let reduced = Completion::Reduced { weight: 2.0, silent: 0 };
            assert_eq!(it.step(reduced), Ok(Action::Store { alpha: 0.5 }));
            assert_eq!(it.staging()[0], towards);
            assert_eq!(it.step(Completion::Done), Ok(Action::Load));
        }
        assert_eq!(global, [4.0]);
    }

    #[test]
    fn once_asks_for_no_other_round() {
        let mut staging = [0.0; 1 + TAIL];
        let mut it = ModelAverage::once(&mut staging);
        assert_eq!(it.step(Completion::Start), Ok(Action::Load));
        assert_eq!(it.step(LOADED), reduce(1.0, 1));
        let reduced = Completion::Reduced { weight: 2.0, silent: 1 };
        assert_eq!(it.step(reduced), Ok(Action::Store { alpha: 1.0 }));
        assert_eq!(it.step(Completion::Done), Ok(Action::Finish));
    }
}
