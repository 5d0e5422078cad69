//! What replicas hold: the laws of each method, checked with values.

use core::sync::atomic::Ordering::Relaxed;

use super::*;

/// arXiv 2007.03298: groups of a full grid share the mean of all after two rounds; trainers that
/// ended earlier follow.
#[test]
fn groups_reach_the_mean_of_all() {
    for rounds in [gated(1), SHADOW] {
        let mut cluster = cluster(4, 2);
        cluster.trainers[1].steps = 5;
        let start = random(9, 4, 5);
        let method = with_alpha(1.0, method(pairs(false), rounds));
        let (_, after) = training(&cluster, &method, &start, &mut |_| {});
        for (i, x) in after[0].iter().enumerate() {
            let mean = start.iter().map(|replica| f64::from(replica[i])).sum::<f64>() / 4.0;
            assert!((f64::from(*x) - mean).abs() < 1e-6, "{rounds:?}: {x}, mean {mean}, seed 9");
        }
        assert!(after.iter().all(|replica| *replica == after[0]), "{rounds:?}: {after:?}");
    }
}

/// "No work is lost" (`sync/model_average.rs`): at alpha 1 the mean of all replicas has every step
/// that any trainer made, whenever it ended and however groups are dealt. Each step of trainer t
/// adds 1 to element t; what is left of its steps in the mean, times the trainers, is its share.
#[test]
fn early_work_is_kept_in_full_under_every_schedule() {
    /// Of so many trainers, with this seed.
    type Schedule = fn(usize, u64) -> Dealing<'static>;
    const TRAINERS: [usize; 6] = [2, 3, 4, 5, 7, 9];
    let schedules: [(&str, Schedule); 5] = [
        ("ring", |_, _| Dealing::Ring),
        ("grid 2", |_, _| Dealing::Grid { columns: 2 }),
        ("grid 3", |_, _| Dealing::Grid { columns: 3 }),
        ("hypercube", |_, _| Dealing::Hypercube { base: 2 }),
        ("random", |_, seed| Dealing::Random { group: 2, seed }),
    ];
    let background = Algorithm::Average { delta: true };
    let mut cases: Vec<(String, Algorithm<'_>, Rounds)> =
        vec![("all, background".into(), background, SHADOW), ("all".into(), MA, gated(1))];
    for (name, dealing) in schedules {
        for seed in 0..3 {
            let groups = |delta| Algorithm::DivideShuffle { dealing: dealing(0, seed), delta };
            cases.push((name.into(), groups(false), gated(1)));
            cases.push((name.into(), groups(true), gated(3)));
            cases.push((format!("{name}, background"), groups(true), SHADOW));
        }
    }
    let mut kept: std::collections::BTreeMap<String, f64> = std::collections::BTreeMap::new();
    for (number, (name, algorithm, rounds)) in (0u32..).zip(cases) {
        for trainers in TRAINERS {
            let stream =
                Stream::new(u64::from(number), Purpose::Test(u32::try_from(trainers).unwrap()));
            let mut cluster = cluster(trainers, 10);
            for (draw, trainer) in (0..).zip(&mut cluster.trainers) {
                trainer.steps = 1 + stream.below(2 * draw, 10);
                trainer.slowdown = 1.0 + stream.uniform_f64(2 * draw + 1);
            }
            // As in the review of the schedule: one ends after two steps of ten.
            cluster.trainers[0].steps = 2;
            let steps: Vec<u64> = cluster.trainers.iter().map(|trainer| trainer.steps).collect();
            let mut count = |step: Step<'_>| {
                let word = &step.replica[step.trainer];
                word.store((f32::from_bits(word.load(Relaxed)) + 1.0).to_bits(), Relaxed);
            };
            let job = with_alpha(1.0, method(algorithm, rounds));
            let start = vec![vec![0.0; trainers]; trainers];
            let (_, after) = training(&cluster, &job, &start, &mut count);
            for (trainer, steps) in steps.iter().enumerate() {
                let sum: f64 = after.iter().map(|replica| f64::from(replica[trainer])).sum();
                // Of all trainers, the mean has 1/n of a step until it is multiplied.
                let share = sum / *steps as f64;
                let least = kept.entry(name.clone()).or_insert(f64::INFINITY);
                *least = least.min(share);
                // In groups nobody's work weighs more than another's either; where all average,
                // those that go on speak for those that have ended.
                let most = if job.method.dealing().is_some() { 1.0 + 1e-5 } else { f64::MAX };
                assert!(
                    (1.0 - 1e-5..=most).contains(&share),
                    "{name}, {trainers} trainers, case {number}: {share} of {steps} steps of \
                     trainer {trainer}"
                );
            }
        }
    }
    for (name, share) in kept {
        println!("early work kept: {name} {share:.7}");
    }
}

