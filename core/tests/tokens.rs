//! Global batches on several servers: a coordinator, workers with real gradients, dense slices and
//! partitions of rows, and messages that take any time (arXiv 2205.11048).
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

use std::collections::VecDeque;

use umbra_core::optim::{Adam, Optimizer, OptimizerKind, StepSize};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::rows::intake::{Part, Push};
use umbra_core::rows::row_sums::{Entry, sums_len};
use umbra_core::rows::tokens::{Refused, RowDivisor, Tokens};
use umbra_core::sync::token::{
    Admission, Aggregate, Answer, Arrivals, Came, Coordinator, Decay, Member, Misplaced, Place,
    Rule, Streams, Ticket, Verdict, Worker,
};
use umbra_core::sync::{Divisor, GradientSum};
use umbra_core::units::Nanos;

const DENSE: usize = 5;
const ROWS: usize = 30;
const WIDTH: usize = 2;
const FIELDS: u64 = 3;
/// Examples of a batch.
const BATCH: u64 = 4;
const NEVER: Nanos = Nanos(u64::MAX);

/// Dense parameters and rows, each with its optimizer state.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    dense: Vec<f32>,
    dense_state: Vec<f32>,
    rows: Vec<f32>,
    row_state: Vec<f32>,
}

impl Model {
    fn new(optimizer: &Optimizer) -> Self {
        let stream = Stream::new(5, Purpose::Test(1));
        let numbers = |from: u64, len: usize| -> Vec<f32> {
            (0..len as u64).map(|i| 0.3 * stream.normal(from + i)).collect()
        };
        let planes = optimizer.state_planes();
        Self {
            dense: numbers(0, DENSE),
            dense_state: vec![0.1; planes * DENSE],
            rows: numbers(1000, ROWS * WIDTH),
            row_state: vec![0.1; planes * ROWS * WIDTH],
        }
    }

    fn update_dense(&mut self, optimizer: &Optimizer, count: u64, at: usize, gradient: &[f32]) {
        let planes = optimizer.state_planes();
        update(optimizer, count, &mut self.dense, &mut self.dense_state, planes, at, gradient);
    }

    fn update_row(&mut self, optimizer: &Optimizer, count: u64, row: u32, gradient: &[f32]) {
        let (planes, at) = (optimizer.state_planes(), row as usize * WIDTH);
        update(optimizer, count, &mut self.rows, &mut self.row_state, planes, at, gradient);
    }
}

fn update(
    optimizer: &Optimizer,
    count: u64,
    values: &mut [f32],
    state: &mut [f32],
    planes: usize,
    at: usize,
    gradient: &[f32],
) {
    let (all, own) = (values.len(), at..at + gradient.len());
    let (first, second) = state.split_at_mut(planes.min(1) * all);
    let first = if planes > 0 { &mut first[own.clone()] } else { first };
    let second = if planes > 1 { &mut second[own.clone()] } else { second };
    let step = StepSize { rate: 0.05, count };
    optimizer.update(step, &mut values[own], first, second, gradient);
}

/// Of the mean loss over examples `examples`: of the dense parameters, and of the rows that occur.
fn gradient(
    model: &Model,
    examples: core::ops::Range<u64>,
) -> (Vec<f32>, Vec<(u32, [f32; WIDTH])>) {
    let stream = Stream::new(5, Purpose::Test(0));
    let share = 1.0 / (examples.end - examples.start) as f32;
    let mut dense = vec![0.0; DENSE];
    let mut rows = vec![None; ROWS];
    for example in examples {
        let at = example * 100;
        let x: Vec<f32> = (0..DENSE as u64).map(|i| stream.normal(at + i)).collect();
        // Few rows are frequent.
        let row = |field: u64| {
            let uniform = stream.uniform(at + 50 + field);
            (uniform * uniform * (ROWS as f32 - 1.0)) as usize
        };
        let label = if stream.uniform(at + 99) < 0.4 { 1.0 } else { 0.0 };
        let of_rows: f32 =
            (0..FIELDS).map(|f| model.rows[row(f) * WIDTH..][..WIDTH].iter().sum::<f32>()).sum();
        let logit: f32 = x.iter().zip(&model.dense).map(|(x, w)| x * w).sum::<f32>() + of_rows;
        let d = (1.0 / (1.0 + (-logit).exp()) - label) * share;
        dense.iter_mut().zip(&x).for_each(|(g, x)| *g += d * x);
        for field in 0..FIELDS {
            let g: &mut [f32; WIDTH] = rows[row(field)].get_or_insert([0.0; WIDTH]);
            g.iter_mut().for_each(|g| *g += d);
        }
    }
    let rows = (0..).zip(rows).filter_map(|(row, gradient)| Some((row, gradient?))).collect();
    (dense, rows)
}

