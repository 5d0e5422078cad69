//! The MPI driver of protocols: does what a protocol asks, on a thread of its own.
//!
//! No protocol knowledge here. Beside the workers there are three ways to run: in the *background*
//! (a shadow thread: workers train on, rounds follow each other as fast as [`Pace`] lets them and
//! workers make steps), *gated* (a foreground method: a round begins when all workers of the
//! trainer stand at the gate, and they go on when the next would begin), and with no workers at all
//! (a center).
//!
//! Invariants: the driver never holds anything that a worker waits for but the gate; it sleeps
//! between looks at MPI (`sync.poll_us`), so a worker that shares its core gets it. When the
//! workers have ended there is one more round if they did anything since the last, so that none of
//! it is lost.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use umbra_core::dense::replica::{add, element, interpolate, load_finite};
use umbra_core::sync::reduction::{conclude, contribute, slice};
use umbra_core::sync::{Action, Completion, Group, OutOfTurn, Pace, Protocol, RoundCost};
use umbra_core::units::Nanos;

use crate::comm::Comm;
use crate::comm::post::Post;
use crate::comm::reduce::{MANY, Sums};
use crate::comm::watch::{Backoff, LOOK, Waiting, Watch};
use crate::dense::group_sums::GroupSums;
use crate::launch::processor::thread_time;
use crate::measure::counters::{Counters, RoundCounters, RoundReading};
use crate::measure::trace::Track;
use crate::record::say;

/// What a protocol acts on.
pub struct Endpoints<'a> {
    /// Reductions of all go over this communicator; only this thread uses it. `None`: the one rank
    /// is the mean.
    pub comm: Option<&'a Comm>,
    /// Reductions of groups; they go by messages.
    pub groups: Option<GroupSums<'a>>,
    /// Messages, for protocols that send any.
    pub post: Option<&'a mut Post>,
    /// The live slice of the dense replica; empty for a center. `[staging length - TAIL]`
    pub replica: &'a [AtomicU32],
    /// How rounds and workers meet.
    pub workers: Workers<'a>,
    /// Where workers count their steps.
    pub steps: Option<&'a Counters>,
    /// Time between looks at the post.
    pub poll: Duration,
    /// What is counted.
    pub counters: &'a RoundCounters,
    /// What is drawn.
    pub track: Track<'a>,
    /// Deadlines.
    pub watch: &'a Watch,
}

/// How rounds and workers meet.
pub enum Workers<'a> {
    /// They train on.
    Background {
        /// Set once the last of them has ended.
        ended: &'a AtomicBool,
        /// Bounds on the rounds.
        pace: Pace,
    },
    /// They stand still during rounds.
    Gated(GateKeeper),
    /// There are none.
    None,
}

/// The driver's end of the gate: the workers knock when all of them stand at it.
pub struct GateKeeper {
    /// Closed once the workers have ended.
    pub knocks: Receiver<()>,
    /// The answer, once the round is over.
    pub opens: Sender<()>,
}

/// Steps between rounds, and how often: of all workers of a trainer together.
pub type Gaps = BTreeMap<u64, u64>;

/// Runs `protocol` until it finishes. *Collective over the trainers as far as its actions are.*
/// Returns the gaps between its rounds.
///
/// # Errors
/// When the protocol refuses a completion: a defect of the protocol.
pub fn drive(protocol: &mut impl Protocol, ends: Endpoints<'_>) -> Result<Gaps, OutOfTurn> {
    let mut driver = Driver::new(ends);
    let mut last = Completion::Start;
    loop {
        let action = protocol.step(driver.now(), last)?;
        last = match action {
            Action::Finish => {
                driver.end_round();
                if let Some(post) = &mut driver.ends.post {
                    post.flush(driver.ends.watch, driver.ends.poll);
                }
                return Ok(driver.gaps);
            }
            action => driver.act(action, protocol.staging()),
        };
    }
}

