//! What a rank sends, receives and holds for embedding rows in a step: arithmetic, for any number
//! of ranks.
//!
//! Per pair of ranks and step a lookup, its rows, a push and its acknowledgement: under `bsp` one
//! of each for all workers, else for each worker. Rows on the same rank do not travel, nor those
//! within reach of its workers (`near.rs`). Where those who hold rows pool there are as many
//! messages, of other lengths (`pooled_traffic.rs`).
//!
//! Rows fall on partitions at random, so how many of a worker's are in one is Poisson
//! distributed: with λ expected, a share 1 − exp(−λ) has any at all (W. Feller, "An introduction
//! to probability theory and its applications" I, section VI.5).

use crate::rows::wire::{HEADER_LEN, LOOKUP_SECTION_LEN, PUSH_SECTION_LEN};

/// A layout of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Ranks that train.
    pub trainers: usize,
    /// Ranks that hold rows.
    pub servers: usize,
    /// Workers per trainer.
    pub workers: usize,
    /// Partitions per rank that holds rows.
    pub partitions: usize,
    /// All workers make their steps together (`bsp`).
    pub joint: bool,
    /// f32s of a row.
    pub width: usize,
    /// Words of its values on the way to a worker.
    pub value_words: usize,
    /// Steps of a worker between lookup and taken push, at most.
    pub permits: usize,
}

/// What a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duties {
    /// It trains.
    pub trains: bool,
    /// It holds rows: its number among those that do.
    pub serves: Option<usize>,
    /// Where workers use rows in place: the others whose rows they use so.
    pub near: Option<NearRanks>,
}

/// Other ranks within reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NearRanks {
    /// How many of them train.
    pub trainers: usize,
    /// Numbers of those that hold rows, among all that do.
    pub servers: Vec<usize>,
}

/// Messages and bytes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Messages.
    pub messages: f64,
    /// Their bytes.
    pub bytes: f64,
}

/// Expected traffic of a rank while every worker of every trainer makes one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTraffic {
    /// To other ranks.
    pub sent: Flow,
    /// From other ranks.
    pub received: Flow,
    /// Rows or vectors, and gradients, of all steps that may be under way: of own workers, and of
    /// pushes that are not applied. Bytes, at most.
    pub held_bytes: f64,
}

impl Flow {
    /// So many of it.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        Self { messages: self.messages * count, bytes: self.bytes * count }
    }

    /// This and `other`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

/// The steps of a layout whose rows are known.
pub struct Steps {
    shape: Shape,
    /// A trainer's with each server. `[servers]`
    pairs: Vec<Pair>,
    /// What a trainer has of one step of all its workers.
    own_bytes: f64,
    /// From a trainer to all servers.
    asks: Flow,
    /// And back.
    answers: Flow,
}

/// A step between a trainer and a rank that holds rows.
pub(super) struct Pair {
    pub(super) lookup: Flow,
    pub(super) answer: Flow,
    pub(super) push: Flow,
    pub(super) ack: Flow,
    /// What the rank that holds rows has of it until the gradients are applied.
    pub(super) kept_bytes: f64,
}

/// Words of the sections of a trainer's messages to a rank that holds rows, and back; a step.
pub(super) struct Sections {
    pub(super) lookup: f64,
    pub(super) answer: f64,
    pub(super) push: f64,
}

impl Pair {
    fn asks(&self) -> Flow {
        self.lookup.plus(self.push)
    }

    fn answers(&self) -> Flow {
        self.answer.plus(self.ack)
    }
}

impl Shape {
    /// Its steps, where a step of a worker has so many distinct rows in one partition of each
    /// server, expected. `rows: [servers]`
    #[must_use]
    pub fn steps(self, rows: &[f64]) -> Steps {
        assert_eq!(rows.len(), self.servers, "rows of every server");
        let all: f64 = rows.iter().sum();
        let own_bytes = 4.0 * all * (self.workers * self.partitions * self.width) as f64;
        Steps::new(self, rows.iter().map(|rows| self.pair(*rows)).collect(), own_bytes)
    }

    /// A trainer's step with a server that has so many of its rows in each partition.
    pub(super) fn pair(&self, rows: f64) -> Pair {
        let workers = self.workers as f64;
        let all = workers * self.partitions as f64;
        let (rows_of_all, sections) = (rows * all, touched(rows) * all);
        let wanted = touched(rows_of_all / self.messages());
        let width = self.width as f64;
        let words = Sections {
            lookup: sections * LOOKUP_SECTION_LEN as f64 + rows_of_all,
            answer: rows_of_all * self.value_words as f64,
            push: sections * PUSH_SECTION_LEN as f64 + rows_of_all * (1.0 + width),
        };
        self.pair_of(wanted, &words)
    }

