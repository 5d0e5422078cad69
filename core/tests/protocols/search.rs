//! Every order of events of one, two and three trainers, and in every state every wrong completion.
//!
//! A state is what its events made of fresh machines, so machines that hold borrowed buffers need
//! no copy; states are told apart by all they hold, replicas and messages included. A trainer's
//! workers take a few steps, then end; that they have is first seen by the next `Load`, so the
//! moment of the end is the number of loads before it. At every load they leave a replica that is
//! finite, or one that is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::time::Instant;

use umbra_core::sync::reduction::{QUIET, TAIL};
use umbra_core::sync::{
    Action, BlockMomentum, BlockState, Blocks, Completion, Dealing, DivideShuffle, ElasticCenter,
    ElasticTrainer, ModelAverage, OutOfTurn, Pair, Spread,
};

use super::world::{Machine, World, intake};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Average {
        delta: bool,
    },
    Once,
    Blocks {
        delta: bool,
    },
    /// Neighbours: with three trainers a group of one in every round.
    Ring {
        delta: bool,
    },
    Elastic(Pair),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Load { finite: bool, last: bool },
    Stop,
    Act,
    Conclude,
    Receive { from: usize },
}

/// An event and the rank that it is at.
type Step = (usize, Event);

/// Rounds after the last wish in which the news of it goes round a ring of three.
const NEWS: usize = 3;

/// A parameter and a statistic.
const SLICE: usize = 2;
type Buffer = [f32; SLICE + TAIL];

/// What a machine is lent, of up to three trainers.
#[derive(Clone, Default)]
struct Lent {
    buffers: [Buffer; 4],
    labels: [usize; 3],
    sets: [u64; Spread::words(3)],
    round: u64,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    method: Method,
    trainers: usize,
    /// Loads before the workers have ended, at most.
    loads: usize,
}

impl Case {
    const fn dealing(self) -> Option<Dealing<'static>> {
        match self.method {
            Method::Ring { .. } => Some(Dealing::Ring),
            _ => None,
        }
    }

    fn ranks(self) -> usize {
        self.trainers + usize::from(matches!(self.method, Method::Elastic(_)))
    }

    fn machine(self, rank: usize, lent: &mut Lent) -> Box<dyn Machine + '_> {
        let Lent { buffers: [staging, loaded, global, momentum], labels, sets, round } = lent;
        let (labels, sets) =
            (&mut labels[..self.trainers], &mut sets[..Spread::words(self.trainers)]);
        let [loaded, global, momentum] = [loaded, global, momentum].map(|it| &mut it[..SLICE]);
        match self.method {
            Method::Average { delta } => {
                Box::new(ModelAverage::new(staging, 0.5, intake(delta, loaded)))
            }
            Method::Once => Box::new(ModelAverage::once(staging)),
            Method::Blocks { delta } => {
                let blocks = Blocks { rate: 0.5, momentum: 0.5, nesterov: true };
                let state = BlockState { global, momentum };
                Box::new(BlockMomentum::new(staging, 0.5, intake(delta, loaded), blocks, state, 1))
            }
            Method::Ring { delta } => {
                let spread = Spread::new(Dealing::Ring, labels, sets);
                Box::new(DivideShuffle::new(staging, 0.5, intake(delta, loaded), spread, round))
            }
            Method::Elastic(pair) if rank == self.trainers => {
                Box::new(ElasticCenter::new(staging, global, 0.5, pair, self.trainers))
            }
            Method::Elastic(pair) => {
                let intake = intake(pair == Pair::Same, loaded);
                Box::new(ElasticTrainer::new(staging, self.trainers, 0.5, intake))
            }
        }
    }

    /// The state after `path`, whose steps are checked, is shown to `look`.
    fn after(self, path: &[Step], look: impl FnOnce(&mut State<'_>)) {
        let mut lent = vec![Lent::default(); self.ranks()];
        let each = lent.iter_mut().enumerate();
        let machines = each.map(|(rank, lent)| self.machine(rank, lent)).collect();
        let replicas: Vec<_> = (0..self.trainers).map(|rank| vec![rank as f32; SLICE]).collect();
        let mut state = State {
            case: self,
            world: World::dealt(machines, &replicas, self.dealing()),
            loads: vec![0; self.trainers],
            last: vec![false; self.trainers],
            asked: vec![0; self.trainers],
            weights: BTreeMap::new(),
            found: BTreeMap::new(),
            says: vec![0.0; self.trainers],
        };
        path.iter().for_each(|step| state.take(*step));
        look(&mut state);
    }
}

