//! Training on parameter servers, message by message, in virtual time: GBA (arXiv 2205.11048) and
//! the other rules of a server, with real gradients and with time alone.
#![cfg(feature = "sim")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umbra_core::dense::replica::{load, store};
use umbra_core::optim::{Adam, Optimizer, OptimizerKind, Rate, Schedule, StepSize};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sim::{
    Cluster, Collective, Jitter, Job, Link, Pause, Simulated, Step, Trainer, Training, simulate,
};
use umbra_core::sync::server::{Tally, Updates};
use umbra_core::sync::token::{Admission, Decay, Rule};
use umbra_core::sync::{Algorithm, Divisor, Method, Rounds, Serving};
use umbra_core::units::Nanos;

const NEVER: Nanos = Nanos(u64::MAX);
const MS: u64 = 1_000_000;

fn rule(members: u32, admission: Admission, decay: Decay) -> Rule {
    Rule { members, admission, decay, late_takes_place: true, reissue_after: NEVER }
}

fn gba(members: u32, tolerance: u64) -> Rule {
    rule(members, Admission::Free, Decay::Hard { tolerance })
}

fn bsp_ps(workers: u32) -> Rule {
    rule(workers, Admission::OnePerVersion, Decay::None)
}

/// Backup workers: `spare` of them.
fn hop_bw(workers: u32, spare: u32) -> Rule {
    let decay = Decay::Hard { tolerance: 0 };
    Rule { late_takes_place: false, ..rule(workers - spare, Admission::OnePerVersion, decay) }
}

fn all_rules(workers: u32) -> [Rule; 5] {
    [
        gba(workers, 4),
        bsp_ps(workers),
        hop_bw(workers, 1),
        rule(1, Admission::Within { steps: 3 }, Decay::None),
        rule(1, Admission::Free, Decay::None),
    ]
}

fn sgd(kind: OptimizerKind) -> Optimizer {
    Optimizer { kind, weight_decay: 0.0 }
}

fn method(rule: Rule, servers: usize, optimizer: Optimizer) -> Method<'static> {
    over(rule, servers, optimizer, 0)
}

/// Over so many streams; 0: one for each worker.
fn over(rule: Rule, servers: usize, optimizer: Optimizer, streams: usize) -> Method<'static> {
    let updates = Updates {
        optimizer,
        rate: Rate { base: 0.05, schedule: Schedule::CONSTANT },
        members_of: (1, 1),
        statistics_momentum: 0.1,
        divisor: Divisor::Members,
    };
    let serving = Serving { rule, servers, updates, window: 8, relays: 0, streams };
    Method { algorithm: Algorithm::Server(serving), rounds: Rounds::Handed, ..Method::NONE }
}

/// Trainers of one worker each, on a fast network.
fn cluster(trainers: usize, steps: u64, jitter: Jitter, seed: u64) -> Cluster {
    let link = Link { bytes_per_second: 10e9, latency: Nanos(10_000), overhead: Nanos(1000) };
    let trainer = Trainer {
        link,
        cores: 0,
        workers: 1,
        steps,
        compute: Nanos(10 * MS),
        slowdown: 1.0,
        pauses: vec![],
        ends: NEVER,
    };
    Cluster {
        seed,
        trainers: vec![trainer; trainers],
        sync_ps: vec![link; 2],
        leaves: None,
        collective: Collective::default(),
        embedding: None,
        jitter,
        copy_ns_per_byte: 0.1,
        service_ns_per_byte: 0.2,
        coded: None,
    }
}

/// Time alone: a replica of 1 MB.
fn timed(cluster: &Cluster, method: Method<'_>) -> Simulated {
    let job = Job { method, replica_bytes: 1 << 20, parameters: 0, steps: None };
    let (step, update) = (&mut |_: Step<'_>| {}, &mut |_| {});
    let training = Training { replicas: &[], gradients: &[], step, update, rows: &mut |_| {} };
    simulate(cluster, &job, training, false).unwrap()
}

const ELEMENTS: usize = 7;
/// The last two are running statistics.
const PARAMETERS: usize = 5;

/// The gradient of a batch, and the statistics it has seen.
fn gradient(values: &[f32], stream: usize, step: u64) -> Vec<f32> {
    let noise = Stream::new(9, Purpose::Test(3));
    let at = (step * 64 + stream as u64) * ELEMENTS as u64;
    let element = |i: usize| {
        let x = noise.normal(at + i as u64);
        if i < PARAMETERS { 0.3 * values[i] + x } else { x }
    };
    (0..ELEMENTS).map(element).collect()
}

fn initial() -> Vec<f32> {
    (0..ELEMENTS).map(|i| 1.0 - 0.3 * i as f32).collect()
}

/// With real gradients. What the servers end with, and which batches were trained.
fn trained(cluster: &Cluster, method: Method<'_>) -> (Simulated, Vec<(usize, u64)>) {
    let workers: usize = cluster.trainers.iter().map(|trainer| trainer.workers).sum();
    let words = || -> Vec<AtomicU32> { (0..ELEMENTS).map(|_| AtomicU32::new(0)).collect() };
    let memory: Vec<[Vec<AtomicU32>; 2]> = (0..workers).map(|_| [words(), words()]).collect();
    memory.iter().for_each(|[replica, _]| store(replica, &initial()));
    let replicas: Vec<&[AtomicU32]> = memory.iter().map(|[replica, _]| &**replica).collect();
    let gradients: Vec<&[AtomicU32]> = memory.iter().map(|[_, gradient]| &**gradient).collect();
    let each = cluster.trainers[0].workers;
    let mut batches = vec![];
    let mut step = |Step { trainer, worker, ticket, replica, .. }: Step<'_>| {
        let ticket = ticket.unwrap();
        batches.push((ticket.stream, ticket.step));
        let mut values = vec![0.0; ELEMENTS];
        load(replica, &mut values);
        store(gradients[trainer * each + worker], &gradient(&values, ticket.stream, ticket.step));
    };
    let job =
        Job { method, replica_bytes: 4 * ELEMENTS as u64, parameters: PARAMETERS, steps: None };
    let update = &mut |_| {};
    let training = Training {
        replicas: &replicas,
        gradients: &gradients,
        step: &mut step,
        update,
        rows: &mut |_| {},
    };
    let simulated = simulate(cluster, &job, training, false).unwrap();
    (simulated, batches)
}

