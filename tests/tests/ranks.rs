//! Ranks, threads, layouts and partitions do not change what `bsp` learns: same bits everywhere.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Folder, Job, SavedModel};

const DLRM: Job = Job::DLRM;
const DEEPFM: Job = Job {
    model: "kind = \"deepfm\"\nembedding_dim = 8\ntop = [24, 12]\nbatch_norm = true\ndropout = 0.2",
    optim: [("adagrad", 0.05), ("rowwise_adagrad", 0.05)],
    ..DLRM
};
const DCN_V2: Job = Job {
    model: "kind = \"dcn_v2\"\nembedding_dim = 8\ntop = [24, 12]\ncross_layers = 2\n\
            batch_norm = true\ndropout = 0.2",
    ..DLRM
};
const DCN_V2_LOW_RANK: Job = Job {
    model: "kind = \"dcn_v2\"\nembedding_dim = 8\ntop = [24, 12]\ncross_rank = 5\n\
            structure = \"stacked\"",
    ..DLRM
};
const WIDE_DEEP: Job = Job {
    model: "kind = \"wide_deep\"\nembedding_dim = 8\ntop = [24, 12]\nbatch_norm = true",
    ..DLRM
};

/// Over all workers; eight lanes of 32.
const GLOBAL_BATCH: usize = DLRM.batch_size;

/// A way to spread the global batch.
struct Spread {
    name: &'static str,
    ranks: usize,
    /// Worker threads over all trainers.
    workers: usize,
    sets: &'static [&'static str],
}

const fn spread(
    name: &'static str,
    ranks: usize,
    workers: usize,
    sets: &'static [&'static str],
) -> Spread {
    Spread { name, ranks, workers, sets }
}

/// Everything a run leaves that must be the same.
#[derive(PartialEq)]
struct Result {
    losses: String,
    model: SavedModel,
    test: String,
}

fn train(folder: &Folder, spread: &Spread, run: &str, sets: &[&str]) -> Result {
    train_batch(folder, spread, run, GLOBAL_BATCH, sets)
}

fn train_batch(folder: &Folder, spread: &Spread, run: &str, batch: usize, sets: &[&str]) -> Result {
    let batch = format!("train.batch_size={}", batch / spread.workers);
    let common = ["sync.method=bsp", "run.step_losses=true", "run.tensorboard=false", &batch];
    folder.train(spread.ranks, "job.toml", run, &[&common[..], spread.sets, sets].concat());
    Result {
        losses: folder.text(&format!("{run}/losses.csv")),
        model: SavedModel::read(&folder.path(&format!("{run}/checkpoints/last"))),
        test: folder.summary(run)["test"].to_string(),
    }
}

fn same(spread: &Spread, got: &Result, expected: &Result) {
    let name = spread.name;
    assert_eq!(got.losses, expected.losses, "{name}: losses differ");
    assert!(got.model.dense == expected.model.dense, "{name}: dense parameters differ");
    assert!(got.model.rows == expected.model.rows, "{name}: rows differ");
    assert_eq!(got.test, expected.test, "{name}: test figures differ");
}

fn spreads_agree(job: Job, spreads: &[Spread]) {
    let folder = Folder::new();
    // Divisible by nothing that follows: lanes are ragged, the last batches short.
    folder.synth("train.h5", 3001, 0);
    folder.synth("test.h5", 503, 3001);
    folder.write("job.toml", job.text());
    let alone = spread("1 rank", 1, 1, &[]);
    let expected = train(&folder, &alone, "alone", &["train.epochs=2"]);
    assert_eq!(expected.losses.lines().count(), 1 + 2 * 12, "{}", expected.losses);
    for spread in spreads {
        let got = train(&folder, spread, spread.name, &["train.epochs=2"]);
        same(spread, &got, &expected);
    }
    // Another seed gives other bits: the comparison can fail.
    let other = train(&folder, &alone, "other", &["train.epochs=2", "seed=8"]);
    assert!(other.losses != expected.losses && other.model != expected.model);
}

#[test]
fn dlrm_learns_the_same_bits_on_any_ranks() {
    spreads_agree(
        DLRM,
        &[
            spread("1 rank again", 1, 1, &[]),
            spread("1 rank × 2 threads", 1, 2, &["train.worker_threads=2"]),
            spread("2 ranks", 2, 2, &[]),
            spread("4 ranks", 4, 4, &[]),
            spread("4 ranks again", 4, 4, &[]),
            spread("2 ranks × 3 partitions", 2, 2, &["embedding.partitions=3"]),
            spread(
                "4 ranks × 1 partition, no prefetch",
                4,
                4,
                &["embedding.partitions=1", "embedding.prefetch=0"],
            ),
            spread(
                "2 trainers, 2 embedding PS",
                4,
                2,
                &["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=2"],
            ),
        ],
    );
}

