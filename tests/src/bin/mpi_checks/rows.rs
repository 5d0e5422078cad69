//! Rows over real ranks: every value is right, and no message is sent that need not be.

use std::sync::Arc;

use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer};
use umbra_datasets::BatchBuffer;
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::launch::roles::Roles;
use umbra_mpi::launch::world::World;
use umbra_mpi::rows::client::Client;
use umbra_mpi::rows::near::Reach;
use umbra_mpi::rows::router::{Amount, Traffic};
use umbra_mpi::rows::servers::{ServiceConfig, Services};
use umbra_mpi::rows::tables::TableLayout;
use umbra_mpi::rows::traffic::{Duties, Flow, NearRanks, Shape};

const SEED: u64 = 3;
const RATE: f32 = 0.5;
const STEPS: u32 = 12;
const PERMITS: usize = 3;
/// Rows of every partition.
const ROWS: u32 = 40;
/// What the count of messages and bytes may differ from the prediction by.
const TOLERANCE: f64 = 0.02;

/// A layout, and rows that a worker's step has in every partition.
struct Case {
    /// Trainers and ranks that hold rows; `None` where every rank is both.
    separate: Option<(usize, usize)>,
    workers: usize,
    partitions: usize,
    links: usize,
    joint: bool,
    rows: u32,
    /// Nodes that ranks are dealt to like cards, which use each other's rows on them; `None`: none
    /// does.
    nodes: Option<usize>,
}

/// Distinct rows of a worker's step: others every step, and some that other workers have; where
/// several update rows at the same time, each has its own.
fn rows_of(case: &Case, partitions: u32, workers: u32, worker: u32, step: u32) -> Vec<u32> {
    let nodes = case.nodes;
    let index = move |i: u32| match nodes {
        Some(_) => (worker + i * workers) % ROWS,
        None => (worker * 5 + step * 7 + i) % ROWS,
    };
    let rows = case.rows;
    (0..rows).flat_map(|i| (0..partitions).map(move |p| index(i) * partitions + p)).collect()
}

fn batch(rows: Vec<u32>) -> BatchBuffer {
    let count = rows.len() as u32;
    BatchBuffer { values: rows, offsets: (0..=count).collect(), ..BatchBuffer::default() }
}

/// How often all workers of the steps before `end` have pushed to each row. `[rows]`
fn pushes(case: &Case, partitions: u32, workers: u32, end: u32) -> Vec<u32> {
    let mut pushes = vec![0; (partitions * ROWS) as usize];
    for (worker, step) in (0..end).flat_map(|step| (0..workers).map(move |worker| (worker, step))) {
        for row in rows_of(case, partitions, workers, worker, step) {
            pushes[row as usize] += 1;
        }
    }
    pushes
}

fn near(got: f32, expected: f32, what: &str) {
    assert!((got - expected).abs() < 1e-3, "{what}: {got} instead of {expected}");
}

/// The values of all rows, as they are. `[rows, width]`
fn all_rows(client: &mut Client, partitions: u32) -> Vec<f32> {
    client.ask_now(batch((0..partitions * ROWS).collect()), 0);
    let (lookup, _) = client.take().unwrap().unwrap();
    let values = lookup.rows.to_vec();
    client.recycle(lookup);
    values
}

/// A worker's steps; under joint steps every row must have had exactly the updates before.
fn work(
    case: &Case,
    client: &mut Client,
    worker: u32,
    workers: u32,
    partitions: u32,
    first: &[f32],
) {
    let mut asked = 0;
    for step in 0..STEPS {
        client.settle(false).unwrap();
        while asked < STEPS && client.may_ask() {
            client.ask(batch(rows_of(case, partitions, workers, worker, asked)), asked);
            asked += 1;
        }
        let (lookup, _) = client.take().unwrap().unwrap();
        let rows = rows_of(case, partitions, workers, worker, step);
        let width = first.len() / (partitions * ROWS) as usize;
        assert_eq!(lookup.rows.len(), rows.len() * width);
        if case.joint {
            let pushes = pushes(case, partitions, workers, step);
            for (row, values) in rows.iter().zip(lookup.rows.chunks(width)) {
                let before = pushes[*row as usize] as f32 * RATE;
                for (value, first) in values.iter().zip(&first[*row as usize * width..]) {
                    near(*value, first - before, "a row in step");
                }
            }
        }
        client.push(&lookup, &vec![1.0; lookup.rows.len()], RATE);
        client.recycle(lookup);
    }
    client.settle(true).unwrap();
}

