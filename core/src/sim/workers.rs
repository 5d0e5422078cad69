//! Workers: steps, rows and the gate.
//!
//! A worker asks for rows ahead, waits for those of its step, computes, pushes gradients. With a
//! gate it stands still after every so many steps until the round is over; when all have ended, the
//! gate stays closed.

use alloc::vec::Vec;

use core::ops::Range;

use super::cluster::{Embedding, nanoseconds};
use super::instance::Rows;
use super::run::{Event, Simulation};
use super::trace::{Deed, Who};
use crate::sync::token::Ticket;
use crate::sync::{GateOf, Rounds};

/// The threads of a trainer.
#[derive(Clone, Debug, Default)]
pub(super) struct Crew {
    pub(super) first: usize,
    /// Instances hand the workers their batches.
    handed: bool,
    /// Workers.
    pub(super) len: usize,
    /// Threads of this node that have something to do, centers included.
    pub(super) busy: usize,
    /// One for all workers, or one for each; none in the background.
    pub(super) gates: Vec<Gate>,
    /// Instances whose pace holds them back.
    pub(super) held_back: Vec<u32>,
    /// Instances that wait for a step of any worker.
    pub(super) idle: Vec<u32>,
    ended: usize,
    /// When the last worker ended.
    pub(super) ended_at: u64,
    /// Steps of all workers so far.
    pub(super) steps: u64,
    /// Time of all workers at gates.
    pub(super) gate_ns: u64,
    /// Time for which its workers computed, summed.
    pub(super) compute_ns: u64,
    /// Time of all workers waiting for rows.
    pub(super) rows_ns: u64,
    /// Time of all instances in background rounds.
    pub(super) round_ns: u64,
    /// Time of all instances with a core.
    pub(super) sync_busy_ns: u64,
    /// Bytes sent by instances.
    pub(super) sync_bytes: u64,
    /// Steps of all workers from round to round of an instance.
    pub(super) gaps: Vec<u64>,
}

impl Crew {
    pub(super) fn new(first: usize, len: usize) -> Self {
        Self { first, len, ..Self::default() }
    }

    /// All workers have ended.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended == self.len
    }

    /// Makes the gates that these rounds need, if they are not there, and counts an instance that
    /// keeps one of them.
    pub(super) fn keep_gate(&mut self, rounds: Rounds, gate: usize) {
        let (every, each) = match rounds {
            Rounds::Never | Rounds::Background(_) => return,
            Rounds::Handed => {
                self.handed = true;
                return;
            }
            Rounds::EveryStep => (1, self.len),
            Rounds::Gated { every, gate: GateOf::Trainer } => (every, self.len),
            Rounds::Gated { every, gate: GateOf::Worker } => (every, 1),
        };
        if self.gates.is_empty() {
            let gate = |first| Gate { every, workers: first..first + each, ..Gate::default() };
            self.gates = (self.first..self.first + self.len).step_by(each).map(gate).collect();
        }
        self.gates[gate].kept_by += 1;
    }

    /// The gate of a worker, given by its number here.
    fn gate_of(&self, local: u32) -> Option<usize> {
        let each = self.gates.first()?.workers.len();
        Some(local as usize / each)
    }
}

/// Where workers stand still while a round is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    /// Numbers of the workers that meet here.
    workers: Range<usize>,
    /// Their steps from gate to gate.
    every: u64,
    /// Instances that keep it.
    kept_by: usize,
    /// Those of them that want to load.
    loading: Vec<u32>,
    /// Workers stand at it and a round is under way.
    pub(super) held: bool,
    at_gate: usize,
    ended: usize,
    /// Steps of its workers so far.
    pub(super) steps: u64,
}

impl Gate {
    /// All of its workers have ended.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended == self.workers.end - self.workers.start
    }
}

/// A worker thread.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    trainer: u32,
    local: u32,
    state: State,
    since: u64,
    /// Steps made.
    taken: u64,
    /// Steps whose rows were asked for.
    asked: u64,
    /// Steps whose rows are there.
    ready: u64,
    /// Steps asked for whose gradients are not in the rows yet.
    under_way: usize,
    since_gate: u64,
    /// The batch that it was handed, and by which instance.
    batch: Option<(u32, Ticket)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Computing,
    AwaitBatch,
    AwaitRows,
    Gate,
    Ended,
}

impl Worker {
    pub(super) const fn new(trainer: u32, local: u32) -> Self {
        Self {
            trainer,
            local,
            state: State::Computing,
            since: 0,
            taken: 0,
            asked: 0,
            ready: 0,
            under_way: 0,
            since_gate: 0,
            batch: None,
        }
    }

