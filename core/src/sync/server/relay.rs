//! A rank that holds rows: what the dispatcher says of members goes to its partitions.
//!
//! Invariant: partitions hear of every member in the order of the dispatcher's words, and a stretch
//! is over here when they have applied the last aggregate.

use super::super::protocol::{Action, Completion, News, OutOfTurn, Protocol};
use super::super::reduction::TAIL;
use super::{END, FLUSH, MEMBER, aggregate, member, parts};

/// The protocol of one such rank.
#[derive(Debug)]
pub struct Relay {
    dispatcher: usize,
    version: u64,
    outstanding: Option<Action>,
    /// The length that drivers expect, of no elements.
    staging: [f32; TAIL],
}

impl Relay {
    /// Tells partitions whose rows are of `version` what `dispatcher` says.
    #[must_use]
    pub const fn new(dispatcher: usize, version: u64) -> Self {
        Self { dispatcher, version, outstanding: None, staging: [0.0; TAIL] }
    }

    /// Aggregates that are applied.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    fn news(&mut self, word: u64, note: Option<super::Note>) -> Option<News> {
        let news = match (parts(word).0, note) {
            (MEMBER, Some(note)) => News::Member(note),
            (FLUSH, Some(note)) => News::Flush(aggregate(note)),
            (END, None) => News::End,
            _ => return None,
        };
        let concludes = match news {
            News::Member(note) => member(note).completes.is_some(),
            News::Flush(_) => true,
            News::Begin { .. } | News::End => false,
        };
        self.version += u64::from(concludes);
        Some(news)
    }
}

impl Protocol for Relay {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let listen = Action::Receive { from: Some(self.dispatcher) };
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _)
            | (Some(Action::Tell { news: News::End }), Completion::Done) => Some(Action::Finish),
            (None, Completion::Start) => {
                Some(Action::Tell { news: News::Begin { version: self.version } })
            }
            (Some(Action::Tell { .. }), Completion::Done) => Some(listen),
            (Some(action), Completion::Noted { from, word, note, .. })
                if action == listen && from == self.dispatcher =>
            {
                self.news(word, Some(note)).map(|news| Action::Tell { news })
            }
            (Some(action), Completion::Received { from, word, elements: 0 })
                if action == listen && from == self.dispatcher =>
            {
                self.news(word, None).map(|news| Action::Tell { news })
            }
            _ => None,
        };
        let Some(next) = next else {
            return Err(OutOfTurn { expected: self.outstanding, got: last });
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut self.staging
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::token::{Aggregate, Member};
    use super::super::{aggregate_note, member_note, word};
    use super::*;
    use crate::units::Nanos;

    #[test]
    fn the_turns_of_a_relay() {
        let mut it = Relay::new(9, 4);
        let tell = |news| Ok(Action::Tell { news });
        let listen = Ok(Action::Receive { from: Some(9) });
        let noted =
            |kind, note| Completion::Noted { from: 9, word: word(kind, 0), note, now: Nanos(0) };
        assert_eq!(it.step(Completion::Start), tell(News::Begin { version: 4 }));
        assert_eq!(it.step(Completion::Done), listen);
        let aggregate = Aggregate { number: 4, members: 2, weight: 1.5 };
        let (staleness, lag) = (0, 0);
        for (completes, version) in [(None, 4), (Some(aggregate), 5)] {
            let member =
                Member { place: 1, batch: 7, version: 4, weight: 0.5, staleness, lag, completes };
            assert_eq!(
                it.step(noted(MEMBER, member_note(&member))),
                tell(News::Member(member_note(&member)))
            );
            assert_eq!(it.version(), version);
            assert_eq!(it.step(Completion::Done), listen);
        }
        let rest = Aggregate { number: 5, members: 1, weight: 1.0 };
        assert_eq!(it.step(noted(FLUSH, aggregate_note(&rest))), tell(News::Flush(rest)));
        assert_eq!((it.step(Completion::Done), it.version()), (listen, 6));
        let end = Completion::Received { from: 9, word: word(END, 0), elements: 0 };
        let stranger = Completion::Received { from: 8, word: word(END, 0), elements: 0 };
        assert!(it.step(stranger).is_err());
        assert_eq!(it.step(end), tell(News::End));
        assert_eq!(it.step(Completion::Done), Ok(Action::Finish));
    }
}
