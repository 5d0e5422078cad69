//! Sentences of the intake against naive sums.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::vec;
use std::vec::Vec;

use super::super::row_sums::sums_len;
use super::*;
use crate::rng::{Purpose, Stream};
use crate::sync::reduction::{add, sum_into_first};

const WIDTH: usize = 2;

/// A push in memory: parts of (worker, rate, rows, gradients).
#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    parts: Vec<(u32, f32, Vec<u32>)>,
    gradients: Vec<f32>,
}

impl Plain {
    fn part(mut self, worker: u32, rate: f32, rows: &[(u32, [f32; WIDTH])]) -> Self {
        self.parts.push((worker, rate, rows.iter().map(|(row, _)| *row).collect()));
        self.gradients.extend(rows.iter().flat_map(|(_, gradient)| gradient));
        self
    }
}

impl Push for Plain {
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.parts.iter().scan(0, |next, (worker, rate, rows)| {
            let at = *next;
            *next += (rows.len() * WIDTH) as u32;
            Some(Part { worker: *worker, rate: *rate, rows, at })
        })
    }

    fn gradient(&self, at: u32, width: usize) -> &[f32] {
        &self.gradients[at as usize..][..width]
    }
}

type Sums = Vec<(u32, u32, [u32; WIDTH])>;

/// The sums of the step in hand: row, rate and sum as bits.
fn sums(lockstep: &Lockstep<'_, Plain>, workers: u32) -> Result<Sums, Refused> {
    let mut entries = vec![Entry::default(); lockstep.entries_len()];
    let mut scratch = vec![0.0; sums_len(workers, WIDTH)];
    let mut sums = vec![];
    lockstep.sum(WIDTH, &mut entries, &mut scratch, |row, rate, sum| {
        sums.push((row, rate.to_bits(), [sum[0].to_bits(), sum[1].to_bits()]));
    })?;
    Ok(sums)
}

/// What every worker pushes: `[workers]` lists of row and gradient.
fn random_gradients(seed: u64, workers: u32) -> Vec<Vec<(u32, [f32; WIDTH])>> {
    let stream = Stream::new(seed, Purpose::Test(0));
    let gradients = |worker: u32| {
        let index = move |row: u32| u64::from(worker * 100 + row) * 3;
        let has = move |row: &u32| stream.below(index(*row), 3) > 0;
        let value =
            move |row: u32| [stream.normal(index(row) + 1), 1e4 * stream.normal(index(row) + 2)];
        (0..20).filter(has).map(|row| (row, value(row))).collect()
    };
    (0..workers).map(gradients).collect()
}

/// A tree over all workers; those without the row are left out of it.
fn naive_sum(terms: &[Option<[f32; WIDTH]>]) -> Option<[f32; WIDTH]> {
    let mut items = terms.to_vec();
    items.resize(terms.len().next_power_of_two(), None);
    sum_into_first(&mut items, |to, from| match (to, from) {
        (Some(to), Some(from)) => add(to, from),
        (to @ None, from) => *to = *from,
        (Some(_), None) => {}
    });
    items[0]
}

#[test]
fn sums_are_trees_over_workers_however_they_are_dealt_and_come() {
    for (seed, workers) in [1, 2, 3, 4, 6, 8, 13].into_iter().enumerate() {
        let gradients = random_gradients(seed as u64, workers);
        let expected: Sums = (0..20)
            .filter_map(|row| {
                let of = |worker: &Vec<(u32, [f32; WIDTH])>| {
                    worker.iter().find(|(other, _)| *other == row).map(|(_, gradient)| *gradient)
                };
                let terms: Vec<_> = gradients.iter().map(of).collect();
                naive_sum(&terms).map(|sum| (row, 0.5f32.to_bits(), sum.map(f32::to_bits)))
            })
            .collect();
        assert!(!expected.is_empty());
        for contributors in [1, 2, workers as usize].into_iter().filter(|n| *n <= workers as usize)
        {
            let mut pushes = vec![Plain::default(); contributors];
            // Dealt and ordered in a way of no meaning.
            for worker in (0..workers).rev() {
                let at = worker as usize * 7 % contributors;
                let push = core::mem::take(&mut pushes[at]);
                pushes[at] = push.part(worker, 0.5, &gradients[worker as usize]);
            }
            let stream = Stream::new(seed as u64, Purpose::Test(1));
            for order in 0..5 {
                let mut turns: Vec<usize> = (0..contributors).collect();
                stream.shuffle(order * 100, &mut turns);
                let mut memory = vec![None; contributors];
                let mut intake = Intake::Lockstep(Lockstep::new(&mut memory, workers, 0));
                for (count, at) in turns.iter().enumerate() {
                    let taken = intake.push(*at, 0, pushes[*at].clone()).unwrap();
                    let last = count + 1 == contributors;
                    assert_eq!(taken, if last { Taken::Complete } else { Taken::Kept });
                }
                let Intake::Lockstep(lockstep) = &intake else { unreachable!() };
                assert_eq!(sums(lockstep, workers).unwrap(), expected, "{workers} workers");
            }
        }
    }
}

#[test]
fn a_lookup_waits_for_the_updates_of_the_step_before() {
    let mut memory = [None, None];
    let mut intake = Intake::Lockstep(Lockstep::new(&mut memory, 2, 0));
    assert!(intake.serves(0) && !intake.serves(1));
    assert_eq!(intake.push(1, 0, 'a'), Ok(Taken::Kept));
    assert!(!intake.serves(1), "one push is missing");
    assert_eq!(intake.push(1, 1, 'b'), Ok(Taken::Early('b')));
    assert_eq!(intake.push(0, 0, 'c'), Ok(Taken::Complete));
    let Intake::Lockstep(lockstep) = &mut intake else { unreachable!() };
    let mut used = vec![];
    lockstep.advance(|push| used.push(push)).unwrap();
    assert_eq!((used, lockstep.step()), (vec!['c', 'a'], 1));
    assert!(intake.serves(0) && intake.serves(1) && !intake.serves(2));
    assert_eq!(intake.push(1, 1, 'b'), Ok(Taken::Kept), "offered again");
}