/// A straggler keeps its own group waiting, and the others only when they are dealt into one with
/// it.
#[test]
fn a_straggler_keeps_its_group_waiting() {
    let mut cluster = cluster(4, 1);
    cluster.trainers[3].slowdown = 10.0;
    let seconds = |algorithm| {
        let outcome = timing(&cluster, &method(algorithm, gated(1)));
        outcome.trainers[0].seconds
    };
    let (grouped, all) = (seconds(pairs(false)), seconds(Algorithm::Average { delta: false }));
    assert!(grouped < 0.005, "a step of 1 ms and a round: {grouped}");
    assert!(all > 0.011, "a straggler's step of 10 ms and a round: {all}");
}

/// "Elastic averaging", the invariants at the head of `sync/elastic.rs`: w − c shrinks by (1 − α)²
/// a round in the sequential form; in the same-pair form w + c stays, and w − c shrinks by 1 − 2α.
#[test]
fn an_elastic_pair_keeps_its_laws() {
    let alpha = 0.25f32;
    for (pair, shrinks) in [(Pair::Sequential, 0.75f32 * 0.75), (Pair::Same, 0.5)] {
        for (rounds, gate) in (1..5).flat_map(|n| [(n, GateOf::Trainer), (n, GateOf::Worker)]) {
            let elastic = Algorithm::Elastic { pair, slices: 2 };
            let method = with_alpha(alpha, method(elastic, Rounds::Gated { every: 1, gate }));
            // The center starts from the first trainer; the step of the only worker moves the
            // replica away.
            let mut cluster = cluster(1, rounds);
            cluster.sync_ps = vec![cluster.sync_ps[0]; 2];
            let start = random(3, 1, 7);
            let mut moves = |step: Step<'_>| {
                if step.number == 0 {
                    let words = step.replica.iter().enumerate();
                    words.for_each(|(i, word)| word.store((i as f32 + 2.0).to_bits(), Relaxed));
                }
            };
            let (simulated, after) = training(&cluster, &method, &start, &mut moves);
            assert_eq!(simulated.outcome.rounds(), rounds);
            for (i, (w, c)) in after[0].iter().zip(&simulated.center).enumerate() {
                let (w0, c0) = (i as f32 + 2.0, start[0][i]);
                let expected = (w0 - c0) * shrinks.powi(i32::try_from(rounds).unwrap());
                assert!((w - c - expected).abs() < 2e-6, "{pair:?}: w - c = {}", w - c);
                if pair == Pair::Same {
                    assert!((w + c - (w0 + c0)).abs() < 2e-6, "w + c = {}, seed 3", w + c);
                }
            }
        }
    }
}

/// Workers that exchange each by itself move no sum of replica and center in the same-pair form,
/// however their rounds overlap.
#[test]
fn workers_that_exchange_by_themselves_move_no_sum() {
    let elastic = Algorithm::Elastic { pair: Pair::Same, slices: 2 };
    let method = with_alpha(0.125, method(elastic, BY_WORKER));
    let mut cluster = cluster(1, 6);
    (cluster.jitter, cluster.trainers[0].workers) = (Jitter::LogNormal(0.5), 3);
    cluster.sync_ps = vec![cluster.sync_ps[0]; 2];
    let start = random(4, 1, 7);
    let mut moves = |step: Step<'_>| {
        if (step.worker, step.number) == (0, 0) {
            step.replica.iter().for_each(|word| word.store(2f32.to_bits(), Relaxed));
        }
    };
    let (simulated, after) = training(&cluster, &method, &start, &mut moves);
    assert_eq!(simulated.outcome.rounds(), 18, "one for each step of a worker");
    for ((w, c), before) in after[0].iter().zip(&simulated.center).zip(&start[0]) {
        assert!((w + c - (2.0 + before)).abs() < 4e-6, "w + c = {}, seed 4", w + c);
        assert!((w - c).abs() < (2.0 - before).abs(), "they come together");
    }
}

