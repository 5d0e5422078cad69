//! `embedding.precision = "bf16"`: every stored value is a bf16; ranks, threads, partitions, stops
//! and ways to save do not change the bits; a checkpoint of one precision is read at the other.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Ended, Folder, Job, SavedModel, TIME_FOR_ROUNDS};

/// Rows of 9 values: an odd number.
const DEEPFM: Job = Job {
    model: "kind = \"deepfm\"\nembedding_dim = 8\ntop = [24, 12]\nbatch_norm = true\ndropout = 0.2",
    optim: [("adagrad", 0.05), ("rowwise_adagrad", 0.05)],
    ..Job::DLRM
};
const WIDTH: usize = 9;
const GLOBAL_BATCH: usize = Job::DLRM.batch_size;
const BITS: &str = "bit for bit";

fn folder(job: Job) -> Folder {
    let folder = Folder::new();
    folder.synth("train.h5", 3001, 0);
    folder.synth("test.h5", 503, 3001);
    folder.write("job.toml", job.text());
    folder
}

fn try_train(folder: &Folder, ranks: usize, workers: usize, run: &str, sets: &[&str]) -> Ended {
    let batch = format!("train.batch_size={}", GLOBAL_BATCH / workers);
    let common = ["embedding.precision=bf16", "run.tensorboard=false", "train.epochs=2", &batch];
    folder.try_train(ranks, "job.toml", run, &[&common[..], sets].concat())
}

fn train(folder: &Folder, ranks: usize, workers: usize, run: &str, sets: &[&str]) -> String {
    let ended = try_train(folder, ranks, workers, run, sets);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stderr
}

fn saved(folder: &Folder, run: &str) -> SavedModel {
    SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")))
}

fn auc(folder: &Folder, run: &str) -> f64 {
    folder.summary(run)["test"]["auc"].as_f64().unwrap()
}

/// How many values of rows are no bf16s, and how many are.
fn others(model: &SavedModel) -> (usize, usize) {
    let values = model.rows.iter().flat_map(|row| row.chunks(4).take(WIDTH));
    let (halves, others): (Vec<&[u8]>, Vec<&[u8]>) = values.partition(|x| x[..2] == [0, 0]);
    (others.len(), halves.len())
}

#[test]
fn the_same_bits_on_any_ranks() {
    let folder = folder(DEEPFM);
    let bsp = "sync.method=bsp";
    train(&folder, 1, 1, "alone", &[bsp]);
    let expected = saved(&folder, "alone");
    assert_eq!(others(&expected).0, 0);
    for (run, ranks, workers, sets) in [
        ("threads", 1, 2, &["train.worker_threads=2"][..]),
        ("ranks", 4, 4, &["embedding.partitions=3", "embedding.prefetch=0"]),
        ("separate", 3, 2, &["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1"]),
    ] {
        train(&folder, ranks, workers, run, &[&[bsp], sets].concat());
        assert!(saved(&folder, run) == expected, "{run}");
        assert_eq!(folder.summary(run)["test"], folder.summary("alone")["test"], "{run}");
    }
    // What is saved scores as the run did, on ranks of another number.
    assert_eq!(folder.eval(2, "alone", "test.h5"), folder.summary("alone")["test"]);
    for (run, set) in [("other", "seed=8"), ("f32", "embedding.precision=f32")] {
        train(&folder, 1, 1, run, &[bsp, set]);
        assert!(saved(&folder, run).rows != expected.rows, "{run}");
    }
    assert!(others(&saved(&folder, "f32")).0 > 1000);
    let difference = auc(&folder, "f32") - auc(&folder, "alone");
    assert!(difference.abs() < 0.02, "{difference}");
}

/// Whole checkpoints, those of what changed, images that are written while training goes on or
/// not; on other ranks.
#[test]
fn a_run_that_goes_on_has_the_bits_of_one_that_does_not_stop() {
    let folder = folder(DEEPFM);
    let sets = ["sync.method=bsp", "checkpoint.every=3", "checkpoint.keep=100"];
    train(&folder, 2, 2, "whole", &sets);
    let whole = saved(&folder, "whole");
    for (run, more) in [
        ("background", &[][..]),
        ("foreground", &["checkpoint.background=false"]),
        ("increments", &["checkpoint.full_every=4"]),
    ] {
        for (ranks, stop) in [(2, Some(8)), (4, Some(13)), (1, None)] {
            let stop = stop.map(|step| format!("recovery.inject.stop_step={step}"));
            let own: Vec<&str> = sets.iter().chain(more).copied().chain(stop.as_deref()).collect();
            let ended = try_train(&folder, ranks, ranks, run, &own);
            assert_eq!(ended.code, if stop.is_some() { 75 } else { 0 }, "{}", ended.stderr);
            assert_eq!(ended.stderr.contains(BITS), ranks != 2, "{}", ended.stderr);
        }
        assert!(saved(&folder, run) == whole, "{run}");
        // On the way, too.
        let step = |run: &str, step| {
            SavedModel::read(&folder.path(&format!("{run}/checkpoints/step-{step}")))
        };
        for number in [3, 6, 12, 18] {
            assert!(step(run, number) == step("whole", number), "{run}, step {number}");
        }
    }
}

