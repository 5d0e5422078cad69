//! Tokens: who trains which batch, and which gradients form an aggregate.
//!
//! W. Su et al., "GBA: a tuning-free approach to switch between synchronous and asynchronous
//! training for recommendation model", NeurIPS 2022, arXiv 2205.11048. Batches are handed out in
//! order, each with a token that says which global step its data belongs to; a server applies
//! gradients M at a time, so that a global batch is as large as the synchronous run's, and gives
//! those less weight that are too old. What the paper leaves open is decided here: one coordinator
//! hands out batches and fixes the members of every aggregate, so that all servers, of dense slices
//! and of rows, apply the same ones.
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | M | [`Rule::members`] | gradients |
//! | k, the global step | `version` | aggregates |
//! | t, the token | [`Ticket::token`] | aggregates |
//! | f(t, k) | [`Decay`] | 1 |
//!
//! The other methods of a parameter server are the same machine under another [`Rule`]: see there.
//!
//! A worker asks, trains, brings its gradient to every server, and reports the batch when all have
//! it. So an aggregate never waits for a worker: its members are everywhere ([`Arrivals`]).
//!
//! Map: `streams.rs` whose data a batch has · `decay.rs` what old gradients weigh · `arrivals.rs`
//! the gradients that a server has.
//!
//! Invariants: batches of data ([`Streams`]) are numbered as they are handed out, each once, but
//! for those that a worker keeps for too long, which the next who asks gets too. The first report
//! of a batch counts; that of its twin does not. An aggregate has [`Rule::members`] members, but
//! for the last before a pause. A call that is refused changes nothing.

use core::fmt;

use crate::units::Nanos;

mod arrivals;
mod decay;
mod streams;
#[cfg(test)]
mod tests;

pub use arrivals::{Arrivals, Came, Misplaced, Place};
pub use decay::Decay;
pub use streams::Streams;

/// When the gradients of workers are applied, and when workers get their next batch.
///
/// | method | members | admission | decay | late |
/// | --- | --- | --- | --- | --- |
/// | asynchronous PS | 1 | free | none | |
/// | GBA | M | free | tolerance ι | takes a place |
/// | bulk-synchronous PS | N workers | one per version | none | |
/// | backup workers (Hop-BW, b of them) | N − b | one per version | tolerance 0 | takes none |
/// | bounded staleness (Hop-BS) | 1 | within b steps | none | |
///
/// The names of the last two, as implemented here: Q. Luo et al., "Hop: heterogeneity-aware
/// decentralized training", ASPLOS 2019.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Gradients of an aggregate; not 0.
    pub members: u32,
    /// When a worker gets its next batch.
    pub admission: Admission,
    /// What becomes of old gradients.
    pub decay: Decay,
    /// A gradient of weight 0 is a member all the same.
    pub late_takes_place: bool,
    /// A batch that was not reported for so long is handed out again.
    pub reissue_after: Nanos,
}

/// When a worker gets its next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Whenever it asks.
    Free,
    /// Once per version: then it waits for the next.
    OnePerVersion,
    /// When it has reported at most so many batches more than the worker that has reported fewest.
    Within {
        /// Batches.
        steps: u64,
    },
}

/// A batch for a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// The place that it takes among those under way, on every server too: below the number of
    /// places, and free for the next batch when this one is reported.
    pub place: usize,
    /// Its number in the order in which batches are handed out.
    pub batch: u64,
    /// Its data: the stream,
    pub stream: usize,
    /// and the step of it.
    pub step: u64,
    /// The global step that its data belongs to.
    pub token: u64,
    /// Aggregates that are formed: the worker trains with the model of this version or a later one.
    pub version: u64,
}

/// What a worker that asks gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A batch.
    Train(Ticket),
    /// Nothing now: ask again after the next report, or then.
    Wait {
        /// When the first batch under way is overdue.
        until: Option<Nanos>,
    },
    /// No batch is left, and none is under way.
    End,
}

/// What becomes of a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It is added.
    Counted(Member),
    /// It is too old, or not finite.
    Dropped(Member),
    /// Another worker has reported the same batch before.
    Twin,
}

