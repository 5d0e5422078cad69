//! Elastic averaging: each trainer and a center pull at each other, without the other trainers.
//!
//! S. Zhang, A. Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD", NIPS 2015,
//! algorithm 1 (the same-pair form); in the background, with the center on a sync PS: arXiv
//! 2003.03477, its EASGD algorithm (the sequential form).
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | w^(i) | the slice of a trainer's replica | `[slice]` f32 |
//! | w^PS, x̃ | `center` | `[slice]` f32 |
//! | α | `alpha` | 1 |
//!
//! | form | center | trainer |
//! | --- | --- | --- |
//! | sequential | c += α (w − c), sends c | w += α (c − w) |
//! | same pair | sends c, c += α (w − c) | w += α (c − w as sent) |
//!
//! Both are sent states and no pull, so that a message that leaves out what has hardly moved (arXiv
//! 2010.08899) brings nobody out of step: pulls that come later, all at once, would take a trainer
//! to where the center was, and the center is by then where the trainer was.
//!
//! Invariants: both sides apply to what they have when the message comes, so workers go on
//! meanwhile. Alone, an exchange of the sequential form leaves w − c as (1 − α)² of what it was;
//! one of the same pair leaves w + c as it was and w − c as 1 − 2α of what it was. A replica that
//! is not finite never reaches the center: the trainer fetches the center instead, and becomes it.
//! The center ends when every trainer has said goodbye. An answer of another rank, or to another
//! question, is out of turn.

use super::model_average::Intake;
use super::protocol::{Action, Completion, OutOfTurn, Payload, Protocol};
use super::reduction::{TAIL, slice};

/// Which values the two sides of an exchange see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pair {
    /// The trainer moves towards the center that has moved already.
    #[default]
    Sequential,
    /// Both move by the same difference, and what workers do meanwhile stays.
    Same,
}

/// Trainer → center: my values; answer with yours.
const EXCHANGE: u64 = 1;
/// Trainer → center: answer with your values.
const FETCH: u64 = 2;
/// Trainer → center: I will not come again.
const GOODBYE: u64 = 3;

/// The trainer's side of one slice.
#[derive(Debug)]
pub struct ElasticTrainer<'a> {
    staging: &'a mut [f32],
    center: usize,
    alpha: f32,
    intake: Intake<'a>,
    word: u64,
    outstanding: Option<Action>,
}

impl<'a> ElasticTrainer<'a> {
    /// Exchanges with rank `center` over `staging: [slice + TAIL]` until the workers end. `intake`:
    /// [`Intake::Delta`] of the same pair, else [`Intake::Interpolate`].
    #[must_use]
    pub const fn new(
        staging: &'a mut [f32],
        center: usize,
        alpha: f32,
        intake: Intake<'a>,
    ) -> Self {
        Self { staging, center, alpha, intake, word: FETCH, outstanding: None }
    }

    const fn say(&mut self, word: u64) -> Action {
        self.word = word;
        let payload = if word == EXCHANGE { Payload::State } else { Payload::None };
        Action::Send { to: self.center, word, payload }
    }
}

impl Protocol for ElasticTrainer<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _) => Action::Finish,
            (None, Completion::Start)
            | (Some(Action::Store { .. } | Action::Add { .. }), Completion::Done) => Action::Load,
            (Some(Action::Load), Completion::Loaded { finite: true, .. }) => {
                if let Intake::Delta { loaded } = &mut self.intake {
                    loaded.copy_from_slice(&slice(self.staging)[..loaded.len()]);
                }
                self.say(EXCHANGE)
            }
            (Some(Action::Load), Completion::Loaded { finite: false, .. }) => self.say(FETCH),
            (Some(Action::Load), Completion::Stop) => self.say(GOODBYE),
            (Some(Action::Send { word: GOODBYE, .. }), Completion::Done) => Action::Finish,
            (Some(Action::Send { .. }), Completion::Done) => {
                Action::Receive { from: Some(self.center) }
            }
            (Some(Action::Receive { .. }), Completion::Received { from, word, elements })
                if (from, word, elements)
                    == (self.center, self.word, self.staging.len() - TAIL) =>
            {
                match &self.intake {
                    _ if word == FETCH => Action::Store { alpha: 1.0 },
                    Intake::Interpolate => Action::Store { alpha: self.alpha },
                    Intake::Delta { loaded } => {
                        let center = slice(self.staging).iter_mut();
                        center.zip(&**loaded).for_each(|(c, w)| *c -= w);
                        Action::Add { alpha: self.alpha, parameters: loaded.len() }
                    }
                }
            }
            (expected, got) => return Err(OutOfTurn { expected, got }),
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.staging
    }
}

/// The center's side of one slice.
#[derive(Debug)]
pub struct ElasticCenter<'a> {
    staging: &'a mut [f32],
    center: &'a mut [f32],
    alpha: f32,
    pair: Pair,
    trainers: usize,
    outstanding: Option<Action>,
}

impl<'a> ElasticCenter<'a> {
    /// Serves `trainers` over `staging: [slice + TAIL]` from `center: [slice]`, which is the
    /// initial model before the first exchange.
    #[must_use]
    pub const fn new(
        staging: &'a mut [f32],
        center: &'a mut [f32],
        alpha: f32,
        pair: Pair,
        trainers: usize,
    ) -> Self {
        Self { staging, center, alpha, pair, trainers, outstanding: None }
    }

