//! When training changes between synchronous and asynchronous steps.
//!
//! arXiv 2205.11048 makes a change harmless and leaves the moment to whoever runs the job. Here it
//! follows from the times tᵢ of N workers' own steps. Synchronous steps go at the pace of the
//! slowest of each, N / (mean of max tᵢ + o) steps a second, asynchronous ones at that of each
//! worker, Σ 1 / (tᵢ + o). The o is what a step takes beside (servers, links, waiting), one for
//! each of the two ways, measured while it is in use and remembered: apart for times with and
//! without a worker that is much slower than most, since a slow node is slow at what comes beside
//! too. What the tᵢ are in the other way, whose threads compete with workers for cores more or less
//! than these do, follows from the median worker's, which is remembered as well. Synchronous
//! training is preferred where it costs little.
//!
//! Invariants: pure arithmetic on windows of times that the caller measures. Every window is
//! evidence for a change or against it, as much as the logarithm of the gain that it predicts
//! (a cumulative sum test: E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954): a
//! large gain asks for few windows, a small one for many, and noise around none changes nothing.
//! What asks for a change is further away than what asks for the way back. What was never in use
//! is tried early, once, since a measurement of a few windows beats a guess for the whole run.

use crate::float::ln_f64;

/// How workers make steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One update of all.
    #[default]
    Synchronous,
    /// Whenever a gradient comes.
    Asynchronous,
}

impl Mode {
    const fn other(self) -> Self {
        match self {
            Self::Synchronous => Self::Asynchronous,
            Self::Asynchronous => Self::Synchronous,
        }
    }
}

/// What asks for a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// To asynchronous steps: they are predicted to be so many times as fast, or more.
    pub leave_above: f64,
    /// Back: they are predicted to be so many times as fast, or less. Below `leave_above`.
    pub return_below: f64,
    /// Windows that must have asked, at least.
    pub patience: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { leave_above: 1.05, return_below: 1.0, patience: 2 }
    }
}

/// Watches windows of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watcher {
    policy: Policy,
    mode: Mode,
    /// Evidence for a change, and the windows that it is from.
    evidence: f64,
    asked: u32,
    /// Windows in this mode.
    windows: u32,
    /// Seconds that a step takes beside a worker's own, where it was measured: by mode, without
    /// and with a slow worker.
    beside: [[Option<f64>; 2]; 2],
    /// Seconds of the median worker's own step by mode, where it was measured.
    median: [Option<f64>; 2],
}

/// What the steps of a window took. A step's time is that of the worker's own work, without waiting
/// for others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window<'a> {
    /// Steps that all workers made in a second, waiting included.
    pub rate: f64,
    /// Mean time of a worker's step; of a worker that made none, so long as it has been at it.
    /// `[workers]`
    pub seconds: &'a [f64],
    /// Mean of the longest of the workers' times, step by step: the first of each, the second, and
    /// so on, whoever waited for whom; where nobody knows, the longest mean.
    pub together: f64,
}

/// Why training changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// What to.
    pub to: Mode,
    /// The slowest worker.
    pub slowest: usize,
    /// Its time over the median worker's.
    pub slowness: f64,
    /// Predicted steps of all workers in a second: synchronous, asynchronous.
    pub predicted: [f64; 2],
    /// To measure what was never in use.
    pub is_trial: bool,
}

impl Watcher {
    /// Of training that is in `mode`.
    #[must_use]
    pub const fn new(policy: Policy, mode: Mode) -> Self {
        Self {
            policy,
            mode,
            evidence: 0.0,
            asked: 0,
            windows: 0,
            beside: [[None; 2]; 2],
            median: [None; 2],
        }
    }

