//! What a network and its nodes give to MPI: one-way times and bandwidths between two ranks,
//! all-reduce over all, and a fixed piece of work on each rank. JSON on standard output, from rank
//! 0.
//!
//!     mpirun -n 4 target/release/examples/pingpong [BYTES_MAX [SECONDS]]
//!
//! Ping-pong is between rank 0 and the last rank, which block placement puts on different nodes.
//! Each figure is the median, or the best, of as many repetitions, back to back, as fit in SECONDS
//! (0.3 unless told; at least 5), after one that is not counted. Units: bytes, µs, MB/s (10⁶ bytes
//! a second, one direction).
//!
//! *Collective over the world*: all ranks go through the same repetitions, which rank 0 decides on.

use core::hint::black_box;
use core::time::Duration;
use std::time::Instant;

use mpi::collective::SystemOperation;
use mpi::traits::*;
use serde_json::{Value, json};

const USAGE: &str = "usage: mpirun -n RANKS pingpong [BYTES_MAX [SECONDS]]";
const REPETITIONS_MIN: u64 = 5;
const REPETITIONS_MAX: u64 = 2000;
/// Payloads up to the replica of a small model; those above BYTES_MAX are left out.
const PAYLOADS_BYTES: [usize; 8] =
    [1, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// About 0.1 s of one core.
const WORK_STEPS: u64 = 50_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Ok(bytes_max), Some(budget)) = (
        arguments.next().unwrap_or("4194304".to_owned()).parse::<usize>(),
        budget(&arguments.next().unwrap_or("0.3".to_owned())),
    ) else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let Some(universe) = mpi::initialize() else {
        eprintln!("pingpong: MPI does not start");
        std::process::exit(5);
    };
    let world = universe.world();
    let payloads = PAYLOADS_BYTES.into_iter().filter(|&bytes| bytes <= bytes_max);
    let ping_pongs: Vec<Value> = payloads
        .clone()
        .filter(|_| world.size() > 1)
        .map(|bytes| {
            let round_trip = ping_pong(&world, bytes, budget);
            let one_way_us = round_trip.median_us / 2.0;
            json!({
                "bytes": bytes,
                "one_way_us": one_way_us,
                "one_way_us_best": round_trip.best_us / 2.0,
                "mb_per_s": bytes as f64 / one_way_us,
            })
        })
        .collect();
    let all_reduces: Vec<Value> = payloads
        .filter(|&bytes| bytes >= 1 << 10)
        .map(|bytes| json!({"bytes": bytes, "us": all_reduce(&world, bytes, budget).median_us}))
        .collect();
    let work_us_by_rank = work_us_by_rank(&world);
    if world.rank() == 0 {
        let report = json!({
            "ranks": world.size(),
            "ping_pong": ping_pongs,
            "all_reduce_f32_sum": all_reduces,
            "work_us_by_rank": work_us_by_rank,
        });
        println!("{report:#}");
    }
}

fn budget(seconds: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.parse().ok()?).ok()
}

/// Of the repetitions of one thing.
struct Times {
    median_us: f64,
    /// What the network gives where other programs take the cores now and then. Of a round trip
    /// only: of what all take part in, one rank's best is where it found the others done.
    best_us: f64,
}

/// Round trip of `bytes` between rank 0 and the last rank. *Collective over `world`.*
fn ping_pong(world: &impl Communicator, bytes: usize, budget: Duration) -> Times {
    let mut buffer = vec![0u8; bytes];
    let last = world.size() - 1;
    times(world, budget, || {
        if world.rank() == 0 {
            world.process_at_rank(last).send(&buffer[..]);
            world.process_at_rank(last).receive_into(&mut buffer[..]);
        } else if world.rank() == last {
            world.process_at_rank(0).receive_into(&mut buffer[..]);
            world.process_at_rank(0).send(&buffer[..]);
        }
    })
}

/// Sum of `bytes` of f32 over all ranks. *Collective over `world`.*
fn all_reduce(world: &impl Communicator, bytes: usize, budget: Duration) -> Times {
    let own = vec![1f32; bytes / size_of::<f32>()];
    let mut sum = vec![0f32; own.len()];
    times(world, budget, || {
        world.all_reduce_into(&own[..], &mut sum[..], SystemOperation::sum());
    })
}

/// Time of a fixed piece of arithmetic on each rank, by rank: in turn, while the others wait.
/// *Collective over `world`.*
fn work_us_by_rank(world: &impl Communicator) -> Vec<f64> {
    let mut own_us = 0.0;
    for turn in 0..world.size() {
        world.barrier();
        if world.rank() == turn {
            let from = Instant::now();
            let mut state = 1u64;
            for step in 0..WORK_STEPS {
                state = black_box(state.wrapping_mul(6_364_136_223_846_793_005) ^ step);
            }
            own_us = from.elapsed().as_secs_f64() * 1e6;
        }
    }
    let mut all_us = vec![0f64; usize::try_from(world.size()).unwrap_or(1)];
    world.all_gather_into(&own_us, &mut all_us[..]);
    all_us
}

/// Times of `once` as this rank saw them; repeated equally often on all ranks. *Collective over
/// `world`.*
fn times(world: &impl Communicator, budget: Duration, mut once: impl FnMut()) -> Times {
    let mut timed = || {
        let from = Instant::now();
        once();
        from.elapsed()
    };
    world.barrier();
    timed();
    let fit = budget.as_nanos() / timed().as_nanos().max(1);
    let mut repetitions =
        u64::try_from(fit).unwrap_or(u64::MAX).clamp(REPETITIONS_MIN, REPETITIONS_MAX);
    world.process_at_rank(0).broadcast_into(&mut repetitions);
    let mut samples: Vec<Duration> = (0..repetitions).map(|_| timed()).collect();
    samples.sort_unstable();
    let us = |sample: Duration| sample.as_secs_f64() * 1e6;
    Times { median_us: us(samples[samples.len() / 2]), best_us: us(samples[0]) }
}
