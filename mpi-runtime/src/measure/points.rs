//! Points of a run: steps at which what was counted is kept, so that its curves have points however
//! fast it is, and whoever reports them looks when it likes.
//!
//! A point is a step. Each worker that comes past it keeps what it has counted so far (a [`Mark`])
//! in a slot that was there before: a comparison a step, and at a point six stores. A rank's mark
//! is the sum of its workers', when all of them are past it.
//!
//! Invariants: marks of a rank are in order of their points, none is left out. What a rank says of
//! itself, readings and marks, is a chain: of each worker no later word has counted less than an
//! earlier one, so that differences are of examples that were trained between.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;
use std::time::Instant;

use super::counters::Reading;

/// The points of a run, and the clock of a stretch of training.
#[derive(Debug)]
pub struct Points {
    /// In order.
    steps: Box<[u64]>,
    made: Instant,
    /// When the stretch of training began, nanoseconds after that.
    begun_ns: AtomicU64,
}

/// What was counted when a point was passed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mark {
    /// Number of the point, from 0.
    pub point: u64,
    /// Nanoseconds since the stretch of training began.
    pub at_ns: u64,
    /// As in [`Reading`].
    pub steps: u64,
    /// As in [`Reading`].
    pub examples: u64,
    /// As in [`Reading`].
    pub loss_sum: f64,
    /// As in [`Reading`].
    pub weight_sum: f64,
}

/// Words of a mark on the wire.
pub const MARK_WORDS: usize = 6;

impl Points {
    /// Points at `steps`, ascending.
    #[must_use]
    pub fn new(steps: Vec<u64>) -> Self {
        Self { steps: steps.into(), made: Instant::now(), begun_ns: AtomicU64::new(0) }
    }

    /// A stretch of training begins.
    pub fn begin_stretch(&self) {
        self.begun_ns.store(self.elapsed_ns(), Relaxed);
    }

    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn now_ns(&self) -> u64 {
        self.elapsed_ns().saturating_sub(self.begun_ns.load(Relaxed))
    }
}

/// Where points of a run of `steps` steps lie: a 20th of it or less apart, and at the ends of
/// epochs; not where `is_reported` already says that a report is due, nor at its end.
#[must_use]
pub fn points(steps: u64, steps_per_epoch: u64, is_reported: impl Fn(u64) -> bool) -> Vec<u64> {
    let apart = (steps / POINTS_MIN).max(1);
    let epoch = steps_per_epoch.max(1);
    let with_epochs = steps / epoch <= EPOCHS_MAX;
    let mut at = 0;
    let next = |after: u64| {
        let of_run = (after / apart + 1) * apart;
        let of_epoch = (after / epoch + 1) * epoch;
        if with_epochs { of_run.min(of_epoch) } else { of_run }
    };
    let all = core::iter::from_fn(|| {
        at = next(at);
        (at < steps).then_some(at)
    });
    all.filter(|step| !is_reported(*step)).collect()
}

/// Points of a run at least, its end included, if it has as many steps.
pub const POINTS_MIN: u64 = 20;
/// Ends of more epochs are no points: slots are there for all of them.
const EPOCHS_MAX: u64 = 1000;

/// A worker's slots. One writer, any reader.
#[derive(Debug)]
pub(super) struct Marks {
    points: Arc<Points>,
    /// The step of the next point.
    next: AtomicU64,
    /// Points that were passed.
    passed: AtomicUsize,
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot([AtomicU64; MARK_WORDS]);

impl Marks {
    pub(super) fn new(points: &Arc<Points>) -> Self {
        Self {
            points: Arc::clone(points),
            next: AtomicU64::new(points.steps.first().copied().unwrap_or(u64::MAX)),
            passed: AtomicUsize::new(0),
            slots: points.steps.iter().map(|_| Slot::default()).collect(),
        }
    }

    /// All steps before `step` that its worker makes have been made: keeps `counted` at the points
    /// that it passes.
    #[inline]
    pub(super) fn reach(&self, step: u64, counted: impl FnOnce() -> Reading) {
        if step >= self.next.load(Relaxed) {
            self.pass(step, &counted());
        }
    }

    #[cold]
    fn pass(&self, step: u64, counted: &Reading) {
        let from = self.passed.load(Relaxed);
        let steps = &self.points.steps;
        let passed = from + steps[from..].partition_point(|point| *point <= step);
        let at_ns = self.points.now_ns();
        for (point, slot) in (from as u64..).zip(&self.slots[from..passed]) {
            let Reading { steps, examples, loss_sum, weight_sum, .. } = *counted;
            let mark = Mark { point, at_ns, steps, examples, loss_sum, weight_sum };
            slot.0.iter().zip(mark.to_words()).for_each(|(slot, word)| slot.store(word, Relaxed));
        }
        self.next.store(steps.get(passed).copied().unwrap_or(u64::MAX), Relaxed);
        // Who sees it sees the slots.
        self.passed.store(passed, Release);
    }

    /// How many points were passed.
    pub(super) fn passed(&self) -> usize {
        self.passed.load(Acquire)
    }

    /// What was counted at a point that was passed.
    pub(super) fn at(&self, point: usize) -> Mark {
        let words = self.slots[point].0.each_ref().map(|word| word.load(Relaxed));
        Mark::from_words(words)
    }
}

/// What a rank has said of itself.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The most that it has said of each worker. `[workers]`
    workers: Vec<Reading>,
    /// Marks of all its workers together, from the first point on.
    pub(super) marks: Vec<Mark>,
}