    /// A trainer's messages of a kind to a server in a step.
    pub(super) const fn messages(&self) -> f64 {
        if self.joint { 1.0 } else { self.workers as f64 }
    }

    /// A trainer's step with a server of which a message wants something with the chance `wanted`.
    pub(super) fn pair_of(&self, wanted: f64, words: &Sections) -> Pair {
        // Under bsp an empty push keeps step.
        let pushes = if self.joint { 1.0 } else { wanted };
        let flow = |share: f64, body: f64| {
            let messages = share * self.messages();
            Flow { messages, bytes: 4.0 * (messages * HEADER_LEN as f64 + body) }
        };
        let push = flow(pushes, words.push);
        Pair {
            lookup: flow(wanted, words.lookup),
            answer: flow(wanted, words.answer),
            push,
            ack: flow(pushes, 0.0),
            kept_bytes: push.bytes,
        }
    }
}

impl Steps {
    /// Of these pairs, one for each server; `own_bytes` is what a trainer has of one step of all
    /// its workers.
    pub(super) fn new(shape: Shape, pairs: Vec<Pair>, own_bytes: f64) -> Self {
        let sum =
            |flow: fn(&Pair) -> Flow| pairs.iter().map(flow).fold(Flow::default(), Flow::plus);
        let (asks, answers) = (sum(Pair::asks), sum(Pair::answers));
        Self { shape, pairs, own_bytes, asks, answers }
    }

    /// What a rank with these duties sends, receives and holds.
    #[must_use]
    pub fn of(&self, Duties { trains, serves, near }: &Duties) -> StepTraffic {
        let Shape { trainers, permits, .. } = self.shape;
        let own = serves.map(|server| &self.pairs[server]);
        let beside = near.as_ref().map_or(&[][..], |near| &near.servers);
        let beside = beside.iter().map(|server| &self.pairs[*server]);
        let here = own.into_iter().chain(beside);
        let far = |flow: fn(&Pair) -> Flow, all: Flow| {
            // Where all are near, what is left of the difference would be rounding.
            if here.clone().count() == self.pairs.len() {
                return Flow::default();
            }
            here.clone().map(flow).fold(all, |rest, near| rest.plus(near.times(-1.0)))
        };
        let mut step = StepTraffic::default();
        let mut held = 0.0;
        if *trains {
            // What is near does not travel.
            step.sent = far(Pair::asks, self.asks);
            step.received = far(Pair::answers, self.answers);
            held += self.own_bytes;
        }
        if let Some(own) = own {
            let near_trainers = near.as_ref().map_or(0, |near| near.trainers);
            let others = trainers - usize::from(*trains) - near_trainers;
            step.sent = step.sent.plus(own.answers().times(others as f64));
            step.received = step.received.plus(own.asks().times(others as f64));
            // Pushes in place are not kept, those of the own rank neither.
            let kept = if near.is_some() { others } else { trainers };
            held += own.kept_bytes * kept as f64;
        }
        StepTraffic { held_bytes: permits as f64 * held, ..step }
    }
}