struct State<'a> {
    case: Case,
    world: World<'a>,
    /// By trainer.
    loads: Vec<usize>,
    /// By trainer: its last load said so.
    last: Vec<bool>,
    /// The last word of a trainer to the center.
    asked: Vec<u64>,
    /// By reduction and the first of its group: trainers with a say, and what replicas move
    /// towards.
    weights: BTreeMap<(usize, usize), f32>,
    found: BTreeMap<(usize, usize), Vec<f32>>,
    /// By trainer: its say in the reduction that it joined last.
    says: Vec<f32>,
}

impl State<'_> {
    /// Events that may come next.
    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![];
        for (rank, it) in self.world.ranks.iter().enumerate() {
            let mut add = |event| steps.push((rank, event));
            match it.outstanding {
                Action::Load => {
                    if !it.ended && !self.last[rank] && self.loads[rank] < self.case.loads {
                        for last in [false, true] {
                            add(Event::Load { finite: false, last });
                            if it.values().iter().all(|x| x.is_finite()) {
                                add(Event::Load { finite: true, last });
                            }
                        }
                    }
                    add(Event::Stop);
                }
                Action::Store { .. } | Action::Add { .. } | Action::Send { .. } => add(Event::Act),
                Action::ReduceMean { .. } if self.world.is_reduced(rank) => add(Event::Conclude),
                Action::Receive { .. } => {
                    let senders = self.world.senders(rank);
                    senders.into_iter().for_each(|from| add(Event::Receive { from }));
                }
                Action::ReduceMean { .. } | Action::Finish => {}
                other => panic!("no protocol of replicas asks for {other:?}"),
            }
        }
        steps
    }

    /// Takes a step, and checks what came of it.
    fn take(&mut self, (rank, event): Step) {
        let before = self.world.ranks[rank].concluded;
        match event {
            Event::Load { finite, last } => {
                self.loads[rank] += 1;
                self.last[rank] = last;
                let step = 1.0 + rank as f32;
                let work = |i, x| if i == 0 && !finite { f32::NAN } else { x + step };
                self.world.ranks[rank].train(work);
                self.world.load(rank, last);
                self.begins(rank, finite, !last && self.case.method != Method::Once);
            }
            Event::Stop => {
                let values = self.world.ranks[rank].values();
                self.world.stop(rank);
                // In groups a trainer keeps its say.
                let dealt = self.case.dealing().is_some();
                let says = dealt && values.iter().all(|x| x.is_finite());
                self.begins(rank, says, false);
            }
            Event::Act => {
                let it = &mut self.world.ranks[rank];
                let (action, slice) = (it.outstanding, it.slice());
                self.world.act(rank);
                if action == (Action::Store { alpha: 1.0 }) {
                    assert_eq!(self.world.ranks[rank].values(), slice);
                }
            }
            Event::Conclude => {
                let outcome = self.world.conclude(rank);
                let Completion::Reduced { weight, silent } = outcome else { panic!("{outcome:?}") };
                let dealt = self.case.dealing().is_some();
                let group = (before, self.world.group(rank, before)[0]);
                let quiet = dealt && silent >= QUIET;
                let says = if quiet { 0.0 } else { self.weights[&group] };
                assert_eq!(weight, says, "finite replicas of reduction {group:?}");
                // Alone in its group with a say, a trainer is the mean.
                let own = if dealt { self.says[rank] } else { 0.0 };
                let it = &mut self.world.ranks[rank];
                let takes_in = matches!(it.outstanding, Action::Store { .. } | Action::Add { .. });
                assert_eq!(takes_in, weight > own, "a mean is taken in, and nothing else");
                if let Action::Store { .. } = it.outstanding {
                    let found = it.slice();
                    assert!(found.iter().all(|x| x.is_finite()));
                    assert_eq!(self.found.entry(group).or_insert_with(|| found.clone()), &found);
                }
            }
            Event::Receive { from } => self.world.receive(rank, from),
        }
    }

    /// After `Load`: the weight and the vote, or the word to the center.
    fn begins(&mut self, rank: usize, finite: bool, wants_more: bool) {
        let it = &self.world.ranks[rank];
        match it.outstanding {
            Action::ReduceMean { weight, silent, .. } => {
                assert_eq!((weight, silent == 0), (f32::from(u8::from(finite)), wants_more));
                let number = it.joined - 1;
                let group = (number, self.world.group(rank, number)[0]);
                *self.weights.entry(group).or_default() += weight;
                self.says[rank] = weight;
            }
            Action::Send { word, payload, .. } => {
                assert_eq!(payload.has_values(), finite, "only a finite replica travels");
                self.asked[rank] = word;
            }
            other => panic!("{other:?} after Load"),
        }
    }

    /// What holds in every state.
    fn check(&self) {
        let trainers = &self.world.ranks[..self.case.trainers];
        let joined: BTreeSet<usize> = trainers.iter().map(|it| it.joined).collect();
        // A trainer votes for another round whenever it loads what is not its last work.
        let votes = self.loads.iter().zip(&self.last).map(|(n, last)| n - usize::from(*last));
        let (most, rounds) = (*joined.last().unwrap(), votes.max().unwrap() + 1);
        // Groups may run ahead of each other, and go on until the news of the end is everywhere.
        let (apart, rounds) = match self.case.method {
            Method::Ring { .. } => (trainers.len(), rounds + NEWS),
            _ => (1, rounds),
        };
        let least = *joined.first().unwrap();
        assert!(most - least <= apart, "trainers are reductions apart: {joined:?}");
        assert!(most <= rounds, "a reduction after all have ended");
        for (rank, it) in trainers.iter().enumerate() {
            if self.world.has_finished(rank) {
                assert_eq!(it.joined, most, "rank {rank} has finished, others wait for it");
            }
        }
        if self.case.ranks() > trainers.len() && self.world.has_finished(trainers.len()) {
            let all = (0..trainers.len()).all(|rank| self.world.has_finished(rank));
            assert!(all, "the center has gone before a trainer");
        }
        if self.steps().is_empty() {
            let all = (0..self.case.ranks()).all(|rank| self.world.has_finished(rank));
            assert!(all, "nothing can happen any more");
            assert!(self.world.is_quiet(), "a message that nobody took");
            assert_eq!(joined.len(), 1);
            match self.case.method {
                Method::Once => assert_eq!(most, 1),
                Method::Elastic(_) => assert_eq!(most, 0),
                Method::Average { .. } | Method::Blocks { .. } => assert_eq!(most, rounds),
                Method::Ring { .. } => {}
            }
        }
    }

    /// Whether the table of `protocol.rs` has the completion as an answer to what is outstanding at
    /// `rank`, and one that makes a difference.
    fn is_answer(&self, rank: usize, completion: Completion) -> bool {
        match (self.world.ranks[rank].outstanding, completion) {
            (Action::Load, Completion::Loaded { .. } | Completion::Stop)
            | (Action::Read, Completion::Loaded { .. })
            | (Action::ReduceMean { .. }, Completion::Reduced { .. })
            | (Action::Store { .. } | Action::Add { .. }, Completion::Done)
            | (Action::Send { .. }, Completion::Done) => true,
            (
                Action::Receive { from: Some(center) },
                Completion::Received { from, word, elements },
            ) => (center, self.asked[rank], SLICE) == (from, word, elements),
            (Action::Receive { from: None }, Completion::Received { word, elements, .. }) => {
                // An exchange, a fetch, a goodbye.
                [(1, SLICE), (2, 0)].contains(&(word, elements)) || word == 3
            }
            _ => false,
        }
    }

    /// Every completion that is no answer is refused and changes nothing; after `Finish` all are
    /// the same. Returns how many were tried.
    fn refuse(&mut self, examined: &mut BTreeSet<String>) -> usize {
        let mut tried = 0;
        for rank in 0..self.case.ranks() {
            let before = format!("{:?}", self.world.ranks[rank].machine);
            if !examined.insert(before.clone()) {
                continue;
            }
            for wrong in completions(self.case.ranks()) {
                if self.is_answer(rank, wrong) {
                    continue;
                }
                let it = &mut self.world.ranks[rank];
                let expected = match (it.outstanding, wrong) {
                    (Action::Finish, _) => Ok(Action::Finish),
                    (action, _) => Err(OutOfTurn { expected: Some(action), got: wrong }),
                };
                assert_eq!(it.machine.step(wrong), expected);
                assert_eq!(format!("{:?}", it.machine), before, "after {wrong:?}");
                tried += 1;
            }
        }
        tried
    }
}

