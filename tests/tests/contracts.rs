//! What a driver promises its protocols (`core/src/sync/protocol.rs`), held by the simulator. The
//! MPI driver's twins are in `src/bin/mpi_checks/` (`driver.rs`, `post.rs`).
#![allow(clippy::unwrap_used)]

use umbra_core::sim::{
    Cluster, Collective, Instance, Jitter, Link, Outcome, Pause, Seat, SimError, Span, Step,
    Trainer, Training, Who, run,
};
use umbra_core::sync::owned::Owned;
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    Action, Algorithm, Completion, Dealing, GateOf, Group, Machine, Method, OutOfTurn, Payload,
    Protocol, Rounds,
};
use umbra_core::units::Nanos;

const MS: u64 = 1_000_000;

/// Asks for what stands in a list, and keeps what it is told.
struct Script {
    actions: Vec<Action>,
    told: Vec<Completion>,
    staging: [f32; TAIL],
}

impl Script {
    fn new(actions: &[Action]) -> Self {
        Self { actions: actions.to_vec(), told: vec![], staging: [0.0; TAIL] }
    }

    /// Senders and words of the messages it received.
    fn received(&self) -> Vec<(usize, u64)> {
        let message = |told: &Completion| match *told {
            Completion::Received { from, word, .. } => Some((from, word)),
            _ => None,
        };
        self.told.iter().filter_map(message).collect()
    }
}

impl Protocol for Script {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let next = self.actions.get(self.told.len()).copied();
        self.told.push(last);
        Ok(next.unwrap_or(Action::Finish))
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut self.staging
    }
}

const fn send(to: usize, word: u64) -> Action {
    Action::Send { to, word, payload: Payload::Whole }
}

const fn receive(from: Option<usize>) -> Action {
    Action::Receive { from }
}

/// Trainers without steps, or with some of 1 ms; links of 1 GB/s.
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
        ends: Nanos(u64::MAX),
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

/// A protocol in a seat of nobody's rounds, whose slice has 1 MB that are not there.
fn instance<'a>(protocol: &'a mut dyn Protocol, seat: Seat) -> Instance<'a> {
    let rounds = Rounds::Never;
    Instance { protocol, seat, rounds, channel: 0, dealing: None, slice: 0..0, bytes: 1_000_000 }
}

