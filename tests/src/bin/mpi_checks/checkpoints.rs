//! Checkpoints that some ranks wrote, read by all.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::path::Path;
use std::sync::Arc;

use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
use umbra_core::optim::SparseOptimizer;
use umbra_mpi::checkpoint::{
    After, Checkpoint, Contents, Dense, Folders, Image, Manifest, Rotation, Saver, Target, write,
};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::config::RowPrecision;
use umbra_mpi::launch::world::World;
use umbra_mpi::rows::tables::{Partition, TableLayout};
use umbra_mpi::state::section::{OPTIMIZER, REPLICA};
use umbra_mpi::state::{Scope, Section, Words};

/// Rows of every table: all together in several blocks, in no round number.
const CARDINALITY: [u64; 2] = [7, 150_004];
const WIDTH: usize = 4;

/// Its dense words, too, are several blocks and a part of one.
fn model() -> Model {
    let config = ModelConfig {
        kind: ModelKind::Dlrm,
        dense_features: 3,
        fields: CARDINALITY.len(),
        embedding_dim: WIDTH,
        pooling: Pooling::Sum,
        bottom: &[40, WIDTH],
        top: &[600, 500],
        batch_norm: true,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
        cross: Cross::NONE,
    };
    Model::new(&config).unwrap()
}

fn layout(partitions: u32) -> TableLayout {
    let optimizer = SparseOptimizer::RowwiseAdagrad { eps: 0.0, initial: 0.0, weight_decay: 0.0 };
    TableLayout::new(&CARDINALITY, partitions, WIDTH, optimizer).unwrap()
}

/// The partitions that this rank of `ranks` holds; the last rank of several holds none.
fn partitions(layout: &TableLayout, rank: usize, ranks: usize) -> Vec<Partition> {
    let holders = if ranks > 2 { ranks - 1 } else { ranks };
    (0..layout.partitioning.partitions)
        .filter(|number| *number as usize % holders == rank)
        .map(|number| Partition::initialized(number, layout, &model(), 1).unwrap())
        .collect()
}

/// Calls `visit` with every word of the partitions, and what it is to be after so many changes:
/// each is of other rows, one in 37.
fn words(
    layout: &TableLayout,
    partitions: &[Partition],
    changes: u32,
    mut visit: impl FnMut(&AtomicU32, u32),
) {
    for partition in partitions {
        for index in 0..layout.rows_of(partition.number) {
            let row = layout.partitioning.row(partition.number, index);
            let change = if row % 37 <= changes { row % 37 } else { 0 };
            let record = partition.table().record(index as usize);
            for (word, place) in record.iter().zip(0u32..) {
                visit(word, (change << 24) + 8 * row + place);
            }
        }
    }
}

/// The bfloat16 nearest to an f32, as an f32: of the two around it, the even one of a tie.
fn rounded(word: u32) -> u32 {
    let value = |word| f64::from(f32::from_bits(word));
    let (below, above) = (word & 0xffff_0000, (word & 0xffff_0000) + 0x1_0000);
    let (to_below, to_above) = (value(word) - value(below), value(above) - value(word));
    let even = if below & 0x1_0000 == 0 { below } else { above };
    match to_below.partial_cmp(&to_above).unwrap() {
        core::cmp::Ordering::Less => below,
        core::cmp::Ordering::Equal => even,
        core::cmp::Ordering::Greater => above,
    }
}

fn numbered(len: usize, first: u32) -> Vec<AtomicU32> {
    (first..).take(len).map(AtomicU32::new).collect()
}

/// The dense words of a rank.
struct DenseWords {
    replica: Vec<AtomicU32>,
    state: Vec<AtomicU32>,
}

impl DenseWords {
    fn new(model: &Model) -> Self {
        let replica = numbered(model.replica_len(), 1);
        Self { replica, state: numbered(model.parameters_len(), 1_000_000) }
    }