/// What a worker sends to a partition.
#[derive(Clone, Debug, PartialEq)]
struct RowPush {
    rows: Vec<u32>,
    gradients: Vec<f32>,
}

impl Push for RowPush {
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        core::iter::once(Part { worker: 0, rate: 1.0, rows: &self.rows, at: 0 })
    }

    fn gradient(&self, at: u32, width: usize) -> &[f32] {
        &self.gradients[at as usize..][..width]
    }
}

/// A push: the slice of a dense server, or the rows of a partition.
type Pushed = (Vec<f32>, RowPush);

/// Two servers, each with half of the dense parameters, or nearly, and every other row.
const SERVERS: usize = 2;

fn slice(server: usize) -> core::ops::Range<usize> {
    DENSE * server / SERVERS..DENSE * (server + 1) / SERVERS
}

/// What a server has applied: per aggregate the batches and weights of its members.
type Applied = Vec<Vec<(u64, u32)>>;

/// How a run goes.
#[derive(Clone, Copy)]
struct Job {
    rule: Rule,
    divisor: Divisor,
    row_divisor: RowDivisor,
    workers: usize,
    streams: usize,
    /// A multiple of the streams.
    batches: u64,
    optimizer: Optimizer,
}

/// What is on its way and who has what.
struct Servers<'a> {
    job: Job,
    /// Pushes of dense slices, and their sums.
    arrivals: Vec<Arrivals<'a, Vec<f32>>>,
    sums: Vec<GradientSum<'a>>,
    partitions: Vec<Tokens<'a, RowPush>>,
    applied: Vec<Applied>,
}

impl Servers<'_> {
    /// A push comes; false if it has to come again.
    fn push(&mut self, server: usize, ticket: &Ticket, (dense, rows): &Pushed) -> bool {
        let Ticket { place, batch, .. } = *ticket;
        let came = self.arrivals[server].push(place, batch, dense.clone()).unwrap();
        if matches!(came, Came::Early(_)) {
            return false;
        }
        // Both sides of a server hear of pushes and members together.
        let of_rows = self.partitions[server].push(place, batch, rows.clone()).unwrap();
        assert_eq!(matches!(of_rows, Came::Twin(_)), matches!(came, Came::Twin(_)));
        true
    }

    /// The coordinator has counted a push.
    fn count(&mut self, server: usize, member: &Member, model: &mut Model) {
        let push = self.arrivals[server].take(member.place, member.batch).unwrap();
        self.sums[server].add(member.weight, &push);
        let dropped = self.partitions[server].count(member).unwrap();
        assert_eq!(dropped.is_some(), member.weight == 0.0);
        let in_hand = self.applied[server].last_mut().unwrap();
        in_hand.push((member.batch, member.weight.to_bits()));
        if let Some(aggregate) = member.completes {
            self.conclude(server, &aggregate, model);
        }
    }

    fn conclude(&mut self, server: usize, aggregate: &Aggregate, model: &mut Model) {
        let (Job { rule, divisor, optimizer, .. }, count) = (self.job, aggregate.number + 1);
        let factor = divisor.factor(aggregate.members, aggregate.weight);
        self.sums[server].conclude(factor, |mean| {
            model.update_dense(&optimizer, count, slice(server).start, mean);
        });
        let rows = &mut self.partitions[server];
        let mut entries = vec![Entry::default(); rows.entries_len()];
        let mut scratch = vec![0.0; sums_len(rule.members, WIDTH)];
        rows.sum(aggregate, WIDTH, &mut entries, &mut scratch, |row, mean| {
            model.update_row(&optimizer, count, row, mean);
        })
        .unwrap();
        rows.advance(drop);
        self.applied[server].push(vec![]);
    }
}