fn check(world: &World, watch: &Arc<Watch>, control: &Comm, case: &Case) {
    let roles = match case.separate {
        None => Roles::collocated(world.size, 0, case.partitions),
        Some((trainers, servers)) => Roles::separate(trainers, servers, 0, case.partitions),
    };
    let config = ModelConfig {
        kind: ModelKind::Fm,
        dense_features: 0,
        fields: 1,
        embedding_dim: 7,
        pooling: Pooling::Sum,
        bottom: &[],
        top: &[],
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
        cross: Cross::NONE,
    };
    let model = Model::new(&config).unwrap();
    let sgd = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
    let partitions = roles.partitions;
    let cardinality = [u64::from(partitions * ROWS)];
    let optimizer = SparseOptimizer::Elementwise(sgd);
    let layout = TableLayout::new(&cardinality, partitions, model.row_width(), optimizer).unwrap();
    let node = case.nodes.map(|nodes| format!("node {}", world.rank % nodes));
    let service = ServiceConfig {
        tokens: None,
        first_step: 0,
        rank: world.rank,
        roles: &roles,
        layout: &layout,
        workers: case.workers,
        synchronous: case.joint,
        permits: PERMITS,
        local: false,
        pooled: None,
        reach: node.as_ref().map_or(Reach::Nowhere, |node| Reach::Node(control, node)),
        watch,
    };
    let links = if world.size > 1 { case.links } else { 0 };
    let links = (0..links).map(|_| world.communicator(watch).unwrap()).collect();
    let (services, mut clients) = Services::start(&service, &model, SEED, links, None).unwrap();
    let workers = (case.workers * roles.trainers.len()) as u32;
    let first = clients.first_mut().map(|client| all_rows(client, partitions));
    let count = |what| {
        // All have come, and nobody goes on before all have counted.
        control.barrier(what, false).unwrap();
        let traffic = services.traffic();
        control.barrier(what, false).unwrap();
        traffic
    };
    let before = count("the rows of all ranks");
    std::thread::scope(|scope| {
        let first_worker = (world.rank * case.workers) as u32;
        for (worker, client) in (first_worker..).zip(&mut clients) {
            let first = first.as_deref().unwrap();
            scope.spawn(move || work(case, client, worker, workers, partitions, first));
        }
    });
    let after = count("the steps of all ranks");
    if let (Some(client), Some(first)) = (clients.first_mut(), &first) {
        let pushes = pushes(case, partitions, workers, STEPS);
        let last = all_rows(client, partitions);
        for (row, (value, first)) in last.iter().zip(first).enumerate() {
            let pushes = pushes[row / layout.width] as f32;
            near(*value, first - pushes * RATE, "a row in the end");
        }
    }
    let shape = Shape {
        trainers: roles.trainers.len(),
        servers: partitions as usize / case.partitions,
        workers: case.workers,
        partitions: case.partitions,
        joint: case.joint,
        width: layout.width,
        value_words: layout.width,
        permits: PERMITS,
    };
    let duties = Duties {
        trains: roles.trainers.contains(world.rank),
        serves: roles.embedding_ps.number_of(world.rank),
        near: case.nodes.map(|nodes| {
            let beside = |rank: &usize| *rank != world.rank && rank % nodes == world.rank % nodes;
            let trainers = roles.trainers.ranks().iter().copied().filter(beside).count();
            let servers = roles.embedding_ps.ranks().iter().copied().filter(beside);
            let number = |rank| roles.embedding_ps.number_of(rank);
            NearRanks { trainers, servers: servers.filter_map(number).collect() }
        }),
    };
    let rows = vec![f64::from(case.rows); shape.servers];
    let expected = shape.steps(&rows).of(&duties);
    let Traffic { sent, received } = after;
    as_predicted([before.sent, sent], expected.sent, "sent");
    as_predicted([before.received, received], expected.received, "received");
    drop(clients);
    control.barrier("the end of the rows", false).unwrap();
    services.quiesce(watch).unwrap();
    control.barrier("the last messages", false).unwrap();
    services.finish();
}

/// The steps between two counts against the prediction for one.
fn as_predicted([start, end]: [Amount; 2], expected: Flow, what: &str) {
    for (unit, counted, expected) in [
        ("messages", end.messages - start.messages, expected.messages),
        ("bytes", end.bytes - start.bytes, expected.bytes),
    ] {
        let counted = counted as f64 / f64::from(STEPS);
        let off = (counted - expected).abs();
        assert!(off <= TOLERANCE * expected, "{what} {counted} {unit} a step, not {expected}");
    }
}

/// Messages and bytes of a step are those that `rows/traffic.rs` predicts: together and apart,
/// with many workers and partitions, over one link and over several, with rows and without.
pub(super) fn traffic(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let together = |joint, workers, partitions, links, rows| Case {
        separate: None,
        workers,
        partitions,
        links,
        joint,
        rows,
        nodes: None,
    };
    let apart = |joint, trainers, links| Case {
        separate: Some((trainers, world.size - trainers)),
        ..together(joint, 2, 3, links, 9)
    };
    let mut cases = vec![];
    for joint in [true, false] {
        cases.push(together(joint, 2, 2, 1, 16));
        cases.push(together(joint, 3, 2, 2, 10));
        cases.push(together(joint, 1, 4, 3, 7));
        cases.push(together(joint, 2, 1, 1, 0));
        cases.push(apart(joint, 1, 1));
        cases.push(apart(joint, world.size - 1, 2));
    }
    for case in &cases {
        check(world, watch, control, case);
    }
}

/// Ranks of a node use each other's rows where they are: no update is lost that nobody makes at the
/// same time, and no message is sent for them; ranks of other nodes are asked as ever.
pub(super) fn near_rows(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let size = world.size;
    for nodes in [1, 2, size] {
        for separate in [None, Some((1, size - 1)), Some((size - 1, 1))] {
            let case = Case {
                separate,
                workers: 2,
                partitions: 2,
                links: 2,
                joint: false,
                rows: 5,
                nodes: Some(nodes),
            };
            check(world, watch, control, &case);
        }
    }
}
