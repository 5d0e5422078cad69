//! Protocols on real ranks: model averaging, elastic averaging, and one that uses every other
//! action.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Arc;

use crossbeam_channel::unbounded;
use umbra_core::dense::replica::{load, store};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    Action, Completion, ElasticCenter, ElasticTrainer, Intake, ModelAverage, OutOfTurn, Pair,
    Protocol,
};
use umbra_core::units::Nanos;
use umbra_mpi::comm::post::Post;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::comm::{Comm, Mailbox};
use umbra_mpi::dense::driver::{Endpoints, GateKeeper, Workers, drive};
use umbra_mpi::launch::world::World;
use umbra_mpi::measure::counters::RoundCounters;
use umbra_mpi::measure::trace::Track;
use umbra_tests::tree_sum;

/// Odd, so that no stretch of it is as long as another.
const LENGTH: usize = 101;
const ROUNDS: usize = 20;

/// A driver's surroundings without trace or pace.
fn around<'a>(
    comm: Option<&'a Comm>,
    post: Option<&'a mut Post>,
    replica: &'a [AtomicU32],
    workers: Workers<'a>,
    counters: &'a RoundCounters,
    watch: &'a Watch,
) -> Endpoints<'a> {
    let (poll, track) = (Duration::from_micros(50), Track::of(None, ""));
    let steps = None;
    let groups = None;
    Endpoints { comm, groups, post, replica, workers, steps, poll, counters, track, watch }
}

/// Where rank `rank` is before round `round`.
fn position(rank: usize, round: usize) -> Vec<f32> {
    let stream = Stream::new(round as u64, Purpose::Test(rank as u32));
    (0..LENGTH as u64).map(|i| stream.normal(i)).collect()
}

/// Every round ends at the mean of the replicas, bit for bit the same everywhere; the driver ends
/// when the workers of all ranks have gone.
pub(super) fn model_average(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let mut comm = world.communicator(watch).unwrap();
    // Twice over the same communicator: a run has one driver per stretch of training.
    for _ in 0..2 {
        let replica: Vec<AtomicU32> = (0..LENGTH).map(|_| AtomicU32::new(0)).collect();
        let counters = RoundCounters::default();
        let ((knock, knocks), (opens, open)) = (unbounded(), unbounded());
        let (comm, live, counted) = (&mut comm, &replica, &counters);
        let gaps = std::thread::scope(|scope| {
            let driver = scope.spawn(move || {
                let mut staging = vec![0.0; LENGTH + TAIL];
                let mut protocol = ModelAverage::new(&mut staging, 1.0, Intake::Interpolate);
                let workers = Workers::Gated(GateKeeper { knocks, opens });
                drive(&mut protocol, around(Some(comm), None, live, workers, counted, watch))
            });
            for round in 0..ROUNDS {
                store(&replica, &position(rank, round));
                knock.send(()).unwrap();
                open.recv().unwrap();
                let mut mean = vec![0.0; LENGTH];
                load(&replica, &mut mean);
                for (i, value) in mean.iter().enumerate() {
                    let all: Vec<f32> = (0..size).map(|rank| position(rank, round)[i]).collect();
                    let expected = tree_sum(&all) / size as f32;
                    assert_eq!(value.to_bits(), expected.to_bits(), "round {round} element {i}");
                }
                let bits: Vec<u32> = replica.iter().map(|x| x.load(Relaxed)).collect();
                let others = control.all_gather_varied(&bits, "test").unwrap();
                assert!(others.iter().all(|other| *other == bits), "replicas differ");
            }
            drop(knock);
            driver.join().unwrap().unwrap()
        });
        assert_eq!(gaps.into_iter().collect::<Vec<_>>(), [(0, ROUNDS as u64)]);
        let reading = counters.read();
        assert_eq!(reading.rounds, ROUNDS as u64);
        // A last reduction finds that all have ended.
        let most = 8 * ((LENGTH + TAIL) * (ROUNDS + 1)) as u64;
        assert!(reading.bytes > 0 && reading.bytes <= most);
    }
}