fn completions(ranks: usize) -> Vec<Completion> {
    let received = (0..ranks).flat_map(|from| (1..=4).map(move |word| (from, word)));
    let received = received.flat_map(|(from, word)| {
        [0, 1, SLICE].map(|elements| Completion::Received { from, word, elements })
    });
    let mut all: Vec<_> = received.collect();
    for yes in [false, true] {
        all.extend([false, true].map(|last| Completion::Loaded { finite: yes, last }));
        let silent = u32::from(yes);
        all.push(Completion::Reduced { weight: 1.0, silent });
        all.push(Completion::Reduced { weight: 0.0, silent });
    }
    all.extend([Completion::Start, Completion::Done, Completion::Taken, Completion::Stop]);
    all
}

/// What a value prints, as a number.
struct Print(DefaultHasher);

impl Write for Print {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.write(s.as_bytes());
        Ok(())
    }
}

/// Prints how a failed state is reached.
struct Trace<'a>(Case, &'a [Step]);

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?} after", self.0);
            self.1.iter().for_each(|(rank, event)| eprintln!("  rank {rank}: {event:?}"));
        }
    }
}

/// Visits all states, and fails unless there are as many as there were when this was written, or
/// more.
///
/// `bounds`: of one, two and three trainers, loads and states.
fn search(method: Method, bounds: [(usize, usize); 3]) {
    let mut refused = 0;
    for (trainers, (loads, floor)) in (1..).zip(bounds) {
        let case = Case { method, trainers, loads };
        let (start, mut ends) = (Instant::now(), 0);
        let (mut seen, mut examined, mut paths) = (BTreeSet::new(), BTreeSet::new(), vec![vec![]]);
        while let Some(path) = paths.pop() {
            let _trace = Trace(case, &path);
            case.after(&path, |state| {
                let mut print = Print(DefaultHasher::new());
                write!(
                    print,
                    "{:?} {:?} {:?} {:?}",
                    state.world, state.loads, state.last, state.asked
                )
                .unwrap();
                if !seen.insert(print.0.finish()) {
                    return;
                }
                state.check();
                refused += state.refuse(&mut examined);
                let steps = state.steps();
                ends += usize::from(steps.is_empty());
                paths.extend(steps.into_iter().map(|step| [&path[..], &[step]].concat()));
            });
        }
        let took = start.elapsed().as_millis();
        println!("{case:?}: {} states, {ends} of them ends, {took} ms", seen.len());
        assert!(seen.len() >= floor && ends > 0, "{} states, not {floor}", seen.len());
    }
    println!("{method:?}: {refused} completions refused");
    assert!(refused > 900);
}