/// The chance of any rows where `expected` are.
fn touched(expected: f64) -> f64 {
    -(-expected).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Duties = Duties { trains: true, serves: Some(0), near: None };
    const TRAINER: Duties = Duties { trains: true, serves: None, near: None };
    const SERVER: Duties = Duties { trains: false, serves: Some(0), near: None };

    fn collocated(ranks: usize, joint: bool) -> Shape {
        Shape {
            trainers: ranks,
            servers: ranks,
            workers: 2,
            partitions: 2,
            joint,
            width: 8,
            value_words: 8,
            permits: 3,
        }
    }

    /// A step of a layout with as many rows in every partition.
    fn step(shape: Shape, rows: f64, duties: Duties) -> StepTraffic {
        shape.steps(&vec![rows; shape.servers]).of(&duties)
    }

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-9 * expected.abs(), "{got} instead of {expected}");
    }

    #[test]
    fn messages_of_bsp_grow_with_the_ranks_and_with_nothing_else() {
        for ranks in [1, 2, 4, 8, 1000] {
            let shape = collocated(ranks, true);
            let Flow { messages, bytes } = step(shape, 50.0, BOTH).sent;
            near(messages, 4.0 * (ranks - 1) as f64);
            // All ranks do the same.
            near(step(shape, 50.0, BOTH).received.bytes, bytes);
            let wide = Shape { workers: 16, partitions: 32, ..shape };
            near(step(wide, 50.0, BOTH).sent.messages, messages);
        }
    }

    #[test]
    fn else_every_worker_has_messages_of_its_own() {
        for ranks in [2, 4, 1000] {
            let shape = collocated(ranks, false);
            let messages = step(shape, 50.0, BOTH).sent.messages;
            near(messages, 4.0 * 2.0 * (ranks - 1) as f64);
            let partitions = Shape { partitions: 32, ..shape };
            near(step(partitions, 50.0, BOTH).sent.messages, messages);
        }
    }

    #[test]
    fn bytes_are_those_of_the_wire() {
        let step = step(collocated(2, true), 50.0, BOTH);
        // Two workers with fifty rows in each of two partitions of the other rank.
        let rows = 200;
        let lookup = HEADER_LEN + 4 * LOOKUP_SECTION_LEN + rows;
        let push = HEADER_LEN + 4 * PUSH_SECTION_LEN + rows * 9;
        let words = lookup + (HEADER_LEN + rows * 8) + push + HEADER_LEN;
        near(step.sent.bytes, 4.0 * words as f64);
        // Of own workers rows of both ranks, and pushes of both trainers; three steps.
        near(step.held_bytes, 3.0 * 4.0 * (2 * rows * 8 + 2 * push) as f64);
    }

    #[test]
    fn what_one_side_sends_the_other_receives() {
        for joint in [true, false] {
            let shape = Shape { trainers: 3, servers: 2, ..collocated(1, joint) };
            let (trainer, server) = (step(shape, 50.0, TRAINER), step(shape, 50.0, SERVER));
            near(3.0 * trainer.sent.bytes, 2.0 * server.received.bytes);
            near(3.0 * trainer.received.messages, 2.0 * server.sent.messages);
            let idle = step(shape, 50.0, Duties { trains: false, serves: None, near: None });
            assert_eq!(idle, StepTraffic::default());
        }
    }

    #[test]
    fn a_rank_with_more_rows_answers_more() {
        let shape = Shape { trainers: 3, servers: 2, ..collocated(1, true) };
        let steps = shape.steps(&[10.0, 30.0]);
        let server = |number| steps.of(&Duties { serves: Some(number), ..SERVER });
        let (one, other) = (server(0), server(1));
        // Two workers, two partitions, 20 rows more of 8 words in answers to three trainers.
        near(other.sent.bytes - one.sent.bytes, (3 * 4 * 2 * 2 * 20 * 8) as f64);
        near(steps.of(&TRAINER).received.bytes * 3.0, one.sent.bytes + other.sent.bytes);
    }

    /// Four ranks, two by two on a node: of three others one is near.
    #[test]
    fn what_is_near_does_not_travel() {
        let shape = collocated(4, false);
        let far = step(shape, 50.0, BOTH);
        let beside = NearRanks { trainers: 1, servers: vec![1] };
        let both = Duties { near: Some(beside), ..BOTH };
        let half = step(shape, 50.0, both);
        near(half.sent.messages, far.sent.messages * 2.0 / 3.0);
        near(half.received.bytes, far.received.bytes * 2.0 / 3.0);
        // Pushes of two trainers are kept instead of four.
        let push = shape.pair(50.0).kept_bytes;
        near(far.held_bytes - half.held_bytes, 3.0 * 2.0 * push);
        let all = NearRanks { trainers: 3, servers: vec![1, 2, 3] };
        let alone = step(shape, 50.0, Duties { near: Some(all), ..BOTH });
        near(alone.sent.bytes, 0.0);
        near(alone.received.messages, 0.0);
    }

    /// Many partitions, few rows: most lookups have nothing to ask of a rank.
    #[test]
    fn without_rows_only_what_keeps_step_is_sent() {
        let idle = step(collocated(5, true), 0.0, BOTH);
        near(idle.sent.messages, 2.0 * 4.0);
        near(idle.sent.bytes, 4.0 * (2 * 4 * HEADER_LEN) as f64);
        let each = collocated(5, false);
        assert_eq!(step(each, 0.0, BOTH).sent, Flow::default());
        near(step(each, 0.25, BOTH).sent.messages, 4.0 * 2.0 * 4.0 * (1.0 - (-0.5f64).exp()));
    }
}