/// What a worker has in hand.
#[derive(Clone, Copy)]
enum Hand {
    Empty,
    /// To be trained.
    Ticket(Ticket),
    /// Pushed, and this many servers have it.
    Pushed(Ticket, usize),
    Ended,
}

/// Trains; `seed` decides which of all that can happen happens next. Returns the model, what each
/// server has applied, and how many batches were reported twice.
fn train(job: Job, seed: u64) -> (Model, Vec<Applied>, u32) {
    let Job { rule, workers, batches, optimizer, .. } = job;
    let stream = Stream::new(seed, Purpose::Test(2));
    let mut model = Model::new(&optimizer);
    let (mut all, mut under_way) = (vec![Worker::default(); workers], vec![None; workers]);
    let count = job.streams as u64;
    let mut given = vec![0; job.streams];
    let streams = Streams::new(&mut given, 0..batches / count, 2);
    let mut coordinator = Coordinator::new(rule, streams, (0, 0), &mut all, &mut under_way);

    let mut dense_places = vec![vec![Place::default(); workers]; SERVERS];
    let mut row_places = vec![vec![Place::default(); workers]; SERVERS];
    let mut members = vec![vec![None; rule.members as usize]; SERVERS];
    let mut sums: Vec<Vec<f32>> =
        (0..SERVERS).map(|server| vec![0.0; slice(server).len()]).collect();
    let partition = |(places, members)| Tokens::new(places, members, job.row_divisor, 0);
    let mut servers = Servers {
        job,
        arrivals: dense_places.iter_mut().map(|places| Arrivals::new(places)).collect(),
        sums: sums.iter_mut().map(|sum| GradientSum::new(sum)).collect(),
        partitions: core::iter::zip(
            row_places.iter_mut().map(Vec::as_mut_slice),
            members.iter_mut().map(Vec::as_mut_slice),
        )
        .map(partition)
        .collect(),
        applied: vec![vec![vec![]]; SERVERS],
    };

    let mut twins = 0;
    // From the coordinator to each server, and from each worker to each server.
    let mut logs = vec![VecDeque::<Member>::new(); SERVERS];
    let mut links = vec![VecDeque::<(Ticket, Pushed)>::new(); workers * SERVERS];
    let mut hands = vec![Hand::Empty; workers];
    let is_over = |hands: &[Hand], logs: &[VecDeque<Member>]| {
        hands.iter().all(|hand| matches!(hand, Hand::Ended)) && logs.iter().all(VecDeque::is_empty)
    };
    let mut turn = 0;
    while !is_over(&hands, &logs) {
        turn += 1;
        assert!(turn < 1_000_000, "seed {seed}: no end");
        let pick = stream.below(turn, (workers + workers * SERVERS + SERVERS) as u64) as usize;
        if let Some(server) = pick.checked_sub(workers + workers * SERVERS) {
            if let Some(member) = logs[server].pop_front() {
                servers.count(server, &member, &mut model);
            }
            continue;
        }
        if let Some(link) = pick.checked_sub(workers) {
            let (worker, server) = (link / SERVERS, link % SERVERS);
            let Some((ticket, pushed)) = links[link].pop_front() else { continue };
            if !servers.push(server, &ticket, &pushed) {
                links[link].push_front((ticket, pushed));
            } else if let Hand::Pushed(_, have) = &mut hands[worker] {
                *have += 1;
            }
            continue;
        }
        hands[pick] = match hands[pick] {
            Hand::Empty => match coordinator.ask(pick, Nanos(turn)).unwrap() {
                Answer::Train(ticket) => Hand::Ticket(ticket),
                Answer::Wait { .. } => Hand::Empty,
                Answer::End => Hand::Ended,
            },
            Hand::Ticket(ticket)
                if servers.partitions.iter().all(|rows| rows.serves(ticket.version)) =>
            {
                let first = (ticket.step * count + ticket.stream as u64) * BATCH;
                let (dense, rows) = gradient(&model, first..first + BATCH);
                for server in 0..SERVERS {
                    let own = rows.iter().filter(|(row, _)| *row as usize % SERVERS == server);
                    let push = RowPush {
                        rows: own.clone().map(|(row, _)| *row).collect(),
                        gradients: own.flat_map(|(_, gradient)| *gradient).collect(),
                    };
                    let pushed = (dense[slice(server)].to_vec(), push);
                    links[pick * SERVERS + server].push_back((ticket, pushed));
                }
                Hand::Pushed(ticket, 0)
            }
            Hand::Pushed(ticket, SERVERS) => {
                match coordinator.report(pick, ticket.batch, true).unwrap() {
                    Verdict::Counted(member) | Verdict::Dropped(member) => {
                        logs.iter_mut().for_each(|log| log.push_back(member));
                    }
                    Verdict::Twin => twins += 1,
                }
                Hand::Empty
            }
            other => other,
        };
    }
    if let Some(aggregate) = coordinator.flush().unwrap() {
        (0..SERVERS).for_each(|server| servers.conclude(server, &aggregate, &mut model));
    }
    (model, servers.applied, twins)
}

