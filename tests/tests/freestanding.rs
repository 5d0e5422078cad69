//! The core without std, allocator or C library: programs that have none of them link against it.
//! One trains, and learns; the other scores what the runtime has trained, to the runtime's bits.
//! See `core/freestanding/`.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

use core::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use umbra_core::batch::Batch;
use umbra_core::flat::{Flat, Memory};
use umbra_core::float::sigmoid;
use umbra_datasets::{BatchBuffer, Dataset, Pipeline};
use umbra_tests::{Folder, Job, LIMIT, program, start};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Where the programs are, built once.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/freestanding");
        let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("freestanding");
        let build = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--offline", "--target", TARGET])
            .arg("--manifest-path")
            .arg(package.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target_dir)
            // Flags meant for the tests (coverage, sanitizers) would need std.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&build.stderr);
        assert!(build.status.success(), "it does not link without std:\n{messages}");
        target_dir.join(TARGET).join("release")
    })
}

/// Its output, if it ended well.
fn fine(run: &Output) -> String {
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{}: {text}", run.status);
    text
}

#[test]
fn a_program_without_std_or_allocator_trains() {
    let run = Command::new(programs().join("umbra-freestanding-train")).output().unwrap();
    let text = fine(&run);
    assert!(text.starts_with("log loss "), "{text}");
}

/// Every kind, and what makes it go another way.
const MODELS: [(&str, &str); 7] = [
    ("dlrm", Job::DLRM.model),
    (
        "deepfm",
        "kind = \"deepfm\"\npooling = \"mean\"\nembedding_dim = 8\ntop = [40, 6]\n\
         batch_norm = true",
    ),
    ("fm", "kind = \"fm\"\nembedding_dim = 8"),
    ("lr", "kind = \"lr\"\npooling = \"mean\""),
    (
        "dcn_v2",
        "kind = \"dcn_v2\"\nembedding_dim = 8\ntop = [40]\nbatch_norm = true\ncross_layers = 2",
    ),
    (
        "dcn_v2_stacked",
        "kind = \"dcn_v2\"\nembedding_dim = 8\ntop = [8]\ncross_layers = 3\ncross_rank = 5\n\
         structure = \"stacked\"",
    ),
    ("wide_deep", "kind = \"wide_deep\"\nembedding_dim = 8\ntop = [33, 7]\ndropout = 0.1"),
];

const ROWS: u64 = 3000;
const SCORED: usize = 300;

/// `umbra predict`, the core on the same instruction set from the bytes of `umbra export`, and a
/// program without an operating system's library, on the only set that it has.
#[test]
fn a_flat_model_is_scored_to_the_bits_of_the_runtime() {
    let folder = Folder::new();
    folder.synth("train.h5", ROWS, 0);
    folder.synth("test.h5", SCORED as u64, ROWS);
    let examples = examples(&folder.path("test.h5"));
    let _ = programs();
    // A start of MPI is mostly waiting: all models side by side.
    std::thread::scope(|scope| {
        for (name, model) in MODELS {
            let (folder, examples) = (&folder, &examples);
            scope.spawn(move || compare(folder, name, model, "embedding.columns=0", examples));
        }
        // Vectors that are put together where they are written.
        let (folder, examples) = (&folder, &examples);
        let model = "kind = \"wide_deep\"\nembedding_dim = 8\ntop = [33, 7]";
        scope.spawn(move || compare(folder, "strips", model, "embedding.columns=2", examples));
    });
}

/// Rows of tables that have widths of their own are multiplied where they are written, and not once
/// for a bag: an order of sums.
#[test]
fn a_flat_model_of_tables_of_several_widths_scores_as_the_runtime() {
    let folder = Folder::new();
    folder.synth("train.h5", ROWS, 0);
    folder.synth("test.h5", SCORED as u64, ROWS);
    let examples = examples(&folder.path("test.h5"));
    for (name, model) in [MODELS[0], MODELS[6]] {
        let bytes = exported(&folder, name, model, "embedding.dims={C1=2,C2=12,C5=4}");
        let text = predictions(&folder, name, &[]);
        let expected = text.lines().map(|line| line.parse::<f64>().unwrap());
        for (got, expected) in score(&bytes, &examples).into_iter().zip(expected) {
            let error = f64::from(sigmoid(got)) - expected;
            assert!(error.abs() < 2e-6, "{name}: {expected}, {error} more");
        }
    }
}

