//! Rows that are saved first, between two checkpoints, and read where they are lost.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::path::Path;
use std::sync::Arc;

use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer};
use umbra_mpi::checkpoint::{
    After, Checkpoint, Contents, Dense, Extent, Folders, Image, Manifest, Rotation, Saved, Saver,
    Target,
};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::config::RowPrecision;
use umbra_mpi::launch::world::World;
use umbra_mpi::rows::tables::{Partition, TableLayout};
use umbra_mpi::rows::usage::{By, SaveFirst};
use umbra_mpi::state::{Scope, Section, Words};

use crate::checkpoints::manifest_of;

/// A small table, which is in every save, and a large one.
const CARDINALITY: [u64; 2] = [7, 20_000];
const WIDTH: usize = 4;
/// Of the rows of the large table a row save has so many.
const SHARE: f64 = 0.1;
/// Each time other rows are trained: one of so many, in every partition alike.
const ONE_OF: u32 = 23;

fn model() -> Model {
    let config = ModelConfig {
        kind: ModelKind::Fm,
        dense_features: 0,
        fields: CARDINALITY.len(),
        embedding_dim: WIDTH - 1,
        pooling: Pooling::Sum,
        bottom: &[],
        top: &[],
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
        cross: Cross::NONE,
    };
    Model::new(&config).unwrap()
}

/// The state of a rank that has rows alone.
struct Rows {
    layout: TableLayout,
    partitions: Vec<Partition>,
}

impl Rows {
    /// Two partitions for each rank; the last of several ranks holds none.
    fn new(control: &Comm, by: By) -> Self {
        let sgd = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
        let optimizer = SparseOptimizer::Elementwise(sgd);
        let partitions = 2 * control.size() as u32;
        let mut layout = TableLayout::new(&CARDINALITY, partitions, WIDTH, optimizer).unwrap();
        layout.save_first = Some(SaveFirst::of_the_largest(by, &CARDINALITY, 1, SHARE));
        let holders = control.size().saturating_sub(1).max(1);
        let own = (0..partitions).filter(|number| *number as usize % holders == control.rank());
        let new = |number| Partition::initialized(number, &layout, &model(), 1).unwrap();
        let partitions = own.map(new).collect();
        Self { layout, partitions }
    }

    /// Calls `visit` with every row's number and record.
    fn visit(&self, mut visit: impl FnMut(u32, &[AtomicU32])) {
        for partition in &self.partitions {
            for index in 0..self.layout.rows_of(partition.number) {
                let row = self.layout.partitioning.row(partition.number, index);
                visit(row, partition.table().record(index as usize));
            }
        }
    }

    /// Trains the rows of turn number `turn`, and those of the small table.
    fn train(&self, turn: u32) {
        let gradient = [-1.0; WIDTH];
        for partition in &self.partitions {
            for index in 0..self.layout.rows_of(partition.number) {
                let row = self.layout.partitioning.row(partition.number, index);
                if row % ONE_OF == turn || u64::from(row) < CARDINALITY[0] {
                    let rows = [index as usize].into_iter();
                    let optimizer = &self.layout.optimizer;
                    partition.table().update(optimizer, 1.0, rows, &gradient);
                }
            }
        }
    }

    /// The values, as a rank of its own would have them after so many turns.
    fn after(control: &Comm, turns: u32) -> Vec<(u32, Vec<u32>)> {
        let rows = Self::new(control, By::Change);
        (0..turns).for_each(|turn| rows.train(turn));
        rows.values()
    }

    fn values(&self) -> Vec<(u32, Vec<u32>)> {
        let mut values = vec![];
        self.visit(|row, record| {
            values.push((row, record.iter().map(|word| word.load(Relaxed)).collect()));
        });
        values
    }

    /// Loses all rows, and reads them from the newest checkpoint and its row saves up to `last`.
    fn lose(&self, control: &Comm, dir: &Path, last: u64) -> (Checkpoint, u64) {
        self.visit(|_, record| record.iter().for_each(|word| word.store(u32::MAX, Relaxed)));
        let opened = (control.rank() == 0)
            .then(|| Checkpoint::open_here(dir).unwrap().with_row_saves(last).unwrap());
        let checkpoint = Checkpoint::tell(control, opened).unwrap();
        let dense = Dense { model: &model(), replica: &[], state: &[] };
        let target = Target { dense, layout: &self.layout, partitions: &self.partitions };
        let lost: Vec<u32> = (0..self.layout.partitioning.partitions).collect();
        let own = checkpoint.read_lost(control, &target, &lost).unwrap();
        let mut all = vec![0; control.size()];
        control.all_gather(&[own], &mut all, "test").unwrap();
        (checkpoint, all.iter().sum())
    }
}

