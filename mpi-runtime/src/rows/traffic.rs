//! What a rank sends, receives and holds for embedding rows in a step: arithmetic, for any number
//! of ranks.
//!
//! Per pair of ranks and step a lookup, its rows, a push and its acknowledgement: under `bsp` one
//! of each for all workers, else for each worker. Rows on the same rank do not travel.
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
    /// Steps of a worker between lookup and taken push, at most.
    pub permits: usize,
}

/// What a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// It trains.
    pub trains: bool,
    /// It holds rows: its number among those that do.
    pub serves: Option<usize>,
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
    /// Rows and gradients of all steps that may be under way: of own workers, and of pushes that
    /// are not applied. Bytes, at most.
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
pub struct Steps<'a> {
    shape: Shape,
    /// Distinct rows of a worker's step in one partition of each server, expected. `[servers]`
    rows: &'a [f64],
    /// From a trainer to all servers.
    asks: Flow,
    /// And back.
    answers: Flow,
}

/// A step between a trainer and a rank that holds rows.
struct Pair {
    lookup: Flow,
    answer: Flow,
    push: Flow,
    ack: Flow,
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
    pub fn steps(self, rows: &[f64]) -> Steps<'_> {
        assert_eq!(rows.len(), self.servers, "rows of every server");
        let sum = |flow: fn(&Pair) -> Flow| {
            let flows = rows.iter().map(|rows| flow(&self.pair(*rows)));
            flows.fold(Flow::default(), Flow::plus)
        };
        Steps { shape: self, rows, asks: sum(Pair::asks), answers: sum(Pair::answers) }
    }

    fn pair(&self, rows: f64) -> Pair {
        // Messages of a kind, and how many sections each may have.
        let (messages, sections) = if self.joint {
            (1.0, (self.workers * self.partitions) as f64)
        } else {
            (self.workers as f64, self.partitions as f64)
        };
        let of_section = touched(rows);
        let (rows, sections) = (rows * sections, sections * of_section);
        let wanted = touched(rows);
        // Under bsp an empty push keeps step.
        let pushes = if self.joint { 1.0 } else { wanted };
        let flow = |share: f64, body: f64| Flow {
            messages: share * messages,
            bytes: 4.0 * messages * (share * HEADER_LEN as f64 + body),
        };
        let width = self.width as f64;
        Pair {
            lookup: flow(wanted, sections * LOOKUP_SECTION_LEN as f64 + rows),
            answer: flow(wanted, rows * width),
            push: flow(pushes, sections * PUSH_SECTION_LEN as f64 + rows * (1.0 + width)),
            ack: flow(pushes, 0.0),
        }
    }
}

impl Steps<'_> {
    /// What a rank with these duties sends, receives and holds.
    #[must_use]
    pub fn of(&self, Duties { trains, serves }: Duties) -> StepTraffic {
        let Shape { trainers, workers, partitions, width, permits, .. } = self.shape;
        let own = serves.map(|server| self.shape.pair(self.rows[server]));
        let mut step = StepTraffic::default();
        let mut held = 0.0;
        if trains {
            // What is on the same rank does not travel.
            let here = |flow: fn(&Pair) -> Flow| own.as_ref().map_or(Flow::default(), flow);
            step.sent = self.asks.plus(here(Pair::asks).times(-1.0));
            step.received = self.answers.plus(here(Pair::answers).times(-1.0));
            let rows: f64 = self.rows.iter().sum();
            held += 4.0 * rows * (workers * partitions * width) as f64;
        }
        if let Some(own) = own {
            let others = (trainers - usize::from(trains)) as f64;
            step.sent = step.sent.plus(own.answers().times(others));
            step.received = step.received.plus(own.asks().times(others));
            held += own.push.bytes * trainers as f64;
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

    const BOTH: Duties = Duties { trains: true, serves: Some(0) };
    const TRAINER: Duties = Duties { trains: true, serves: None };
    const SERVER: Duties = Duties { trains: false, serves: Some(0) };

    fn collocated(ranks: usize, joint: bool) -> Shape {
        Shape {
            trainers: ranks,
            servers: ranks,
            workers: 2,
            partitions: 2,
            joint,
            width: 8,
            permits: 3,
        }
    }

    /// A step of a layout with as many rows in every partition.
    fn step(shape: Shape, rows: f64, duties: Duties) -> StepTraffic {
        shape.steps(&vec![rows; shape.servers]).of(duties)
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
            let idle = step(shape, 50.0, Duties { trains: false, serves: None });
            assert_eq!(idle, StepTraffic::default());
        }
    }

    #[test]
    fn a_rank_with_more_rows_answers_more() {
        let shape = Shape { trainers: 3, servers: 2, ..collocated(1, true) };
        let steps = shape.steps(&[10.0, 30.0]);
        let server = |number| steps.of(Duties { trains: false, serves: Some(number) });
        let (one, other) = (server(0), server(1));
        // Two workers, two partitions, 20 rows more of 8 words in answers to three trainers.
        near(other.sent.bytes - one.sent.bytes, (3 * 4 * 2 * 2 * 20 * 8) as f64);
        near(steps.of(TRAINER).received.bytes * 3.0, one.sent.bytes + other.sent.bytes);
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