/// The invariants at the head of `sync/elastic.rs`, with the center on the first rank and its
/// trainer: what one trainer exchanges brings w and c together by (1 - alpha)² or 1 - 2 alpha a
/// round, and the same pair moves no sum, also when all trainers exchange at once.
pub(super) fn elastic(world: &World, watch: &Arc<Watch>, control: &Comm) {
    const ALPHA: f32 = 0.25;
    const EXCHANGES: i32 = 4;
    let (rank, size) = (world.rank, world.size);
    // What is left of w - c after a round of the last trainer alone; all exchange where nothing is
    // said of it.
    for (pair, left) in [
        (Pair::Sequential, Some((1.0 - ALPHA).powi(2))),
        (Pair::Same, Some(1.0 - 2.0 * ALPHA)),
        (Pair::Same, None),
    ] {
        let exchanges = if left.is_none() || rank + 1 == size { EXCHANGES } else { 0 };
        let replica: Vec<AtomicU32> = (0..LENGTH).map(|_| AtomicU32::new(0)).collect();
        store(&replica, &position(rank, 0));
        let mut center = position(size, 0);
        let mailbox = Mailbox::new(world.communicator(watch).unwrap());
        let (mut post, center_post) = if rank == 0 {
            let (trainer, center) = Post::both(rank, Some(mailbox));
            (trainer, Some(center))
        } else {
            (Post::remote(rank, mailbox), None)
        };
        let (counters, counters_of_center) = (RoundCounters::default(), RoundCounters::default());
        let ((knock, knocks), (opens, open)) = (unbounded(), unbounded());
        let (live, counted, served, values) =
            (&replica, &counters, &counters_of_center, &mut center);
        std::thread::scope(|scope| {
            if let Some(mut post) = center_post {
                scope.spawn(move || {
                    let mut staging = vec![0.0; LENGTH + TAIL];
                    let mut protocol = ElasticCenter::new(&mut staging, values, ALPHA, pair, size);
                    drive(
                        &mut protocol,
                        around(None, Some(&mut post), &[], Workers::None, served, watch),
                    )
                    .unwrap();
                });
            }
            scope.spawn(move || {
                let mut staging = vec![0.0; LENGTH + TAIL];
                let mut protocol = ElasticTrainer::new(&mut staging, 0, ALPHA, pair);
                let workers = Workers::Gated(GateKeeper { knocks, opens });
                drive(&mut protocol, around(None, Some(&mut post), live, workers, counted, watch))
                    .unwrap();
            });
            for _ in 0..exchanges {
                knock.send(()).unwrap();
                open.recv().unwrap();
            }
            drop(knock);
        });
        let bits: Vec<u32> = replica.iter().map(|x| x.load(Relaxed)).collect();
        let replicas = control.all_gather_varied(&bits, "replicas").unwrap();
        let bits: Vec<u32> = center.iter().map(|x| x.to_bits()).collect();
        let center = &control.all_gather_varied(&bits, "centers").unwrap()[0];
        let value = |bits: u32| f64::from(f32::from_bits(bits));
        for i in 0..LENGTH {
            let started: Vec<f64> =
                (0..=size).map(|rank| f64::from(position(rank, 0)[i])).collect();
            let (w, c) = (value(replicas[size - 1][i]), value(center[i]));
            if let Some(left) = left {
                let expected =
                    (started[size - 1] - started[size]) * f64::from(left.powi(EXCHANGES));
                assert!(
                    (w - c - expected).abs() < 1e-5,
                    "{pair:?}: w - c = {}, not {expected}",
                    w - c
                );
            }
            if pair == Pair::Same {
                let sum = replicas.iter().map(|replica| value(replica[i])).sum::<f64>() + c;
                let before: f64 = started.iter().sum();
                assert!((sum - before).abs() < 1e-5, "{sum} from {before}");
            }
        }
        assert_eq!(counters.read().rounds, exchanges as u64);
    }
}

/// Passes staging round the ring, sleeps, waits for what never comes, finishes.
struct Ring {
    rank: usize,
    size: usize,
    staging: Vec<f32>,
    hops: usize,
    state: State,
    slept_until: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Send,
    Receive,
    Wait,
    Finish,
}

const HOPS: usize = 50;
const MILLISECOND: u64 = 1_000_000;

impl Protocol for Ring {
    fn step(&mut self, now: Nanos, last: Completion) -> Result<Action, OutOfTurn> {
        let left = (self.rank + self.size - 1) % self.size;
        let after = |ms: u64| Nanos(now.0 + ms * MILLISECOND);
        match (self.state, last) {
            (State::Send, Completion::Start | Completion::Received { .. }) => {
                if let Completion::Received { from, word } = last {
                    let start = (self.rank + self.size * HOPS - self.hops) % self.size;
                    assert_eq!((from, word), (left, self.hops as u64 | 1 << 40));
                    assert_eq!(self.staging[..2], [start as f32, self.hops as f32]);
                }
                if self.hops == HOPS {
                    self.state = State::Wait;
                    self.slept_until = after(30);
                    return Ok(Action::Sleep { until: self.slept_until });
                }
                self.hops += 1;
                self.staging[1] = self.hops as f32;
                self.state = State::Receive;
                let to = (self.rank + 1) % self.size;
                Ok(Action::Send { to, word: self.hops as u64 | 1 << 40, values: true })
            }
            (State::Receive, Completion::Done) => {
                self.state = State::Send;
                // From one rank, and from any.
                let from = self.hops.is_multiple_of(2).then_some(left);
                Ok(Action::Receive { from, until: after(60_000) })
            }
            (State::Wait, Completion::Done) => {
                assert!(now >= self.slept_until, "slept too short");
                self.slept_until = after(30);
                self.state = State::Finish;
                Ok(Action::Receive { from: None, until: self.slept_until })
            }
            (State::Finish, Completion::TimedOut) => {
                assert!(now >= self.slept_until, "timed out too early");
                Ok(Action::Finish)
            }
            (_, got) => Err(OutOfTurn { expected: None, got }),
        }
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut self.staging
    }
}

/// Send, receive from one and from any, sleep, a receive that times out, finish.
pub(super) fn protocol(world: &World, watch: &Arc<Watch>, _control: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let mut post = Post::remote(rank, Mailbox::new(world.communicator(watch).unwrap()));
    let mut staging = vec![0.0; 2 + TAIL];
    staging[0] = rank as f32;
    let (state, slept_until) = (State::Send, Nanos(0));
    let mut protocol = Ring { rank, size, staging, hops: 0, state, slept_until };
    let counters = RoundCounters::default();
    let around = around(None, Some(&mut post), &[], Workers::None, &counters, watch);
    drive(&mut protocol, around).unwrap();
    assert_eq!(protocol.state, State::Finish);
    // Three words of header and two of staging.
    let bytes = if size == 1 { 0 } else { 20 * HOPS as u64 };
    assert_eq!((counters.read().rounds, counters.read().bytes), (0, bytes));
}
