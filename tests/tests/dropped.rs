//! A step that is dropped changes nothing: no parameter, no optimizer state, no count and no row;
//! and the step after it is an ordinary one. On tables of the worker's own, on partitions that
//! take pushes as they come, and under `bsp`, of rows and of bags that the partitions pool. Where
//! workers update as they go and it is a row's gradient that is not finite, parameters have moved
//! when that is found; rows never do.
#![allow(clippy::unwrap_used)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use umbra_core::compress::Coding;
use umbra_datasets::BatchBuffer;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::config::{Config, convert};
use umbra_mpi::dense::bsp::Bsp;
use umbra_mpi::dense::replica_sync::StepEnd;
use umbra_mpi::launch::roles::Roles;
use umbra_mpi::launch::signals::Signals;
use umbra_mpi::measure::counters::{Reading, WorkerCounters};
use umbra_mpi::measure::trace::Track;
use umbra_mpi::rows::near::Reach;
use umbra_mpi::rows::servers::{ServiceConfig, Services};
use umbra_mpi::rows::tables::{Partition, TableLayout};
use umbra_mpi::trainer::batches::Batches;
use umbra_mpi::trainer::buffers::StepBuffers;
use umbra_mpi::trainer::{Segment, Trainer, Worker};

/// Every step of Adam with decay moves parameters, moments and counts, by gradients of 0 too. The
/// logit is the dot product of two rows, times a weight, and a bias.
const JOB: &str = r#"
[data]
train = "unused.h5"
[model]
kind = "dlrm"
embedding_dim = 2
bottom = []
top = []
[optim.dense]
kind = "adam"
lr = 0.01
weight_decay = 0.1
[optim.sparse]
kind = "adam"
lr = 0.01
weight_decay = 0.1
"#;

const EXAMPLES: u32 = 3;
const WIDTH: usize = 2;

/// How a worker reaches its rows, and others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Local,
    Partitions,
    Pooled,
    Bsp,
    PooledBsp,
}

impl Way {
    const fn is_bsp(self) -> bool {
        matches!(self, Self::Bsp | Self::PooledBsp)
    }
}

/// A trainer with one worker and all tables. Of both fields example i has id i.
struct Rig<'a> {
    way: Way,
    trainer: &'a Trainer,
    bsp: &'a Bsp,
    rows: &'a Partition,
    layout: &'a TableLayout,
    worker: Worker,
    steps: u64,
}

/// Bits of replica, state and rows, and the updates so far.
type Everything = (Vec<Vec<u32>>, u64);

impl Rig<'_> {
    /// One training step on a batch with these weights.
    fn step(&mut self, weight: &[f32]) -> Reading {
        let ids = (0..EXAMPLES).flat_map(|id| [id, id]);
        let batch = BatchBuffer {
            label: vec![1.0, 0.0, 1.0],
            weight: weight.to_vec(),
            values: ids.collect(),
            offsets: (0..=2 * EXAMPLES).collect(),
            row: (0..u64::from(EXAMPLES)).collect(),
            ..BatchBuffer::default()
        };
        self.worker.batches = Some(Batches::Cycled(VecDeque::from([batch])));
        let step_end = if self.way.is_bsp() { StepEnd::Sum(self.bsp) } else { StepEnd::Free };
        let segment = Segment { first_step: self.steps, steps: 1 };
        let counters = WorkerCounters::default();
        let track = Track::of(None, "");
        self.worker.train(self.trainer, step_end, segment, &counters, track).unwrap();
        self.steps += 1;
        counters.read()
    }

    fn everything(&self) -> Everything {
        let bits = |words: &[AtomicU32]| words.iter().map(|word| word.load(Relaxed)).collect();
        let memories = [&*self.trainer.replica, &*self.trainer.state, self.rows.words()];
        (memories.map(bits).to_vec(), self.trainer.updates.load(Relaxed))
    }

    /// Values of the row of an id.
    fn row(&self, field: u32, id: u32) -> &[AtomicU32] {
        let row = field * EXAMPLES + id;
        let index = self.layout.partitioning.index(row) as usize;
        &self.rows.table().record(index)[..WIDTH]
    }
}

fn set(words: &[AtomicU32], x: f32) {
    words.iter().for_each(|word| word.store(x.to_bits(), Relaxed));
}

