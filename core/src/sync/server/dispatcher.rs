//! The dispatcher's side: the coordinator of batches and aggregates, spoken to in messages.
//!
//! Invariants: every server is told of every member, in the same order, and of a member before any
//! worker is handed the batch that follows it there. Workers that were told to wait are looked
//! after in the order of their numbers after every report, and when a batch is overdue. The end
//! comes when every worker has been told of it; what is left of an aggregate is applied before.
//! When a trainer is asked to stop, all streams end at the furthest step that was given.

use core::ops::Range;

use super::super::protocol::{Action, Completion, Note, OutOfTurn, Payload, Protocol};
use super::super::reduction::TAIL;
use super::super::token::{Answer, Coordinator, Refused, Verdict};
use super::{ASK, END, FLUSH, MEMBER, REPORT, TICKET, aggregate_note, member_note, parts};
use super::{ticket_note, word};
use crate::units::Nanos;

/// What became of gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Gradients that were added.
    pub counted: u64,
    /// Gradients that were too old, or not finite.
    pub dropped: u64,
    /// Gradients of batches that somebody else had reported.
    pub twins: u64,
    /// Aggregates.
    pub aggregates: u64,
    /// How stale gradients were: those of staleness i, the last counting all beyond; data that is
    /// ahead of its step is not stale.
    pub staleness: [u64; Self::BINS],
    /// The same of the aggregates formed between asking and reporting.
    pub lag: [u64; Self::BINS],
}

impl Tally {
    /// Of the histograms.
    pub const BINS: usize = 64;

    /// Nothing yet.
    pub const EMPTY: Self = Self {
        counted: 0,
        dropped: 0,
        twins: 0,
        aggregates: 0,
        staleness: [0; Self::BINS],
        lag: [0; Self::BINS],
    };

    /// Counts what the coordinator said of a report.
    pub fn count(&mut self, verdict: &Verdict) {
        let member = match verdict {
            Verdict::Twin => {
                self.twins += 1;
                return;
            }
            Verdict::Counted(member) => {
                self.counted += 1;
                member
            }
            Verdict::Dropped(member) => {
                self.dropped += 1;
                member
            }
        };
        self.aggregates += u64::from(member.completes.is_some());
        let bin = |number: u64| usize::try_from(number).unwrap_or(Self::BINS).min(Self::BINS - 1);
        self.staleness[bin(member.staleness.max(0).unsigned_abs())] += 1;
        self.lag[bin(member.lag)] += 1;
    }

    /// Adds what became of others.
    pub fn add(&mut self, other: &Self) {
        self.counted += other.counted;
        self.dropped += other.dropped;
        self.twins += other.twins;
        self.aggregates += other.aggregates;
        let bins = self.staleness.iter_mut().chain(&mut self.lag);
        bins.zip(other.staleness.iter().chain(&other.lag)).for_each(|(sum, own)| *sum += own);
    }

    /// As numbers, to be sent.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        let counts = [self.counted, self.dropped, self.twins, self.aggregates];
        counts.into_iter().chain(self.staleness).chain(self.lag)
    }

    /// What [`Self::words`] has given; `None` of anything else.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let (&[counted, dropped, twins, aggregates], bins) = words.split_first_chunk()?;
        let (&staleness, bins) = bins.split_first_chunk()?;
        let lag = bins.try_into().ok()?;
        Some(Self { counted, dropped, twins, aggregates, staleness, lag })
    }

    /// The mean of a histogram.
    #[must_use]
    pub fn mean(bins: &[u64; Self::BINS]) -> f64 {
        let count: u64 = bins.iter().sum();
        let sum: u64 = (0..).zip(bins).map(|(value, count)| value * count).sum();
        if count > 0 { sum as f64 / count as f64 } else { 0.0 }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// How far training has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Steps of every stream that were given.
    pub step: u64,
    /// Batches handed out.
    pub batches: u64,
    /// Aggregates that were applied.
    pub version: u64,
}

/// The protocol of the dispatcher.
#[derive(Debug)]
pub struct Dispatcher<'a> {
    coordinator: Coordinator<'a>,
    /// Workers that have asked and were not answered. `[workers]`
    asking: &'a mut [bool],
    tally: &'a mut Tally,
    /// Instances of the servers.
    servers: Range<usize>,
    /// What servers are being told, and how many of them know.
    news: Option<(u64, Option<Note>)>,
    told: usize,
    now: Nanos,
    /// Workers that know of the end.
    ended: usize,
    flushed: bool,
    outstanding: Option<Action>,
    /// The length that drivers expect, of no elements.
    staging: [f32; TAIL],
}

