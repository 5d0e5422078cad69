//! Where the MPI library lets only one thread call it at a time, umbra trains the same.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Folder, Job, LIMIT, SavedModel, TIME_FOR_ROUNDS, program, start};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]\n\
            batch_norm = true",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

/// Layouts of 2 and 4 ranks.
const LAYOUTS: [(usize, &[&str]); 4] = [
    (2, &[]),
    (4, &[]),
    (2, &["roles.layout=separate", "roles.trainers=1", "roles.embedding_ps=1"]),
    (4, &["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=2"]),
];

/// What a run learnt: its saved model and its test figures.
fn train(folder: &Folder, ranks: usize, threads: &str, sets: &[&str]) -> (SavedModel, f64) {
    let common = ["run.overwrite=true", "run.tensorboard=false", "train.epochs=2"];
    let sets = Folder::sets(threads, &[&common[..], sets].concat());
    let arguments: Vec<&str> =
        ["train", "-c", "job.toml"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let variables = [("UMBRA_MPI_THREADS", threads)];
    let job = start(folder.root(), ranks, &program("umbra"), &arguments, &variables);
    let _ = job.wait(LIMIT).fine();
    let model = SavedModel::read(&folder.path(&format!("{threads}/checkpoints/last")));
    let summary = folder.summary(threads);
    assert_eq!(summary["examples"], 2 * 6000);
    (model, summary["test"]["auc"].as_f64().unwrap())
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.synth("train.h5", 6000, 0);
    folder.synth("test.h5", 2000, 6000);
    folder.write("job.toml", JOB.text());
    folder
}

#[test]
fn bsp_learns_the_same_bits_at_both_thread_levels() {
    let folder = folder();
    for (ranks, layout) in LAYOUTS {
        let sets = [layout, &["sync.method=bsp", "train.worker_threads=2"]].concat();
        let (expected, _) = train(&folder, ranks, "multiple", &sets);
        let (got, _) = train(&folder, ranks, "serialized", &sets);
        assert!(got == expected, "{ranks} ranks, {layout:?}: other bits");
        let (other, _) = train(&folder, ranks, "serialized", &[&sets[..], &["seed=8"]].concat());
        assert!(other != expected, "{ranks} ranks, {layout:?}: any run has these bits");
    }
}

/// Rows are updated as pushes come, so no two runs are the same.
#[test]
fn local_sgd_learns_as_much_at_both_thread_levels() {
    let folder = folder();
    for (ranks, layout) in LAYOUTS {
        let alone = layout.contains(&"roles.trainers=1");
        let method: &[&str] =
            if alone { &["sync.method=none"] } else { &["sync.method=local_sgd", "sync.every=8"] };
        let sets = [layout, method].concat();
        let (_, expected) = train(&folder, ranks, "multiple", &sets);
        let (_, got) = train(&folder, ranks, "serialized", &sets);
        let case = format!("{ranks} ranks, {layout:?}: AUC {got}, {expected} at multiple");
        assert!(expected > 0.6 && (got - expected).abs() < 0.03, "{case}");
    }
}

/// Shadow threads beside the link of the rows: two threads of a rank that call MPI.
#[test]
fn shadow_methods_learn_as_much_at_both_thread_levels() {
    let folder = folder();
    for (method, ranks) in [("shadow_ma", 2), ("shadow_ma", 4), ("shadow_easgd", 3)] {
        let method = format!("sync.method={method}");
        let sets =
            [TIME_FOR_ROUNDS, "train.worker_threads=1", "embedding.shared_memory=false", &method];
        let (_, expected) = train(&folder, ranks, "multiple", &sets);
        let (_, got) = train(&folder, ranks, "serialized", &sets);
        assert!((got - expected).abs() < 0.05, "{method}, {ranks} ranks: {got}, {expected}");
    }
}
