//! What was reported of every rank, and the points of the run as all of its trainers pass them.
//!
//! The first rank hears what ranks have counted now and then, and their marks in between
//! (`measure/points.rs`). A report is of a cut through these: of every rank one word that it has
//! said, and never an earlier one than the last report was of. So what lies between two reports is
//! what was trained there, whoever was ahead and whenever somebody looked.

use std::collections::VecDeque;

use crate::measure::counters::Reading;
use crate::measure::points::Mark;
use crate::run::plan::Plan;

/// The points of a run, and what was reported.
pub(super) struct Curve {
    /// Of the points.
    steps: Vec<u64>,
    /// Ranks of the trainers.
    trainers: Vec<usize>,
    /// Number of the point that is the next to be reported.
    next: usize,
    /// Marks from there on. `[trainers]`
    heard: Vec<VecDeque<Mark>>,
    /// What the last report was of. `[ranks]`
    reported: Vec<Reading>,
}

/// A point that all trainers have passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) step: u64,
    /// When the last of their workers did, nanoseconds after the stretch of training began.
    pub(super) at_ns: u64,
    /// What all ranks had counted, as far as marks have it.
    pub(super) total: Reading,
}

impl Curve {
    /// Of the run of `plan` from `step` on.
    pub(super) fn new(plan: &Plan, step: u64) -> Self {
        Self::of(plan.points(), plan.roles.trainers.ranks().to_vec(), step)
    }

    fn of(steps: Vec<u64>, trainers: Vec<usize>, step: u64) -> Self {
        let next = steps.partition_point(|point| *point <= step);
        let heard = trainers.iter().map(|_| VecDeque::new()).collect();
        Self { steps, trainers, next, heard, reported: vec![] }
    }

    /// Takes a mark of rank `rank`; one that it has already changes nothing.
    pub(super) fn hear(&mut self, rank: usize, mark: Mark) {
        let trainer = self.trainers.iter().position(|trainer| *trainer == rank);
        let Some(heard) = trainer.map(|trainer| &mut self.heard[trainer]) else { return };
        if mark.point == (self.next + heard.len()) as u64 {
            heard.push_back(mark);
        }
    }

    /// The next point that all trainers have passed, where ranks have counted `readings`.
    pub(super) fn point(&mut self, readings: &[Reading]) -> Option<Point> {
        let marks: Option<Vec<Mark>> =
            self.heard.iter_mut().map(|heard| heard.front().copied()).collect();
        let marks = marks.filter(|marks| !marks.is_empty())?;
        let step = *self.steps.get(self.next)?;
        for heard in &mut self.heard {
            heard.pop_front();
        }
        self.next += 1;
        self.reported.resize(readings.len(), Reading::default());
        for (rank, reading) in readings.iter().enumerate() {
            if !self.trainers.contains(&rank) {
                self.reported[rank] = *reading;
            }
        }
        for (rank, mark) in self.trainers.iter().zip(&marks) {
            let reported = &mut self.reported[*rank];
            if mark.steps > reported.steps {
                *reported = mark.reading();
            }
        }
        let at_ns = marks.iter().map(|mark| mark.at_ns).max().unwrap_or(0);
        Some(Point { step, at_ns, total: sum(&self.reported) })
    }

    /// All that ranks have counted is reported now.
    pub(super) fn report(&mut self, readings: &[Reading]) -> Reading {
        self.reported = readings.to_vec();
        sum(readings)
    }
}

/// What all ranks have counted.
pub(super) fn sum(readings: &[Reading]) -> Reading {
    readings.iter().fold(Reading::default(), |sum, reading| sum.plus(*reading))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn counted(steps: u64) -> Reading {
        let weight_sum = steps as f64;
        Reading {
            steps,
            examples: 10 * steps,
            loss_sum: 0.5 * weight_sum,
            weight_sum,
            ..Reading::default()
        }
    }

    fn mark(point: u64, steps: u64) -> Mark {
        let Reading { examples, loss_sum, weight_sum, .. } = counted(steps);
        Mark { point, at_ns: 100 * steps, steps, examples, loss_sum, weight_sum }
    }

    #[test]
    fn a_point_is_there_when_all_trainers_have_passed_it() {
        // Rank 0 holds rows alone.
        let mut curve = Curve::of(vec![2, 4, 6], vec![1, 2], 2);
        let readings = [Reading::default(), counted(5), counted(5)];
        // The first point is one before the run went on.
        for mark in [mark(0, 2), mark(1, 4), mark(1, 4), mark(2, 6)] {
            curve.hear(1, mark);
        }
        curve.hear(0, mark(1, 4));
        assert_eq!(curve.point(&readings), None);
        curve.hear(2, mark(1, 4));
        let point = curve.point(&readings).unwrap();
        assert_eq!((point.step, point.at_ns, point.total), (4, 400, counted(8)));
        assert_eq!(curve.point(&readings), None);
        // Again, by another way.
        curve.hear(2, mark(1, 4));
        assert_eq!(curve.point(&readings), None);
        curve.hear(2, mark(2, 6));
        assert_eq!(curve.point(&readings).unwrap().total, counted(12));
        assert_eq!(curve.point(&readings), None);
    }

    #[test]
    fn a_report_takes_nothing_back() {
        let mut curve = Curve::of(vec![4], vec![0, 1], 0);
        assert_eq!(curve.report(&[counted(9), counted(3)]), counted(12));
        curve.hear(0, mark(0, 4));
        curve.hear(1, mark(0, 4));
        let point = curve.point(&[counted(9), counted(5)]).unwrap();
        assert_eq!(point.total, counted(13), "the first rank was past the point");
    }
}
