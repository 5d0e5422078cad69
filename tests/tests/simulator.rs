//! The protocols of `sync` on a cluster in virtual time.
//!
//! Golden files under `tests/golden/` are what the simulator printed when its sums had been checked
//! by hand on the first of them; they are compared byte for byte, since nothing in a simulation may
//! depend on the machine. `UMBRA_BLESS=1` writes them anew; look at the difference before it is
//! kept.
#![allow(clippy::unwrap_used)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umbra_core::rng::{Purpose, Stream};
use umbra_core::sim::{
    Cluster, Collective, Jitter, Job, Link, Outcome, Simulated, Step, Trainer, Training, simulate,
};
use umbra_core::sync::{Algorithm, Blocks, Dealing, GateOf, Method, Pace, Pair, Rounds};
use umbra_core::units::Nanos;

#[path = "simulator/golden.rs"]
mod golden;
#[path = "simulator/replicas.rs"]
mod replicas;
#[path = "simulator/time.rs"]
mod time;

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
        coded: None,
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
    let method = Method { algorithm, rounds, alpha: 0.5, differences: false };
    Job { method, replica_bytes: 1_000_000, parameters: usize::MAX, steps: None }
}

/// The same job with another alpha.
fn with_alpha(alpha: f32, job: Job<'_>) -> Job<'_> {
    Job { method: Method { alpha, ..job.method }, ..job }
}

/// A run in which only time passes.
fn time(cluster: &Cluster, job: &Job<'_>, trace: bool) -> Outcome {
    let (step, update) = (&mut |_: Step<'_>| {}, &mut |_| {});
    let training = Training { replicas: &[], gradients: &[], step, update, rows: &mut |_| {} };
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
    let training =
        Training { replicas: &lent, gradients: &[], step, update: &mut |_| {}, rows: &mut |_| {} };
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

fn pairs(delta: bool) -> Algorithm<'static> {
    Algorithm::DivideShuffle { dealing: Dealing::Grid { columns: 2 }, delta }
}