struct Driver<'a> {
    ends: Endpoints<'a>,
    start: Instant,
    sums: Sums,
    /// The round under way.
    round: Option<RoundCost>,
    /// The gate is closed and workers wait behind it.
    gate_closed: bool,
    /// Thread time up to which `busy_ns` has been counted.
    counted: Duration,
    /// Steps when the last round began, and how many they were since the one before.
    steps: u64,
    gap: u64,
    gaps: Gaps,
    /// Since when a center has had a message to answer.
    serving: Option<Instant>,
    /// When the distance to the target was last measured.
    sampled: Instant,
}

impl<'a> Driver<'a> {
    fn new(ends: Endpoints<'a>) -> Self {
        let steps = ends.steps.map_or(0, Counters::steps);
        Self {
            ends,
            start: Instant::now(),
            sums: Sums::default(),
            round: None,
            gate_closed: false,
            counted: thread_time(),
            steps,
            gap: 0,
            gaps: Gaps::new(),
            serving: None,
            sampled: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn act(&mut self, action: Action, staging: &mut [f32]) -> Completion {
        match action {
            Action::Load => self.load(staging),
            Action::Store { alpha } => {
                self.sample(slice(staging), true);
                interpolate(self.ends.replica, alpha, slice(staging));
                Completion::Done
            }
            Action::Add { alpha } => {
                self.sample(slice(staging), false);
                add(self.ends.replica, alpha, slice(staging));
                Completion::Done
            }
            Action::ReduceMean { group, weight, silent } => {
                contribute(staging, weight, silent);
                let least = match group {
                    Group::All => {
                        self.sum_over_all(staging);
                        None
                    }
                    Group::Dealt { round } => Some(self.sum_over_group(round, staging, silent)),
                };
                conclude(staging, least)
            }
            Action::Send { to, word, values } => {
                let values = if values { slice(staging) } else { &mut [] };
                let post = self.ends.post.as_mut();
                let bytes = post.map_or(0, |post| post.send(to, word, values));
                self.sent(bytes);
                Completion::Done
            }
            Action::Receive { from, until } => self.receive(staging, from, until),
            Action::Sleep { until } => {
                while self.now() < until {
                    std::thread::sleep(left(until, self.now()));
                }
                Completion::Done
            }
            Action::Finish => unreachable!("the loop ends with it"),
        }
    }

    fn sum_over_all(&mut self, staging: &mut [f32]) {
        let Some(comm) = self.ends.comm else { return };
        // In the background a piece at a time: at no time do rows wait behind more of it on a slow
        // link.
        let background = matches!(self.ends.workers, Workers::Background { .. });
        let under_way = if background { 1 } else { MANY };
        let sent = self.sums.sum(comm, staging, under_way, "the average of replicas");
        self.sent(sent.bytes);
    }

    /// Returns the least `silent` of the group.
    fn sum_over_group(&mut self, round: u64, staging: &mut [f32], silent: u32) -> u32 {
        let Endpoints { groups, post, watch, poll, .. } = &mut self.ends;
        let (Some(groups), Some(post)) = (groups, post) else { return silent };
        let (bytes, least) = groups.sum(post, round, staging, silent, (watch, *poll));
        self.sent(bytes);
        least
    }

    /// Ends the round under way, and begins another when the workers and the pace allow.
    fn load(&mut self, staging: &mut [f32]) -> Completion {
        let last = self.end_round();
        let going = match &self.ends.workers {
            Workers::Background { ended, pace, .. } => {
                let due = last.map_or(Nanos(0), |last| pace.next(last));
                loop {
                    if ended.load(Ordering::Acquire) {
                        break false;
                    }
                    let now = self.now();
                    if now < due {
                        std::thread::sleep(left(due, now));
                    } else if self.ends.steps.is_none_or(|workers| workers.steps() > self.steps) {
                        break true;
                    } else {
                        // Nothing has changed here: a round now would only take memory bandwidth.
                        std::thread::sleep(self.ends.poll.max(LEAST_SLEEP));
                    }
                }
            }
            Workers::Gated(gate) => gate.knocks.recv().is_ok(),
            Workers::None => true,
        };
        // All is counted once the workers have ended.
        let steps = self.ends.steps.map_or(0, Counters::steps);
        let gap = steps - core::mem::replace(&mut self.steps, steps);
        if !going && gap == 0 {
            return Completion::Stop;
        }
        self.gap = gap;
        self.gate_closed = going;
        self.round = Some(RoundCost { began: self.now(), ..RoundCost::default() });
        let finite = load_finite(self.ends.replica, slice(staging));
        if !finite {
            if self.ends.counters.read().refused == 0 {
                let prefix = self.ends.watch.prefix();
                say(&format!(
                    "umbra: {prefix} warning: the dense replica is not finite; it is kept out of \
                     rounds and replaced by what the others have"
                ));
            }
            self.ends.counters.add(&RoundReading { refused: 1, ..RoundReading::default() });
        }
        Completion::Loaded { finite, last: !going }
    }

    /// Counts the round under way and lets workers at the gate go. Returns what it took.
    fn end_round(&mut self) -> Option<RoundCost> {
        let busy = thread_time();
        let took = busy.saturating_sub(self.counted);
        self.counted = busy;
        let mut reading = RoundReading { busy_ns: nanoseconds(took), ..RoundReading::default() };
        let now = self.now();
        let round =
            self.round.take().map(|round| RoundCost { busy: Nanos(reading.busy_ns), ..round });
        if let Some(round) = round {
            (reading.rounds, reading.round_ns) = (1, now.0 - round.began.0);
            self.ends.track.span("round", Duration::from_nanos(reading.round_ns));
            *self.gaps.entry(self.gap).or_default() += 1;
        }
        self.ends.counters.add(&reading);
        if let (true, Workers::Gated(gate)) = (self.gate_closed, &self.ends.workers) {
            // Workers that have gone need no answer.
            let _ = gate.opens.send(());
        }
        self.gate_closed = false;
        round
    }

    fn sent(&mut self, bytes: u64) {
        self.ends.counters.add(&RoundReading { bytes, ..RoundReading::default() });
        if let Some(round) = &mut self.round {
            round.bytes += bytes;
        }
    }

    fn receive(&mut self, staging: &mut [f32], from: Option<usize>, until: Nanos) -> Completion {
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        if let Some(since) = self.serving.take() {
            self.ends.track.span("serve", since.elapsed());
        }
        loop {
            let post = self.ends.post.as_mut();
            if let Some((sender, word)) = post.and_then(|post| post.receive(slice(staging))) {
                let expected = from.is_none_or(|from| from == sender);
                assert!(expected, "a message of a stranger, rank {sender}");
                if let Workers::None = self.ends.workers {
                    self.serving = Some(Instant::now());
                }
                return Completion::Received { from: sender, word };
            }
            if self.now() >= until {
                return Completion::TimedOut;
            }
            // A center has nothing to complain of when nobody comes.
            if let Some(rank) = from {
                let waited =
                    waiting.check(self.ends.watch, &format_args!("the answer of rank {rank}"));
                self.ends.watch.or_end(waited);
            }
            backoff.rest(self.ends.poll);
        }
    }

    /// Now and then, how far the replica is from where it is going: `values` themselves (`target`),
    /// or as far as `values` say.
    fn sample(&mut self, values: &[f32], target: bool) {
        if self.sampled.elapsed() < SAMPLE_EVERY {
            return;
        }
        self.sampled = Instant::now();
        let (mut distance, mut norm) = (0.0, 0.0);
        for (word, value) in self.ends.replica.iter().zip(values) {
            let (own, value) = (f64::from(element(word)), f64::from(*value));
            let apart = if target { value - own } else { value };
            distance += apart * apart;
            norm += own * own;
        }
        let disagreement = (distance / norm).sqrt();
        if disagreement.is_finite() {
            let reading =
                RoundReading { disagreement, disagreements: 1, ..RoundReading::default() };
            self.ends.counters.add(&reading);
        }
    }
}

/// Time between two samples of the disagreement of replicas, which costs as much as loading one.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Sleep while workers have made no step since the last round.
const LEAST_SLEEP: Duration = Duration::from_micros(200);

/// A sleep until then, but not so long that the end of the workers goes unnoticed.
fn left(until: Nanos, now: Nanos) -> Duration {
    Duration::from_nanos(until.0.saturating_sub(now.0)).min(LOOK / 1000)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