/// Runs `scenario` each way, after two ordinary steps, and two more behind it.
fn each_way(scenario: impl Fn(&mut Rig<'_>)) {
    for way in [Way::Local, Way::Partitions, Way::Pooled, Way::Bsp, Way::PooledBsp] {
        let config = Config::parse(JOB, Path::new("dropped"), &[]).unwrap();
        let watch = Arc::new(Watch::new(Duration::from_secs(60), "test:".into()));
        let model = convert::model(&config.model, 0, 2).unwrap();
        let trainer = Trainer::new(model, &config, &Arc::new(Signals::none()), &watch).unwrap();
        let optimizer = convert::sparse_optimizer(&config.optim.sparse);
        let layout = TableLayout::new(&[u64::from(EXAMPLES); 2], 1, WIDTH, optimizer).unwrap();
        let service = ServiceConfig {
            tokens: None,
            first_step: 0,
            rank: 0,
            roles: &Roles::collocated(1, 0, 1),
            layout: &layout,
            workers: 1,
            synchronous: way.is_bsp(),
            permits: 1,
            local: way == Way::Local,
            pooled: matches!(way, Way::Pooled | Way::PooledBsp).then_some(Coding::ALL),
            reach: Reach::Nowhere,
            watch: &watch,
        };
        let (services, mut clients) = Services::start(&service, &model, 1, vec![], None).unwrap();
        let (client, rows) = (clients.remove(0), services.partitions[0].clone());
        let bsp = Bsp::new((1, 1), 1, None, true, &watch);
        {
            let buffers = StepBuffers::new(&model, EXAMPLES as usize, 2 * EXAMPLES as usize);
            let worker =
                Worker { local: 0, batches: None, client, buffers, parts: None, progressive: None };
            let (trainer, bsp, rows, layout) = (&trainer, &bsp, &rows, &layout);
            let mut rig = Rig { way, trainer, bsp, rows, layout, worker, steps: 0 };
            let ordinary = |rig: &mut Rig<'_>| {
                let before = rig.everything();
                assert_eq!(rig.step(&[]).dropped, 0, "{way:?}");
                let after = rig.everything();
                assert!(before.0.iter().zip(&after.0).all(|(before, after)| before != after));
                assert_eq!(after.1, before.1 + 1, "{way:?}");
            };
            (0..2).for_each(|_| ordinary(&mut rig));
            scenario(&mut rig);
            (0..2).for_each(|_| ordinary(&mut rig));
        }
        services.finish();
    }
}

#[test]
fn a_step_without_a_finite_loss_changes_nothing() {
    each_way(|rig| {
        let word = &rig.trainer.replica[0];
        let before = word.swap(f32::NAN.to_bits(), Relaxed);
        let everything = rig.everything();
        let reading = rig.step(&[]);
        assert_eq!((reading.dropped, reading.loss_sum), (1, 0.0), "{:?}", rig.way);
        assert!(rig.everything() == everything, "{:?}", rig.way);
        rig.trainer.replica[0].store(before, Relaxed);
    });
}

#[test]
fn a_step_without_weights_changes_nothing() {
    each_way(|rig| {
        let everything = rig.everything();
        assert_eq!(rig.step(&[0.0; EXAMPLES as usize]).dropped, 0, "{:?}", rig.way);
        assert!(rig.everything() == everything, "{:?}", rig.way);
    });
}

/// A dot product of 0, of a row of zeros and one of the largest numbers: the loss is finite, and
/// the gradient of the zeros is not.
#[test]
fn an_infinite_gradient_of_a_row_reaches_no_row() {
    each_way(|rig| {
        let kept: Vec<u32> = rig.everything().0[2].clone();
        let weight = rig.trainer.replica[0].swap(100f32.to_bits(), Relaxed);
        set(rig.row(0, 1), 0.0);
        set(rig.row(1, 1), f32::MAX);
        let rows = rig.everything().0[2].clone();
        let reading = rig.step(&[]);
        assert_eq!(reading.dropped, 1, "{:?}", rig.way);
        assert!(rig.everything().0[2] == rows, "{:?}", rig.way);
        rig.trainer.replica[0].store(weight, Relaxed);
        rig.rows.words().iter().zip(kept).for_each(|(word, bits)| word.store(bits, Relaxed));
    });
}