    fn exchange(&mut self) {
        let received = slice(self.staging);
        for (x, center) in received.iter_mut().zip(&mut *self.center) {
            let before = *center;
            *center += self.alpha * (*x - before);
            *x = match self.pair {
                Pair::Sequential => *center,
                Pair::Same => before,
            };
        }
    }

    const fn listen(&self) -> Action {
        if self.trainers == 0 {
            return Action::Finish;
        }
        Action::Receive { from: None }
    }
}

impl Protocol for ElasticCenter<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _) => Action::Finish,
            (None, Completion::Start) | (Some(Action::Send { .. }), Completion::Done) => {
                self.listen()
            }
            (
                Some(Action::Receive { .. }),
                Completion::Received { from, word: EXCHANGE, elements },
            ) if elements == self.center.len() => {
                self.exchange();
                Action::Send { to: from, word: EXCHANGE, payload: Payload::State }
            }
            (
                Some(Action::Receive { .. }),
                Completion::Received { from, word: FETCH, elements: 0 },
            ) => {
                slice(self.staging).copy_from_slice(self.center);
                Action::Send { to: from, word: FETCH, payload: Payload::Whole }
            }
            (Some(Action::Receive { .. }), Completion::Received { word: GOODBYE, .. })
                if self.trainers > 0 =>
            {
                self.trainers -= 1;
                self.listen()
            }
            (expected, got) => return Err(OutOfTurn { expected, got }),
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.staging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: Action = Action::Receive { from: None };
    const LISTEN_TO_CENTER: Action = Action::Receive { from: Some(5) };

    const fn send(to: usize, word: u64, payload: Payload) -> Result<Action, OutOfTurn> {
        Ok(Action::Send { to, word, payload })
    }

    /// A life of a trainer: an exchange, a fetch, the end.
    #[test]
    fn the_turns_of_a_trainer() {
        let pairs = [
            (Pair::Sequential, Action::Store { alpha: 0.25 }),
            (Pair::Same, Action::Add { alpha: 0.25, parameters: 1 }),
        ];
        for (pair, moves) in pairs {
            let (mut staging, mut loaded) = ([0.0; 1 + TAIL], [0.0]);
            let intake = match pair {
                Pair::Sequential => Intake::Interpolate,
                Pair::Same => Intake::Delta { loaded: &mut loaded },
            };
            let mut it = ElasticTrainer::new(&mut staging, 5, 0.25, intake);
            let mut step = |last| it.step(last);
            let answer = |word| Completion::Received { from: 5, word, elements: 1 };
            let (loaded, refused) =
                [true, false].map(|finite| Completion::Loaded { finite, last: false }).into();
            assert_eq!(step(Completion::Start), Ok(Action::Load));
            assert_eq!(step(loaded), send(5, EXCHANGE, Payload::State));
            assert_eq!(step(Completion::Done), Ok(LISTEN_TO_CENTER));
            let stranger = Completion::Received { from: 4, word: EXCHANGE, elements: 1 };
            let cut = Completion::Received { from: 5, word: EXCHANGE, elements: 0 };
            for wrong in [answer(FETCH), stranger, cut] {
                let refusal = OutOfTurn { expected: Some(LISTEN_TO_CENTER), got: wrong };
                assert_eq!(step(wrong), Err(refusal));
            }
            assert_eq!(step(answer(EXCHANGE)), Ok(moves));
            assert_eq!(step(Completion::Done), Ok(Action::Load));
            assert_eq!(step(refused), send(5, FETCH, Payload::None));
            assert_eq!(step(Completion::Done), Ok(LISTEN_TO_CENTER));
            assert_eq!(step(answer(FETCH)), Ok(Action::Store { alpha: 1.0 }));
            assert_eq!(step(Completion::Done), Ok(Action::Load));
            assert_eq!(step(Completion::Stop), send(5, GOODBYE, Payload::None));
            assert_eq!(step(Completion::Done), Ok(Action::Finish));
            assert_eq!(step(Completion::Start), Ok(Action::Finish));
        }
    }

    /// Two trainers: one exchanges, one fetches, both leave.
    #[test]
    fn the_turns_of_a_center() {
        for (pair, answer) in [(Pair::Sequential, 5.0), (Pair::Same, 4.0)] {
            let (mut staging, mut center) = ([0.0; 1 + TAIL], [4.0]);
            let mut it = ElasticCenter::new(&mut staging, &mut center, 0.25, pair, 2);
            let come = |from, word| {
                let elements = usize::from(word == EXCHANGE);
                Completion::Received { from, word, elements }
            };
            assert_eq!(it.step(Completion::Start), Ok(LISTEN));
            it.staging()[0] = 8.0;
            assert_eq!(it.step(come(1, EXCHANGE)), send(1, EXCHANGE, Payload::State));
            assert_eq!(it.staging()[0], answer);
            assert_eq!(it.step(Completion::Done), Ok(LISTEN));
            assert_eq!(it.step(come(0, FETCH)), send(0, FETCH, Payload::Whole));
            assert_eq!(it.staging()[0], 5.0);
            assert_eq!(it.step(Completion::Done), Ok(LISTEN));
            assert_eq!(it.step(come(1, GOODBYE)), Ok(LISTEN));
            assert_eq!(it.step(come(0, GOODBYE)), Ok(Action::Finish));
        }
    }
}