fn each_once(batches: &mut [(usize, u64)], streams: usize, steps: u64) {
    batches.sort_unstable();
    let all = (0..streams).flat_map(|stream| (0..steps).map(move |step| (stream, step)));
    assert!(batches.iter().copied().eq(all), "each batch is trained once");
}

/// Under every rule each batch is trained once, and its gradient is added or dropped once.
#[test]
fn every_gradient_is_added_or_dropped_once() {
    for seed in 0..4 {
        for (number, rule) in all_rules(4).into_iter().enumerate() {
            for servers in [1, 2, 3] {
                let cluster = cluster(4, 30, Jitter::LogNormal(0.5), seed);
                let (simulated, mut batches) =
                    trained(&cluster, method(rule, servers, sgd(OptimizerKind::Sgd)));
                each_once(&mut batches, 4, 30);
                let Tally { counted, dropped, twins, .. } = simulated.tally;
                let what = format!("rule {number}, {servers} servers, seed {seed}");
                assert_eq!((counted + dropped, twins), (120, 0), "{what}");
                assert!(simulated.center.iter().all(|x| x.is_finite()), "{what}");
            }
        }
    }
}

/// What a server holds does not depend on how many there are, whose messages come when they like.
#[test]
fn servers_agree_with_one_that_has_it_all() {
    for kind in kinds() {
        let with = |servers| {
            // Synchronous, so that the timing of servers cannot move a gradient to another version.
            let cluster = cluster(3, 20, Jitter::Uniform(0.3), 5);
            trained(&cluster, method(bsp_ps(3), servers, sgd(kind))).0.center
        };
        let one = with(1);
        for servers in [2, 3, 7] {
            // The order of members is that of arrival, which messages of other sizes change.
            let many = with(servers);
            let apart = many.iter().zip(&one).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-6, "{servers} servers, {kind:?}: {apart}");
        }
    }
}

fn kinds() -> [OptimizerKind; 3] {
    [
        OptimizerKind::Sgd,
        OptimizerKind::Adagrad { initial: 0.1, eps: 1e-8 },
        OptimizerKind::Adam(Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }),
    ]
}

/// Gradients of one version that are applied together are a synchronous step over their batches:
/// those of four workers that wait for each other, and four of one worker under GBA, whose data are
/// as many streams.
#[test]
fn a_global_batch_is_a_synchronous_step() {
    for kind in kinds() {
        let optimizer = sgd(kind);
        for (workers, rule) in [(1, bsp_ps(1)), (4, bsp_ps(4)), (1, gba(4, 4))] {
            let streams = rule.members as usize;
            // The same batches, whoever trains them.
            let cluster = cluster(workers, 25 * (streams / workers) as u64, Jitter::None, 1);
            let (simulated, _) = trained(&cluster, over(rule, 2, optimizer, streams));
            let mut values = initial();
            let planes = optimizer.state_planes();
            let mut state = [optimizer.initial_state(); 2 * PARAMETERS];
            for step in 0..25 {
                let mut mean = [0.0; ELEMENTS];
                for stream in 0..streams {
                    let of_one = gradient(&values, stream, step);
                    mean.iter_mut().zip(of_one).for_each(|(m, x)| *m += x / streams as f32);
                }
                let (values, statistics) = values.split_at_mut(PARAMETERS);
                let (first, second) = state.split_at_mut(PARAMETERS);
                let (first, second) = (
                    &mut first[..planes.min(1) * PARAMETERS],
                    &mut second[..planes / 2 * PARAMETERS],
                );
                let size = StepSize { rate: 0.05, count: step + 1 };
                optimizer.update(size, values, first, second, &mean[..PARAMETERS]);
                let batch = mean[PARAMETERS..].iter();
                statistics.iter_mut().zip(batch).for_each(|(s, x)| *s += 0.1 * (x - *s));
            }
            let apart = simulated.center.iter().zip(&values).map(|(a, b)| (a - b).abs());
            let apart = apart.fold(0.0, f32::max);
            assert!(apart < 1e-6, "{workers} workers, {streams} streams, {kind:?}: {apart}");
        }
    }
}

