//! A protocol under way: what it asks for is done here, an action at a time.
//!
//! Invariants: an action that cannot be done yet leaves all as it is; workers at a closed gate are
//! let go once their round has ended.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use umbra_core::dense::replica::{add_parameters, element, interpolate, load_finite};
use umbra_core::sync::reduction::{QUIET, conclude, contribute, slice};
use umbra_core::sync::{
    Action, Completion, Conductor, Decision, Group, Look, News, Payload, Protocol, RoundCost, Wait,
};
use umbra_core::units::Nanos;

use crate::comm::post::Body;
use crate::comm::reduce::MANY;
use crate::comm::watch::Waiting;
use crate::dense::endpoints::{DriveError, Endpoints, Ends};
use crate::dense::group_sums::Patience;
use crate::dense::hand::Desk;
use crate::measure::counters::{Counters, RoundCounters, RoundReading, WorkerCounters};
use crate::measure::trace::Track;
use crate::record::say;

/// A protocol and what is its own.
pub struct Seat<'a> {
    /// Number of the instance.
    pub number: usize,
    /// What runs.
    pub machine: &'a mut (dyn Protocol + Send),
    /// The live slice of the dense replica; empty for a center. `[staging length - TAIL]`
    pub replica: &'a [AtomicU32],
    /// How rounds and workers meet.
    pub workers: Workers<'a>,
    /// When rounds begin. Made before the workers begin, so that all they do counts.
    pub conductor: Conductor,
    /// What is counted.
    pub counters: &'a RoundCounters,
    /// What is drawn.
    pub track: Track<'a>,
}

/// How rounds and workers meet.
pub enum Workers<'a> {
    /// They train on.
    Background {
        /// Set once the last of them has ended.
        ended: &'a AtomicBool,
        /// Where they count their steps.
        steps: &'a Counters,
    },
    /// They stand still during rounds.
    Gated {
        /// The driver's end of the gate.
        gate: GateKeeper,
        /// Where they count their steps.
        steps: Steps<'a>,
    },
    /// One, which trains what it is handed.
    Handed {
        /// Where its batches lie.
        desk: Desk,
    },
    /// There are none.
    None,
}

/// Whose steps lie between rounds.
pub enum Steps<'a> {
    /// Those of all workers of a trainer together.
    All(&'a Counters),
    /// Those of one.
    Of(&'a WorkerCounters),
    /// Nobody counts.
    Uncounted,
}

/// The driver's end of the gate: the workers knock when all of them stand at it.
pub struct GateKeeper {
    /// Closed once the workers have ended.
    pub knocks: Receiver<()>,
    /// The answer, once the round is over.
    pub opens: Sender<()>,
}

/// Steps between rounds, and how often: of the workers that meet them.
pub type Gaps = BTreeMap<u64, u64>;

/// A protocol under way.
pub(super) struct Seated<'a> {
    pub(super) seat: Seat<'a>,
    /// What it asked for; `None` before the first action.
    action: Option<Action>,
    pub(super) finished: bool,
    /// What its next round waits for, if it waits for one.
    pub(super) waits: Option<Wait>,
    /// A wait for a message of one peer.
    waiting: Waiting,
    /// The round under way.
    round: Option<RoundCost>,
    /// The gate is closed and workers wait behind it.
    gate_closed: bool,
    /// The gate will not be knocked at again: the workers have gone.
    deserted: bool,
    gap: u64,
    pub(super) gaps: Gaps,
    /// Partitions that have been asked whether they are done.
    settled: Option<Receiver<()>>,
    /// Since when a center has had a message to answer.
    serving: Option<Instant>,
    /// When the distance to the target was last measured.
    sampled: Instant,
}

impl<'a> Seated<'a> {
    pub(super) fn new(seat: Seat<'a>) -> Self {
        Self {
            seat,
            action: None,
            finished: false,
            waits: None,
            waiting: Waiting::default(),
            round: None,
            gate_closed: false,
            deserted: false,
            gap: 0,
            gaps: Gaps::new(),
            settled: None,
            serving: None,
            sampled: Instant::now(),
        }
    }