    /// Who it is, what it waits for and since when, unless it has ended.
    pub(super) const fn waits(&self) -> Option<(Who, Deed, u64)> {
        let what = match self.state {
            State::Computing => Deed::Step,
            State::AwaitRows => Deed::AwaitRows,
            State::Gate | State::AwaitBatch => Deed::Gate,
            State::Ended => return None,
        };
        Some((self.who(), what, self.since))
    }

    const fn who(&self) -> Who {
        Who::Worker { trainer: self.trainer, worker: self.local }
    }
}

/// A row store as a trainer meets it: the one that stands for all.
struct Store {
    port: usize,
    queue: usize,
    /// Messages of a request at the trainer's end and at the store's, mean.
    messages: (f64, f64),
    /// Share of a request's bytes at the trainer's end and at the store's.
    share: (f64, f64),
    /// Share of the time that one store alone would take.
    work: f64,
}

impl Simulation<'_, '_> {
    /// A worker has nothing to do: its next step, or its end.
    pub(super) fn go_on(&mut self, number: u32) {
        let now = self.now;
        let worker = &self.workers[number as usize];
        let trainer = worker.trainer as usize;
        let spec = self.trainer(trainer);
        let start = spec.awake(now);
        if self.crews[trainer].handed {
            if worker.batch.is_none() {
                let worker = &mut self.workers[number as usize];
                (worker.state, worker.since) = (State::AwaitBatch, now);
                return;
            }
        } else if worker.taken == spec.steps || start >= spec.ends.0 {
            return self.end(number);
        }
        self.ask_ahead(number);
        let rows = self.cluster.embedding.is_some();
        let seed = self.cluster.seed;
        let worker = &mut self.workers[number as usize];
        worker.since = now;
        if rows {
            if worker.ready == 0 {
                worker.state = State::AwaitRows;
                return;
            }
            worker.ready -= 1;
        }
        worker.state = State::Computing;
        let factor = spec.slowdown * self.cluster.jitter.factor(seed, number, worker.taken);
        let length = nanoseconds(spec.compute.0 as f64, factor);
        let end = self.begin_work(trainer, length);
        self.at(end, Event::StepEnded(number));
    }

    /// A thread of a trainer begins to work; when it will have ended. It is busy until
    /// [`Self::end_work`].
    pub(super) fn begin_work(&mut self, trainer: usize, length: u64) -> u64 {
        let spec = self.trainer(trainer);
        let busy = &mut self.crews[trainer].busy;
        *busy += 1;
        let crowded = spec.cores > 0 && *busy > spec.cores;
        let stretch = if crowded { *busy as f64 / spec.cores as f64 } else { 1.0 };
        spec.worked(self.now, nanoseconds(length as f64, stretch))
    }

    /// A thread of a trainer has ended its work.
    pub(super) fn end_work(&mut self, trainer: usize) {
        self.crews[trainer].busy -= 1;
    }

    pub(super) fn step_ended(&mut self, number: u32) {
        let worker = &mut self.workers[number as usize];
        let (trainer, local, begin) = (worker.trainer as usize, worker.local, worker.since);
        let taken = worker.taken;
        worker.taken += 1;
        worker.since_gate += 1;
        let (who, since_gate) = (worker.who(), worker.since_gate);
        self.end_work(trainer);
        let crew = &mut self.crews[trainer];
        crew.steps += 1;
        let gate = crew.gate_of(local);
        if let Some(gate) = gate {
            crew.gates[gate].steps += 1;
        }
        let every = gate.map_or(0, |gate| crew.gates[gate].every);
        let waiting = core::mem::take(&mut crew.idle);
        self.begin_rounds(waiting);
        let begin = self.trainer(trainer).awake(begin);
        self.crews[trainer].compute_ns += self.now - begin;
        self.record(who, Deed::Step, begin, self.now);
        let batch = self.workers[number as usize].batch.take();
        let ticket = batch.map(|(_, ticket)| ticket);
        self.tell(trainer, local as usize, taken, ticket);
        self.push_gradients(number);
        if let Some((instance, _)) = batch {
            self.trained(instance);
        }
        if since_gate == every {
            self.stand_at_gate(number);
        } else {
            self.go_on(number);
        }
    }

    /// A worker asks for the rows of the batch that an instance is going to hand it.
    pub(super) fn announce(&mut self, trainer: usize, local: usize, instance: u32, ticket: Ticket) {
        let number = self.crews[trainer].first + local;
        self.workers[number].batch = Some((instance, ticket));
        self.tell_rows(Rows::Asked { worker: number, ticket });
        #[expect(clippy::cast_possible_truncation, reason = "events number workers in u32")]
        self.ask_ahead(number as u32);
    }