    /// A rank's sections.
    fn sections<'a>(&'a self, partitions: &'a [Partition]) -> Vec<Section<'a>> {
        let shared = |name, scope, words| Section { name, scope, words: Words::Shared(words) };
        let rows =
            |rows: &'a Partition| shared("rows", Scope::Partition(rows.number), rows.words());
        let dense = [
            shared(REPLICA, Scope::Trainer(0), &self.replica[..]),
            shared(OPTIMIZER, Scope::Trainer(0), &self.state[..]),
        ];
        dense.into_iter().chain(partitions.iter().map(rows)).collect()
    }
}

/// What a checkpoint of `written` partitions says of itself.
pub(super) fn manifest_of(layout: &TableLayout, written: u32, steps: u64) -> Manifest {
    Manifest {
        version: 2,
        git: String::new(),
        simd: String::new(),
        config: String::new(),
        method: String::new(),
        steps,
        updates: 4,
        trainers: 1,
        workers: 1,
        batch_size: 1,
        lanes: 1,
        data_fingerprint: String::new(),
        vocabulary: None,
        transform: String::new(),
        dense_features: 3,
        sparse_names: (0..CARDINALITY.len()).map(|field| format!("C{field}")).collect(),
        cardinality: CARDINALITY.to_vec(),
        strips: None,
        partitions: written,
        owners: None,
        table_of: None,
        row_width: layout.width,
        row_state_len: layout.state_len,
        base: None,
        files: vec![],
    }
}

/// What checkpoints of a test have in common.
#[derive(Clone, Copy)]
struct Case {
    /// Partitions of those who write.
    written: u32,
    precision: RowPrecision,
}

impl Case {
    fn of(written: u32) -> Self {
        Self { written, precision: RowPrecision::F32 }
    }

    fn expected(self, word: u32) -> u32 {
        match self.precision {
            RowPrecision::F32 => word,
            RowPrecision::Bf16 => rounded(word),
        }
    }

    /// Calls `save` with a rank's state of so many partitions.
    fn with_contents(
        self,
        control: &Comm,
        save: impl FnOnce(&Contents<'_>, &TableLayout, &[Partition], &DenseWords),
    ) {
        let (model, layout) = (model(), layout(self.written));
        let partitions = partitions(&layout, control.rank(), control.size());
        words(&layout, &partitions, 0, |word, value| word.store(value, Relaxed));
        let dense = DenseWords::new(&model);
        let contents = Contents {
            model: &model,
            sections: &dense.sections(&partitions),
            record: layout.record(),
            row_precision: self.precision,
            own_replicas: false,
            first: control.rank() == 0,
        };
        save(&contents, &layout, &partitions, &dense);
    }
}

/// The ranks of `control` write the checkpoint of step 3 among those of `dir`.
fn save(control: &Comm, dir: &Path, case: Case) {
    let folders = Folders::new(dir.to_owned());
    case.with_contents(control, |contents, layout, _, _| {
        write(control, &folders, manifest_of(layout, case.written, 3), contents, KEEP_ONE).unwrap();
    });
}

/// As [`save`], and of three steps after it, each of which changes some rows; all while others
/// write to the same memory. Of the four, the first and the last have all rows.
fn save_behind(control: &Comm, dir: &Path, case: Case) {
    let folders = Folders::new(dir.to_owned());
    case.with_contents(control, |contents, layout, partitions, dense| {
        let everyone: Vec<usize> = (0..control.size()).collect();
        let own = control.subset(&everyone).unwrap().unwrap();
        let image = Image::for_contents(contents).unwrap();
        let mut saver = Saver::start(own, image, Rotation::new(3)).unwrap();
        let mut bytes = vec![];
        for (step, changes) in (3..).zip(0..4) {
            let rewrite = |word: &AtomicU32, value| word.store(value, Relaxed);
            words(layout, partitions, changes, rewrite);
            dense.replica.iter().zip(1..).for_each(|(word, x)| word.store(x, Relaxed));
            saver.begin(&folders, manifest_of(layout, case.written, step), contents, KEEP_ONE);
            let trained = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !trained.load(Relaxed) {
                        words(layout, partitions, 0, |word, value| word.store(!value, Relaxed));
                        dense.replica.iter().for_each(|word| word.store(7, Relaxed));
                    }
                });
                let saved = saver.wait().unwrap();
                assert_eq!(saved.step, step);
                bytes.push(saved.bytes.unwrap());
                trained.store(true, Relaxed);
            });
            assert_eq!(saver.wait(), None);
            read_back(control, dir, case, step);
        }
        saver.finish();
        // One row in 37 is changed by each, and a place of eight bytes goes with it.
        let ratio = |step: usize| {
            let dense = bytes[0] as f64 - rows_bytes(case);
            (bytes[step] as f64 - dense) / rows_bytes(case)
        };
        assert!(ratio(1) < 0.06 && ratio(1) < 0.6 * ratio(2) && ratio(2) < 0.12, "{bytes:?}");
        assert!((bytes[3] as f64 / bytes[0] as f64 - 1.0).abs() < 1e-4, "{bytes:?}");
    });
}

