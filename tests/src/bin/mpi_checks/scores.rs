//! Metrics over ranks against one process that counts every pair.

use core::ops::Range;
use std::sync::Arc;

use umbra_core::metrics::Scored;
use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::launch::world::World;
use umbra_mpi::score::figures::{Figures, Scores};
use umbra_tests::{Example, figures as oracle};

const EXAMPLES: usize = 400;

/// Which ranks have which examples.
type Deal = fn(example: usize, size: usize) -> usize;

const DEALS: [Deal; 4] = [
    // In turn: groups span all ranks.
    |example, size| example % size,
    // All on the last: the others are empty.
    |_, size| size - 1,
    // All on the first.
    |_, _| 0,
    // Rank 0 nothing, rank 1 almost everything, the last the rest.
    |example, size| if example < EXAMPLES - 5 { 1 } else { size - 1 },
];

/// Examples that a case is made of.
type Make = fn(&Stream, u64) -> Example;

const CASES: [(&str, Make); 6] = [
    ("weights, soft labels, few distinct scores", |stream, i| Example {
        score: stream.below(4 * i, 25) as f32 / 4.0 - 3.0,
        label: [0.0, 0.0, 1.0, 0.25][stream.below(4 * i + 1, 4) as usize],
        weight: stream.below(4 * i + 2, 5) as f32 / 2.0,
        group: stream.below(4 * i + 3, 30),
    }),
    ("continuous scores that tell something", |stream, i| {
        let score = 2.0 * stream.normal(4 * i);
        let label = f32::from(u8::from(score + 2.0 * stream.normal(4 * i + 1) > 1.0));
        Example { score, label, weight: 1.0, group: u64::MAX - stream.below(4 * i + 2, 7) }
    }),
    ("one class", |stream, i| Example {
        score: stream.normal(i),
        label: 1.0,
        weight: 1.0,
        group: 0,
    }),
    ("one score", |stream, i| Example {
        score: 0.5,
        label: stream.uniform(i).round(),
        weight: 1.0,
        group: i % 3,
    }),
    ("zeros of both signs", |stream, i| Example {
        score: [0.0, -0.0, 1e-38, -1e-38][stream.below(2 * i, 4) as usize],
        label: stream.uniform(2 * i + 1).round(),
        weight: 1.0,
        group: i,
    }),
    ("neighbours in the last bit", |stream, i| Example {
        score: f32::from_bits(1f32.to_bits() + stream.below(2 * i, 50) as u32),
        label: stream.uniform(2 * i + 1).round(),
        weight: 1.0,
        group: i % 2,
    }),
];

fn collect(examples: &[Example], own: impl Fn(usize) -> bool, grouped: bool) -> Scores {
    let mut scores = Scores::default();
    for (i, x) in examples.iter().enumerate().filter(|(i, _)| own(*i)) {
        scores.scored.push(Scored { score: x.score, label: x.label, weight: x.weight });
        scores.row.push(i as u64);
        if grouped {
            scores.group.push(x.group);
        }
    }
    scores
}

fn close(what: &str, got: Option<f64>, expected: Option<f64>) {
    let same = match (got, expected) {
        (Some(got), Some(expected)) => (got - expected).abs() <= 1e-12 * expected.abs(),
        (got, expected) => got == expected,
    };
    assert!(same, "{what}: {got:?}, by definition {expected:?}");
}

/// Figures equal the definitions to 1e-12, and are the same bits on every rank.
pub(super) fn figures(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (control.rank(), control.size());
    for (seed, (name, make)) in (1u64..).zip(CASES) {
        let stream = Stream::new(seed, Purpose::Test(9));
        let examples: Vec<Example> = (0..EXAMPLES as u64).map(|i| make(&stream, i)).collect();
        let expected = oracle(&examples);
        for (number, deal) in DEALS.iter().enumerate() {
            let own = |i: usize| deal(i, size) == rank;
            for grouped in [true, false] {
                let what = |figure: &str| format!("{name}, deal {number}: {figure}");
                let got = collect(&examples, own, grouped).figures(control).unwrap();
                assert_eq!(got.examples, EXAMPLES as u64);
                close(&what("auc"), got.auc, expected.auc);
                close(&what("logloss"), got.logloss, Some(expected.logloss));
                close(&what("calibration"), got.calibration, Some(expected.calibration));
                close(&what("gauc"), got.gauc, expected.gauc.filter(|_| grouped));
                // Not a number where there is one class.
                let entropy = Some(expected.normalized_entropy).filter(|x| x.is_finite());
                close(&what("normalized entropy"), got.normalized_entropy, entropy);
                let figures = [got.auc, got.logloss, got.calibration, got.gauc];
                let bits = figures.map(|figure| figure.map_or(0, f64::to_bits));
                let all = control.all_gather_varied(&bits, "test").unwrap();
                assert!(all.iter().all(|other| *other == bits), "{}", what("ranks differ"));
            }
        }
    }
    let nothing = Scores::default().figures(control).unwrap();
    assert_eq!(nothing, Figures::default());
    diverged(control, 0..size);
}

/// A score that is not finite is an error on every rank, whoever has it.
fn diverged(control: &Comm, ranks: Range<usize>) {
    for (broken, number) in ranks.flat_map(|rank| [(rank, f32::NAN), (rank, f32::INFINITY)]) {
        let score = if control.rank() == broken { number } else { 0.0 };
        let mut scores = Scores::default();
        scores.scored.push(Scored { score, label: 1.0, weight: 1.0 });
        assert!(scores.figures(control).is_err(), "rank {broken} has {number}");
    }
}
