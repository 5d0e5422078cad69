//! What runs take: gates, centers, paces, rows; the same seed, the same bytes.

use core::sync::atomic::Ordering::Relaxed;

use umbra_core::sim::{Embedding, Pause, lines};

use super::*;

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
