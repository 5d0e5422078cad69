//! Where the data of the next batch comes from.
//!
//! The data of a run are *streams* of batches, one for each member of a global batch: step s of all
//! of them is the s-th global batch of the synchronous run. A worker takes from the streams that
//! are its home, so that it reads a share of the files; what a slow worker leaves behind, others
//! take.
//!
//! Invariants: each batch of each stream is given once, those of a stream in order. A stream that
//! is `window` steps ahead of another, or more, waits for it. With one worker batches come in the
//! order of the synchronous run.

use core::ops::Range;

/// The batches of a run.
#[derive(Debug)]
pub struct Streams<'a> {
    /// Steps given of each. `[streams]`
    given: &'a mut [u64],
    /// The step at which all end.
    end: u64,
    window: u64,
}

impl<'a> Streams<'a> {
    /// Steps `steps` of as many streams as `given` has; not 0.
    #[must_use]
    pub fn new(given: &'a mut [u64], steps: Range<u64>, window: u64) -> Self {
        given.fill(steps.start);
        Self { given, end: steps.end.max(steps.start), window: window.max(1) }
    }

    /// Gives nothing of step `end` or later, which may be sooner or later than it was; what was
    /// given stays given, and all streams are brought up to it.
    pub fn end_at(&mut self, end: u64) {
        self.end = self.given.iter().fold(end, |end, given| end.max(*given));
    }

    /// The step at which all end.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.given.iter().all(|given| *given == self.end)
    }

    /// The stream and the step of the next batch for worker `worker` of `workers`, or `None` when
    /// nothing is left.
    pub fn give(&mut self, worker: usize, workers: usize) -> Option<(usize, u64)> {
        let streams = self.given.len();
        let least = |of: Range<usize>| of.min_by_key(|stream| self.given[*stream]);
        let behind = least(0..streams)?;
        let home = least(streams * worker / workers..streams * (worker + 1) / workers);
        let limit = self.given[behind].saturating_add(self.window).min(self.end);
        let stream = home.filter(|stream| self.given[*stream] < limit).unwrap_or(behind);
        let step = self.given[stream];
        if step >= self.end {
            return None;
        }
        self.given[stream] += 1;
        Some((stream, step))
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn one_worker_takes_batches_in_the_order_of_the_synchronous_run() {
        let mut given = [0; 3];
        let mut it = Streams::new(&mut given, 5..8, 4);
        let order: Vec<(usize, u64)> = core::iter::from_fn(|| it.give(0, 1)).collect();
        let synchronous: Vec<(usize, u64)> =
            (5..8).flat_map(|step| (0..3).map(move |stream| (stream, step))).collect();
        assert_eq!(order, synchronous);
        assert!(it.is_empty());
    }

    #[test]
    fn every_batch_is_given_once_and_workers_stay_at_home_while_they_keep_up() {
        for (workers, window) in [(1, 1), (2, 1), (2, 3), (3, 2), (4, 2), (8, 2), (11, 2)] {
            let streams = 8;
            let mut given = vec![0; streams];
            let mut it = Streams::new(&mut given, 0..40, window);
            let mut seen: Vec<Vec<u64>> = vec![vec![]; streams];
            let mut away = 0;
            // In turn, one by one.
            for turn in 0.. {
                let worker = turn % workers;
                let Some((stream, step)) = it.give(worker, workers) else { break };
                let home = streams * worker / workers..streams * (worker + 1) / workers;
                away += u32::from(!home.contains(&stream));
                seen[stream].push(step);
                let given = || seen.iter().map(|steps| steps.len() as u64);
                let ahead = given().max().unwrap_or(0) - given().min().unwrap_or(0);
                assert!(ahead <= window, "{workers} workers");
            }
            assert!(seen.iter().all(|steps| steps.iter().copied().eq(0..40)), "{workers} workers");
            if streams % workers == 0 {
                assert_eq!(away, 0, "{workers} workers");
            }
        }
    }

    #[test]
    fn what_a_slow_worker_leaves_others_take() {
        let mut given = [0; 4];
        let mut it = Streams::new(&mut given, 0..100, 3);
        let mut of_the_slow = 0;
        let mut turn = 0u32;
        // Worker 0 comes once in 16 turns.
        while let Some((stream, _)) =
            it.give(if turn.is_multiple_of(16) { 0 } else { 1 + turn as usize % 3 }, 4)
        {
            of_the_slow += u32::from(stream == 0 && turn.is_multiple_of(16));
            turn += 1;
        }
        assert_eq!(turn, 400);
        assert_eq!(of_the_slow, 25, "a sixteenth of all, all at home");
    }

    #[test]
    fn an_end_is_one_step_for_all_streams() {
        let mut given = [0; 2];
        let mut it = Streams::new(&mut given, 0..100, 5);
        for _ in 0..4 {
            assert_eq!(it.give(0, 2).map(|(stream, _)| stream), Some(0));
        }
        // Stream 0 has given four steps already.
        it.end_at(2);
        assert_eq!(it.end(), 4);
        let rest: Vec<_> = core::iter::from_fn(|| it.give(0, 2)).collect();
        assert_eq!(rest, [(1, 0), (1, 1), (1, 2), (1, 3)]);
        assert!(it.is_empty());
        it.end_at(6);
        assert_eq!(it.give(1, 2), Some((1, 4)));
    }
}