    /// An instance hands a worker a batch.
    pub(super) fn hand(&mut self, trainer: usize, local: usize, instance: u32, ticket: Ticket) {
        let number = self.crews[trainer].first + local;
        let worker = &mut self.workers[number];
        worker.batch = Some((instance, ticket));
        let (who, since) = (worker.who(), worker.since);
        self.crews[trainer].gate_ns += self.now - since;
        if since < self.now {
            self.record(who, Deed::Gate, since, self.now);
        }
        #[expect(clippy::cast_possible_truncation, reason = "events number workers in u32")]
        self.go_on(number as u32);
    }

    /// An instance has no more batches for a worker.
    pub(super) fn dismiss(&mut self, trainer: usize, local: usize) {
        #[expect(clippy::cast_possible_truncation, reason = "events number workers in u32")]
        self.end((self.crews[trainer].first + local) as u32);
    }

    fn end(&mut self, number: u32) {
        let worker = &mut self.workers[number as usize];
        worker.state = State::Ended;
        let (trainer, local) = (worker.trainer as usize, worker.local);
        let crew = &mut self.crews[trainer];
        crew.ended += 1;
        crew.ended_at = self.now;
        let gate = crew.gate_of(local);
        if let Some(gate) = gate {
            crew.gates[gate].ended += 1;
        }
        if crew.has_ended() {
            let mut waiting = core::mem::take(&mut crew.held_back);
            waiting.append(&mut crew.idle);
            self.begin_rounds(waiting);
        }
        if let Some(gate) = gate {
            self.gate_moved(trainer, gate);
        }
    }

    /// Instances that waited for this trainer's workers may begin their rounds.
    fn begin_rounds(&mut self, waiting: Vec<u32>) {
        for instance in waiting {
            self.foresee_round(instance, self.now);
        }
    }

    fn stand_at_gate(&mut self, number: u32) {
        let worker = &mut self.workers[number as usize];
        (worker.state, worker.since) = (State::Gate, self.now);
        let (trainer, local) = (worker.trainer as usize, worker.local);
        let crew = &mut self.crews[trainer];
        if let Some(gate) = crew.gate_of(local) {
            crew.gates[gate].at_gate += 1;
            self.gate_moved(trainer, gate);
        }
    }

    /// An instance that keeps a gate wants to load: the last round is over for it.
    pub(super) fn wants_to_load(&mut self, trainer: usize, gate: usize, instance: u32) {
        let it = &mut self.crews[trainer].gates[gate];
        it.loading.push(instance);
        if it.held && it.loading.len() == it.kept_by {
            self.open_gate(trainer, gate);
        }
        self.gate_moved(trainer, gate);
    }

    fn open_gate(&mut self, trainer: usize, gate: usize) {
        let it = &mut self.crews[trainer].gates[gate];
        (it.held, it.at_gate) = (false, 0);
        for number in it.workers.clone() {
            let worker = &mut self.workers[number];
            if worker.state != State::Gate {
                continue;
            }
            worker.since_gate = 0;
            let (who, since) = (worker.who(), worker.since);
            self.crews[trainer].gate_ns += self.now - since;
            self.record(who, Deed::Gate, since, self.now);
            #[expect(clippy::cast_possible_truncation, reason = "events number workers in u32")]
            self.go_on(number as u32);
        }
    }

    /// Lets a round begin when all workers of a gate that have not ended stand at it and every
    /// instance that keeps it wants to load; tells these instances when there is none left.
    fn gate_moved(&mut self, trainer: usize, gate: usize) {
        let it = &mut self.crews[trainer].gates[gate];
        let closed = it.at_gate + it.ended == it.workers.len();
        if it.kept_by == 0 || !closed || it.held || it.loading.len() < it.kept_by {
            return;
        }
        it.held = it.at_gate > 0;
        for instance in core::mem::take(&mut it.loading) {
            self.foresee_round(instance, self.now);
        }
    }

    fn ask_ahead(&mut self, number: u32) {
        let Some(embedding) = self.cluster.embedding else { return };
        let worker = &self.workers[number as usize];
        let trainer = worker.trainer as usize;
        let steps = self.trainer(trainer).steps;
        let room = (embedding.prefetch + 1).saturating_sub(worker.under_way);
        let known = match (self.crews[trainer].handed, worker.batch) {
            (true, Some(_)) => worker.taken + 1,
            (true, None) => worker.taken,
            (false, _) => steps,
        };
        let asks = (room as u64).min(known - worker.asked);
        for _ in 0..asks {
            self.ask(number, trainer, &embedding);
        }
    }

    fn ask(&mut self, number: u32, trainer: usize, embedding: &Embedding) {
        let worker = &mut self.workers[number as usize];
        worker.asked += 1;
        worker.under_way += 1;
        let arrival = |first, last| (first, Event::AskArrived { worker: number, last });
        self.send_request(trainer, embedding.ask_bytes, arrival);
    }