#[test]
fn deepfm_learns_the_same_bits_on_any_ranks() {
    spreads_agree(
        DEEPFM,
        &[
            spread("2 ranks × 2 threads", 2, 4, &["train.worker_threads=2"]),
            spread("4 ranks", 4, 4, &[]),
            spread(
                "2 trainers, 1 embedding PS",
                3,
                2,
                &[
                    "roles.layout=separate",
                    "roles.trainers=2",
                    "roles.embedding_ps=1",
                    "embedding.partitions=5",
                ],
            ),
        ],
    );
}

#[test]
fn dcn_v2_and_wide_deep_learn_the_same_bits_on_any_ranks() {
    let spreads = [
        spread("1 rank × 2 threads", 1, 2, &["train.worker_threads=2"]),
        spread("4 ranks", 4, 4, &[]),
    ];
    for job in [DCN_V2, DCN_V2_LOW_RANK, WIDE_DEEP] {
        spreads_agree(job, &spreads);
    }
}

/// Products of bf16s too; and without them a run learns other bits.
#[test]
fn bf16_learns_the_same_bits_on_any_ranks() {
    let folder = Folder::new();
    folder.synth("train.h5", 3001, 0);
    folder.synth("test.h5", 503, 3001);
    let job = Job {
        model: "kind = \"dlrm\"\nembedding_dim = 32\nbottom = [40, 32]\ntop = [64, 33]\n\
                batch_norm = true\ndropout = 0.2",
        ..DLRM
    };
    folder.write("job.toml", job.text());
    let alone = spread("1 rank", 1, 1, &[]);
    let expected = train(&folder, &alone, "alone", &["train.precision=bf16"]);
    for spread in [
        spread("1 rank × 2 threads", 1, 2, &["train.worker_threads=2"]),
        spread("4 ranks", 4, 4, &[]),
    ] {
        same(&spread, &train(&folder, &spread, spread.name, &["train.precision=bf16"]), &expected);
    }
    let exact = train(&folder, &alone, "exact", &["train.precision=f32"]);
    assert!(exact.losses != expected.losses && exact.model != expected.model);
}

/// A checkpoint holds all of a model: what is read back scores as the run did.
#[test]
fn saved_models_score_as_their_runs_did() {
    let folder = Folder::new();
    folder.synth("train.h5", 2000, 0);
    folder.synth("test.h5", 500, 2000);
    for (number, job) in [DEEPFM, DCN_V2, DCN_V2_LOW_RANK, WIDE_DEEP].into_iter().enumerate() {
        folder.write("job.toml", job.text());
        let run = format!("run-{number}");
        folder.train(2, "job.toml", &run, &["sync.method=bsp", "train.batch_size=128"]);
        let test = &folder.summary(&run)["test"];
        assert_eq!(folder.eval(1, &run, "test.h5"), *test, "{}", job.model);
    }
}

/// Fewer rows than lanes, than ranks, than a batch; empty batches, empty shares of an evaluation.
#[test]
fn empty_shares_change_nothing() {
    for (rows, test_rows) in [(3, 1), (13, 3), (70, 5)] {
        let folder = Folder::new();
        folder.synth("train.h5", rows, 0);
        folder.synth("test.h5", test_rows, rows);
        folder.write("job.toml", DLRM.text());
        let alone = spread("1 rank", 1, 1, &[]);
        let expected = train_batch(&folder, &alone, "alone", 32, &["train.epochs=3"]);
        let steps = 3 * rows.div_ceil(8).div_ceil(4);
        assert_eq!(expected.losses.lines().count() as u64, 1 + steps);
        let summary = folder.summary("alone");
        assert_eq!((&summary["examples"], &summary["steps"]), (&(3 * rows).into(), &steps.into()));
        assert_eq!(summary["test"]["examples"], test_rows);
        let spread = spread("4 ranks", 4, 4, &[]);
        let got = train_batch(&folder, &spread, "four", 32, &["train.epochs=3"]);
        same(&spread, &got, &expected);
        assert_eq!(folder.summary("four")["examples"], 3 * rows, "{rows} rows");
    }
}

#[test]
fn max_examples_ends_every_rank_at_the_same_step() {
    let folder = Folder::new();
    folder.synth("train.h5", 1000, 0);
    folder.synth("test.h5", 100, 1000);
    folder.write("job.toml", DLRM.text());
    let sets = ["train.epochs=100", "train.max_examples=1700"];
    let alone = spread("1 rank", 1, 1, &[]);
    let expected = train(&folder, &alone, "alone", &sets);
    // 1700 are 7 batches of 256; an epoch is 4 steps, the last with 1000 - 3 · 256 examples.
    let summary = folder.summary("alone");
    assert_eq!((&summary["steps"], &summary["examples"]), (&7.into(), &(1000 + 3 * 256).into()));
    let two = spread("2 ranks", 2, 2, &[]);
    same(&two, &train(&folder, &two, "two", &sets), &expected);
}

/// Where workers do not divide the lanes the arithmetic follows the workers, and still repeats.
#[test]
fn ranks_that_do_not_divide_the_lanes_repeat_themselves() {
    let folder = Folder::new();
    folder.synth("train.h5", 1001, 0);
    folder.synth("test.h5", 77, 1001);
    folder.write("job.toml", DLRM.text());
    let three = spread("3 ranks", 3, 3, &[]);
    let first = train_batch(&folder, &three, "first", 93, &[]);
    same(&three, &train_batch(&folder, &three, "second", 93, &[]), &first);
    assert_eq!(folder.summary("first")["examples"], 1001);
}

