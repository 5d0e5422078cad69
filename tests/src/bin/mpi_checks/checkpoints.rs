//! Checkpoints that some ranks wrote, read by all.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::path::Path;
use std::sync::Arc;

use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
use umbra_core::optim::SparseOptimizer;
use umbra_mpi::checkpoint::{
    After, Checkpoint, Contents, Dense, Folders, Image, Manifest, Saver, Target, write,
};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
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

/// Calls `visit` with every word of the partitions, and what it is to be.
fn words(layout: &TableLayout, partitions: &[Partition], mut visit: impl FnMut(&AtomicU32, u32)) {
    for partition in partitions {
        for index in 0..layout.rows_of(partition.number) {
            let row = layout.partitioning.row(partition.number, index);
            let record = partition.table().record(index as usize);
            record.iter().zip(0..).for_each(|(word, place): (_, u32)| visit(word, 8 * row + place));
        }
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
fn manifest(layout: &TableLayout, written: u32) -> Manifest {
    Manifest {
        version: 2,
        git: String::new(),
        simd: String::new(),
        config: String::new(),
        method: String::new(),
        steps: 3,
        updates: 4,
        trainers: 1,
        workers: 1,
        batch_size: 1,
        lanes: 1,
        data_fingerprint: String::new(),
        dense_features: 3,
        sparse_names: vec![],
        cardinality: CARDINALITY.to_vec(),
        partitions: written,
        row_width: layout.width,
        row_state_len: layout.state_len,
        files: vec![],
    }
}

/// The ranks of `control` write `written` partitions among the checkpoints of `dir`; while others
/// write to the same memory, with `training`.
fn save(control: &Comm, dir: &Path, written: u32, training: bool) {
    let (model, layout) = (model(), layout(written));
    let partitions = partitions(&layout, control.rank(), control.size());
    words(&layout, &partitions, |word, value| word.store(value, Relaxed));
    let dense = DenseWords::new(&model);
    let sections = &dense.sections(&partitions);
    let (record_len, first) = (layout.record_len(), control.rank() == 0);
    let contents = Contents { model: &model, sections, record_len, own_replicas: false, first };
    let (folders, manifest) = (Folders::new(dir.to_owned()), manifest(&layout, written));
    let after = After { keep: 1, best: false };
    if !training {
        write(control, &folders, manifest, &contents, after).unwrap();
        return;
    }
    let everyone: Vec<usize> = (0..control.size()).collect();
    let own = control.subset(&everyone).unwrap().unwrap();
    let mut saver = Saver::start(own, Image::for_contents(&contents).unwrap()).unwrap();
    saver.begin(&folders, manifest, &contents, after);
    let trained = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !trained.load(Relaxed) {
                words(&layout, &partitions, |word, value| word.store(!value, Relaxed));
                dense.replica.iter().for_each(|word| word.store(7, Relaxed));
            }
        });
        assert_eq!(saver.wait().map(|saved| (saved.step, saved.bytes.is_some())), Some((3, true)));
        trained.store(true, Relaxed);
    });
    assert_eq!(saver.wait(), None);
    saver.finish();
}

/// A row and its optimizer state are of one moment in a checkpoint that was written while they were
/// trained.
pub(super) fn image(_: &World, _: &Arc<Watch>, control: &Comm) {
    let size = control.size() as u32;
    let dir = std::env::current_dir().unwrap().join("image");
    save(control, &dir, 2 * size, true);
    // Every word is the one that stood there before.
    for here in [1, size] {
        load(control, &dir, here);
    }
}

/// Reads the checkpoint into `partitions` partitions over all ranks, and checks every word of it.
/// Returns the bytes that all ranks read, and how many of them read any.
fn load(control: &Comm, dir: &Path, partitions_here: u32) -> [u64; 2] {
    let (model, layout) = (model(), layout(partitions_here));
    let partitions = partitions(&layout, control.rank(), control.size());
    // One rank has no replica.
    let trains = control.rank() + 1 < control.size();
    let len = |len: usize| if trains { len } else { 0 };
    let replica = numbered(len(model.replica_len()), 0);
    let state = numbered(len(model.parameters_len()), 0);
    let dense = Dense { model: &model, replica: &replica, state: &state };
    let checkpoint = Checkpoint::open(control, dir).unwrap();
    assert_eq!((checkpoint.manifest.steps, checkpoint.manifest.updates), (3, 4));
    let target = Target { dense, layout: &layout, partitions: &partitions };
    let bytes = checkpoint.read(control, &target).unwrap();
    words(&layout, &partitions, |word, value| assert_eq!(word.load(Relaxed), value));
    for (words, first) in [(&replica, 1), (&state, 1_000_000)] {
        assert!(words.iter().map(|word| word.load(Relaxed)).eq((first..).take(words.len())));
    }
    let mut all = vec![0; control.size()];
    control.all_gather(&[bytes], &mut all, "test").unwrap();
    let tensors = checkpoint.manifest.tensors();
    let of_files: u64 = tensors.values().map(|(_, tensor)| tensor.bytes().unwrap()).sum();
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
            save(&control, &dir, written, false);
        }
        control.barrier("test", false).unwrap();
        for here in [1, 2, size as u32, 2 * size as u32 + 1] {
            let [bytes, readers] = load(control, &dir, here);
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