impl<'a> Dispatcher<'a> {
    /// Of the workers, which are the first instances, as many as `asking` has, and of `servers`.
    #[must_use]
    pub fn new(
        coordinator: Coordinator<'a>,
        asking: &'a mut [bool],
        tally: &'a mut Tally,
        servers: Range<usize>,
    ) -> Self {
        asking.fill(false);
        Self {
            coordinator,
            asking,
            tally,
            servers,
            news: None,
            told: 0,
            now: Nanos(0),
            ended: 0,
            flushed: false,
            outstanding: None,
            staging: [0.0; TAIL],
        }
    }

    /// How far training has come when it has finished.
    #[must_use]
    pub const fn reached(&self) -> Reached {
        let it = &self.coordinator;
        Reached { step: it.end(), batches: it.next(), version: it.version() }
    }

    /// What became of gradients so far.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        self.tally
    }

    /// The next message to send, and if there is none the next to wait for.
    fn next(&mut self) -> Result<Action, Refused> {
        if let Some((kind, note)) = self.news {
            if self.told < self.servers.len() {
                let to = self.servers.start + self.told;
                self.told += 1;
                let payload = note.map_or(Payload::None, Payload::Note);
                return Ok(Action::Send { to, word: word(kind, 0), payload });
            }
            (self.news, self.told) = (None, 0);
            if kind == END {
                return Ok(Action::Finish);
            }
        }
        let mut overdue = None;
        for worker in 0..self.asking.len() {
            if !self.asking[worker] {
                continue;
            }
            let (kind, payload) = match self.coordinator.ask(worker, self.now)? {
                Answer::Train(ticket) => (TICKET, Payload::Note(ticket_note(&ticket))),
                Answer::End => {
                    self.ended += 1;
                    (END, Payload::None)
                }
                Answer::Wait { until } => {
                    overdue = until.filter(|until| until.0 < u64::MAX);
                    continue;
                }
            };
            self.asking[worker] = false;
            return Ok(Action::Send { to: worker, word: word(kind, 0), payload });
        }
        if self.ended < self.asking.len() {
            return Ok(match overdue {
                Some(until) => Action::Await { until },
                None => Action::Receive { from: None },
            });
        }
        let rest = if self.flushed { None } else { self.coordinator.flush()? };
        self.flushed = true;
        self.news = Some(match &rest {
            Some(aggregate) => (FLUSH, Some(aggregate_note(aggregate))),
            None => (END, None),
        });
        self.tally.aggregates += u64::from(rest.is_some());
        self.next()
    }

    /// A worker's word; false if it makes no sense.
    fn hear(&mut self, from: usize, word: u64, note: Note) -> bool {
        let is_free = self.asking.get(from) == Some(&false);
        match (parts(word).0, note) {
            (ASK, _) if is_free => {}
            (REPORT, [batch, finite, stop, ..]) if is_free => {
                let Ok(verdict) = self.coordinator.report(from, batch, finite == 1) else {
                    return false;
                };
                self.tally.count(&verdict);
                if stop == 1 {
                    // What was given is trained, and every stream brought as far.
                    self.coordinator.streams().end_at(0);
                }
                if let Verdict::Counted(member) | Verdict::Dropped(member) = verdict {
                    self.news = Some((MEMBER, Some(member_note(&member))));
                }
            }
            _ => return false,
        }
        self.asking[from] = true;
        true
    }
}

impl Protocol for Dispatcher<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let refused = OutOfTurn { expected: self.outstanding, got: last };
        let is_it = match (self.outstanding, last) {
            (Some(Action::Finish), _) => return Ok(Action::Finish),
            (None, Completion::Start) | (Some(Action::Send { .. }), Completion::Done) => true,
            (
                Some(Action::Receive { .. } | Action::Await { .. }),
                Completion::Noted { from, word, note, now },
            ) if self.hear(from, word, note) => {
                self.now = now;
                true
            }
            (Some(Action::Await { .. }), Completion::Late { now }) => {
                self.now = now;
                true
            }
            _ => false,
        };
        if !is_it {
            return Err(refused);
        }
        // The coordinator refuses nothing that was heard.
        let next = self.next().map_err(|_| refused)?;
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut self.staging
    }
}