/// f32s that are read are rounded, bf16s stay what they are; neither is the run in one piece.
#[test]
fn a_checkpoint_is_read_at_either_precision() {
    let folder = folder(DEEPFM);
    let bsp = "sync.method=bsp";
    for (run, first, then) in [("rounded", "f32", "bf16"), ("widened", "bf16", "f32")] {
        let [first, then] = [first, then].map(|name| format!("embedding.precision={name}"));
        let ended = try_train(&folder, 2, 2, run, &[bsp, &first, "recovery.inject.stop_step=9"]);
        assert_eq!(ended.code, 75, "{}", ended.stderr);
        let before = saved(&folder, run);
        let said = train(&folder, 2, 2, run, &[bsp, &then]);
        assert!(said.contains("umbra: going on from ") && !said.contains(BITS), "{said}");
        let after = saved(&folder, run);
        let (no_halves, halves) = others(if run == "rounded" { &before } else { &after });
        // Of those that were widened the ones are f32s by now that were updated since.
        let least = if run == "rounded" { halves } else { 10_000 };
        assert!(no_halves > least, "{run}: {no_halves} f32s");
        assert_eq!(others(if run == "rounded" { &after } else { &before }).0, 0, "{run}");
    }
    // A run that begins with a saved model of f32s, without a step: its rows, rounded.
    let model = folder.path("widened/checkpoints/last");
    let warm = format!("checkpoint.warm_start={}", model.display());
    let still = ["optim.sparse.lr=1e-30", "train.max_examples=256"];
    for (run, ranks) in [("warm", 2), ("warm-alone", 1)] {
        train(&folder, ranks, ranks, run, &[&[bsp, &warm][..], &still].concat());
    }
    let (from, to) = (SavedModel::read(&model), saved(&folder, "warm"));
    assert!(to == saved(&folder, "warm-alone"));
    let mut moved = 0;
    for (from, to) in from.rows.iter().zip(&to.rows) {
        for (from, to) in from.as_chunks::<4>().0.iter().zip(to.as_chunks::<4>().0).take(WIDTH) {
            let [from, to] = [from, to].map(|x| u32::from_le_bytes(*x));
            let below = from & 0xffff_0000;
            assert!(to == below || to == below + 0x1_0000, "{from:x} became {to:x}");
            moved += usize::from(to != from);
        }
    }
    assert!(moved > 1000, "{moved} were rounded");
}

/// Pairs of runs whose workers race: most differ by less than .01, one has by .031.
const RACES: u32 = 5;

/// With every way that rows go: shared by workers, pushed as they come, by tokens, pooled where
/// they are, and taken back to what was saved first.
#[test]
fn every_way_to_the_rows_keeps_them_bf16s() {
    let folder = folder(DEEPFM);
    // Of few rows an AUC says little.
    folder.synth("many.h5", 20_000, 3001);
    for (run, ranks, workers, sets) in [
        ("hogwild", 1, 2, &["sync.method=none", "train.worker_threads=2", TIME_FOR_ROUNDS][..]),
        ("shadow", 2, 2, &["sync.method=shadow_easgd", TIME_FOR_ROUNDS]),
        ("tokens", 2, 2, &["sync.method=async_ps", TIME_FOR_ROUNDS]),
        ("pooled", 2, 2, &["sync.method=bsp", "embedding.pool_at=ps"]),
        (
            "scar",
            2,
            2,
            &[
                "sync.method=bsp",
                "recovery.mode=partial",
                "recovery.priority=scar",
                "recovery.inject.failures=steps",
                "recovery.inject.failure_steps=[5, 11]",
                "recovery.inject.job_s=100",
                "recovery.mtbf_s=30",
                "recovery.save_s=0.1",
                "recovery.load_s=0.1",
                "recovery.reschedule_s=0.1",
            ],
        ),
    ] {
        let races = if sets.contains(&"sync.method=bsp") { 1 } else { RACES };
        let mut difference = 0.0;
        for race in 0..races {
            let (run, seed) = (format!("{run}-{race}"), format!("seed={}", 7 + race));
            let sets = [&["data.test=many.h5", &seed], sets].concat();
            train(&folder, ranks, workers, &run, &sets);
            assert_eq!(others(&saved(&folder, &run)).0, 0, "{run}");
            assert!(auc(&folder, &run) > 0.6, "{run}: {}", auc(&folder, &run));
            let exact = format!("{run}-f32");
            let sets = [&sets[..], &["embedding.precision=f32"]].concat();
            train(&folder, ranks, workers, &exact, &sets);
            difference += (auc(&folder, &exact) - auc(&folder, &run)) / f64::from(races);
        }
        assert!(difference.abs() < 0.03, "{run}: {difference}");
    }
}
