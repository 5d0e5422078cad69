//! Metrics against naive twins: every pair compared, every formula written out.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use umbra_core::metrics::{AucPart, GaucPart, Grouped, LossSums, MetricError, Scored, order_key};
use umbra_core::rng::{Purpose, Stream};

/// What the examples of a trial are made of.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Distinct scores; few make heavy ties.
    scores: u64,
    soft: bool,
    weighted: bool,
}

const KINDS: [Kind; 5] = [
    Kind { scores: 3, soft: false, weighted: false },
    Kind { scores: 3, soft: true, weighted: true },
    Kind { scores: 40, soft: false, weighted: true },
    Kind { scores: 40, soft: true, weighted: false },
    Kind { scores: 1 << 40, soft: true, weighted: true },
];

fn examples(seed: u64, n: u64, kind: Kind) -> Vec<Scored> {
    let stream = Stream::new(seed, Purpose::Test(0));
    (0..n)
        .map(|i| {
            let label = stream.uniform(4 * i);
            // Centred, so that negatives, both zeros and positives all occur.
            let place = stream.below(4 * i + 1, kind.scores) as f64 / kind.scores as f64 - 0.5;
            let score = (8.0 * place) as f32;
            Scored {
                score: if score == 0.0 && label < 0.5 { -0.0 } else { score },
                label: if kind.soft { label } else { label.round() },
                weight: if kind.weighted { 3.0 * stream.uniform(4 * i + 2) } else { 1.0 },
            }
        })
        .collect()
}

/// Every pair, as the definition says.
fn naive_auc(examples: &[Scored]) -> Option<f64> {
    let (mut area, mut pairs) = (0.0f64, 0.0f64);
    for up in examples {
        for down in examples {
            let weight = f64::from(up.weight)
                * f64::from(up.label)
                * f64::from(down.weight)
                * (1.0 - f64::from(down.label));
            pairs += weight;
            if up.score > down.score {
                area += weight;
            } else if up.score == down.score {
                area += 0.5 * weight;
            }
        }
    }
    (pairs > 0.0).then(|| area / pairs)
}

fn assert_close(got: Option<f64>, expected: Option<f64>, context: &str) {
    match (got, expected) {
        (None, None) => {}
        (Some(a), Some(b)) if (a - b).abs() <= 1e-12 => {}
        _ => panic!("got {got:?}, expected {expected:?}: {context}"),
    }
}

#[test]
fn auc_equals_the_count_of_all_pairs() {
    for seed in 0..20 {
        for kind in KINDS {
            for n in [0, 1, 2, 7, 300] {
                let mut given = examples(seed, n, kind);
                let expected = naive_auc(&given);
                let got = AucPart::of(&mut given).unwrap().auc();
                assert_close(got, expected, &format!("seed {seed}, n {n}, {kind:?}"));
            }
        }
    }
}

#[test]
fn auc_of_known_orders() {
    let of = |scores: &[(f32, f32)]| {
        let mut given: Vec<_> =
            scores.iter().map(|&(score, label)| Scored { score, label, weight: 1.0 }).collect();
        AucPart::of(&mut given).unwrap().auc()
    };
    assert_eq!(of(&[(0.1, 0.0), (0.4, 0.0), (0.35, 1.0), (0.8, 1.0)]), Some(0.75));
    assert_eq!(of(&[(-1.0, 0.0), (1.0, 1.0)]), Some(1.0));
    assert_eq!(of(&[(-1.0, 1.0), (1.0, 0.0)]), Some(0.0));
    assert_eq!(of(&[(-0.0, 1.0), (0.0, 0.0)]), Some(0.5));
    assert_eq!(of(&[(f32::NEG_INFINITY, 0.0), (f32::INFINITY, 1.0)]), Some(1.0));
}

#[test]
fn auc_needs_both_classes() {
    for label in [0.0, 1.0] {
        let mut one = [Scored { score: 0.5, label, weight: 1.0 }; 4];
        assert_eq!(AucPart::of(&mut one).unwrap().auc(), None);
    }
    assert_eq!(AucPart::of(&mut []).unwrap(), AucPart::default());
    assert_eq!(AucPart::default().auc(), None);
    // Weight 0 is as good as absent.
    let mut weightless = [
        Scored { score: 0.5, label: 1.0, weight: 0.0 },
        Scored { score: 0.5, label: 0.0, weight: 1.0 },
    ];
    assert_eq!(AucPart::of(&mut weightless).unwrap().auc(), None);
}

