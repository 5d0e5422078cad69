//! Protocols on real ranks: model averaging, elastic averaging, and one that uses every other
//! action.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use umbra_core::dense::replica::{load, store};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    Action, Completion, Conductor, ElasticCenter, ElasticTrainer, GateOf, Group, Intake,
    ModelAverage, OutOfTurn, Pair, Payload, Protocol, Rounds,
};
use umbra_mpi::comm::post::Post;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::comm::{Comm, Mailbox};
use umbra_mpi::dense::driver::drive;
use umbra_mpi::dense::endpoints::{DriveError, Endpoints};
use umbra_mpi::dense::seat::{GateKeeper, Seat, Steps, Workers};
use umbra_mpi::launch::world::World;
use umbra_mpi::measure::counters::RoundCounters;
use umbra_mpi::measure::trace::Track;
use umbra_tests::tree_sum;

/// Odd, so that no stretch of it is as long as another.
const LENGTH: usize = 101;
const ROUNDS: usize = 20;

/// Endpoints without groups and gradients.
fn ends<'a>(
    comm: Option<&'a mut Comm>,
    post: Option<&'a mut Post>,
    watch: &'a Watch,
) -> Endpoints<'a> {
    Endpoints { comm, post, poll: Duration::from_micros(50), ..Endpoints::none(watch) }
}

/// A seat without trace or pace.
fn seat<'a>(
    number: usize,
    machine: &'a mut (dyn Protocol + Send),
    replica: &'a [AtomicU32],
    workers: Workers<'a>,
    counters: &'a RoundCounters,
) -> Seat<'a> {
    let (conductor, track) = (Conductor::new(GATED, 0), Track::of(None, ""));
    Seat { number, machine, replica, workers, conductor, counters, track }
}

const GATED: Rounds = Rounds::Gated { every: 1, gate: GateOf::Trainer };

/// Workers that knock when they have made a step.
const fn gated<'a>(knocks: Receiver<()>, opens: Sender<()>) -> Workers<'a> {
    Workers::Gated { gate: GateKeeper { knocks, opens }, steps: Steps::Uncounted }
}

/// Instance `number` is on rank `number`, but for those of `here`, which are on the first.
fn post(world: &World, watch: &Arc<Watch>, instances: usize, first: Option<usize>) -> Post {
    let rank = |number| if Some(number) == first { 0 } else { number };
    let rank_of: Arc<[usize]> = (0..instances).map(rank).collect();
    Post::new(world.rank, rank_of, Some(Mailbox::new(world.communicator(watch).unwrap())))
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
                let workers = gated(knocks, opens);
                let seats = vec![seat(rank, &mut protocol, live, workers, counted)];
                drive(seats, ends(Some(comm), None, watch))
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
        assert_eq!(gaps[0].clone().into_iter().collect::<Vec<_>>(), [(0, ROUNDS as u64)]);
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
        // The center is instance `size`, in a seat beside the first trainer's.
        let mut post = post(world, watch, size + 1, Some(size));
        let (counters, counters_of_center) = (RoundCounters::default(), RoundCounters::default());
        let ((knock, knocks), (opens, open)) = (unbounded(), unbounded());
        let (live, counted, served, values) =
            (&replica, &counters, &counters_of_center, &mut center);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut staging, mut lent) = (vec![0.0; LENGTH + TAIL], vec![0.0; LENGTH + TAIL]);
                let mut loaded = vec![0.0; LENGTH];
                let intake = match pair {
                    Pair::Sequential => Intake::Interpolate,
                    Pair::Same => Intake::Delta { loaded: &mut loaded },
                };
                let mut trainer = ElasticTrainer::new(&mut staging, size, ALPHA, intake);
                let mut center = ElasticCenter::new(&mut lent, values, ALPHA, pair, size);
                let mut seats = vec![seat(rank, &mut trainer, live, gated(knocks, opens), counted)];
                if rank == 0 {
                    seats.push(seat(size, &mut center, &[], Workers::None, served));
                }
                drive(seats, ends(None, Some(&mut post), watch)).unwrap();
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

/// Two protocols of a rank that talk to those of its neighbours at once: each passes staging round
/// a ring of its own and takes what comes from one rank, and from any.
struct Ring {
    /// The instance, and those before and after it in its ring.
    number: usize,
    before: usize,
    after: usize,
    staging: Vec<f32>,
    hops: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Send,
    Receive,
    Finish,
}

const HOPS: usize = 50;

impl Protocol for Ring {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        match (self.state, last) {
            (State::Send, Completion::Start | Completion::Received { .. }) => {
                if let Completion::Received { from, word, elements } = last {
                    assert_eq!(
                        (from, word, elements),
                        (self.before, self.hops as u64 | 1 << 40, 2)
                    );
                    assert_eq!(self.staging[1], self.hops as f32);
                }
                if self.hops == HOPS {
                    self.state = State::Finish;
                    return Ok(Action::Finish);
                }
                self.hops += 1;
                self.staging[1] = self.hops as f32;
                self.state = State::Receive;
                let word = self.hops as u64 | 1 << 40;
                Ok(Action::Send { to: self.after, word, payload: Payload::Whole })
            }
            (State::Receive, Completion::Done) => {
                self.state = State::Send;
                // From one instance, and from any.
                let from = self.hops.is_multiple_of(2).then_some(self.before);
                Ok(Action::Receive { from })
            }
            (_, got) => Err(OutOfTurn { expected: None, got }),
        }
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut self.staging
    }
}