    /// Does what was asked for, if it can be done now, and asks what is next. False if it could
    /// not.
    pub(super) fn turn(&mut self, ends: &mut Ends<'_>) -> Result<bool, DriveError> {
        let completion = match self.action {
            None => Some(Completion::Start),
            Some(action) => self.act(action, ends)?,
        };
        let Some(completion) = completion else { return Ok(false) };
        let instance = self.seat.number;
        let next = self
            .seat
            .machine
            .step(completion)
            .map_err(|error| DriveError::OutOfTurn { instance, error: Box::new(error) })?;
        self.action = Some(next);
        match next {
            Action::Load | Action::Take => self.end_round(ends.now()),
            Action::Train { .. } | Action::Settle => self.waits = Some(Wait::Gate),
            Action::Receive { .. } | Action::Await { .. } => {
                self.waits = None;
                self.waiting = Waiting::default();
                if let Some(since) = self.serving.take() {
                    self.seat.track.span("serve", since.elapsed());
                }
            }
            Action::Finish => {
                self.end_round(ends.now());
                self.finished = true;
            }
            _ => {}
        }
        Ok(true)
    }

    /// The completion of `action`, or `None` while there is none.
    fn act(
        &mut self,
        action: Action,
        ends: &mut Ends<'_>,
    ) -> Result<Option<Completion>, DriveError> {
        let missing = DriveError::Missing { instance: self.seat.number, action };
        let replica = self.seat.replica;
        Ok(Some(match action {
            Action::Load => return Ok(self.load(ends)),
            Action::Read => {
                let finite = load_finite(replica, slice(self.seat.machine.staging()));
                Completion::Loaded { finite, last: true }
            }
            Action::Store { alpha } => {
                self.sample(0);
                interpolate(replica, alpha, slice(self.seat.machine.staging()));
                Completion::Done
            }
            Action::Add { alpha, parameters } => {
                self.sample(parameters);
                let staging = slice(self.seat.machine.staging());
                add_parameters(replica, alpha, parameters, staging);
                Completion::Done
            }
            Action::Take => {
                let (Some(gradients), Some(comm)) = (&mut ends.ends.gradients, &ends.ends.comm)
                else {
                    return Err(missing);
                };
                let mut bytes = 0;
                let taken = gradients.take(&mut ends.sums, comm, &mut bytes)?;
                self.round = taken.then(|| self.begins(ends.now()));
                self.sent(bytes);
                if taken { Completion::Taken } else { Completion::Stop }
            }
            Action::ReduceSum { group } => {
                let (Some(gradients), Some(comm), Group::All) =
                    (&mut ends.ends.gradients, &ends.ends.comm, group)
                else {
                    return Err(missing);
                };
                let bytes = gradients.sum(&mut ends.sums, comm)?;
                self.sent(bytes);
                Completion::Done
            }
            Action::Give => {
                let Some(gradients) = &mut ends.ends.gradients else { return Err(missing) };
                gradients.give();
                Completion::Done
            }
            Action::ReduceMean { group: Group::All, weight, silent } => {
                let Some(comm) = &ends.ends.comm else { return Err(missing) };
                // In the background a piece at a time: at no time do rows wait behind more of it on
                // a slow link.
                let background = matches!(self.seat.workers, Workers::Background { .. });
                let under_way = if background { 1 } else { MANY };
                let what = "the average of replicas";
                let staging = self.seat.machine.staging();
                contribute(staging, weight, silent);
                let sent = match &mut ends.ends.coded_sum {
                    None => ends.sums.sum(comm, staging, under_way, what)?.bytes,
                    Some(coded) => {
                        coded.sum_with_tail(comm, &mut ends.sums, staging, (under_way, what))?
                    }
                };
                self.sent(sent);
                conclude(self.seat.machine.staging(), None)
            }
            Action::ReduceMean { group: Group::Dealt { round }, weight, silent } => {
                let Endpoints { groups, post, watch, poll, grace, .. } = &mut ends.ends;
                let (Some(groups), Some(post)) = (groups, post) else { return Err(missing) };
                let patience = Patience { watch, grace: *grace, poll: *poll };
                let staging = self.seat.machine.staging();
                contribute(staging, weight, silent);
                let sum = groups.sum(post, round, staging, silent, patience)?;
                self.sent(sum.bytes);
                match (sum.silent, sum.mean_of) {
                    (silent @ QUIET.., _) => Completion::Reduced { weight: 0.0, silent },
                    (silent, Some(members)) => {
                        Completion::Reduced { weight: members as f32, silent }
                    }
                    (silent, None) => conclude(self.seat.machine.staging(), Some(silent)),
                }
            }
            Action::Send { to, word, payload } => {
                let Endpoints { post: Some(post), coded_links, .. } = &mut ends.ends else {
                    return Err(missing);
                };
                let number = self.seat.number;
                let staging = slice(self.seat.machine.staging());
                let bytes = match (payload, coded_links) {
                    (Payload::Note(note), _) => post.send(number, to, word, &Body::Note(note)),
                    (Payload::None, _) => post.send(number, to, word, &Body::Values(&[])),
                    (Payload::Whole | Payload::Change | Payload::State, None) => {
                        post.send(number, to, word, &Body::Values(staging))
                    }
                    (Payload::Whole | Payload::Change | Payload::State, Some(links)) => {
                        links.send(post, (number, to, word), payload, staging)
                    }
                };
                self.sent(bytes);
                Completion::Done
            }
            Action::Tell { news } => {
                let Some(rows) = &ends.ends.rows else { return Err(missing) };
                if news != News::End {
                    rows.tell(news);
                    return Ok(Some(Completion::Done));
                }
                let settled = self.settled.get_or_insert_with(|| rows.settle());
                // The partitions have all answered when nobody can any more.
                match settled.try_recv() {
                    Ok(()) => return Ok(None),
                    Err(TryRecvError::Empty) => {
                        self.waiting.check(ends.ends.watch, &"rows to be updated")?;
                        return Ok(None);
                    }
                    Err(TryRecvError::Disconnected) => self.settled = None,
                }
                Completion::Done
            }
            Action::Announce { ticket } => {
                let Workers::Handed { desk } = &mut self.seat.workers else { return Err(missing) };
                desk.announce(ticket);
                Completion::Done
            }
            Action::Train { .. } => {
                let Workers::Handed { desk } = &mut self.seat.workers else { return Err(missing) };
                let staging = slice(self.seat.machine.staging());
                let Some((finite, stop)) = desk.train(staging) else { return Ok(None) };
                Completion::Trained { finite, stop }
            }
            Action::Settle => {
                let Workers::Handed { desk } = &mut self.seat.workers else { return Err(missing) };
                if !desk.is_settled() {
                    return Ok(None);
                }
                Completion::Done
            }
            Action::Receive { .. } | Action::Await { .. } => {
                let (from, until) = match action {
                    Action::Receive { from } => (from, None),
                    Action::Await { until } => (None, Some(until)),
                    _ => (None, None),
                };
                let now = ends.now();
                let Endpoints { post: Some(post), coded_links, watch, .. } = &mut ends.ends else {
                    return Err(missing);
                };
                let number = self.seat.number;
                let Some(message) = post.receive(number, from) else {
                    // A center has nothing to complain of when nobody comes.
                    if let Some(from) = from {
                        let rank = post.rank_of(from);
                        self.waiting.check(watch, &format_args!("the answer of rank {rank}"))?;
                    }
                    let is_late = until.is_some_and(|until| until <= now);
                    return Ok(is_late.then_some(Completion::Late { now }));
                };
                if let Workers::None = self.seat.workers {
                    self.serving = Some(Instant::now());
                }
                let (from, word) = (message.from(), message.word());
                let staging = slice(self.seat.machine.staging());
                let completion = match message.body() {
                    Body::Note(note) => Completion::Noted { from, word, note, now },
                    Body::Values(values) => {
                        let to = staging.get_mut(..values.len()).ok_or(DriveError::Malformed)?;
                        to.copy_from_slice(values);
                        Completion::Received { from, word, elements: values.len() }
                    }
                    body => {
                        let Some(links) = coded_links else { return Err(missing) };
                        let elements = links.read((from, number), &body, staging)?;
                        Completion::Received { from, word, elements }
                    }
                };
                post.recycle(message);
                completion
            }
            Action::Finish => return Ok(None),
        }))
    }