/// Bytes of all records.
fn rows_bytes(case: Case) -> f64 {
    let value = if case.precision == RowPrecision::F32 { 4 } else { 2 };
    (CARDINALITY.iter().sum::<u64>() * (WIDTH as u64 + 1) * value) as f64
}

/// What has been saved of `step` is what stood there, in whatever partitions it is read; its base
/// is there for it alone.
fn read_back(control: &Comm, dir: &Path, case: Case, step: u64) {
    let changes = (step - 3) as u32;
    for here in [1, control.size() as u32] {
        load(control, dir, case, here, step, changes);
    }
    let checkpoint = Checkpoint::open_here(dir).unwrap();
    let base = [None, Some(3), Some(3), None][changes as usize];
    assert_eq!(checkpoint.manifest.base.map(|base| base.step), base);
    let steps = Folders::new(dir.to_owned()).steps().unwrap();
    assert_eq!(steps, [vec![step], base.into_iter().collect()].concat());
    checkpoint.verify().unwrap();
    control.barrier("test", false).unwrap();
}

const KEEP_ONE: After = After { keep: 1, best: false };

/// A row and its optimizer state are of one moment in a checkpoint that was written while they were
/// trained; and one that has only the rows that changed is read as if it had all.
pub(super) fn image(_: &World, _: &Arc<Watch>, control: &Comm) {
    let written = 2 * control.size() as u32;
    for (name, precision) in [("image", RowPrecision::F32), ("halves", RowPrecision::Bf16)] {
        let dir = std::env::current_dir().unwrap().join(name);
        save_behind(control, &dir, Case { written, precision });
    }
}

/// Reads the newest checkpoint into `here` partitions over all ranks, and checks every word of it.
/// Returns the bytes that all ranks read, and how many of them read any.
fn load(control: &Comm, dir: &Path, case: Case, here: u32, step: u64, changes: u32) -> [u64; 2] {
    let (model, layout) = (model(), layout(here));
    let partitions = partitions(&layout, control.rank(), control.size());
    // One rank has no replica.
    let trains = control.rank() + 1 < control.size();
    let len = |len: usize| if trains { len } else { 0 };
    let replica = numbered(len(model.replica_len()), 0);
    let state = numbered(len(model.parameters_len()), 0);
    let dense = Dense { model: &model, replica: &replica, state: &state };
    let checkpoint = Checkpoint::open(control, dir).unwrap();
    assert_eq!((checkpoint.manifest.steps, checkpoint.manifest.updates), (step, 4));
    let target = Target { dense, layout: &layout, partitions: &partitions };
    let bytes = checkpoint.read(control, &target).unwrap();
    words(&layout, &partitions, changes, |word, value| {
        assert_eq!(word.load(Relaxed), case.expected(value));
    });
    for (words, first) in [(&replica, 1), (&state, 1_000_000)] {
        assert!(words.iter().map(|word| word.load(Relaxed)).eq((first..).take(words.len())));
    }
    let mut all = vec![0; control.size()];
    control.all_gather(&[bytes], &mut all, "test").unwrap();
    let own = checkpoint.manifest.tensors();
    let base = checkpoint.manifest.base.map(|base| {
        Checkpoint::open_here(&Folders::new(dir.to_owned()).of(base.step)).unwrap().manifest
    });
    let base = base.iter().flat_map(|manifest| manifest.tensors());
    let of_base = base.filter(|(name, _)| name.starts_with("rows."));
    let of_files: u64 =
        own.into_iter().chain(of_base).map(|(_, (_, tensor))| tensor.bytes().unwrap()).sum();
    assert_eq!(all.iter().sum::<u64>(), of_files, "{all:?}");
    [of_files, all.iter().filter(|bytes| **bytes > 0).count() as u64]
}