/// Send, receive from one and from any, finish: two rings at once, one up and one down the ranks.
pub(super) fn protocol(world: &World, watch: &Arc<Watch>, _control: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let rank_of: Arc<[usize]> = (0..2 * size).map(|number| number % size).collect();
    let mailbox = Mailbox::new(world.communicator(watch).unwrap());
    let mut post = Post::new(rank, rank_of, Some(mailbox));
    let ring = |number: usize, before, after| {
        let mut staging = vec![0.0; 2 + TAIL];
        staging[0] = number as f32;
        Ring { number, before, after, staging, hops: 0, state: State::Send }
    };
    let mut up = ring(rank, left, right);
    let mut down = ring(size + rank, size + right, size + left);
    let counters = RoundCounters::default();
    let seats = [&mut up, &mut down].map(|ring| {
        let number = ring.number;
        seat(number, ring, &[], Workers::None, &counters)
    });
    drive(seats.into(), ends(None, Some(&mut post), watch)).unwrap();
    assert!(up.state == State::Finish && down.state == State::Finish);
    // Five words of header and two of staging.
    let bytes = if size == 1 { 0 } else { 2 * 28 * HOPS as u64 };
    assert_eq!((counters.read().rounds, counters.read().bytes), (0, bytes));
}

/// Asks for what stands in a list, and keeps the messages it is told of.
struct Script {
    actions: Vec<Action>,
    asked: usize,
    received: Vec<(usize, u64)>,
    staging: [f32; 1 + TAIL],
}

impl Protocol for Script {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        if let Completion::Received { from, word, elements } = last {
            assert_eq!((elements, self.staging[0]), (1, from as f32));
            self.received.push((from, word));
        }
        self.asked += 1;
        Ok(self.actions.get(self.asked - 1).copied().unwrap_or(Action::Finish))
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut self.staging
    }
}

/// Two peers talk to the first rank at once: the one that is asked for is heard, and the other
/// waits its turn.
pub(super) fn selects(world: &World, watch: &Arc<Watch>, _control: &Comm) {
    let rank_of: Arc<[usize]> = (0..3).map(|number| number % world.size).collect();
    let mailbox = Mailbox::new(world.communicator(watch).unwrap());
    let mut post = Post::new(world.rank, Arc::clone(&rank_of), Some(mailbox));
    let receives = [Some(2), Some(2), Some(1), None].map(|from| Action::Receive { from });
    let talks = |word: u64| {
        [word, word + 1].map(|word| Action::Send { to: 0, word, payload: Payload::Whole })
    };
    let script = |number: usize| {
        let actions = [receives.to_vec(), talks(10).to_vec(), talks(20).to_vec()];
        let staging = [number as f32, 0.0, 0.0];
        Script { actions: actions[number].clone(), asked: 0, received: vec![], staging }
    };
    let own = (0..3).filter(|number| rank_of[*number] == world.rank);
    let mut scripts: Vec<(usize, Script)> = own.map(|number| (number, script(number))).collect();
    let counters = RoundCounters::default();
    let seats = scripts
        .iter_mut()
        .map(|(number, script)| seat(*number, script, &[], Workers::None, &counters));
    drive(seats.collect(), ends(None, Some(&mut post), watch)).unwrap();
    if world.rank == 0 {
        assert_eq!(scripts[0].1.received, [(2, 20), (2, 21), (1, 10), (1, 11)]);
    }
}

/// What a protocol asks for and its thread has not is an error, and never done.
pub(super) fn missing_endpoint(world: &World, watch: &Arc<Watch>, _control: &Comm) {
    struct Asks(Action);
    impl Protocol for Asks {
        fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
            let first = last == Completion::Start;
            Ok(if first { self.0 } else { Action::Finish })
        }
        fn staging(&mut self) -> &mut [f32] {
            &mut []
        }
    }
    let dealt = Group::Dealt { round: 0 };
    for action in [
        Action::Send { to: 0, word: 1, payload: Payload::None },
        Action::Receive { from: None },
        Action::ReduceMean { group: Group::All, weight: 1.0, silent: 0 },
        Action::ReduceMean { group: dealt, weight: 1.0, silent: 0 },
        Action::ReduceSum { group: Group::All },
        Action::Take,
        Action::Give,
    ] {
        let counters = RoundCounters::default();
        let mut asks = Asks(action);
        let seats = vec![seat(world.rank, &mut asks, &[], Workers::None, &counters)];
        let refused = drive(seats, ends(None, None, watch)).unwrap_err();
        let is_missing = matches!(refused, DriveError::Missing { action: of, .. } if of == action);
        assert!(is_missing, "{refused}");
    }
}