#[test]
fn model_averaging() {
    for delta in [false, true] {
        search(Method::Average { delta }, [(3, 30), (3, 2_800), (2, 23_000)]);
    }
}

#[test]
fn averaging_in_groups() {
    for delta in [false, true] {
        search(Method::Ring { delta }, [(3, 20), (2, 200), (1, 2_000)]);
    }
}

#[test]
fn one_average() {
    search(Method::Once, [(3, 8), (3, 77), (2, 776)]);
}

#[test]
fn block_momentum() {
    search(Method::Blocks { delta: true }, [(3, 42), (3, 2_900), (2, 25_000)]);
}

#[test]
fn elastic_averaging() {
    for pair in [Pair::Sequential, Pair::Same] {
        search(Method::Elastic(pair), [(3, 110), (2, 6_900), (1, 19_000)]);
    }
}

/// Before the first action nothing but `Start` is an answer.
#[test]
fn a_start_comes_first() {
    let methods = [Method::Average { delta: true }, Method::Blocks { delta: false }];
    for method in methods.into_iter().chain([Method::Elastic(Pair::Same)]) {
        let case = Case { method, trainers: 1, loads: 0 };
        for rank in 0..case.ranks() {
            let mut lent = Lent::default();
            let mut machine = case.machine(rank, &mut lent);
            for got in completions(2).into_iter().filter(|got| *got != Completion::Start) {
                assert_eq!(machine.step(got), Err(OutOfTurn { expected: None, got }));
            }
            assert!(machine.step(Completion::Start).is_ok());
        }
    }
}
