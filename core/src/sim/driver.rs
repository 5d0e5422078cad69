//! What protocols ask for, in virtual time. No protocol knowledge here.
//!
//! The twin of the MPI runtime's driver: the same actions, the same arithmetic in the same order
//! (`sync::reduction`, `dense::replica`), so that values equal that driver's bit for bit.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::cluster::nanoseconds;
use super::instance::{Instance, Rows, Seat};
use super::outcome::SimError;
use super::run::{Event, Simulation};
use super::trace::{Deed, Who};
use crate::dense::replica::{add_parameters, interpolate, load_finite};
use crate::sync::reduction::{contribute, slice};
use crate::sync::{
    Action, Completion, Conductor, Decision, Group, Look, Note, Payload, RoundCost, Rounds, Wait,
};
use crate::units::Nanos;

/// What matters of the values is sent, where messages are coded.
const fn is_coded(payload: Payload) -> bool {
    matches!(payload, Payload::Change | Payload::State)
}

/// Bytes of a message beside its values: the word.
pub(super) const WORD_BYTES: u64 = 8;

/// A thread that drives a protocol.
pub(super) struct Driver<'p> {
    pub(super) instance: Instance<'p>,
    /// What it does or waits for, and since when.
    pub(super) doing: Deed,
    /// See `doing`.
    pub(super) since: u64,
    /// The protocol has finished.
    pub(super) finished: bool,
    pub(super) action: Action,
    /// The action is a receive, and nothing has come yet.
    receiving: bool,
    /// Values came with the last message.
    carried: bool,
    /// It waits for the others of a group to come to this reduction.
    pub(super) joined: Option<Group>,
    /// What the protocol will be told next.
    pub(super) completion: Completion,
    inbox: VecDeque<Message>,
    turn: u64,
    conductor: Conductor,
    round: Option<RoundCost>,
    /// The workers had ended when this round began, and had done nothing since the last.
    following: bool,
    /// The workers had ended when this round began, and it takes in all they did.
    last: bool,
    /// Steps of the workers from the round before to this one.
    gap: u64,
}

/// A message on its way or waiting.
#[derive(Debug)]
pub(super) struct Message {
    from: u32,
    to: u32,
    word: u64,
    /// `Some` when staging goes with it. `[slice]`
    values: Option<Vec<f32>>,
    note: Option<Note>,
    bytes: u64,
    sent_at: u64,
}

impl<'p> Driver<'p> {
    pub(super) const fn new(instance: Instance<'p>) -> Self {
        Self {
            conductor: Conductor::new(instance.rounds, 0),
            instance,
            doing: Deed::AwaitRound,
            since: 0,
            carried: false,
            finished: false,
            action: Action::Finish,
            receiving: false,
            joined: None,
            completion: Completion::Start,
            inbox: VecDeque::new(),
            turn: 0,
            round: None,
            following: false,
            last: false,
            gap: 0,
        }
    }

    const fn trainer(&self) -> Option<usize> {
        match self.instance.seat {
            Seat::Trainer { trainer, .. } => Some(trainer),
            Seat::Center { .. } => None,
        }
    }

    /// The node it runs on.
    pub(super) const fn node(&self) -> usize {
        match self.instance.seat {
            Seat::Trainer { trainer, .. } => trainer,
            Seat::Center { node } => node,
        }
    }
}

impl Simulation<'_, '_> {
    /// When an instance is next awake.
    pub(super) fn awake(&self, instance: u32, at: u64) -> u64 {
        let node = self.drivers[instance as usize].node();
        self.cluster.trainers.get(node).map_or(at, |trainer| trainer.awake(at))
    }

