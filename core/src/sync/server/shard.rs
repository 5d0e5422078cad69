//! A server's side: the parameters of a slice and their optimizer state.
//!
//! Invariants: an update depends on the members that the dispatcher names, their order and weights,
//! and on nothing else. A pull is answered when its version is there. A gradient whose place is
//! still taken by the batch before it is kept aside and acknowledged when the place is free.

use super::super::gradient_sum::{Divisor, GradientSum};
use super::super::protocol::{Action, Completion, OutOfTurn, Payload, Protocol};
use super::super::reduction::{TAIL, slice};
use super::super::token::{Aggregate, Arrivals, Came, Place};
use super::{
    ACK, END, FLUSH, MEMBER, PARAMETERS, PULL, PUSH, aggregate, member, parts, place_of, word,
};
use crate::optim::{Optimizer, Rate, StepSize};

/// How a server follows the gradient of a global batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Updates {
    /// The optimizer of dense parameters.
    pub optimizer: Optimizer,
    /// Its learning rate, by step of the data.
    pub rate: Rate,
    /// Members of an aggregate, and batches of a step of the data: what versions are in steps.
    pub members_of: (u32, u32),
    /// Share of a global batch in running statistics.
    pub statistics_momentum: f32,
    /// What a sum of gradients is divided by.
    pub divisor: Divisor,
}

/// What a server is lent. `slice` is the number of its elements, `P` of places.
#[derive(Debug)]
pub struct ShardMemory<'a> {
    /// `[slice + TAIL]`
    pub staging: &'a mut [f32],
    /// The parameters, and the running statistics behind them. `[slice]`
    pub values: &'a mut [f32],
    /// Optimizer state of the parameters, plane after plane. `[planes * parameters]`
    pub state: &'a mut [f32],
    /// The sum in the making. `[slice]`
    pub sum: &'a mut [f32],
    /// Gradients that are no members yet, and those that wait for their place. `[2 * P * slice]`
    pub gradients: &'a mut [f32],
    /// `[P]`
    pub places: &'a mut [Place<()>],
    /// `[P]`
    pub aside: &'a mut [Option<(usize, u64)>],
    /// Pulls that wait for a version, by worker. `[workers]`
    pub pulls: &'a mut [Option<u64>],
}

/// The protocol of one server.
#[derive(Debug)]
pub struct Shard<'a> {
    staging: &'a mut [f32],
    values: &'a mut [f32],
    state: &'a mut [f32],
    sum: GradientSum<'a>,
    gradients: &'a mut [f32],
    arrivals: Arrivals<'a, ()>,
    /// By place: who brought the gradient that waits for it, and of which batch.
    aside: &'a mut [Option<(usize, u64)>],
    pulls: &'a mut [Option<u64>],
    updates: Updates,
    /// Elements that are no running statistics.
    parameters: usize,
    dispatcher: usize,
    version: u64,
    /// An acknowledgement that is due.
    owed: Option<(usize, u64)>,
    outstanding: Option<Action>,
}

impl<'a> Shard<'a> {
    /// Serves the workers, which are the first instances, from the values of `version` on, as
    /// `dispatcher` says. `parameters`: elements that are no running statistics.
    #[must_use]
    pub fn new(
        memory: ShardMemory<'a>,
        updates: Updates,
        parameters: usize,
        dispatcher: usize,
        version: u64,
    ) -> Self {
        let ShardMemory { staging, values, state, sum, gradients, places, aside, pulls } = memory;
        aside.fill(None);
        pulls.fill(None);
        let (sum, arrivals) = (GradientSum::new(sum), Arrivals::new(places));
        let (owed, outstanding) = (None, None);
        Self {
            staging,
            values,
            state,
            sum,
            gradients,
            arrivals,
            aside,
            pulls,
            updates,
            parameters,
            dispatcher,
            version,
            owed,
            outstanding,
        }
    }

    /// Aggregates that are applied.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// What is owed, and else the next message.
    fn next(&mut self) -> Action {
        if let Some((to, batch)) = self.owed.take() {
            return Action::Send { to, word: word(ACK, batch), payload: Payload::None };
        }
        let version = self.version;
        let ready = |pull: &Option<u64>| pull.is_some_and(|wanted| wanted <= version);
        if let Some(to) = self.pulls.iter().position(ready) {
            self.pulls[to] = None;
            slice(self.staging).copy_from_slice(self.values);
            return Action::Send { to, word: word(PARAMETERS, version), payload: Payload::State };
        }
        Action::Receive { from: None }
    }