impl Said {
    /// Adds the marks of points that all of `workers` have passed; what was counted `before` them
    /// is in each.
    pub(super) fn mark<'a>(
        &mut self,
        workers: impl Iterator<Item = &'a Marks> + Clone,
        before: &Reading,
    ) {
        self.workers.resize(workers.clone().count(), Reading::default());
        let passed = workers.clone().map(Marks::passed).min().unwrap_or(0);
        for point in self.marks.len()..passed {
            let mut sum = Mark { point: point as u64, ..Mark::default() };
            sum.add(before);
            for (worker, said) in workers.clone().zip(&mut self.workers) {
                let mark = worker.at(point);
                sum.at_ns = sum.at_ns.max(mark.at_ns);
                // Unless it was past the point when it last spoke.
                if mark.steps >= said.steps {
                    *said = mark.reading();
                }
                sum.add(said);
            }
            self.marks.push(sum);
        }
    }

    /// Hears what workers have counted now, and says it, but not less than it has said.
    pub(super) fn hear(&mut self, now: Vec<Reading>) -> &[Reading] {
        for (said, now) in self.workers.iter_mut().zip(now) {
            let Reading { steps, examples, loss_sum, weight_sum, .. } = *said;
            *said = if steps >= now.steps {
                Reading { steps, examples, loss_sum, weight_sum, ..now }
            } else {
                now
            };
        }
        &self.workers
    }
}

impl Mark {
    fn add(&mut self, counted: &Reading) {
        self.steps += counted.steps;
        self.examples += counted.examples;
        self.loss_sum += counted.loss_sum;
        self.weight_sum += counted.weight_sum;
    }

    /// What was counted, as far as it is kept.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let Self { steps, examples, loss_sum, weight_sum, .. } = *self;
        Reading { steps, examples, loss_sum, weight_sum, ..Reading::default() }
    }

    /// As words, to be sent.
    #[must_use]
    pub const fn to_words(&self) -> [u64; MARK_WORDS] {
        let Self { point, at_ns, steps, examples, loss_sum, weight_sum } = *self;
        [point, at_ns, steps, examples, loss_sum.to_bits(), weight_sum.to_bits()]
    }

    /// From words.
    #[must_use]
    pub const fn from_words(words: [u64; MARK_WORDS]) -> Self {
        let [point, at_ns, steps, examples, loss, weight] = words;
        let (loss_sum, weight_sum) = (f64::from_bits(loss), f64::from_bits(weight));
        Self { point, at_ns, steps, examples, loss_sum, weight_sum }
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::*;

    fn step(loss_sum: f64) -> Reading {
        Reading { steps: 1, examples: 10, loss_sum, weight_sum: 10.0, ..Reading::default() }
    }

    #[test]
    fn a_run_has_its_points_however_long_it_is() {
        for steps in [1, 19, 20, 21, 39, 40, 41, 59, 1_000, 4_294_967_295] {
            let all = points(steps, steps, |_| false);
            assert!(all.is_sorted_by(|a, b| a < b) && all.iter().all(|at| (1..steps).contains(at)));
            let count = 1 + all.len() as u64;
            assert!(count >= steps.min(POINTS_MIN) && count < 2 * POINTS_MIN, "{steps}: {count}");
        }
        assert_eq!(
            points(40, 15, |step| step == 4),
            [2, 6, 8, 10, 12, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38]
        );
        assert!(points(u64::from(u32::MAX), 1, |_| false).len() < 40, "a slot for every epoch");
    }

    /// Nobody who looks in between hears of less than before.
    #[test]
    fn marks_are_at_their_steps_whenever_somebody_looks() {
        let counters = |looks: &[usize]| {
            let counters = Counters::new(2, 0, 1, points(6, 6, |step| step % 2 == 1));
            counters.points.begin_stretch();
            for turn in 0..8_usize {
                // The second worker is two steps behind.
                for (worker, made) in [(0, Some(turn)), (1, turn.checked_sub(2))] {
                    if let Some(made) = made.filter(|made| *made < 6) {
                        let worker = &counters.workers[worker];
                        worker.add(&step(made as f64));
                        worker.reach(worker.steps());
                    }
                }
                if looks.contains(&turn) {
                    counters.tell();
                }
            }
            counters.tell();
            counters.marks(0)
        };
        let sums: Vec<_> = counters(&[])
            .iter()
            .map(|mark| (mark.point, mark.steps, mark.examples, mark.loss_sum))
            .collect();
        assert_eq!(sums, [(0, 4, 40, 2.0), (1, 8, 80, 12.0)]);
        // At 3 the first worker had made four steps, and the second two: these are told already.
        let looked = counters(&[3]);
        assert_eq!((looked[0].steps, looked[0].loss_sum), (4, 2.0));
        let all: Vec<_> = looked.iter().map(|mark| (mark.steps, mark.loss_sum)).collect();
        assert!(all.is_sorted_by(|a, b| a.0 <= b.0), "{all:?}");
        // At 2 the first has made three steps, one more than at the point.
        let looked = counters(&[2]);
        assert_eq!((looked[0].steps, looked[0].examples, looked[0].loss_sum), (5, 50, 4.0));
        assert_eq!((looked[1].steps, looked[1].loss_sum), (8, 12.0));
    }

    #[test]
    fn one_that_goes_on_passes_the_points_behind_it_at_once() {
        let counters = Counters::new(1, 0, 1, vec![2, 4, 6]);
        counters.worker_steps().for_each(|steps| steps.store(4, Relaxed));
        counters.workers[0].reach(4);
        counters.tell();
        let marks = counters.marks(0);
        let points: Vec<u64> = marks.iter().map(|mark| mark.point).collect();
        assert_eq!(points, [0, 1]);
        assert_eq!(Mark::from_words(marks[1].to_words()), marks[1]);
        assert!(counters.marks(2).is_empty());
    }
}