fn job(kind: OptimizerKind, members: u32) -> Job {
    let rule = Rule {
        members,
        admission: Admission::Free,
        decay: Decay::Hard { tolerance: 1 },
        late_takes_place: true,
        reissue_after: NEVER,
    };
    Job {
        rule,
        divisor: Divisor::Members,
        row_divisor: RowDivisor::Global(Divisor::Members),
        workers: 1,
        streams: 2,
        batches: 60 * u64::from(members),
        optimizer: Optimizer { kind, weight_decay: 0.0 },
    }
}

fn kinds() -> [OptimizerKind; 3] {
    [
        OptimizerKind::Sgd,
        OptimizerKind::Adagrad { eps: 1e-8, initial: 0.1 },
        OptimizerKind::Adam(Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }),
    ]
}

/// "One worker: all M gradients are taken at the same version, which is one synchronous step of the
/// global batch, up to the order of summation."
#[test]
fn one_worker_is_the_synchronous_run() {
    for (kind, members) in kinds().into_iter().flat_map(|kind| [(kind, 1), (kind, 4), (kind, 7)]) {
        let job = job(kind, members);
        // The last aggregate has fewer members.
        let job = Job { batches: job.batches + u64::from(members / 4) * 2, ..job };
        let (ours, ..) = train(job, 3);
        let mut theirs = Model::new(&job.optimizer);
        let global = u64::from(members) * BATCH;
        let end = job.batches * BATCH;
        for (count, first) in (1..).zip((0..end).step_by(global as usize)) {
            let (dense, rows) = gradient(&theirs, first..end.min(first + global));
            theirs.update_dense(&job.optimizer, count, 0, &dense);
            for (row, gradient) in rows {
                theirs.update_row(&job.optimizer, count, row, &gradient);
            }
        }
        let values = |model: &Model| [&model.dense[..], &model.rows].concat();
        let start = values(&Model::new(&job.optimizer));
        let (ours, theirs) = (values(&ours), values(&theirs));
        let apart =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{kind:?}, M = {members}: {:e}", apart(&ours, &theirs));
        assert!(apart(&ours, &theirs) <= 1e-6, "{kind:?}, M = {members}");
        assert!(apart(&start, &theirs) > 0.1, "it has trained");
    }
}

/// Servers that hear of pushes and members in any order apply the same aggregates.
#[test]
fn all_servers_apply_the_same_members() {
    let mut twins = 0;
    for seed in 0..60 {
        let mut job = job(OptimizerKind::Sgd, 1 + seed as u32 % 5);
        job.workers = 1 + seed as usize % 7;
        (job.streams, job.batches) = (4, 100);
        job.rule.decay =
            [Decay::Hard { tolerance: 0 }, Decay::Power { rho: 0.5 }][seed as usize % 2];
        if seed % 3 == 0 {
            // So soon that batches are handed out again and again.
            job.rule.reissue_after = Nanos(200);
        }
        let (model, applied, late) = train(job, seed);
        assert_eq!(applied[0], applied[1], "seed {seed}");
        let mut batches: Vec<u64> = applied[0].iter().flatten().map(|(batch, _)| *batch).collect();
        batches.sort_unstable();
        assert!(batches.into_iter().eq(0..job.batches), "seed {seed}: each batch once");
        assert!(model.dense.iter().chain(&model.rows).all(|x| x.is_finite()));
        twins += late;
    }
    assert!(twins > 0, "no batch came twice");
}