    /// A gradient, in staging, of a worker; false if it is in no place that there is.
    fn push(&mut self, from: usize, place: usize, batch: u64) -> bool {
        let len = self.values.len();
        let Ok(came) = self.arrivals.push(place, batch, ()) else { return false };
        let keep = |gradients: &mut [f32], staging: &[f32], at: usize| {
            gradients[at * len..][..len].copy_from_slice(&staging[..len]);
        };
        match came {
            Came::Kept => keep(self.gradients, self.staging, place),
            Came::Twin(()) => {}
            Came::Early(()) => {
                let aside = self.aside.len() + place;
                match self.aside[place] {
                    // Two have the same batch: one of them was late.
                    Some((_, other)) if other == batch => {}
                    Some(_) => return false,
                    None => {
                        keep(self.gradients, self.staging, aside);
                        self.aside[place] = Some((from, batch));
                        return true;
                    }
                }
            }
        }
        self.owed = Some((from, batch));
        true
    }

    /// A gradient is a member; false if it is not here, or of another aggregate.
    fn count(&mut self, note: super::Note) -> bool {
        let it = member(note);
        if it.version != self.version || self.arrivals.take(it.place, it.batch).is_err() {
            return false;
        }
        let len = self.values.len();
        self.sum.add(it.weight, &self.gradients[it.place * len..][..len]);
        if let Some(aggregate) = it.completes {
            self.conclude(&aggregate);
        }
        if let Some((from, batch)) = self.aside[it.place].take()
            && let Ok(came) = self.arrivals.push(it.place, batch, ())
        {
            if came == Came::Kept {
                let aside = (self.aside.len() + it.place) * len;
                self.gradients.copy_within(aside..aside + len, it.place * len);
            }
            self.owed = Some((from, batch));
        }
        true
    }

    /// Applies the aggregate in hand.
    fn conclude(&mut self, aggregate: &Aggregate) {
        let Self { values, state, updates, parameters, .. } = self;
        let parameters = *parameters;
        let planes = updates.optimizer.state_planes();
        let factor = updates.divisor.factor(aggregate.members, aggregate.weight);
        let count = aggregate.number + 1;
        let (members, batches) = updates.members_of;
        let step = aggregate.number * u64::from(members) / u64::from(batches.max(1));
        let rate = updates.rate.base * updates.rate.schedule.factor(step);
        let (values, statistics) = values.split_at_mut(parameters);
        self.sum.conclude(factor, |mean| {
            let (gradient, batch) = mean.split_at(parameters);
            let (first, second) = state.split_at_mut(planes.min(1) * parameters);
            let size = StepSize { rate, count };
            updates.optimizer.update(size, values, first, second, gradient);
            for (running, batch) in statistics.iter_mut().zip(batch) {
                *running += updates.statistics_momentum * (batch - *running);
            }
        });
        self.version += 1;
    }
}

impl Protocol for Shard<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let is_it = match (self.outstanding, last) {
            (Some(Action::Finish), _) => return Ok(Action::Finish),
            (None, Completion::Start) | (Some(Action::Send { .. }), Completion::Done) => true,
            (Some(Action::Receive { .. }), Completion::Received { from, word, elements }) => {
                match parts(word) {
                    (PULL, version) if from < self.pulls.len() && elements == 0 => {
                        self.pulls[from] = Some(version);
                        true
                    }
                    (PUSH, number) if elements == self.staging.len() - TAIL => {
                        let (place, batch) = place_of(number);
                        self.push(from, place, batch)
                    }
                    (END, 0) if from == self.dispatcher => {
                        self.outstanding = Some(Action::Finish);
                        return Ok(Action::Finish);
                    }
                    _ => false,
                }
            }
            (Some(Action::Receive { .. }), Completion::Noted { from, word, note, .. })
                if from == self.dispatcher =>
            {
                match parts(word).0 {
                    MEMBER => self.count(note),
                    FLUSH if aggregate(note).number == self.version => {
                        self.conclude(&aggregate(note));
                        true
                    }
                    _ => false,
                }
            }
            _ => false,
        };
        if !is_it {
            return Err(OutOfTurn { expected: self.outstanding, got: last });
        }
        let next = self.next();
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.staging
    }
}