    fn push_gradients(&mut self, number: u32) {
        let Some(embedding) = self.cluster.embedding else { return };
        let trainer = self.workers[number as usize].trainer as usize;
        let arrival = |first, last| (first, Event::GradientArrived { worker: number, last });
        self.send_request(trainer, embedding.gradient_bytes, arrival);
    }

    fn send_request(
        &mut self,
        trainer: usize,
        bytes: u64,
        arrival: impl FnOnce(u64, u64) -> (u64, Event),
    ) {
        let (store, now) = (self.store(trainer), self.now);
        let (time, event) = if store.messages.0 == 0.0 {
            arrival(now, now)
        } else {
            let bytes = part(bytes, store.share.0);
            self.rows_bytes += bytes;
            let flight = self.ports[trainer].send(now, bytes, store.messages.0);
            arrival(flight.first, flight.last)
        };
        self.at(time, event);
    }

    pub(super) fn ask_arrived(&mut self, number: u32, last: u64) {
        let Some(embedding) = self.cluster.embedding else { return };
        let trainer = self.workers[number as usize].trainer as usize;
        let store = self.store(trainer);
        let served = self.serve(&store, last, embedding.ask_bytes, embedding.lookup.0);
        if store.messages.0 == 0.0 {
            return self.at(served, Event::RowsReady(number));
        }
        let bytes = part(embedding.rows_bytes, store.share.1);
        let flight = self.ports[store.port].send(served, bytes, store.messages.1);
        self.at(flight.first, Event::RowsArrived { worker: number, last: flight.last });
    }

    pub(super) fn rows_arrived(&mut self, number: u32, last: u64) {
        let Some(embedding) = self.cluster.embedding else { return };
        let trainer = self.workers[number as usize].trainer as usize;
        let store = self.store(trainer);
        let bytes = part(embedding.rows_bytes, store.share.0);
        self.rows_bytes += bytes;
        let end = self.ports[trainer].receive(self.now, last, bytes, store.messages.0);
        self.at(end, Event::RowsReady(number));
    }

    pub(super) fn rows_ready(&mut self, number: u32) {
        let worker = &mut self.workers[number as usize];
        worker.ready += 1;
        if worker.state == State::AwaitRows {
            let (who, since, trainer) = (worker.who(), worker.since, worker.trainer as usize);
            self.crews[trainer].rows_ns += self.now - since;
            self.record(who, Deed::AwaitRows, since, self.now);
            self.go_on(number);
        }
    }

    pub(super) fn gradient_arrived(&mut self, number: u32, last: u64) {
        let Some(embedding) = self.cluster.embedding else { return };
        let store = self.store(self.workers[number as usize].trainer as usize);
        let served = self.serve(&store, last, embedding.gradient_bytes, embedding.update.0);
        self.at(served, Event::Settled(number));
    }

    pub(super) fn settled(&mut self, number: u32) {
        let worker = &mut self.workers[number as usize];
        worker.under_way -= 1;
        if matches!(worker.state, State::Computing | State::AwaitRows) {
            self.ask_ahead(number);
        }
    }

    /// A request has begun to arrive at its store; when the store will have done what it asks.
    fn serve(&mut self, store: &Store, last: u64, bytes: u64, work: u64) -> u64 {
        let here = if store.messages.1 == 0.0 {
            self.now
        } else {
            let bytes = part(bytes, store.share.1);
            self.ports[store.port].receive(self.now, last, bytes, store.messages.1)
        };
        let free = &mut self.stores_free[store.queue];
        *free = here.max(*free) + nanoseconds(work as f64, store.work);
        *free
    }

    fn store(&self, trainer: usize) -> Store {
        let trainers = self.cluster.trainers.len();
        let (ps, rows) = match self.cluster.embedding {
            Some(embedding) => (embedding.ps, embedding.rows as f64),
            None => (0, 0.0),
        };
        if ps == 0 {
            let others = trainers as f64 - 1.0;
            let share = others / trainers as f64;
            let messages = others.min(rows);
            return Store {
                port: trainer,
                queue: trainer,
                messages: (messages, messages),
                share: (share, share),
                work: 1.0,
            };
        }
        let each = 1.0 / ps as f64;
        let messages = rows.min(ps as f64);
        Store {
            port: self.ports.len() - 1,
            queue: 0,
            messages: (messages, messages * each),
            share: (1.0, each),
            work: each,
        }
    }
}

/// A share of `bytes`.
fn part(bytes: u64, share: f64) -> u64 {
    nanoseconds(bytes as f64, share)
}