    /// Begins a round, if the conductor lets it.
    fn load(&mut self, ends: &Ends<'_>) -> Option<Completion> {
        let now = ends.now();
        let look = self.look(now);
        let (last, gap) = match self.seat.conductor.next(look) {
            Decision::Wait(wait) => {
                self.waits = Some(wait);
                return None;
            }
            Decision::Begin { last, gap } => (last, gap),
            Decision::Stop => {
                self.waits = None;
                return Some(Completion::Stop);
            }
        };
        self.waits = None;
        self.gap = gap;
        self.gate_closed = look.at_gate;
        self.round = Some(self.begins(now));
        let staging = slice(self.seat.machine.staging());
        let finite = load_finite(self.seat.replica, staging);
        if !finite {
            if self.seat.counters.read().refused == 0 {
                let prefix = ends.ends.watch.prefix();
                say(&format!(
                    "umbra: {prefix} warning: the dense replica is not finite; it is kept out of \
                     rounds and replaced by what the others have"
                ));
            }
            self.seat.counters.add(&RoundReading { refused: 1, ..RoundReading::default() });
        }
        Some(Completion::Loaded { finite, last })
    }

    /// What the conductor decides by. Steps are read once it is known whether workers have ended.
    fn look(&mut self, now: Nanos) -> Look {
        let (ended, at_gate, steps) = match &self.seat.workers {
            Workers::None | Workers::Handed { .. } => (false, false, 0),
            Workers::Background { ended, steps } => {
                (ended.load(Ordering::Acquire), false, steps.steps())
            }
            Workers::Gated { gate, steps } => {
                let knock = gate.knocks.try_recv();
                self.deserted |= knock == Err(TryRecvError::Disconnected);
                let steps = match steps {
                    Steps::All(counters) => counters.steps(),
                    Steps::Of(worker) => worker.steps(),
                    Steps::Uncounted => 0,
                };
                (self.deserted, knock.is_ok(), steps)
            }
        };
        Look { now, steps, ended, at_gate }
    }