/// The flat model of a run.
fn exported(folder: &Folder, name: &str, model: &'static str, set: &str) -> Vec<u8> {
    let job = format!("{name}.toml");
    folder.write(&job, Job { model, ..Job::DLRM }.text());
    let sets = ["sync.method=bsp", "embedding.partitions=3", "run.tensorboard=false", set];
    folder.train(1, &job, name, &sets);
    folder.export(name, "flat")
}

fn compare(folder: &Folder, name: &str, model: &'static str, set: &str, examples: &BatchBuffer) {
    let bytes = exported(folder, name, model, set);
    let logits = score(&bytes, examples);
    assert_eq!(probabilities(&logits), predictions(folder, name, &[]), "{name}");
    let logits = score_freestanding(&folder.path(&format!("{name}.input")), &bytes, examples);
    let plain = predictions(folder, name, &[("UMBRA_SIMD", "plain")]);
    assert_eq!(probabilities(&logits), plain, "{name} without std");
}

/// All of a file.
fn examples(path: &Path) -> BatchBuffer {
    let dataset = Dataset::open(&[path.to_owned()]).unwrap();
    let (_reader, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, SCORED, 2).unwrap();
    let examples = batches[0].next(&mut || ()).unwrap().unwrap();
    assert_eq!(examples.len(), SCORED);
    examples
}

/// What `umbra predict` writes.
fn predictions(folder: &Folder, run: &str, variables: &[(&str, &str)]) -> String {
    let output = format!("{run}.txt");
    let given = ["predict", "--overwrite", "--checkpoint", run];
    let predict = [&given[..], &["--data", "test.h5", "--output", &output]].concat();
    let _ = start(folder.root(), 1, &program("umbra"), &predict, variables).wait(LIMIT).fine();
    folder.text(&output)
}

/// The same of logits.
fn probabilities(logits: &[f32]) -> String {
    logits.iter().map(|logit| format!("{}\n", sigmoid(*logit))).collect()
}

fn score(bytes: &[u8], examples: &BatchBuffer) -> Vec<f32> {
    let mut logits = vec![0.0; examples.len()];
    let most = (examples.len(), examples.values.len());
    score_batches(bytes, most, &[examples.batch()], &mut logits).unwrap();
    logits
}

/// The lines of docs/formats.md, "Flat": `make test-docs` compares.
fn score_batches(
    bytes: &[u8],
    (examples, ids): (usize, usize),
    batches: &[Batch<'_>],
    logits: &mut [f32],
) -> Result<(), Box<dyn Error>> {
    let flat = Flat::parse(bytes)?; // checks everything, copies nothing
    let mut single = vec![0.0; flat.single_len(examples, ids)];
    let mut double = vec![0.0; flat.model().workspace_f64_len()];
    let mut slot = vec![0; ids];
    let memory = Memory { single: &mut single, double: &mut double, slot: &mut slot };
    let mut scorer = flat.scorer(memory)?;
    // Batches of up to so many examples and ids.
    for batch in batches {
        scorer.score(batch, logits)?;
    }
    Ok(())
}

/// Through the file `path`, which is the program's standard input.
fn score_freestanding(path: &Path, model: &[u8], examples: &BatchBuffer) -> Vec<f32> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let counts = [examples.len() as u64, examples.values.len() as u64];
    let input: [Vec<u8>; 5] = [
        model.to_vec(),
        counts.into_iter().flat_map(u64::to_le_bytes).collect(),
        examples.dense.iter().flat_map(|x| x.to_le_bytes()).collect(),
        words(&examples.offsets),
        words(&examples.values),
    ];
    std::fs::write(path, input.concat()).unwrap();
    let mut score = Command::new(programs().join("umbra-freestanding-score"));
    let run = score.stdin(File::open(path).unwrap()).output().unwrap();
    let bits = |line: &str| f32::from_bits(u32::from_str_radix(line, 16).unwrap());
    fine(&run).lines().map(bits).collect()
}
