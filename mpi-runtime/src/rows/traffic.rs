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

/// A layout of ranks, and how many rows their steps touch.
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
    /// Distinct rows of a worker's step in one partition, expected.
    pub rows: f64,
    /// Steps of a worker between lookup and taken push, at most.
    pub permits: usize,
}

/// What a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// It trains.
    pub trains: bool,
    /// It holds rows.
    pub serves: bool,
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
    fn times(self, count: f64) -> Self {
        Self { messages: self.messages * count, bytes: self.bytes * count }
    }

    fn plus(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

/// A step between a trainer and a rank that holds rows.
struct Pair {
    lookup: Flow,
    answer: Flow,
    push: Flow,
    ack: Flow,
}

impl Shape {
    /// What a rank with these duties sends, receives and holds.
    #[must_use]
    pub fn step(&self, Duties { trains, serves }: Duties) -> StepTraffic {
        let Pair { lookup, answer, push, ack } = self.pair();
        let both = trains && serves;
        let peers = |all: usize, own: bool, there: bool| {
            if own { (all - usize::from(there)) as f64 } else { 0.0 }
        };
        let to_servers = peers(self.servers, trains, both);
        let to_trainers = peers(self.trainers, serves, both);
        let (asks, answers) = (lookup.plus(push), answer.plus(ack));
        let row = 4.0 * self.width as f64;
        let own_rows = self.rows * (self.workers * self.partitions * self.servers) as f64;
        let own = if trains { own_rows * row } else { 0.0 };
        let pushed = if serves { push.bytes * self.trainers as f64 } else { 0.0 };
        StepTraffic {
            sent: asks.times(to_servers).plus(answers.times(to_trainers)),
            received: answers.times(to_servers).plus(asks.times(to_trainers)),
            held_bytes: self.permits as f64 * (own + pushed),
        }
    }

    fn pair(&self) -> Pair {
        // Messages of a kind, and how many sections each may have.
        let (messages, sections) = if self.joint {
            (1.0, (self.workers * self.partitions) as f64)
        } else {
            (self.workers as f64, self.partitions as f64)
        };
        let rows = self.rows * sections;
        let sections = sections * touched(self.rows);
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

/// The chance of any rows where `expected` are.
fn touched(expected: f64) -> f64 {
    -(-expected).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Duties = Duties { trains: true, serves: true };

    fn collocated(ranks: usize, joint: bool) -> Shape {
        Shape {
            trainers: ranks,
            servers: ranks,
            workers: 2,
            partitions: 2,
            joint,
            width: 8,
            rows: 50.0,
            permits: 3,
        }
    }

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-9 * expected.abs(), "{got} instead of {expected}");
    }

    #[test]
    fn messages_of_bsp_grow_with_the_ranks_and_with_nothing_else() {
        for ranks in [1, 2, 4, 8, 1000] {
            let shape = collocated(ranks, true);
            let step = shape.step(BOTH);
            near(step.sent.messages, 4.0 * (ranks - 1) as f64);
            assert_eq!(step.sent, step.received, "all ranks do the same");
            let wide = Shape { workers: 16, partitions: 32, ..shape }.step(BOTH);
            near(wide.sent.messages, step.sent.messages);
        }
    }

    #[test]
    fn else_every_worker_has_messages_of_its_own() {
        for ranks in [2, 4, 1000] {
            let shape = collocated(ranks, false);
            near(shape.step(BOTH).sent.messages, 4.0 * 2.0 * (ranks - 1) as f64);
            let partitions = Shape { partitions: 32, ..shape }.step(BOTH);
            near(partitions.sent.messages, shape.step(BOTH).sent.messages);
        }
    }

    #[test]
    fn bytes_are_those_of_the_wire() {
        let step = collocated(2, true).step(BOTH);
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
            let trainer = shape.step(Duties { trains: true, serves: false });
            let server = shape.step(Duties { trains: false, serves: true });
            near(3.0 * trainer.sent.bytes, 2.0 * server.received.bytes);
            near(3.0 * trainer.received.messages, 2.0 * server.sent.messages);
            let idle = shape.step(Duties { trains: false, serves: false });
            assert_eq!(idle, StepTraffic::default());
        }
    }

    /// Many partitions, few rows: most lookups have nothing to ask of a rank.
    #[test]
    fn without_rows_only_what_keeps_step_is_sent() {
        let idle = Shape { rows: 0.0, ..collocated(5, true) };
        let step = idle.step(BOTH);
        near(step.sent.messages, 2.0 * 4.0);
        near(step.sent.bytes, 4.0 * (2 * 4 * HEADER_LEN) as f64);
        assert_eq!(Shape { joint: false, ..idle }.step(BOTH).sent, Flow::default());
        let few = Shape { rows: 0.25, joint: false, ..idle };
        near(few.step(BOTH).sent.messages, 4.0 * 2.0 * 4.0 * (1.0 - (-0.5f64).exp()));
    }
}
