//! Whether training should change between synchronous and asynchronous steps: the first rank looks
//! at what all ranks count (`umbra_core::sync::switching` decides).
//!
//! A trainer's step is an even share of the global batch, its time that of its own forward and
//! backward passes. How many of them make the longest of a step nobody counts; the time of the
//! slowest trainer stands for it, and what a step takes beside that the watcher measures.
//!
//! Invariants: windows lie within stretches of training, and between two changes. One change is
//! asked for at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use umbra_core::sync::switching::{Change, Mode, Policy, Watcher, Window};

use crate::config::SyncMethod;
use crate::launch::signals::Signals;
use crate::measure::counters::Reading;
use crate::run::heartbeat::{Beat, Report};
use crate::run::plan::Plan;

/// What the first rank knows of stragglers. Cheap to clone; shared by the main thread and the
/// heartbeat's.
#[derive(Clone)]
pub struct Stragglers {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    watcher: Watcher,
    /// Ranks of the trainers.
    trainers: Vec<usize>,
    threads: f64,
    /// Examples of a trainer's even share of a global batch.
    share: f64,
    /// Examples of a window.
    examples: u64,
    /// When the window began, and what trainers had counted then.
    begun: Option<(Instant, Vec<Reading>)>,
    /// What was asked for, until it is done.
    asked: Option<Change>,
    seconds: Vec<f64>,
    scratch: Vec<f64>,
}

impl Stragglers {
    /// Who looks, where `plan` says that somebody does.
    #[must_use]
    pub fn new(plan: &Plan) -> Option<Self> {
        let switch = &plan.job.config.sync.switch;
        if !switch.is_by_policy() {
            return None;
        }
        let trainers = plan.roles.trainers.ranks().to_vec();
        let global = plan.job.global_batch() as f64;
        let policy = Policy {
            leave_above: switch.leave_above,
            return_below: switch.return_below,
            patience: switch.patience,
        };
        let inner = Inner {
            watcher: Watcher::new(policy, mode(plan.job.method)),
            threads: plan.job.worker_threads as f64,
            share: global / trainers.len() as f64,
            examples: switch.window * plan.job.global_batch() as u64,
            begun: None,
            asked: None,
            seconds: vec![0.0; trainers.len()],
            scratch: vec![0.0; trainers.len()],
            trainers,
        };
        Some(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// `report`, and the look at every beat before; asks `signals` for a change.
    #[must_use]
    pub fn beside(&self, mut report: Report, signals: Arc<Signals>) -> Report {
        let inner = Arc::clone(&self.inner);
        Box::new(move |beat| {
            let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
            if inner.look(beat) {
                signals.request_change();
            }
            drop(inner);
            report(beat);
        })
    }

    /// The change that was asked for is done: why it was.
    #[must_use]
    pub fn changed(&self) -> Option<Change> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.begun = None;
        inner.asked.take()
    }
}

impl Inner {
    /// True when training should change.
    fn look(&mut self, beat: &Beat<'_>) -> bool {
        if !beat.training || self.asked.is_some() {
            self.begun = None;
            return false;
        }
        let now: Vec<Reading> = self.trainers.iter().map(|rank| beat.readings[*rank]).collect();
        let Some((began, before)) = &self.begun else {
            self.begun = Some((Instant::now(), now));
            return false;
        };
        let made = |(now, before): (&Reading, &Reading)| {
            (now.examples.saturating_sub(before.examples), now.compute_ns - before.compute_ns)
        };
        let examples: u64 = now.iter().zip(before).map(|pair| made(pair).0).sum();
        if examples < self.examples {
            return false;
        }
        let elapsed = began.elapsed().as_secs_f64();
        for (seconds, pair) in self.seconds.iter_mut().zip(now.iter().zip(before)) {
            let (examples, compute_ns) = made(pair);
            *seconds = if examples > 0 {
                compute_ns as f64 * 1e-9 / self.threads * self.share / examples as f64
            } else {
                // So long it has been at one.
                elapsed
            };
        }
        self.begun = Some((Instant::now(), now));
        let together = self.seconds.iter().copied().fold(0.0, f64::max);
        let rate = examples as f64 / self.share / elapsed;
        let window = Window { rate, seconds: &self.seconds, together };
        self.asked = self.watcher.window(window, &mut self.scratch);
        self.asked.is_some()
    }
}

/// Steps that wait for each other, or not.
#[must_use]
pub const fn mode(method: SyncMethod) -> Mode {
    match method {
        SyncMethod::Gba | SyncMethod::AsyncPs | SyncMethod::HopBs => Mode::Asynchronous,
        _ => Mode::Synchronous,
    }
}

/// As the end of a sentence.
#[must_use]
pub fn why(change: &Change) -> String {
    let Change { slowest, slowness, predicted: [synchronous, asynchronous], .. } = change;
    format!(
        "trainer {slowest} takes {slowness:.1} times the median trainer's time; asynchronous steps \
         are predicted to be {:.2} times as fast as synchronous ones",
        asynchronous / synchronous
    )
}