    /// What training is in.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// A window is over. A change is for the next boundary, and the windows that are told next are
    /// after it. `scratch: [workers]` or longer.
    pub fn window(&mut self, window: Window<'_>, scratch: &mut [f64]) -> Option<Change> {
        let Window { rate, seconds, together } = window;
        let (slowest, longest) = (0..).zip(seconds).max_by(|a, b| a.1.total_cmp(b.1))?;
        let scratch = &mut scratch[..seconds.len()];
        scratch.copy_from_slice(seconds);
        scratch.sort_unstable_by(f64::total_cmp);
        // Of two, the faster.
        let median = scratch[scratch.len().saturating_sub(1) / 2];
        if !(scratch[0] > 0.0
            && together > 0.0
            && rate > 0.0
            && (longest + together + rate).is_finite())
        {
            return None;
        }
        let workers = seconds.len() as f64;
        let (own, strained) = (self.mode as usize, usize::from(longest / median >= SLOW));
        let now = match self.mode {
            Mode::Synchronous => workers / rate - together,
            Mode::Asynchronous => beside(seconds, rate),
        };
        // Half of what it was, so that one strange window counts little.
        let known = &mut self.beside[own][strained];
        *known = Some(known.map_or(now, |before| 0.5 * (before + now)).max(0.0));
        let beside = [0, 1].map(|mode| self.beside_of(mode, strained));
        let level = &mut self.median[own];
        let level = *level.insert(level.map_or(median, |before| 0.5 * (before + median)));
        let times = self.median.map(|own| own.unwrap_or(level) / level);
        let each = |seconds: &f64| 1.0 / (times[1] * seconds + beside[1]);
        let synchronous = workers / (times[0] * together + beside[0]);
        let predicted = [synchronous, seconds.iter().map(each).sum()];
        let gain = predicted[1] / predicted[0];
        let over = match self.mode {
            Mode::Synchronous => gain / self.policy.leave_above,
            Mode::Asynchronous => self.policy.return_below / gain,
        };
        self.evidence = (self.evidence + ln_f64(over)).max(0.0);
        self.asked = if self.evidence > 0.0 { self.asked + 1 } else { 0 };
        self.windows += 1;
        let asks = self.asked >= self.policy.patience && self.evidence >= ENOUGH;
        let tried = self.median[1 - own].is_some();
        let is_trial = !asks && !tried && self.windows >= BEFORE_TRIAL;
        if !asks && !is_trial {
            return None;
        }
        (self.evidence, self.windows) = (0.0, 0);
        self.asked = 0;
        self.mode = self.mode.other();
        Some(Change { to: self.mode, slowest, slowness: longest / median, predicted, is_trial })
    }

    /// What a step takes beside a worker's own: as last measured like this, or else in the same
    /// mode; of a mode that was never in use as of the other, at its best.
    fn beside_of(&self, mode: usize, strained: usize) -> f64 {
        let [own, other] = [self.beside[mode], self.beside[1 - mode]];
        let known = own[strained].or(own[1 - strained]).or(other[0]).or(other[1]);
        known.unwrap_or(0.0)
    }
}

/// What asynchronous steps take beside workers' own, when so many are made in a second.
fn beside(seconds: &[f64], rate: f64) -> f64 {
    let made = |beside: f64| seconds.iter().map(|seconds| 1.0 / (seconds + beside)).sum::<f64>();
    // The rate falls with it, below any that is asked for.
    let (mut low, mut high) = (0.0, seconds.len() as f64 / rate);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if made(middle) > rate { low = middle } else { high = middle }
    }
    low
}

