//! The protocols of `sync` on a cluster in virtual time.
//!
//! Golden files under `tests/golden/` are what the simulator printed when its sums had been checked
//! by hand on the first of them; they are compared byte for byte, since nothing in a simulation may
//! depend on the machine. `UMBRA_BLESS=1` writes them anew; look at the difference before it is
//! kept.
#![allow(clippy::unwrap_used)]

use core::fmt::Write as _;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::path::PathBuf;

use umbra_core::rng::{Purpose, Stream};
use umbra_core::sim::{
    Cluster, Collective, Embedding, Jitter, Job, Link, Outcome, Pause, Simulated, Step, Trainer,
    Training, lines, simulate,
};
use umbra_core::sync::{Algorithm, Blocks, Dealing, GateOf, Method, Pace, Pair, Rounds};
use umbra_core::units::Nanos;

const MS: u64 = 1_000_000;
const NEVER: Nanos = Nanos(u64::MAX);

/// Trainers with one worker each, 1 ms a step; links of 1 GB/s, 20 µs away; copies take 0.1 ns a
/// byte.
fn cluster(trainers: usize, steps: u64) -> Cluster {
    let link = Link { bytes_per_second: 1e9, latency: Nanos(20_000), overhead: Nanos(1000) };
    let trainer = Trainer {
        link,
        cores: 0,
        workers: 1,
        steps,
        compute: Nanos(MS),
        slowdown: 1.0,
        pauses: vec![],
        ends: NEVER,
    };
    Cluster {
        seed: 1,
        trainers: vec![trainer; trainers],
        sync_ps: vec![link],
        leaves: None,
        collective: Collective::Direct,
        embedding: None,
        jitter: Jitter::None,
        copy_ns_per_byte: 0.1,
        service_ns_per_byte: 0.1,
    }
}

const SHADOW: Rounds = Rounds::Background(Pace {
    interval: Nanos(0),
    bytes_per_second: 0,
    core_share: 0.0,
    longest_rest: Nanos(0),
});

const fn gated(every: u64) -> Rounds {
    Rounds::Gated { every, gate: GateOf::Trainer }
}

/// Each worker at a gate of its own, after every step.
const BY_WORKER: Rounds = Rounds::Gated { every: 1, gate: GateOf::Worker };