    const fn begins(&self, began: Nanos) -> RoundCost {
        RoundCost { began, bytes: 0, busy: Nanos(0) }
    }

    /// Counts the round under way and lets workers at the gate go.
    fn end_round(&mut self, now: Nanos) {
        if let Some(round) = self.round.take() {
            let mut reading = RoundReading { rounds: 1, ..RoundReading::default() };
            // A step's sum is no round between steps.
            if self.action != Some(Action::Take) && !self.seat.replica.is_empty() {
                reading.round_ns = now.0 - round.began.0;
                self.seat.track.span("round", Duration::from_nanos(reading.round_ns));
                *self.gaps.entry(self.gap).or_default() += 1;
            }
            self.seat.counters.add(&reading);
            self.seat.conductor.round_ended(round);
        }
        if let (true, Workers::Gated { gate, .. }) = (self.gate_closed, &self.seat.workers) {
            // Workers that have gone need no answer.
            let _ = gate.opens.send(());
        }
        self.gate_closed = false;
    }

    /// Counts what this thread did with its core: of the round, if one is under way.
    pub(super) fn count_busy(&mut self, took: Duration) {
        let busy_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.seat.counters.add(&RoundReading { busy_ns, ..RoundReading::default() });
        if let Some(round) = &mut self.round {
            round.busy.0 += busy_ns;
        }
    }

    fn sent(&mut self, bytes: u64) {
        self.seat.counters.add(&RoundReading { bytes, ..RoundReading::default() });
        if let Some(round) = &mut self.round {
            round.bytes += bytes;
        }
    }

    /// Now and then, how far the replica is from where it is going: staging, but for the first so
    /// many elements, of which staging has the differences.
    fn sample(&mut self, differences: usize) {
        if self.sampled.elapsed() < SAMPLE_EVERY {
            return;
        }
        self.sampled = Instant::now();
        let (mut distance, mut norm) = (0.0, 0.0);
        let staging = slice(self.seat.machine.staging());
        for (at, (word, value)) in self.seat.replica.iter().zip(staging).enumerate() {
            let (own, value) = (f64::from(element(word)), f64::from(*value));
            let apart = if at < differences { value } else { value - own };
            distance += apart * apart;
            norm += own * own;
        }
        let disagreement = (distance / norm).sqrt();
        if disagreement.is_finite() {
            let reading =
                RoundReading { disagreement, disagreements: 1, ..RoundReading::default() };
            self.seat.counters.add(&reading);
        }
    }
}

/// Time between two samples of the disagreement of replicas, which costs as much as loading one.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