/// With the number of members that have it, a row of one member moves M times as far.
#[test]
fn a_row_is_divided_by_its_own_count_where_that_is_asked_for() {
    let push =
        |rows: &[u32]| RowPush { rows: rows.to_vec(), gradients: vec![6.0; rows.len() * WIDTH] };
    for (divisor, expected) in [
        (RowDivisor::Global(Divisor::Members), [(1, 1.5), (2, 2.25)]),
        (RowDivisor::Global(Divisor::Weights), [(1, 4.0), (2, 6.0)]),
        (RowDivisor::OwnCount, [(1, 6.0), (2, 4.5)]),
    ] {
        let (mut places, mut members) = (vec![Place::default(); 4], vec![None; 4]);
        let mut it = Tokens::new(&mut places, &mut members, divisor, 9);
        let member = |place: usize, weight| Member {
            place,
            batch: place as u64,
            version: 9,
            weight,
            staleness: 0,
            lag: 0,
            completes: None,
        };
        for (place, rows) in [&[1u32, 2][..], &[2], &[1, 2], &[]].into_iter().enumerate() {
            assert_eq!(it.push(place, place as u64, push(rows)), Ok(Came::Kept));
        }
        // The second is old, the third too old.
        for (place, weight) in [(0, 1.0), (1, 0.5), (2, 0.0), (3, 0.0)] {
            let dropped = it.count(&member(place, weight)).unwrap();
            assert_eq!(dropped.is_some(), weight == 0.0);
        }
        let aggregate = Aggregate { number: 9, members: 4, weight: 1.5 };
        let mut entries = vec![Entry::default(); it.entries_len()];
        let mut sums = vec![0.0; it.sums_len(WIDTH)];
        let mut rows = vec![];
        it.sum(&aggregate, WIDTH, &mut entries, &mut sums, |row, mean| rows.push((row, mean[0])))
            .unwrap();
        assert_eq!(rows, expected, "{divisor:?}");
        assert!(it.serves(9) && !it.serves(10));
        it.advance(drop);
        assert!(it.serves(10));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let (mut places, mut members) = (vec![Place::default(); 2], vec![None; 1]);
    let divisor = RowDivisor::OwnCount;
    let mut it = Tokens::new(&mut places, &mut members, divisor, 3);
    let push =
        |rows: &[u32]| RowPush { rows: rows.to_vec(), gradients: vec![1.0; rows.len() * WIDTH] };
    let member = |place: usize, version| Member {
        place,
        batch: place as u64,
        version,
        weight: 1.0,
        staleness: 0,
        lag: 0,
        completes: None,
    };
    let misplaced = Misplaced::Place { got: 2, places: 2 };
    assert_eq!(it.push(2, 0, push(&[])), Err(Refused::Misplaced(misplaced)));
    let missing = Misplaced::Missing { batch: 0, place: 0, last: None };
    assert_eq!(it.count(&member(0, 3)), Err(Refused::Misplaced(missing)));
    for place in [0, 1] {
        assert_eq!(it.push(place, place as u64, push(&[7, 7])), Ok(Came::Kept));
    }
    assert_eq!(it.count(&member(0, 4)), Err(Refused::Version { got: 4, open: 3 }));
    assert_eq!(it.count(&member(0, 3)), Ok(None), "it was still there");
    assert_eq!(it.count(&member(1, 3)), Err(Refused::Full { members: 1 }));
    let (mut listed, mut sums) = (vec![Entry::default(); 2], vec![0.0; it.sums_len(WIDTH)]);
    let mut sum = |number, entries: usize, floats: usize| {
        let aggregate = Aggregate { number, members: 1, weight: 1.0 };
        let (entries, sums) = (&mut listed[..entries], &mut sums[..floats]);
        it.sum(&aggregate, WIDTH, entries, sums, |row, _| panic!("row {row} is applied"))
    };
    assert_eq!(sum(4, 2, WIDTH), Err(Refused::Version { got: 4, open: 3 }));
    assert_eq!(sum(3, 1, WIDTH), Err(Refused::Scratch { got: 1, needed: 2 }));
    assert_eq!(sum(3, 2, 1), Err(Refused::Scratch { got: 1, needed: WIDTH }));
    assert_eq!(sum(3, 2, WIDTH), Err(Refused::RowTwice { row: 7 }));
}