/// The published baseline of arXiv 2003.03477: a worker that takes long for a step keeps no other
/// worker of its trainer at the gate.
#[test]
fn a_slow_worker_keeps_nobody_where_gates_are_the_workers_own() {
    let outcome = |rounds| {
        let mut cluster = cluster(2, 50);
        cluster.jitter = Jitter::LogNormal(0.5);
        cluster.trainers.iter_mut().for_each(|trainer| trainer.workers = 4);
        let job = Job { replica_bytes: 1000, ..method(EASGD, rounds) };
        timing(&cluster, &job)
    };
    let (all, each) = (outcome(gated(1)), outcome(BY_WORKER));
    for (all, each) in all.trainers.iter().zip(&each.trainers) {
        // An exchange is four latencies of 20 µs at most; the slowest of four takes half a step
        // longer than the mean.
        assert!(each.exposed_seconds < 50.0 * 100e-6, "{each:?}");
        assert!(all.exposed_seconds > 50.0 * 500e-6, "{all:?}");
        assert_eq!((all.rounds, each.rounds), (50, 200));
        assert_eq!((all.gap_p99, each.gap_p99), (4.0, 1.0));
    }
    assert!(each.seconds < 0.8 * all.seconds, "{} s and {} s", each.seconds, all.seconds);
}

#[test]
fn averaging_gives_every_trainer_the_tree_mean_bit_for_bit() {
    for trainers in [2u32, 3, 4, 7] {
        let method = with_alpha(1.0, method(MA, gated(1)));
        let start = random(11, trainers, 33);
        let cluster = cluster(trainers as usize, 1);
        let (_, after) = training(&cluster, &method, &start, &mut |_| {});
        for i in 0..33 {
            let column: Vec<f32> = start.iter().map(|replica| replica[i]).collect();
            let mean = tree(&column) / trainers as f32;
            for replica in &after {
                assert_eq!(replica[i].to_bits(), mean.to_bits(), "{trainers} trainers, seed 11");
            }
        }
    }
}

/// ((0 + 1) + (2 + 3)) + …, written down once more.
fn tree(values: &[f32]) -> f32 {
    let half = values.len().next_power_of_two() / 2;
    match values {
        [one] => *one,
        _ => tree(&values[..half]) + tree(&values[half..]),
    }
}

/// With ζ = 1 and μ = 0 block momentum is model averaging, also in time.
#[test]
fn block_momentum_without_momentum_is_averaging() {
    let cluster = cluster(4, 12);
    let start = random(5, 4, 9);
    let mut drift = |step: Step<'_>| {
        let add = (step.trainer + 1) as f32 * 0.125;
        let grow = |word: &AtomicU32| {
            word.store((f32::from_bits(word.load(Relaxed)) + add).to_bits(), Relaxed);
        };
        step.replica.iter().for_each(grow);
    };
    let blocks = Blocks { rate: 1.0, momentum: 0.0, nesterov: false };
    let block = Algorithm::BlockMomentum { blocks, delta: false };
    for rounds in [SHADOW, gated(4)] {
        let (a, of_mean) = training(&cluster, &method(MA, rounds), &start, &mut drift);
        let (b, of_blocks) = training(&cluster, &method(block, rounds), &start, &mut drift);
        assert_eq!(a.outcome, b.outcome);
        let near = |(x, y): (&f32, &f32)| (x - y).abs() < 1e-5;
        assert!(of_mean.iter().flatten().zip(of_blocks.iter().flatten()).all(near));
    }
}

/// Delta intake keeps what workers did during the round; interpolation pulls part of it back.
#[test]
fn delta_keeps_the_steps_that_were_made_during_a_round() {
    let mut cluster = cluster(2, 40);
    cluster.trainers.iter_mut().for_each(|trainer| trainer.link.bytes_per_second = 1e8);
    let mut count = |step: Step<'_>| {
        let word = &step.replica[0];
        word.store((f32::from_bits(word.load(Relaxed)) + 1.0).to_bits(), Relaxed);
    };
    let start = vec![vec![0.0]; 2];
    let run = |delta, count: &mut dyn FnMut(Step<'_>)| {
        let algorithm = Algorithm::Average { delta };
        training(&cluster, &method(algorithm, SHADOW), &start, count)
    };
    let (kept, values) = run(true, &mut count);
    assert!(kept.outcome.gap_mean().unwrap() > 5.0, "rounds take many steps");
    // Both trainers make the same steps, so the mean never differs from what was loaded.
    assert_eq!(values, [[40.0], [40.0]]);
    let (_, pulled) = run(false, &mut count);
    assert!(pulled[0][0] < 35.0, "{pulled:?}");
}