fn manifest(rows: &Rows, steps: u64) -> Manifest {
    Manifest {
        dense_features: 0,
        sparse_names: (0..CARDINALITY.len()).map(|field| format!("C{field}")).collect(),
        cardinality: CARDINALITY.to_vec(),
        row_width: WIDTH,
        row_state_len: 0,
        ..manifest_of(&rows.layout, rows.layout.partitioning.partitions, steps)
    }
}

/// A lost row comes back as it was last saved, by a checkpoint or by itself; a checkpoint takes the
/// row saves before it away.
pub(super) fn row_saves(_: &World, _: &Arc<Watch>, control: &Comm) {
    for (name, by) in [("scar", By::Change), ("mfu", By::Updates), ("ssu", By::Sample)] {
        let dir = std::env::current_dir().unwrap().join(name);
        save_and_lose(control, &dir, by);
    }
}

fn save_and_lose(control: &Comm, dir: &Path, by: By) {
    let rows = Rows::new(control, by);
    let folders = Folders::new(dir.to_owned());
    let section = |own: &'_ Partition| Scope::Partition(own.number);
    let sections: Vec<Section<'_>> = rows
        .partitions
        .iter()
        .map(|own| Section { name: "rows", scope: section(own), words: Words::Shared(own.words()) })
        .collect();
    let contents = Contents {
        model: &model(),
        sections: &sections,
        record: rows.layout.record(),
        row_precision: RowPrecision::F32,
        own_replicas: false,
        first: false,
    };
    let everyone: Vec<usize> = (0..control.size()).collect();
    let own = control.subset(&everyone).unwrap().unwrap();
    let image = Image::for_contents(&contents).unwrap();
    let mut saver = Saver::start(own, image, Rotation::new(2)).unwrap();
    let rule = rows.layout.save_first.clone().unwrap();
    let save_rows = |saver: &mut Saver, step| {
        let begun = saver.begin_rows(
            &folders,
            manifest(&rows, step),
            (&rule, &rows.layout),
            &rows.partitions,
        );
        begun.then(|| saver.wait().unwrap())
    };
    assert_eq!(save_rows(&mut saver, 2), None, "nothing to read them over");
    let keep = After { keep: 1, best: false };
    saver.begin(&folders, manifest(&rows, 3), &contents, keep);
    let whole = saver.wait().unwrap().bytes.unwrap();
    for turn in 0..2 {
        rows.train(turn);
        let step = 4 + u64::from(turn);
        let Saved { step: saved, bytes, extent, .. } = save_rows(&mut saver, step).unwrap();
        assert_eq!((saved, extent), (step, Extent::First));
        // Half a share, or a share of the sample's; a place of eight bytes goes with every row, and
        // a header with every file.
        let share = bytes.unwrap() as f64 / whole as f64;
        assert!(share < if by == By::Sample { 0.25 } else { 0.12 }, "{share}");
    }
    // Until the last one, a turn has come that nobody has saved.
    rows.train(2);
    let states: Vec<_> = (0..=2).map(|turns| Rows::after(control, turns)).collect();
    for (last, saves) in [(3, 0), (4, 1), (9, 2)] {
        let (checkpoint, bytes) = rows.lose(control, dir, last);
        assert_eq!((checkpoint.manifest.steps, checkpoint.row_saves().len()), (3, saves));
        let all = 4 * WIDTH as u64 * CARDINALITY.iter().sum::<u64>();
        assert!(bytes >= all && (saves > 0) == (bytes > all), "{bytes} of {all}");
        let (now, saved) = (rows.values(), &states[saves]);
        if by == By::Sample {
            // Some of them, but all of the small table.
            for ((row, record), (old, new)) in now.iter().zip(states[0].iter().zip(saved)) {
                assert!(*record == old.1 || *record == new.1, "row {row}");
                assert!(u64::from(*row) >= CARDINALITY[0] || *record == new.1, "row {row}");
            }
            let new = now.iter().zip(&states[0]).filter(|(now, old)| now != old).count();
            assert_eq!(new > 0, saves > 0 && !now.is_empty(), "{new} rows");
        } else {
            assert!(now == *saved, "{last}");
        }
    }
    // One that is damaged is done without.
    if control.rank() == 0 {
        let path = dir.join("rows-5/rank-00000.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    control.barrier("test", false).unwrap();
    rows.lose(control, dir, 9);
    let of = |at: usize| states[at].iter().map(|(_, record)| record);
    let values = rows.values();
    for ((_, record), (before, after)) in values.iter().zip(of(1).zip(of(2))) {
        assert!(by == By::Sample || record == before || record == after);
    }
    // A checkpoint that has the rows alone that changed has those of row saves as well.
    saver.begin(&folders, manifest(&rows, 6), &contents, keep);
    assert_eq!(saver.wait().unwrap().extent, Extent::Changed);
    control.barrier("test", false).unwrap();
    assert!(folders.of_rows().steps().unwrap().is_empty());
    rows.lose(control, dir, 9);
    assert!(rows.values() == values);
    saver.finish();
}