/// Runs a script beside each trainer.
fn talk(cluster: &Cluster, scripts: &mut [Script]) -> Outcome {
    let seated = scripts.iter_mut().enumerate();
    let instances =
        seated.map(|(trainer, it)| instance(it, Seat::Trainer { trainer, gate: 0 })).collect();
    let (step, update) = (&mut |_: Step<'_>| {}, &mut |_| {});
    let training = Training { replicas: &[], gradients: &[], step, update, rows: &mut |_| {} };
    run(cluster, instances, training, true).unwrap()
}

/// A peer that stands still delays nobody but itself: the exchange of two others takes the same
/// time, and it gets its own messages when it moves again, in order.
#[test]
fn a_peer_that_stands_still_delays_nobody_else() {
    const ROUNDS: usize = 5;
    let exchange = |still: bool| {
        let mut cluster = cluster(3, 0);
        if still {
            cluster.trainers[2].pauses = vec![Pause { from: Nanos(0), to: Nanos(500 * MS) }];
        }
        let mut first = vec![send(2, 0), send(2, 1)];
        let mut second = vec![];
        for word in 0..ROUNDS as u64 {
            first.extend([receive(Some(1)), send(1, word)]);
            second.extend([send(0, word), receive(Some(0))]);
        }
        first.push(send(2, 2));
        let mut scripts = [first, second, vec![receive(None); 3]].map(|it| Script::new(&it));
        let outcome = talk(&cluster, &mut scripts);
        assert_eq!(scripts[2].received(), [(0, 0), (0, 1), (0, 2)]);
        let words: Vec<(usize, u64)> = (0..ROUNDS as u64).map(|word| (0, word)).collect();
        assert_eq!(scripts[1].received(), words);
        let of_second = |span: &Span| (span.who == Who::Instance(1)).then_some(*span);
        let spans: Vec<Span> = outcome.trace.iter().filter_map(of_second).collect();
        (spans, outcome.seconds_all)
    };
    let ((moving, soon), (still, late)) = (exchange(false), exchange(true));
    assert_eq!(moving, still);
    assert!(soon < 0.1 && late >= 0.5, "{soon} s, {late} s");
}

/// Two peers talk at once: the one that is asked for is heard, the other waits its turn.
#[test]
fn a_receive_selects_its_sender() {
    let hub = [receive(Some(2)), receive(Some(2)), receive(Some(1)), receive(None)];
    let talker = |word| [send(0, word), send(0, word + 1)];
    let mut scripts = [Script::new(&hub), Script::new(&talker(10)), Script::new(&talker(20))];
    let mut cluster = cluster(3, 0);
    // What is asked for first comes last.
    cluster.trainers[2].pauses = vec![Pause { from: Nanos(0), to: Nanos(100 * MS) }];
    drop(talk(&cluster, &mut scripts));
    assert_eq!(scripts[0].received(), [(2, 20), (2, 21), (1, 10), (1, 11)]);
}

/// What a protocol asks for and its seat has not is an error, and never done.
#[test]
fn an_action_without_its_endpoint_is_an_error() {
    let (all, dealt) = (Group::All, Group::Dealt { round: 0 });
    let mean = |group| Action::ReduceMean { group, weight: 1.0, silent: 0 };
    let (center, beside) = (Seat::Center { node: 2 }, Seat::Trainer { trainer: 0, gate: 0 });
    for (seat, action) in [
        (center, Action::Load),
        (center, Action::Read),
        (center, Action::Store { alpha: 1.0 }),
        (center, Action::Add { alpha: 1.0, parameters: 0 }),
        (center, Action::Take),
        (center, Action::Give),
        (center, Action::ReduceSum { group: all }),
        (center, mean(all)),
        (center, send(1, 0)),
        (beside, send(1, 0)),
        (beside, mean(dealt)),
        (beside, Action::ReduceSum { group: dealt }),
    ] {
        let mut asks = Script::new(&[action]);
        let (step, update) = (&mut |_: Step<'_>| {}, &mut |_| {});
        let training = Training { replicas: &[], gradients: &[], step, update, rows: &mut |_| {} };
        let refused = run(&cluster(2, 1), vec![instance(&mut asks, seat)], training, false);
        let got = refused.map(|_| ());
        assert_eq!(got, Err(SimError::Misplaced { instance: 0 }), "{seat:?}: {action:?}");
        assert_eq!(asks.told, [Completion::Start], "{seat:?}: {action:?}");
    }
}

/// Notes the rounds that a protocol deals groups for.
struct Noted<'a> {
    inner: Machine<'a>,
    rounds: &'a mut Vec<u64>,
}

impl Protocol for Noted<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let action = self.inner.step(last)?;
        if let Action::ReduceMean { group: Group::Dealt { round }, .. } = action {
            self.rounds.push(round);
        }
        Ok(action)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.inner.staging()
    }
}

/// What a method remembers lives from one protocol to the next: a schedule of groups goes on where
/// the stretch of training before left it.
#[test]
fn memory_lives_from_one_protocol_to_the_next() {
    const TRAINERS: usize = 4;
    let dealing = Dealing::Grid { columns: 2 };
    let algorithm = Algorithm::DivideShuffle { dealing, delta: false };
    let rounds = Rounds::Gated { every: 1, gate: GateOf::Trainer };
    let method = Method { algorithm, rounds, alpha: 1.0, differences: false };
    let sizes = method.sizes(0, TRAINERS);
    let mut owned: Vec<Owned> = (0..TRAINERS).map(|_| Owned::new(sizes, &[])).collect();
    let mut dealt: Vec<Vec<u64>> = vec![vec![]; TRAINERS];
    let mut after = vec![];
    for _ in 0..3 {
        let lent = owned.iter_mut().zip(&mut dealt).map(|(owned, rounds)| {
            let (scratch, memory) = owned.lend();
            Noted { inner: method.trainer(scratch, memory, 0, 0).unwrap(), rounds }
        });
        let mut lent: Vec<Noted<'_>> = lent.collect();
        let seated = lent.iter_mut().enumerate().map(|(trainer, protocol)| {
            let seat = Seat::Trainer { trainer, gate: 0 };
            Instance { rounds, dealing: Some(dealing), ..instance(protocol, seat) }
        });

        let (step, update) = (&mut |_: Step<'_>| {}, &mut |_| {});
        let training = Training { replicas: &[], gradients: &[], step, update, rows: &mut |_| {} };
        drop(run(&cluster(TRAINERS, 1), seated.collect(), training, false).unwrap());
        drop(lent);
        after.push(owned[0].round);
    }
    assert!(0 < after[0] && after[0] < after[1] && after[1] < after[2], "{after:?}");
    let all: Vec<u64> = (0..after[2]).collect();
    assert!(dealt.iter().all(|rounds| *rounds == all), "{dealt:?}");
}