#[test]
fn order_of_the_examples_changes_no_bit() {
    for seed in 0..10 {
        for kind in KINDS {
            let mut a = examples(seed, 500, kind);
            let mut b = a.clone();
            Stream::new(seed, Purpose::Test(1)).shuffle(0, &mut b);
            let (a, b) = (AucPart::of(&mut a).unwrap(), AucPart::of(&mut b).unwrap());
            assert_eq!(a.area.to_bits(), b.area.to_bits(), "seed {seed}, {kind:?}");
        }
    }
}

/// Ranks own ranges of keys cut at random places; some own nothing.
#[test]
fn parts_of_disjoint_ranges_merge_to_the_whole() {
    for seed in 0..20 {
        for kind in KINDS {
            let all = examples(seed, 700, kind);
            let whole = AucPart::of(&mut all.clone()).unwrap();
            let stream = Stream::new(seed, Purpose::Test(2));
            let mut splitters: Vec<u32> =
                (0..6).map(|i| order_key(all[stream.below(i, 700) as usize].score)).collect();
            splitters.sort_unstable();
            let part_of = |rank: usize| {
                let mut own: Vec<_> = all
                    .iter()
                    .filter(|e| splitters.partition_point(|&s| s <= order_key(e.score)) == rank)
                    .copied()
                    .collect();
                AucPart::of(&mut own).unwrap()
            };
            let merged = (0..=splitters.len()).map(part_of).reduce(AucPart::merge).unwrap();
            assert_close(merged.auc(), whole.auc(), &format!("seed {seed}, {kind:?}"));
        }
    }
}

#[test]
fn order_key_is_the_order_of_scores() {
    let scores = [
        f32::NEG_INFINITY,
        f32::MIN,
        -1.5,
        -1.0,
        -f32::MIN_POSITIVE,
        -f32::from_bits(1),
        -0.0,
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        1.0,
        1.5,
        f32::MAX,
        f32::INFINITY,
    ];
    for a in scores {
        for b in scores {
            assert_eq!(a.partial_cmp(&b), Some(order_key(a).cmp(&order_key(b))), "{a} and {b}");
        }
    }
}

#[test]
fn what_cannot_be_counted_is_named() {
    let good = Scored { score: 0.0, label: 1.0, weight: 1.0 };
    let of = |bad: Scored| AucPart::of(&mut [good, good, bad]);
    assert_eq!(of(Scored { score: f32::NAN, ..good }), Err(MetricError::Score { index: 2 }));
    assert_eq!(of(Scored { score: -f32::NAN, ..good }), Err(MetricError::Score { index: 2 }));
    assert_eq!(of(Scored { label: 1.5, ..good }), Err(MetricError::Label { index: 2, got: 1.5 }));
    assert_eq!(
        of(Scored { weight: -1.0, ..good }),
        Err(MetricError::Weight { index: 2, got: -1.0 })
    );
    assert!(of(Scored { label: f32::NAN, ..good }).is_err());
    assert!(of(Scored { weight: f32::INFINITY, ..good }).is_err());
    let grouped = |scored| Grouped { group: 1, scored };
    assert_eq!(
        GaucPart::of(&mut [grouped(good), grouped(Scored { score: f32::NAN, ..good })]),
        Err(MetricError::Score { index: 1 })
    );
}

#[test]
fn gauc_equals_the_average_of_naive_aucs() {
    for seed in 0..20 {
        for kind in KINDS {
            let stream = Stream::new(seed, Purpose::Test(3));
            let groups = 60;
            let mut all: Vec<_> = examples(seed, 400, kind)
                .into_iter()
                .enumerate()
                .map(|(i, scored)| Grouped {
                    // Squared, so that some groups are large and some have one example.
                    group: u64::MAX
                        - stream.below(2 * i as u64, groups)
                            * stream.below(2 * i as u64 + 1, groups),
                    scored,
                })
                .collect();
            let mut keys: Vec<u64> = all.iter().map(|e| e.group).collect();
            keys.sort_unstable();
            keys.dedup();
            let (mut sum, mut weight) = (0.0, 0.0);
            for key in keys {
                let own: Vec<_> = all.iter().filter(|e| e.group == key).map(|e| e.scored).collect();
                if let Some(auc) = naive_auc(&own) {
                    let own_weight: f64 = own.iter().map(|e| f64::from(e.weight)).sum();
                    sum += own_weight * auc;
                    weight += own_weight;
                }
            }
            let expected = (weight > 0.0).then(|| sum / weight);
            let context = format!("seed {seed}, {kind:?}");

            // Groups brought together by key, three ranks.
            let merged = (0..3)
                .map(|rank| {
                    let mut own: Vec<_> =
                        all.iter().filter(|e| e.group % 3 == rank).copied().collect();
                    GaucPart::of(&mut own).unwrap()
                })
                .fold(GaucPart::default(), GaucPart::merge);
            assert_close(merged.gauc(), expected, &context);
            assert_close(GaucPart::of(&mut all).unwrap().gauc(), expected, &context);
        }
    }
}