#[test]
fn at_once_serves_and_applies_everything() {
    let mut intake = Intake::AtOnce;
    for step in [5, 0, 5] {
        assert!(intake.serves(step));
        assert_eq!(intake.push(9, step, step), Ok(Taken::Apply(step)));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut memory = [None, None];
    let mut intake = Intake::Lockstep(Lockstep::new(&mut memory, 2, 0));
    let refused = Refused::Contributor { got: 2, contributors: 2 };
    assert_eq!(intake.push(2, 0, 'x'), Err(refused));
    assert_eq!(intake.push(0, 0, 'a'), Ok(Taken::Kept));
    let refused = Refused::Second { contributor: 0, step: 0 };
    assert_eq!(intake.push(0, 0, 'x'), Err(refused));
    let Intake::Lockstep(lockstep) = &mut intake else { unreachable!() };
    let refused = Refused::Incomplete { step: 0, arrived: 1, contributors: 2 };
    assert_eq!(lockstep.advance(|_| unreachable!()), Err(refused));
    assert_eq!(intake.push(1, 0, 'b'), Ok(Taken::Complete));
    let Intake::Lockstep(lockstep) = &mut intake else { unreachable!() };
    lockstep.advance(|_| ()).unwrap();
    let refused = Refused::Past { contributor: 1, got: 0, open: 1 };
    assert_eq!(intake.push(1, 0, 'x'), Err(refused));
    assert_eq!(intake.push(1, 1, 'd'), Ok(Taken::Kept));
    assert_eq!(intake.push(0, 1, 'c'), Ok(Taken::Complete));
}

fn complete(memory: &mut [Option<Plain>], pushes: [Plain; 2]) -> Result<Sums, Refused> {
    let mut lockstep = Lockstep::new(memory, 2, 0);
    for (contributor, push) in pushes.into_iter().enumerate() {
        lockstep.push(contributor, 0, push).unwrap();
    }
    sums(&lockstep, 2)
}

#[test]
fn contradictions_within_a_step_are_refused() {
    let mut memory = [None, None];
    let one = |worker, rate| Plain::default().part(worker, rate, &[(3, [1.0, 2.0])]);
    let mut lockstep: Lockstep<'_, Plain> = Lockstep::new(&mut memory, 2, 0);
    let refused = Refused::Incomplete { step: 0, arrived: 0, contributors: 2 };
    assert_eq!(sums(&lockstep, 2), Err(refused));
    lockstep.push(0, 0, one(0, 0.5)).unwrap();
    lockstep.push(1, 0, one(1, 0.5)).unwrap();
    let scratch = &mut [0.0; 4];
    let refused = Refused::Scratch { got: 1, needed: 2 };
    let short = lockstep.sum(WIDTH, &mut [Entry::default()], scratch, |_, _, _| unreachable!());
    assert_eq!(short, Err(refused));
    assert_eq!(
        complete(&mut memory, [one(0, 0.5), one(2, 0.5)]),
        Err(Refused::Worker { got: 2, workers: 2 })
    );
    assert_eq!(
        complete(&mut memory, [one(1, 0.5), one(1, 0.5)]),
        Err(Refused::RowTwice { row: 3, worker: 1 })
    );
    assert_eq!(
        complete(&mut memory, [one(0, 0.5), one(1, 0.25)]),
        Err(Refused::Rates { step: 0, rates: [0.5, 0.25] })
    );
}

/// A worker that dropped its step pushes with rate 0: the others' sum has nothing of it, and where
/// all do so, as with a learning rate of 0, the step is an update like any other.
#[test]
fn a_dropped_step_is_heard_and_adds_nothing() {
    let mut memory = [None, None];
    let nan = Plain::default().part(0, 0.0, &[(3, [f32::NAN; 2]), (4, [f32::NAN; 2])]);
    let sound = Plain::default().part(1, 0.5, &[(3, [1.0, 2.0])]);
    let expected = vec![(3, 0.5f32.to_bits(), [1.0f32, 2.0].map(f32::to_bits))];
    assert_eq!(complete(&mut memory, [nan, sound]), Ok(expected));
    let idle = |worker| Plain::default().part(worker, 0.0, &[(3, [1.0, 2.0])]);
    let expected = vec![(3, 0, [2.0f32, 4.0].map(f32::to_bits))];
    assert_eq!(complete(&mut memory, [idle(0), idle(1)]), Ok(expected));
    assert_eq!(complete(&mut memory, [Plain::default(), Plain::default()]), Ok(vec![]));
}

/// A run that goes on asks for the step it has come to; what was before is over.
#[test]
fn lockstep_begins_where_a_run_goes_on() {
    let mut memory = [None, None];
    let mut intake = Intake::Lockstep(Lockstep::new(&mut memory, 2, 5));
    assert!(intake.serves(5) && !intake.serves(6));
    let past = Refused::Past { contributor: 0, got: 4, open: 5 };
    assert_eq!(intake.push(0, 4, ()), Err(past));
    assert_eq!(intake.push(0, 5, ()), Ok(Taken::Kept));
    assert_eq!(intake.push(1, 5, ()), Ok(Taken::Complete));
}
