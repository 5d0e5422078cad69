//! Whether training should change between synchronous and asynchronous steps: the first rank looks
//! at what all ranks count (`umbra_core::sync::switching` decides).
//!
//! A trainer's step is an even share of the global batch, its time that of its own forward and
//! backward passes. How many of them make the longest of a step nobody counts; the time of the
//! slowest trainer stands for it, and what a step takes beside that the watcher measures.
//!
//! A window has so many steps, but one that takes twice the time that they usually take is looked
//! at as it is: where steps take ten times as long, so would finding out.
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
    watch: Watch,
    /// Ranks of the trainers.
    trainers: Vec<usize>,
    /// When the window began, and what trainers had counted then.
    begun: Option<(Instant, Vec<Reading>)>,
    /// What was asked for, until it is done.
    asked: Option<Change>,
}

/// The watcher with the sizes of a job.
pub struct Watch {
    watcher: Watcher,
    threads: f64,
    /// Examples of a trainer's even share of a global batch.
    share: f64,
    /// Steps of a window.
    window: f64,
    /// Seconds that a step of a whole window takes, lately, by mode.
    usual: [Option<f64>; 2],
    seconds: Vec<f64>,
    scratch: Vec<f64>,
}

impl Watch {
    /// Of the job of `plan`, where it decides by itself.
    #[must_use]
    pub fn new(plan: &Plan) -> Option<Self> {
        let switch = &plan.job.config.sync.switch;
        if !switch.is_by_policy() {
            return None;
        }
        let trainers = plan.roles.trainers.len();
        let policy = Policy {
            leave_above: switch.leave_above,
            return_below: switch.return_below,
            patience: switch.patience,
        };
        Some(Self {
            watcher: Watcher::new(policy, mode(plan.job.method)),
            threads: plan.job.worker_threads as f64,
            share: plan.job.global_batch() as f64 / trainers as f64,
            window: switch.window as f64,
            usual: [None; 2],
            seconds: vec![0.0; trainers],
            scratch: vec![0.0; trainers],
        })
    }

    /// Whether a window is over that has made so many steps in so many seconds.
    #[must_use]
    pub fn is_over(&self, steps: f64, elapsed: f64) -> bool {
        let usual = self.usual[self.watcher.mode() as usize];
        let is_late = usual.is_some_and(|usual| elapsed >= LATE * usual * self.window);
        steps >= self.window || is_late && steps >= (LEAST * self.window).max(1.0)
    }

    /// Steps that so many examples are.
    fn steps(&self, examples: u64) -> f64 {
        examples as f64 / (self.share * self.seconds.len() as f64)
    }

    /// A window of `elapsed` seconds is over: examples that each trainer has trained in it, and the
    /// seconds that each of its threads has computed.
    pub fn window(
        &mut self,
        trainers: impl Iterator<Item = (u64, f64)>,
        elapsed: f64,
    ) -> Option<Change> {
        let mut total = 0;
        for (own, (examples, seconds)) in self.seconds.iter_mut().zip(trainers) {
            total += examples;
            *own = if examples > 0 {
                seconds * self.share / examples as f64
            } else {
                // So long it has been at one.
                elapsed
            };
        }
        let together = self.seconds.iter().copied().fold(0.0, f64::max);
        let steps = self.steps(total);
        if steps >= self.window {
            let usual = &mut self.usual[self.watcher.mode() as usize];
            let now = elapsed / steps;
            *usual = Some(usual.map_or(now, |before| 0.5 * (before + now)));
        }
        let rate = total as f64 / self.share / elapsed;
        let window = Window { rate, seconds: &self.seconds, together };
        self.watcher.window(window, &mut self.scratch)
    }
}

impl Stragglers {
    /// Who looks, where the job of `plan` decides by itself.
    #[must_use]
    pub fn new(plan: &Plan) -> Option<Self> {
        let watch = Watch::new(plan)?;
        let inner = Inner {
            watch,
            trainers: plan.roles.trainers.ranks().to_vec(),
            begun: None,
            asked: None,
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
        let examples =
            |(now, before): (&Reading, &Reading)| now.examples.saturating_sub(before.examples);
        let elapsed = began.elapsed().as_secs_f64();
        let trained = now.iter().zip(before).map(examples).sum();
        if !self.watch.is_over(self.watch.steps(trained), elapsed) {
            return false;
        }
        let threads = self.watch.threads;
        let made = now.iter().zip(before).map(|pair| {
            let nanoseconds = pair.0.compute_ns.saturating_sub(pair.1.compute_ns);
            (examples(pair), nanoseconds as f64 * 1e-9 / threads)
        });
        self.asked = self.watch.window(made, elapsed);
        self.begun = Some((Instant::now(), now));
        self.asked.is_some()
    }
}

/// A window is late after so many times the time that its steps usually take.
const LATE: f64 = 2.0;
/// The share of its steps without which it is not looked at.
const LEAST: f64 = 0.1;

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
    if change.is_trial {
        return "tried, to measure what it takes".into();
    }
    format!(
        "trainer {slowest} takes {slowness:.1} times the median trainer's time; asynchronous steps \
         are predicted to be {:.2} times as fast as synchronous ones",
        asynchronous / synchronous
    )
}