/// A gradient as a part of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Where servers have it.
    pub place: usize,
    /// Its batch.
    pub batch: u64,
    /// The aggregate that was in hand when it came.
    pub version: u64,
    /// The weight of the gradient: 0 where it is dropped.
    pub weight: f32,
    /// Version less token: how much later it comes than its data was due.
    pub staleness: i64,
    /// Aggregates formed since its worker asked.
    pub lag: u64,
    /// With it the aggregate is complete: the version is one more from here on.
    pub completes: Option<Aggregate>,
}

/// An aggregate that is to be applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregate {
    /// Its number: the version before it is applied.
    pub number: u64,
    /// Gradients, those that were dropped among them where they take a place.
    pub members: u32,
    /// The sum of their weights; if it is 0 nothing is applied.
    pub weight: f32,
}

/// A worker as the coordinator sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// Batches it has reported, twins among them.
    pub reported: u64,
    /// The version at which it last asked with success, and one more.
    asked: u64,
}

/// A batch that was handed out and not reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnderWay {
    ticket: Ticket,
    /// To whom last.
    worker: usize,
    since: Nanos,
}

/// Hands out batches and forms aggregates.
#[derive(Debug)]
pub struct Coordinator<'a> {
    rule: Rule,
    streams: Streams<'a>,
    workers: &'a mut [Worker],
    under_way: &'a mut [Option<UnderWay>],
    busy: usize,
    /// The number of the batch to be handed out next.
    next: u64,
    /// Where tokens begin: the batch and the version.
    origin: (u64, u64),
    version: u64,
    members: u32,
    weight: f32,
}

/// A call that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Of a worker that does not exist.
    Worker {
        /// Its number.
        got: usize,
        /// How many there are.
        workers: usize,
    },
    /// A report of a batch that nobody was given.
    Batch {
        /// Its number.
        got: u64,
        /// The next to be handed out.
        next: u64,
    },
    /// A pause while batches are under way.
    Busy {
        /// How many.
        under_way: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker { got, workers } => write!(f, "worker {got}; there are {workers}"),
            Self::Batch { got, next } => {
                write!(f, "a report of batch {got}, which nobody has: {next} is the next")
            }
            Self::Busy { under_way } => write!(f, "a pause with {under_way} batches under way"),
        }
    }
}

impl core::error::Error for Refused {}

impl<'a> Coordinator<'a> {
    /// Hands out the batches of `streams`, from the model of `version` on, to as many workers as
    /// there are `workers`; as many batches are under way at a time as `under_way` has places, or
    /// fewer. `next`: batches handed out before.
    #[must_use]
    pub fn new(
        rule: Rule,
        streams: Streams<'a>,
        (next, version): (u64, u64),
        workers: &'a mut [Worker],
        under_way: &'a mut [Option<UnderWay>],
    ) -> Self {
        workers.fill(Worker::default());
        under_way.fill(None);
        let origin = (next, version);
        let (busy, members, weight) = (0, 0, 0.0);
        Self { rule, streams, workers, under_way, busy, next, origin, version, members, weight }
    }

    /// Aggregates that are formed.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The batch to be handed out next.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Batches handed out and not reported.
    #[must_use]
    pub const fn under_way(&self) -> usize {
        self.busy
    }