/// What any number of ranks wrote in any number of partitions, any number reads into any number:
/// the same bits, and every byte is read once.
pub(super) fn checkpoints(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let size = control.size();
    let all = world.communicator(watch).unwrap();
    for (writers, written) in [(1, 1), (1, 3), (2, 2), (2, 5), (3, 3), (size, 2 * size as u32)] {
        let dir = std::env::current_dir().unwrap().join(format!("saved-{writers}-{written}"));
        let members: Vec<usize> = (0..writers.min(size)).collect();
        if let Some(control) = all.subset(&members).unwrap() {
            save(&control, &dir, Case::of(written));
        }
        control.barrier("test", false).unwrap();
        for here in [1, 2, size as u32, 2 * size as u32 + 1] {
            let [bytes, readers] = load(control, &dir, Case::of(written), here, 3, 0);
            assert!(bytes > 3_000_000, "{bytes}");
            assert!(readers >= u64::from(written.min(here).min(2)), "{readers} readers");
        }
    }
    damaged(control);
}

/// The folder that the first rank alone changes.
fn changed(control: &Comm, name: &str, change: impl FnOnce(&Path)) -> std::path::PathBuf {
    let dir = std::env::current_dir().unwrap().join(name);
    if control.rank() == 0 {
        change(&dir);
    }
    control.barrier("test", false).unwrap();
    dir
}

/// A file that is not what was written is an error of exit code 4 on all ranks, of whom one speaks.
fn damaged(control: &Comm) {
    for (name, file, says) in [
        ("saved-2-2", "step-3/rank-00001.safetensors", "the file is damaged"),
        ("saved-1-1", "step-3/rank-00000.safetensors", "the file is damaged"),
        ("saved-2-5", "step-3/rank-00001.safetensors", "the file is cut or torn"),
        ("saved-3-3", "step-3/manifest.json", "is no checkpoint"),
    ] {
        let dir = changed(control, name, |dir| {
            let path = dir.join(file);
            let mut bytes = std::fs::read(&path).unwrap();
            match says {
                "the file is damaged" => *bytes.last_mut().unwrap() ^= 1,
                "the file is cut or torn" => bytes.truncate(100),
                _ => return std::fs::remove_file(&path).unwrap(),
            }
            std::fs::write(&path, bytes).unwrap();
        });
        let (model, layout) = (model(), layout(2));
        let partitions = partitions(&layout, control.rank(), control.size());
        let dense = Dense { model: &model, replica: &[], state: &[] };
        let target = Target { dense, layout: &layout, partitions: &partitions };
        let read = Checkpoint::open(control, &dir)
            .and_then(|checkpoint| checkpoint.read(control, &target));
        let error = read.unwrap_err();
        assert_eq!(error.exit_code(), 4, "{name}: {error}");
        let spoke = [u64::from(!error.is_silent())];
        let mut all = vec![0; control.size()];
        control.all_gather(&spoke, &mut all, "test").unwrap();
        assert_eq!(all.iter().sum::<u64>(), 1, "{name}: one rank has the message");
        assert!(error.is_silent() || error.to_string().contains(says), "{name}: {error}");
    }
}