/// Nothing is read between the last update and saving: the rows saved have it all the same.
#[test]
fn a_run_without_evaluation_saves_its_last_update() {
    let folder = Folder::new();
    folder.synth("train.h5", 1000, 0);
    folder.write("job.toml", DLRM.text());
    let sets = ["data.test=[]", "sync.method=bsp", "run.tensorboard=false"];
    let saved = |ranks: usize, run: &str| {
        let batch = format!("train.batch_size={}", GLOBAL_BATCH / ranks);
        folder.train(ranks, "job.toml", run, &[&sets[..], &[&batch]].concat());
        SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")))
    };
    let expected = saved(1, "alone");
    for run in ["first", "second", "third"] {
        assert!(saved(4, run) == expected, "{run} of 4 ranks differs");
    }
}

/// Norms over each slice's own batch: the running statistics are the mean over slices on every
/// trainer, so the figures of the run are those of the model that is saved.
#[test]
fn local_batch_norm_ends_with_one_model() {
    let folder = Folder::new();
    folder.synth("train.h5", 3001, 0);
    folder.synth("test.h5", 503, 3001);
    folder.write("job.toml", DLRM.text());
    const LOCAL: &[&str] = &["sync.batch_norm=local"];
    let alone = spread("1 rank", 1, 1, LOCAL);
    let expected = train(&folder, &alone, "alone", &[]);
    let global = train(&folder, &spread("global", 1, 1, &[]), "global", &[]);
    assert!(global.losses != expected.losses, "the setting changes nothing");
    let four = spread("4 ranks", 4, 4, LOCAL);
    same(&four, &train(&folder, &four, "four", &[]), &expected);
    assert_eq!(folder.eval(1, "four", "test.h5"), folder.summary("four")["test"]);
}

fn auc(folder: &Folder, run: &str) -> f64 {
    folder.summary(run)["test"]["auc"].as_f64().unwrap()
}

/// Replicas that are averaged learn about the same as one trainer, and end equal: the figures of
/// the run, from all replicas, are those of the first one, which is what is saved.
#[test]
fn local_sgd_learns_what_one_trainer_learns() {
    let folder = Folder::new();
    folder.synth("train.h5", 20_000, 0);
    folder.synth("test.h5", 4000, 20_000);
    let job = Job { optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)], batch_size: 64, ..DLRM };
    let model = "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]";
    folder.write("job.toml", Job { model, ..job }.text());
    folder.train(1, "job.toml", "alone", &["train.epochs=2"]);
    let expected = auc(&folder, "alone");
    assert!(expected > 0.6, "one trainer learns nothing: {expected}");
    for (ranks, name) in [(2, "two"), (4, "four")] {
        let sets = ["train.epochs=2", "sync.method=local_sgd", "sync.every=8"];
        folder.train(ranks, "job.toml", name, &sets);
        let summary = folder.summary(name);
        let got = auc(&folder, name);
        assert!((got - expected).abs() < 0.02, "{ranks} ranks: {got}, one: {expected}");
        assert_eq!(folder.eval(1, name, "test.h5"), summary["test"], "{ranks} ranks");
        let steps = summary["steps"].as_u64().unwrap();
        assert_eq!(summary["sync"]["rounds"], steps.div_ceil(8), "{ranks} ranks");
        assert_eq!(summary["examples"], 40_000);
        assert!(summary["wire"]["dense_bytes"].as_u64().unwrap() > 0);
    }
}

/// One trainer with two threads, rows on other ranks: asked for by messages, and in place.
#[test]
fn one_trainer_learns_with_rows_elsewhere() {
    let folder = Folder::new();
    folder.synth("train.h5", 60_000, 0);
    folder.synth("test.h5", 10_000, 60_000);
    let job = Job { optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)], batch_size: 64, ..DLRM };
    folder.write("job.toml", job.text());
    folder.train(1, "job.toml", "alone", &["train.epochs=2"]);
    let separate = ["roles.layout=separate", "roles.trainers=1", "roles.embedding_ps=2"];
    for (run, in_place) in [("apart", false), ("beside", true)] {
        let memory = format!("embedding.shared_memory={in_place}");
        let own = ["train.epochs=2", "train.worker_threads=2", &memory];
        folder.train(3, "job.toml", run, &[&separate[..], &own].concat());
        let summary = folder.summary(run);
        assert_eq!(summary["sync"]["method"], "none");
        assert_eq!(summary["examples"], 120_000);
        assert_eq!(summary["wire"]["embedding_bytes"] == 0, in_place, "{}", summary["wire"]);
        let (got, expected) = (auc(&folder, run), auc(&folder, "alone"));
        assert!(expected > 0.6 && (got - expected).abs() < 0.03, "{got}, alone {expected}");
        assert_eq!(folder.eval(1, run, "test.h5"), summary["test"]);
    }
}