#[test]
fn gauc_ignores_offsets_between_groups_and_groups_of_one_class() {
    let make =
        |group, score, label| Grouped { group, scored: Scored { score, label, weight: 1.0 } };
    let mut all = [
        make(1, 0.1, 0.0),
        make(1, 0.2, 1.0),
        make(2, 9.1, 0.0),
        make(2, 9.2, 1.0),
        make(3, -5.0, 1.0),
        make(3, -6.0, 1.0),
    ];
    let part = GaucPart::of(&mut all).unwrap();
    assert_eq!((part.gauc(), part.weight), (Some(1.0), 4.0));
    assert_eq!(GaucPart::of(&mut all[4..]).unwrap().gauc(), None);
}

#[test]
fn loss_sums_equal_the_written_out_formulas() {
    for seed in 0..10 {
        for kind in KINDS {
            let all = examples(seed, 300, kind);
            let (mut sums, mut left, mut right) = <(LossSums, LossSums, LossSums)>::default();
            let (mut loss, mut weight, mut clicks, mut expected) = (0.0, 0.0, 0.0, 0.0);
            for (i, e) in all.iter().enumerate() {
                sums.add(e.score, e.label, e.weight);
                if i % 3 == 0 { &mut left } else { &mut right }.add(e.score, e.label, e.weight);
                let p = 1.0 / (1.0 + (-f64::from(e.score)).exp());
                let (y, w) = (f64::from(e.label), f64::from(e.weight));
                loss -= w * (y * p.ln() + (1.0 - y) * (1.0 - p).ln());
                weight += w;
                clicks += w * y;
                expected += w * p;
            }
            let rate: f64 = clicks / weight;
            let entropy = -rate * rate.ln() - (1.0 - rate) * (1.0 - rate).ln();
            let context = format!("seed {seed}, {kind:?}");
            for got in [sums, left.merge(right)] {
                assert_close(got.log_loss(), Some(loss / weight), &context);
                assert_close(got.normalized_entropy(), Some(loss / weight / entropy), &context);
                assert_close(got.calibration(), Some(expected / clicks), &context);
            }
        }
    }
}

#[test]
fn extreme_logits_have_finite_loss() {
    let mut sums = LossSums::default();
    sums.add(1000.0, 0.0, 1.0);
    sums.add(-1000.0, 1.0, 1.0);
    sums.add(1000.0, 1.0, 1.0);
    sums.add(-1000.0, 0.0, 1.0);
    assert_eq!(sums.log_loss(), Some(500.0));
    assert_eq!(sums.calibration(), Some(1.0));
}

#[test]
fn loss_figures_that_do_not_apply_are_absent() {
    let empty = LossSums::default();
    assert_eq!(
        (empty.log_loss(), empty.normalized_entropy(), empty.calibration()),
        (None, None, None)
    );
    let mut none_clicked = LossSums::default();
    none_clicked.add(0.0, 0.0, 2.0);
    assert_eq!(none_clicked.log_loss(), Some(core::f64::consts::LN_2));
    assert_eq!((none_clicked.normalized_entropy(), none_clicked.calibration()), (None, None));
    let mut all_clicked = LossSums::default();
    all_clicked.add(0.0, 1.0, 1.0);
    assert_eq!((all_clicked.normalized_entropy(), all_clicked.calibration()), (None, Some(0.5)));
    // The entropy of the base rate is what a constant prediction of that rate costs.
    let mut base = LossSums::default();
    base.add(0.0, 1.0, 1.0);
    base.add(0.0, 0.0, 1.0);
    assert_eq!(base.normalized_entropy(), Some(1.0));
}