    /// Tells a protocol what is laid down for it, and begins what it asks for.
    pub(super) fn resume(&mut self, number: u32) -> Result<(), SimError> {
        let (now, instance) = (self.now, number as usize);
        loop {
            let driver = &mut self.drivers[instance];
            let action = driver
                .instance
                .protocol
                .step(driver.completion)
                .map_err(|error| SimError::OutOfTurn { instance: number, error })?;
            driver.action = action;
            driver.since = now;
            driver.turn += 1;
            let misplaced = SimError::Misplaced { instance: number };
            let trainer = driver.trainer().ok_or(misplaced);
            let copy = self.cluster.copy_ns_per_byte * driver.instance.bytes as f64;
            match action {
                Action::Load | Action::Take => {
                    self.want_round(number, trainer?);
                    return Ok(());
                }
                Action::Read | Action::Store { .. } | Action::Add { .. } | Action::Give => {
                    trainer?;
                    let what = match action {
                        Action::Read => Deed::Load,
                        Action::Add { .. } => Deed::Add,
                        _ => Deed::Store,
                    };
                    self.busy(number, what, copy);
                    return Ok(());
                }
                Action::Send { payload, to, .. } => {
                    let values = payload.has_values();
                    if to >= self.drivers.len() {
                        return Err(misplaced);
                    }
                    // What came with values is worked on before it is answered.
                    let carried = core::mem::take(&mut self.drivers[instance].carried);
                    let coding = self.coding_ns(number, to, payload);
                    let bytes = self.drivers[instance].instance.bytes as f64;
                    if trainer.is_err() && (values || carried) {
                        let service = self.cluster.service_ns_per_byte * bytes;
                        self.busy(number, Deed::Serve, service + coding);
                        return Ok(());
                    }
                    if coding > 0.0 {
                        self.busy(number, Deed::Code, coding);
                        return Ok(());
                    }
                    self.post(number);
                    self.drivers[instance].completion = Completion::Done;
                }
                Action::Receive { .. } | Action::Await { .. } => {
                    driver.doing = Deed::Receive;
                    let turn = driver.turn;
                    let Some(received) = self.take_message(number) else {
                        self.drivers[instance].receiving = true;
                        if let Action::Await { until } = action {
                            let time = self.awake(number, until.0.max(now));
                            self.at(time, Event::Waited { instance: number, turn });
                        }
                        return Ok(());
                    };
                    self.drivers[instance].completion = received;
                }
                Action::Tell { news } => {
                    driver.completion = Completion::Done;
                    self.tell_rows(Rows::News(news));
                }
                Action::Announce { ticket } => {
                    let Seat::Trainer { trainer, gate } = driver.instance.seat else {
                        return Err(misplaced);
                    };
                    self.announce(trainer, gate, number, ticket);
                    self.drivers[instance].completion = Completion::Done;
                }
                // Stores have what was pushed when it has arrived.
                Action::Settle => driver.completion = Completion::Done,
                Action::Train { ticket } => {
                    let Seat::Trainer { trainer, gate } = driver.instance.seat else {
                        return Err(misplaced);
                    };
                    driver.doing = Deed::Receive;
                    self.hand(trainer, gate, number, ticket);
                    return Ok(());
                }
                Action::ReduceMean { group, weight, silent } => {
                    trainer?;
                    if group != Group::All && driver.instance.dealing.is_none() {
                        return Err(misplaced);
                    }
                    driver.doing = Deed::Reduce;
                    driver.joined = Some(group);
                    contribute(driver.instance.protocol.staging(), weight, silent);
                    self.join_reduction(number, group);
                    return Ok(());
                }
                Action::ReduceSum { group } => {
                    trainer?;
                    if group != Group::All {
                        return Err(misplaced);
                    }
                    driver.doing = Deed::Reduce;
                    self.join_reduction(number, group);
                    return Ok(());
                }
                Action::Finish => {
                    driver.finished = true;
                    self.finished_at = now;
                    let handed = driver.instance.rounds == Rounds::Handed;
                    if let (true, Seat::Trainer { trainer, gate }) = (handed, driver.instance.seat)
                    {
                        self.dismiss(trainer, gate);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// An instance works for `ns`.
    fn busy(&mut self, number: u32, what: Deed, ns: f64) {
        // A round that takes no time at all would be followed by the next for ever.
        let length = nanoseconds(ns, 1.0).max(1);
        let driver = &mut self.drivers[number as usize];
        (driver.doing, driver.since) = (what, self.now);
        if let Some(round) = &mut driver.round {
            round.busy.0 += length;
        }
        match driver.trainer() {
            Some(trainer) => self.crews[trainer].sync_busy_ns += length,
            None => self.center_busy_ns += length,
        }
        let node = driver.node();
        let end =
            if node < self.crews.len() { self.begin_work(node, length) } else { self.now + length };
        self.at(end, Event::Acted(number));
    }

    /// What an instance was busy with has an effect now.
    pub(super) fn acted(&mut self, number: u32) -> Result<(), SimError> {
        let driver = &mut self.drivers[number as usize];
        let (who, what, since) = (Who::Instance(number), driver.doing, driver.since);
        let node = driver.node();
        if node < self.crews.len() {
            self.end_work(node);
        }
        self.record(who, what, since, self.now);
        let replica = self.replica(self.place_of_replica(number));
        let driver = &mut self.drivers[number as usize];
        let elements = driver.instance.slice.clone();
        let words = || if elements.is_empty() { &[] } else { &replica[elements] };
        driver.completion = Completion::Done;
        match driver.action {
            Action::Load | Action::Read => {
                let finite = load_finite(words(), slice(driver.instance.protocol.staging()));
                driver.completion = Completion::Loaded { finite, last: driver.last };
            }
            Action::Take => driver.completion = Completion::Taken,
            Action::Give => self.updated(node),
            Action::Store { alpha } => {
                interpolate(words(), alpha, slice(driver.instance.protocol.staging()));
            }
            Action::Add { alpha, parameters } => {
                let staging = slice(driver.instance.protocol.staging());
                add_parameters(words(), alpha, parameters, staging);
            }
            Action::Send { .. } => self.post(number),
            _ => {}
        }
        let action = self.drivers[number as usize].action;
        if matches!(action, Action::Store { .. } | Action::Add { .. } | Action::Give) {
            self.round_ended(number, node);
        }
        self.resume(number)
    }

    /// A protocol wants to load: as soon as its pace or its gate lets it.
    fn want_round(&mut self, number: u32, trainer: usize) {
        let driver = &mut self.drivers[number as usize];
        driver.doing = Deed::AwaitRound;
        if let (Some(round), false) = (driver.round, driver.following) {
            driver.conductor.round_ended(round);
        }
        let Seat::Trainer { gate, .. } = driver.instance.seat else { return };
        match driver.instance.rounds {
            Rounds::Background(_) if !self.crews[trainer].has_ended() => {
                let due = driver.conductor.due().0;
                if due > self.now {
                    self.crews[trainer].held_back.push(number);
                }
                self.foresee_round(number, due.max(self.now));
            }
            Rounds::Gated { .. } | Rounds::EveryStep => self.wants_to_load(trainer, gate, number),
            Rounds::Background(_) | Rounds::Never | Rounds::Handed => {
                self.foresee_round(number, self.now);
            }
        }
    }

    /// A round may begin at `time`, or as soon after it as the node is awake.
    pub(super) fn foresee_round(&mut self, instance: u32, time: u64) {
        let turn = self.drivers[instance as usize].turn;
        self.at(self.awake(instance, time), Event::RoundDue { instance, turn });
    }

    /// A round begins, or the workers have ended.
    pub(super) fn round_due(&mut self, number: u32, turn: u64) -> Result<(), SimError> {
        let driver = &self.drivers[number as usize];
        let (since, trainer) = (driver.since, driver.node());
        if driver.turn != turn {
            // The workers ended before its time came.
            return Ok(());
        }
        let Seat::Trainer { gate, .. } = driver.instance.seat else { return Ok(()) };
        let crew = &mut self.crews[trainer];
        crew.held_back.retain(|waiting| *waiting != number);
        let now = Nanos(self.now);
        let look = match crew.gates.get(gate) {
            Some(it) => Look { now, steps: it.steps, ended: it.has_ended(), at_gate: it.held },
            None => Look { now, steps: crew.steps, ended: crew.has_ended(), at_gate: false },
        };
        let driver = &mut self.drivers[number as usize];
        let (last, gap) = match driver.conductor.next(look) {
            Decision::Wait(Wait::Until(time)) => {
                crew.held_back.push(number);
                self.foresee_round(number, time.0);
                return Ok(());
            }
            Decision::Wait(Wait::Step | Wait::Gate) => {
                crew.idle.push(number);
                return Ok(());
            }
            Decision::Begin { last, gap } => (last, gap),
            Decision::Stop => (true, 0),
        };
        driver.following = last && gap == 0;
        (driver.last, driver.gap) = (last, gap);
        if since < self.now {
            self.record(Who::Instance(number), Deed::AwaitRound, since, self.now);
        }
        let driver = &mut self.drivers[number as usize];
        if driver.following {
            driver.completion = Completion::Stop;
            return self.resume(number);
        }
        // A step and the end of the workers at one moment both announce this round: the second
        // finds it begun.
        driver.turn += 1;
        driver.round = Some(RoundCost { began: Nanos(self.now), ..RoundCost::default() });
        let copy = self.cluster.copy_ns_per_byte * driver.instance.bytes as f64;
        self.busy(number, Deed::Load, copy);
        Ok(())
    }

    fn round_ended(&mut self, number: u32, trainer: usize) {
        let driver = &mut self.drivers[number as usize];
        let Some(round) = driver.round.filter(|_| !driver.following) else { return };
        let crew = &mut self.crews[trainer];
        if driver.instance.channel == 0 {
            crew.gaps.push(driver.gap);
        }
        if matches!(driver.instance.rounds, Rounds::Background(_)) {
            crew.round_ns += self.now - round.began.0;
        }
    }

    /// Sends what the protocol asked for.
    fn post(&mut self, number: u32) {
        let driver = &mut self.drivers[number as usize];
        let Action::Send { to, word, payload } = driver.action else { return };
        let values = payload.has_values();
        let note = if let Payload::Note(note) = payload { Some(note) } else { None };
        let note_bytes = note.map_or(0, |note| size_of_val(&note) as u64);
        let of_values = match self.cluster.coded {
            Some(coded) if is_coded(payload) => coded.sent(self.bytes_of(number, to)),
            _ if values => self.bytes_of(number, to),
            _ => 0,
        };
        let bytes = WORD_BYTES + note_bytes + of_values;
        let driver = &mut self.drivers[number as usize];
        let values = values.then(|| slice(driver.instance.protocol.staging()).to_vec());
        #[expect(clippy::cast_possible_truncation, reason = "it is one of the instances")]
        let to = to as u32;
        let message = Message { from: number, to, word, values, note, bytes, sent_at: self.now };
        let node = driver.node();
        let slot = self.stow(message);
        if self.drivers[to as usize].node() == node {
            return self.at(self.awake(to, self.now), Event::Delivered(slot));
        }
        self.sent(number, bytes);
        let flight = self.ports[node].send(self.now, bytes, 1.0);
        self.at(flight.first, Event::MessageArrived { slot, last: flight.last });
    }

    /// What coding a message takes, on both sides. ns
    fn coding_ns(&self, number: u32, to: usize, payload: Payload) -> f64 {
        let coded = self.cluster.coded.filter(|_| is_coded(payload));
        coded.map_or(0.0, |coded| {
            let per_byte = coded.code_ns_per_byte + coded.read_ns_per_byte;
            per_byte * self.bytes_of(number, to) as f64
        })
    }

    /// Counts bytes that an instance sent to another node.
    pub(super) fn sent(&mut self, number: u32, bytes: u64) {
        let driver = &mut self.drivers[number as usize];
        if let Some(round) = &mut driver.round {
            round.bytes += bytes;
        }
        match driver.trainer() {
            Some(trainer) => self.crews[trainer].sync_bytes += bytes,
            None => self.center_bytes += bytes,
        }
    }

    fn stow(&mut self, message: Message) -> u32 {
        if let Some(slot) = self.free_slots.pop() {
            self.flights[slot as usize] = Some(message);
            return slot;
        }
        self.flights.push(Some(message));
        #[expect(clippy::cast_possible_truncation, reason = "far fewer than 4 billion at a time")]
        let slot = (self.flights.len() - 1) as u32;
        slot
    }

    pub(super) fn message_arrived(&mut self, slot: u32, last: u64) {
        let Some(message) = &self.flights[slot as usize] else { return };
        let (to, bytes) = (message.to, message.bytes);
        let port = &mut self.ports[self.drivers[to as usize].node()];
        let here = port.receive(self.now, last, bytes, 1.0);
        self.at(self.awake(to, here), Event::Delivered(slot));
    }

    pub(super) fn delivered(&mut self, slot: u32) {
        let Some(message) = self.flights[slot as usize].take() else { return };
        self.free_slots.push(slot);
        let (to, word) = (message.to, message.word);
        self.record(
            Who::Instance(message.from),
            Deed::Message { to, word },
            message.sent_at,
            self.now,
        );
        let driver = &mut self.drivers[to as usize];
        driver.inbox.push_back(message);
        if driver.receiving
            && let Some(received) = self.take_message(to)
        {
            self.lay_down(to, received);
        }
    }

    /// The oldest message that the outstanding receive takes, if there is one.
    fn take_message(&mut self, number: u32) -> Option<Completion> {
        let driver = &mut self.drivers[number as usize];
        let from = match driver.action {
            Action::Receive { from } => from,
            Action::Await { .. } => None,
            _ => return None,
        };
        let fits = |message: &Message| from.is_none_or(|from| from == message.from as usize);
        let place = driver.inbox.iter().position(fits)?;
        let message = driver.inbox.remove(place)?;
        let elements = message.values.as_ref().map_or(0, Vec::len);
        driver.carried = message.values.is_some();
        if let Some(values) = message.values {
            slice(driver.instance.protocol.staging()).copy_from_slice(&values);
        }
        let since = driver.since;
        if since < self.now {
            self.record(Who::Instance(number), Deed::Receive, since, self.now);
        }
        let (from, word) = (message.from as usize, message.word);
        Some(match message.note {
            Some(note) => Completion::Noted { from, word, note, now: Nanos(self.now) },
            None => Completion::Received { from, word, elements },
        })
    }

    /// Nothing has come for an instance in the time it gave.
    pub(super) fn waited(&mut self, number: u32, turn: u64) -> Result<(), SimError> {
        let driver = &mut self.drivers[number as usize];
        if driver.turn != turn || !driver.receiving {
            return Ok(());
        }
        driver.receiving = false;
        driver.completion = Completion::Late { now: Nanos(self.now) };
        self.resume(number)
    }

    /// The worker of an instance has trained its batch: its gradient is where it was asked to be.
    pub(super) fn trained(&mut self, number: u32) {
        let gradient = self.gradient(self.place_of_replica(number));
        let staging = slice(self.drivers[number as usize].instance.protocol.staging());
        let finite = gradient.is_empty() || load_finite(gradient, staging);
        self.lay_down(number, Completion::Trained { finite, stop: false });
    }

    /// Which of the replicas an instance works on: that of its trainer, or of the worker that it
    /// hands batches.
    fn place_of_replica(&self, number: u32) -> usize {
        let instance = &self.drivers[number as usize].instance;
        match instance.seat {
            Seat::Trainer { trainer, gate } if instance.rounds == Rounds::Handed => {
                self.crews[trainer].first + gate
            }
            Seat::Trainer { trainer, .. } => trainer,
            Seat::Center { node } => node,
        }
    }

    /// Bytes of the values of a message from an instance to another: of the smaller slice, where
    /// one has the whole replica.
    fn bytes_of(&self, from: u32, to: usize) -> u64 {
        let bytes = |number: usize| self.drivers[number].instance.bytes;
        bytes(from as usize).min(bytes(to))
    }

    /// Lays a completion down for an instance, which gets it next.
    fn lay_down(&mut self, number: u32, completion: Completion) {
        let driver = &mut self.drivers[number as usize];
        driver.completion = completion;
        driver.receiving = false;
        self.at(self.awake(number, self.now), Event::Resume(number));
    }
}