/// Windows in the first mode before the other is tried.
const BEFORE_TRIAL: u32 = 4;
/// Evidence that is enough: a gain of a third in one window, or of 3 % in ten.
const ENOUGH: f64 = 0.3;
/// A worker is slow from so many times the median worker's time on.
const SLOW: f64 = 1.5;

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::float::exp_f64;
    use crate::rng::{Purpose, Stream};

    /// Workers whose steps vary, some of them slow for a time.
    struct World {
        workers: usize,
        /// Of the logarithm of a step's time.
        sigma: f64,
        /// What servers and links leave of the steps that times allow.
        synchronous: f64,
        asynchronous: f64,
        /// Seconds that a step takes beside a worker's own: synchronous, asynchronous.
        beside: [f64; 2],
        /// Factor on a worker's own while steps are asynchronous.
        busier: f64,
        stream: Stream,
    }

    /// Steps of a worker in a window.
    const STEPS: u64 = 20;

    impl World {
        /// Times of the workers' steps in a window, mean; of the longest; the rates of both modes.
        fn window(&self, number: u64, slow: impl Fn(usize) -> f64) -> (Vec<f64>, f64, [f64; 2]) {
            let time = |worker: usize, step: u64| {
                let at = (number * STEPS + step) * self.workers as u64 + worker as u64;
                let z = f64::from(self.stream.normal(at));
                slow(worker) * exp_f64(self.sigma * z - self.sigma * self.sigma / 2.0)
            };
            let mean = |worker| (0..STEPS).map(|step| time(worker, step)).sum::<f64>();
            let seconds: Vec<f64> =
                (0..self.workers).map(|worker| mean(worker) / STEPS as f64).collect();
            let longest =
                |step| (0..self.workers).map(|worker| time(worker, step)).fold(0.0, f64::max);
            let together = (0..STEPS).map(longest).sum::<f64>() / STEPS as f64;
            let synchronous = self.synchronous * self.workers as f64 / (together + self.beside[0]);
            let each =
                seconds.iter().map(|own| 1.0 / (self.busier * own + self.beside[1])).sum::<f64>();
            (seconds, together, [synchronous, self.asynchronous * each])
        }
    }

    #[test]
    fn it_leaves_when_a_worker_becomes_slow_and_returns_when_it_is_not() {
        for (workers, sigma, slower, beside, busier) in [
            (4, 0.0, 4.0, [0.0; 2], 1.0),
            (4, 0.1, 4.0, [0.0; 2], 1.0),
            (4, 0.05, 4.0, [0.2, 0.4], 1.5),
            (4, 0.1, 10.0, [0.5, 1.0], 1.0),
            (2, 0.1, 60.0, [5.0, 9.0], 1.0),
            (20, 0.05, 4.0, [0.0; 2], 1.0),
            (100, 0.05, 3.0, [0.0; 2], 1.0),
        ] {
            for seed in 0..20 {
                let stream = Stream::new(seed, Purpose::Test(0));
                // Nobody gains by not waiting, but for the slow one.
                let (synchronous, asynchronous) = (0.8, 0.6);
                let world =
                    World { workers, sigma, synchronous, asynchronous, beside, busier, stream };
                let mut it = Watcher::new(Policy::default(), Mode::Synchronous);
                let mut scratch = vec![0.0; workers];
                let mut changes = vec![];
                let mut made = [0.0; 2];
                for number in 0..300 {
                    let is_slow = (100..200).contains(&number);
                    let slow = |worker| if worker == 1 && is_slow { slower } else { 1.0 };
                    let (mut seconds, mut together, rates) = world.window(number, slow);
                    let rate = rates[it.mode() as usize];
                    if it.mode() == Mode::Asynchronous {
                        seconds.iter_mut().for_each(|own| *own *= busier);
                        together *= busier;
                    }
                    made[0] += rate;
                    made[1] += rates[0].max(rates[1]);
                    let window = Window { rate, seconds: &seconds, together };
                    if let Some(change) = it.window(window, &mut scratch) {
                        changes.push((number, change));
                    }
                }
                let case = std::format!("{workers} workers, {slower} times, seed {seed}");
                let [(tried, trial), (kept, _), (left, leave), (back, _)] = changes[..] else {
                    panic!("{case}: {changes:?}")
                };
                assert!(trial.is_trial && tried == 3 && kept < 15, "{case}: {tried}, {kept}");
                assert!((101..=103).contains(&left) && leave.to == Mode::Asynchronous, "{case}");
                assert_eq!(leave.slowest, 1, "{case}");
                assert!((leave.slowness / slower - 1.0).abs() < 0.3, "{case}: {leave:?}");
                // What is gained there is little.
                assert!((201..=206).contains(&back), "{case}: {back}");
                assert!(made[0] >= 0.95 * made[1], "{case}: {}", made[0] / made[1]);
            }
        }
    }

    #[test]
    fn noise_changes_nothing() {
        for (workers, sigma) in [(2, 0.2), (4, 0.1), (20, 0.05), (100, 0.05)] {
            for seed in 0..20 {
                let stream = Stream::new(seed, Purpose::Test(1));
                let (synchronous, asynchronous, beside) = (0.8, 0.75, [0.0; 2]);
                let busier = 1.0;
                let world =
                    World { workers, sigma, synchronous, asynchronous, beside, busier, stream };
                for mode in [Mode::Synchronous, Mode::Asynchronous] {
                    let mut it = Watcher::new(Policy::default(), mode);
                    let mut scratch = vec![0.0; workers];
                    let changes = (0..200).filter_map(|number| {
                        let (seconds, together, rates) = world.window(number, |_| 1.0);
                        let rate = rates[it.mode() as usize];
                        it.window(Window { rate, seconds: &seconds, together }, &mut scratch)
                    });
                    let changes: Vec<Change> = changes.collect();
                    // The trial and the way back, where that is faster, and no more.
                    assert!(changes.len() <= 2, "{workers} workers, seed {seed}: {changes:?}");
                }
            }
        }
    }

    /// Nobody is slow, and yet somebody is in every step.
    #[test]
    fn a_crowd_that_varies_is_better_asynchronous() {
        let stream = Stream::new(1, Purpose::Test(2));
        let world = World {
            workers: 100,
            sigma: ln_f64(1.5),
            synchronous: 0.8,
            asynchronous: 0.75,
            beside: [0.0; 2],
            busier: 1.0,
            stream,
        };
        let mut it = Watcher::new(Policy::default(), Mode::Synchronous);
        let mut scratch = vec![0.0; 100];
        let mut asynchronous = 0;
        for number in 0..300 {
            let (seconds, together, rates) = world.window(number, |_| 1.0);
            let rate = rates[it.mode() as usize];
            it.window(Window { rate, seconds: &seconds, together }, &mut scratch);
            asynchronous += u32::from(it.mode() == Mode::Asynchronous);
        }
        assert!(asynchronous > 295, "{asynchronous} of 300 windows");
    }

    #[test]
    fn windows_without_times_say_nothing() {
        let mut it = Watcher::new(Policy::default(), Mode::Synchronous);
        for seconds in [&[][..], &[0.0, 1.0], &[f64::INFINITY, 1.0], &[f64::NAN, 1.0]] {
            let window = Window { rate: 1.0, seconds, together: 1.0 };
            assert_eq!(it.window(window, &mut [0.0; 2]), None);
        }
        assert_eq!(it, Watcher::new(Policy::default(), Mode::Synchronous));
    }
}