/// A worker S times slower than the others brings gradients that are about (S - 1) N / M aggregates
/// stale, as follows from tokens that are handed out in order; `token/tests.rs` has the means.
#[test]
fn a_slow_worker_is_as_stale_as_it_is_slow() {
    for (slowdown, workers, members) in [(5.0, 16, 16), (10.0, 16, 16), (5.0, 64, 16)] {
        let mut cluster = cluster(workers, 120, Jitter::Uniform(0.05), 3);
        cluster.trainers[0].slowdown = slowdown;
        let tally =
            timed(&cluster, method(gba(members, u64::MAX >> 1), 2, sgd(OptimizerKind::Sgd))).tally;
        let expected = (slowdown - 1.0) * workers as f64 / f64::from(members);
        // Of the slow worker alone: the others are hardly stale.
        let stale = tally.staleness.iter().rposition(|count| *count > 0).unwrap() as f64;
        assert!(
            (0.6 * expected..1.5 * expected + 2.0).contains(&stale),
            "S = {slowdown}, N = {workers}, M = {members}: {stale}, expected {expected}"
        );
    }
}

/// One straggler of four at a quarter of the speed: the synchronous server goes at its pace, GBA
/// hardly notices.
#[test]
fn a_straggler_holds_up_the_synchronous_server_alone() {
    let mut cluster = cluster(4, 200, Jitter::LogNormal(0.1), 8);
    let rate = |cluster: &Cluster, rule| {
        timed(cluster, method(rule, 2, sgd(OptimizerKind::Sgd))).outcome.steps_per_second()
    };
    let even = rate(&cluster, gba(4, 8)) / rate(&cluster, bsp_ps(4));
    assert!((0.95..1.4).contains(&even), "nobody is slow: {even}");
    cluster.trainers[0].slowdown = 4.0;
    let strained = rate(&cluster, gba(4, 8)) / rate(&cluster, bsp_ps(4));
    assert!(strained > 2.4, "{strained}");
}

/// A worker that stands still for longer than the time after which a batch is handed out again:
/// its batch is trained by another, and its own late gradient is a twin.
#[test]
fn a_batch_of_a_worker_that_stands_still_is_handed_out_again() {
    let mut cluster = cluster(4, 60, Jitter::None, 2);
    cluster.trainers[1].pauses = vec![Pause { from: Nanos(105 * MS), to: Nanos(1100 * MS) }];
    let rule = Rule { reissue_after: Nanos(200 * MS), ..gba(4, 8) };
    let (simulated, mut batches) = trained(&cluster, method(rule, 2, sgd(OptimizerKind::Sgd)));
    let Tally { counted, dropped, twins, .. } = simulated.tally;
    assert_eq!((counted + dropped, twins), (240, 1));
    assert_eq!(batches.len(), 241);
    batches.sort_unstable();
    batches.dedup();
    each_once(&mut batches, 4, 60);
}

/// A gradient with a value that is not finite never reaches a server.
#[test]
fn a_gradient_that_is_not_finite_is_dropped() {
    let cluster = cluster(2, 10, Jitter::None, 2);
    let words = || -> Vec<AtomicU32> { (0..ELEMENTS).map(|_| AtomicU32::new(0)).collect() };
    let memory: Vec<[Vec<AtomicU32>; 2]> = (0..2).map(|_| [words(), words()]).collect();
    let replicas: Vec<&[AtomicU32]> = memory.iter().map(|[replica, _]| &**replica).collect();
    let gradients: Vec<&[AtomicU32]> = memory.iter().map(|[_, gradient]| &**gradient).collect();
    let step = &mut |Step { trainer, ticket, .. }: Step<'_>| {
        let bad = ticket.unwrap().batch == 7;
        gradients[trainer][2].store((if bad { f32::NAN } else { 1.0 }).to_bits(), Relaxed);
    };
    let method = method(gba(2, 4), 2, sgd(OptimizerKind::Sgd));
    let job = Job { method, replica_bytes: 28, parameters: ELEMENTS, steps: None };
    let training = Training {
        replicas: &replicas,
        gradients: &gradients,
        step,
        update: &mut |_| {},
        rows: &mut |_| {},
    };
    let simulated = simulate(&cluster, &job, training, false).unwrap();
    assert_eq!((simulated.tally.counted, simulated.tally.dropped), (19, 1));
    // 19 gradients of 1 in ten aggregates of two places each.
    let expected = -0.05 * 19.0 / 2.0;
    assert!((simulated.center[2] - expected).abs() < 1e-6, "{}", simulated.center[2]);
}