    /// The step at which all streams end.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.streams.end()
    }

    /// The workers.
    #[must_use]
    pub fn workers(&self) -> &[Worker] {
        self.workers
    }

    /// The data that is left, which can be made to end sooner or later.
    pub fn streams(&mut self) -> &mut Streams<'a> {
        &mut self.streams
    }

    /// A batch for `worker`. One that is overdue comes first.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn ask(&mut self, worker: usize, now: Nanos) -> Result<Answer, Refused> {
        self.check(worker)?;
        let limit = self.rule.reissue_after.0;
        let due = |it: &UnderWay| Nanos(it.since.0.saturating_add(limit));
        let busy = self.under_way.iter_mut().flatten();
        let oldest = busy.filter(|it| it.worker != worker).min_by_key(|it| due(it));
        if let Some(late) = oldest.filter(|it| due(it) <= now) {
            (late.worker, late.since, late.ticket.version) = (worker, now, self.version);
            return Ok(Answer::Train(late.ticket));
        }
        if self.streams.is_empty() && self.busy == 0 {
            return Ok(Answer::End);
        }
        let free = self.under_way.iter().position(Option::is_none);
        let place = free.filter(|_| self.admits(worker));
        let given = place.and_then(|place| {
            let (stream, step) = self.streams.give(worker, self.workers.len())?;
            Some((place, stream, step))
        });
        let Some((place, stream, step)) = given else {
            let until = self.under_way.iter().flatten().map(due).min();
            return Ok(Answer::Wait { until });
        };
        let (batch, token, version) = (self.next, self.token(), self.version);
        let ticket = Ticket { place, batch, stream, step, token, version };
        self.under_way[place] = Some(UnderWay { ticket, worker, since: now });
        self.busy += 1;
        self.next += 1;
        self.workers[worker].asked = self.version + 1;
        Ok(Answer::Train(ticket))
    }

    /// `worker` has brought the gradient of `batch` to every server. One that is not `finite` is
    /// dropped.
    ///
    /// # Errors
    /// When there is no such worker, or nobody was given the batch.
    pub fn report(&mut self, worker: usize, batch: u64, finite: bool) -> Result<Verdict, Refused> {
        self.check(worker)?;
        if !(self.origin.0..self.next).contains(&batch) {
            return Err(Refused::Batch { got: batch, next: self.next });
        }
        self.workers[worker].reported += 1;
        let is_it = |it: &Option<UnderWay>| it.is_some_and(|it| it.ticket.batch == batch);
        let Some(found) = self.under_way.iter_mut().find(|it| is_it(it)).and_then(Option::take)
        else {
            return Ok(Verdict::Twin);
        };
        self.busy -= 1;
        let ticket = found.ticket;
        let staleness = self.version as i64 - ticket.token as i64;
        let weight = if finite { self.rule.decay.weight(staleness) } else { 0.0 };
        let (version, lag) = (self.version, self.version - ticket.version);
        if weight > 0.0 || self.rule.late_takes_place {
            self.members += 1;
            self.weight += weight;
        }
        let is_complete = self.members == self.rule.members;
        let completes = if is_complete { self.conclude() } else { None };
        let place = ticket.place;
        let member = Member { place, batch, version, weight, staleness, lag, completes };
        Ok(if weight > 0.0 { Verdict::Counted(member) } else { Verdict::Dropped(member) })
    }

    /// Ends the aggregate in hand with the members it has, before training stops, is saved, or goes
    /// on in another way. `None` if it has none.
    ///
    /// # Errors
    /// While batches are under way.
    pub fn flush(&mut self) -> Result<Option<Aggregate>, Refused> {
        if self.busy > 0 {
            return Err(Refused::Busy { under_way: self.busy });
        }
        let aggregate = if self.members > 0 { self.conclude() } else { None };
        // The data from here on belongs to the steps from here on.
        self.origin = (self.next, self.version);
        Ok(aggregate)
    }

    fn conclude(&mut self) -> Option<Aggregate> {
        let (number, members, weight) = (self.version, self.members, self.weight);
        (self.members, self.weight) = (0, 0.0);
        self.version += 1;
        Some(Aggregate { number, members, weight })
    }

    /// The token of the next batch.
    fn token(&self) -> u64 {
        match self.rule.admission {
            // Workers are handed no batch of a later step, and late ones have lost theirs.
            Admission::OnePerVersion => self.version,
            Admission::Free | Admission::Within { .. } => {
                let (batch, version) = self.origin;
                version + (self.next - batch) / u64::from(self.rule.members)
            }
        }
    }

    fn admits(&self, worker: usize) -> bool {
        let Worker { reported, asked } = self.workers[worker];
        match self.rule.admission {
            Admission::Free => true,
            Admission::OnePerVersion => asked <= self.version,
            Admission::Within { steps } => {
                let fewest = self.workers.iter().map(|worker| worker.reported).min();
                reported <= fewest.unwrap_or(0) + steps
            }
        }
    }

    const fn check(&self, worker: usize) -> Result<(), Refused> {
        let workers = self.workers.len();
        if worker < workers { Ok(()) } else { Err(Refused::Worker { got: worker, workers }) }
    }
}