fn method(algorithm: Algorithm<'_>, rounds: Rounds) -> Job<'_> {
    let method = Method { algorithm, rounds, alpha: 0.5 };
    Job { method, replica_bytes: 1_000_000, parameters: usize::MAX }
}

/// The same job with another alpha.
fn with_alpha(alpha: f32, job: Job<'_>) -> Job<'_> {
    Job { method: Method { alpha, ..job.method }, ..job }
}

/// A run in which only time passes.
fn time(cluster: &Cluster, job: &Job<'_>, trace: bool) -> Outcome {
    let (step, update) = (&mut |_: Step<'_>| {}, &mut |_| {});
    let training = Training { replicas: &[], gradients: &[], step, update };
    simulate(cluster, job, training, trace).unwrap().outcome
}

const EASGD: Algorithm<'_> = Algorithm::Elastic { pair: Pair::Sequential, slices: 1 };
const MA: Algorithm<'_> = Algorithm::Average { delta: false };

/// Runs in time alone.
fn timing(cluster: &Cluster, job: &Job<'_>) -> Outcome {
    time(cluster, job, false)
}

/// Runs on replicas of these values; `step` trains.
fn training(
    cluster: &Cluster,
    job: &Job<'_>,
    values: &[Vec<f32>],
    step: &mut dyn FnMut(Step<'_>),
) -> (Simulated, Vec<Vec<f32>>) {
    let words = |values: &Vec<f32>| -> Vec<AtomicU32> {
        values.iter().map(|x| AtomicU32::new(x.to_bits())).collect()
    };
    let replicas: Vec<Vec<AtomicU32>> = values.iter().map(words).collect();
    let lent: Vec<&[AtomicU32]> = replicas.iter().map(Vec::as_slice).collect();
    let training = Training { replicas: &lent, gradients: &[], step, update: &mut |_| {} };
    let simulated = simulate(cluster, job, training, false).unwrap();
    let numbers = |replica: &Vec<AtomicU32>| -> Vec<f32> {
        replica.iter().map(|word| f32::from_bits(word.load(Relaxed))).collect()
    };
    let values = replicas.iter().map(numbers).collect();
    (simulated, values)
}

fn random(seed: u64, trainers: u32, len: u64) -> Vec<Vec<f32>> {
    let values = |trainer| {
        let stream = Stream::new(seed, Purpose::Test(trainer));
        (0..len).map(|i| stream.normal(i)).collect()
    };
    (0..trainers).map(values).collect()
}

/// Compares with a golden file.
fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("UMBRA_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let body = expected.lines().filter(|line| !line.starts_with('#'));
    let got = text.lines().filter(|line| !line.starts_with('#'));
    for (number, (expected, got)) in body.clone().zip(got.clone()).enumerate() {
        assert_eq!(expected, got, "{name}, line {number} that is no comment");
    }
    assert_eq!(body.count(), got.count(), "{name}: lines");
}

fn pairs(delta: bool) -> Algorithm<'static> {
    Algorithm::DivideShuffle { dealing: Dealing::Grid { columns: 2 }, delta }
}

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

#[test]
fn a_trainer_with_a_tenth_of_the_data_ends_without_blocking_the_others() {
    for rounds in [SHADOW, gated(5)] {
        for algorithm in [MA, EASGD] {
            let method = method(algorithm, rounds);
            let whole = timing(&cluster(4, 200), &method);
            let mut short = cluster(4, 200);
            short.trainers[2].steps = 20;
            let outcome = timing(&short, &method);
            let steps: Vec<u64> = outcome.trainers.iter().map(|trainer| trainer.steps).collect();
            assert_eq!(steps, [200, 200, 20, 200], "{method:?}");
            assert!(outcome.trainers[2].seconds < 0.15 * outcome.seconds, "{method:?}");
            assert!(outcome.seconds <= whole.seconds, "{method:?}");
            assert!(outcome.trainers[0].rounds >= whole.trainers[0].rounds * 9 / 10, "{method:?}");
        }
    }
}

#[test]
fn a_trainer_that_stands_still_delays_a_collective_and_not_a_center() {
    let mut paused = cluster(4, 400);
    paused.trainers[1].pauses = vec![Pause { from: Nanos(50 * MS), to: Nanos(250 * MS) }];
    let gaps = |cluster: &Cluster, algorithm| {
        let outcome = timing(cluster, &method(algorithm, SHADOW));
        (outcome.trainers[0].rounds, outcome.trainers[0].seconds, outcome.trainers[1].seconds)
    };
    let (whole, held) = (gaps(&cluster(4, 400), MA), gaps(&paused, MA));
    assert!(held.0 < whole.0 * 6 / 10, "rounds {} of {}", held.0, whole.0);
    assert_eq!(held.1, whole.1, "in the background workers go on");
    assert!((held.2 - whole.2 - 0.2).abs() < 1e-9, "{} s", held.2);
    let (whole, held) = (gaps(&cluster(4, 400), EASGD), gaps(&paused, EASGD));
    assert!(held.0 >= whole.0, "rounds {} of {}", held.0, whole.0);
    let gated = timing(&paused, &method(MA, gated(5)));
    assert!(gated.trainers[0].exposed_seconds > 0.19, "in the foreground everybody waits");
}

/// What a run is charged for: 100 µs to load 1 MB, to store it and to serve it, and each way its
/// bytes.
#[test]
fn rounds_are_counted_with_what_they_cost() {
    let outcome = timing(&cluster(3, 100), &method(EASGD, gated(10)));
    let trainer = outcome.trainers[0];
    assert_eq!((trainer.rounds, trainer.gap_mean, trainer.gap_p99), (10, 10.0, 10.0));
    assert_eq!(outcome.gap_p99, Some(10.0));
    assert!((trainer.processor_seconds - 10.0 * 200e-6).abs() < 1e-9, "{trainer:?}");
    assert!((outcome.center_seconds - 30.0 * 100e-6).abs() < 1e-9, "{outcome:?}");
    assert_eq!(trainer.sync_bytes, 10 * 1_000_008 + 8, "values and a word each, and a goodbye");
    assert_eq!(outcome.center_bytes, 30 * 1_000_008);
    assert_eq!(trainer.background_seconds, 0.0);
}

/// A center that is saturated serves a round in the time of its messages, whoever asks: the gap is
/// as long as there are trainers, and as many times shorter as there are sync PSs.
#[test]
fn gaps_grow_with_the_trainers_of_a_saturated_center() {
    let gap = |trainers, sync_ps: usize| {
        let mut cluster = cluster(trainers, 2000);
        cluster.sync_ps = vec![cluster.sync_ps[0]; sync_ps];
        let elastic = Algorithm::Elastic { pair: Pair::Sequential, slices: sync_ps };
        timing(&cluster, &method(elastic, SHADOW)).gap_mean().unwrap()
    };
    let (eight, sixteen, divided) = (gap(8, 1), gap(16, 1), gap(16, 2));
    assert!((7.9..8.2).contains(&eight), "8 trainers, 1 MB a ms: {eight}");
    assert!((sixteen / eight - 2.0).abs() < 0.05, "{sixteen} after {eight}");
    assert!((sixteen / divided - 2.0).abs() < 0.1, "{divided} on two sync PSs");
}

#[test]
fn a_pace_holds_rounds_back() {
    let pace = |interval| {
        let pace = Pace { interval: Nanos(interval), ..Pace::default() };
        let outcome = timing(&cluster(2, 500), &method(MA, Rounds::Background(pace)));
        outcome.trainers[0].rounds
    };
    assert_eq!(pace(60 * MS), 10, "at 1, 61, … 481 ms, and when the workers had ended");
    assert!(pace(0) > 100);
    let pace = Pace { interval: Nanos(60_000 * MS), ..Pace::default() };
    let outcome = timing(&cluster(2, 500), &method(MA, Rounds::Background(pace)));
    assert!(outcome.seconds_all < 0.51, "the end of the workers ends a long pace");
}

#[test]
fn a_shadow_thread_without_a_core_slows_the_workers() {
    let seconds = |cores, algorithm| {
        let mut cluster = cluster(2, 500);
        cluster.jitter = Jitter::Uniform(0.2);
        cluster.copy_ns_per_byte = 1.0;
        for trainer in &mut cluster.trainers {
            (trainer.workers, trainer.cores) = (2, cores);
        }
        timing(&cluster, &method(algorithm, SHADOW)).seconds
    };
    assert_eq!(seconds(3, MA), seconds(2, Algorithm::None), "with a core of its own");
    // Busy for 2 ms of a round that takes some 4: every other step is half as long again at most.
    let slower = seconds(2, MA) / seconds(2, Algorithm::None);
    assert!((1.1..1.5).contains(&slower), "{slower}");
}

/// Rows that arrive while the step before is computed cost nothing; without prefetch each step
/// waits for them.
#[test]
fn prefetch_hides_rows_up_to_its_bound() {
    let seconds = |prefetch, ps| {
        let mut cluster = cluster(4, 100);
        cluster.embedding = Some(Embedding {
            ps,
            link: Link { bytes_per_second: 4e9, latency: Nanos(20_000), overhead: Nanos(1000) },
            rows: 2500,
            ask_bytes: 10_000,
            rows_bytes: 200_000,
            gradient_bytes: 200_000,
            lookup: Nanos(100_000),
            update: Nanos(100_000),
            prefetch,
        });
        timing(&cluster, &method(Algorithm::None, SHADOW))
    };
    for ps in [0, 2] {
        let (without, with) = (seconds(0, ps), seconds(2, ps));
        // 10 + 200 + 200 KB at 1 GB/s (3/4 of them where a quarter is at home), four latencies at
        // least.
        assert!(without.seconds > 0.1 + 0.1 * 0.38, "{ps} embedding PSs: {}", without.seconds);
        assert!(with.seconds < 0.1015, "{ps} embedding PSs: {}", with.seconds);
        assert!(with.trainers[0].rows_seconds < 0.0015);
    }
}

/// 4 rows lie on 4 of 100 other nodes at most; asking all of them would take 100 µs a request, not
/// 4.
#[test]
fn a_request_is_no_more_messages_than_it_has_rows() {
    let mut cluster = cluster(101, 50);
    cluster.embedding = Some(Embedding {
        ps: 0,
        link: cluster.sync_ps[0],
        rows: 4,
        ask_bytes: 16,
        rows_bytes: 256,
        gradient_bytes: 272,
        lookup: Nanos(0),
        update: Nanos(0),
        prefetch: 0,
    });
    let outcome = timing(&cluster, &method(Algorithm::None, SHADOW));
    // Three times a latency of 20 µs and 4 messages, and a step of 1 ms.
    assert!((0.0535..0.0545).contains(&outcome.seconds), "{}", outcome.seconds);
    assert_eq!(outcome.rows_bytes, 101 * 50 * (16 + 253 + 269), "100 of 101 parts of the bytes");
}

/// A trainer that dies makes no step any more; the others go on.
#[test]
fn a_trainer_that_dies_leaves_the_others_training() {
    for rounds in [SHADOW, gated(5)] {
        let mut cluster = cluster(3, 100);
        cluster.trainers[0].ends = Nanos(30 * MS);
        let outcome = timing(&cluster, &method(MA, rounds));
        assert!((15..=30).contains(&outcome.trainers[0].steps), "{:?}", outcome.trainers[0]);
        assert_eq!(outcome.trainers[1].steps, 100);
    }
}

#[test]
fn conversations_are_as_they_were() {
    let run = |trainers, algorithm, rounds, bytes| {
        let mut cluster = cluster(trainers, 2);
        cluster.trainers[1].slowdown = 1.25;
        let method = Job { replica_bytes: bytes, ..method(algorithm, rounds) };
        lines(&time(&cluster, &method, true).trace)
    };
    let text = run(2, EASGD, SHADOW, 500_000);
    golden(
        "easgd_two_trainers_and_a_center.txt",
        &headed("2 trainers (instances 0, 1) and a center (2)", &text),
    );
    let text = run(3, MA, SHADOW, 300_000);
    golden("ma_three_ranks.txt", &headed("3 trainers average in the background", &text));
    let text = run(3, MA, gated(1), 300_000);
    golden(
        "ma_three_ranks_gated.txt",
        &headed("3 trainers average after every step, gated", &text),
    );
}

fn headed(title: &str, text: &str) -> String {
    format!(
        "# {title}. Made by tests/tests/simulator.rs with UMBRA_BLESS=1; compared exactly.\n\
         # begin ns, end ns, who: what\n{text}"
    )
}

/// Throughput and gaps over trainers, bandwidth and method: 5 ms steps of 4 workers, a replica of
/// 10 MB.
#[test]
fn the_table_of_methods_is_as_it_was() {
    let methods: [(&str, Algorithm<'_>, Rounds); 5] = [
        ("none", Algorithm::None, SHADOW),
        ("shadow_easgd", EASGD, SHADOW),
        ("shadow_ma", MA, SHADOW),
        ("foreground_easgd", EASGD, gated(5)),
        ("foreground_ma", MA, gated(5)),
    ];
    let mut text = String::from(
        "# Made by tests/tests/simulator.rs with UMBRA_BLESS=1; compared exactly. 4 workers of \
         5 ms steps,\n\
         # log-normal jitter of 10 %, 200 steps each; a replica of 10 MB; one sync PS; seed 1.\n\
         method            GB/s trainers   steps/s efficiency   gap mean    gap p99  exposed s\n",
    );
    for (name, algorithm, rounds) in methods {
        for gigabytes in [0.1, 1.0, 10.0] {
            let mut alone = 0.0;
            for trainers in [1usize, 4, 16, 64] {
                let mut cluster = cluster(trainers, 200);
                cluster.jitter = Jitter::LogNormal(0.1);
                let link = Link { bytes_per_second: gigabytes * 1e9, ..cluster.sync_ps[0] };
                cluster.sync_ps = vec![link];
                for trainer in &mut cluster.trainers {
                    (trainer.workers, trainer.compute, trainer.link) = (4, Nanos(5 * MS), link);
                }
                let method = Job { replica_bytes: 10_000_000, ..method(algorithm, rounds) };
                let outcome = timing(&cluster, &method);
                let speed = outcome.steps_per_second();
                if trainers == 1 {
                    alone = speed;
                }
                let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.2}"));
                writeln!(
                    text,
                    "{name:16} {gigabytes:5} {trainers:8} {speed:9.1} \
                     {:10.3} {:>10} {:>10} {:10.3}",
                    speed / alone / trainers as f64,
                    number(outcome.gap_mean()),
                    number(outcome.gap_p99),
                    outcome.mean(|trainer| trainer.exposed_seconds),
                )
                .unwrap();
            }
        }
    }
    golden("methods.txt", &text);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let run = |seed| {
        let mut cluster = cluster(5, 40);
        (cluster.seed, cluster.jitter) = (seed, Jitter::LogNormal(0.3));
        let method = method(Algorithm::Elastic { pair: Pair::Same, slices: 3 }, SHADOW);
        let mut drift = |step: Step<'_>| {
            let word = &step.replica[step.trainer];
            word.store((f32::from_bits(word.load(Relaxed)) * 1.5).to_bits(), Relaxed);
        };
        let start = random(2, 5, 10);
        let (simulated, values) = training(&cluster, &method, &start, &mut drift);
        let trace = time(&cluster, &method, true).trace;
        format!("{simulated:?} {values:?}\n{}", lines(&trace))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn ten_thousand_trainers_are_simulated() {
    for (algorithm, rounds) in [(MA, SHADOW), (EASGD, gated(5))] {
        let mut cluster = cluster(10_000, 10);
        cluster.jitter = Jitter::Uniform(0.1);
        let outcome = timing(&cluster, &method(algorithm, rounds));
        assert_eq!(outcome.steps(), 100_000);
        assert!(outcome.rounds() >= 10_000);
    }
}
