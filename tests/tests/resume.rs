//! A run that is stopped and goes on.
//!
//! Under `bsp` it is the run that never stopped: the same bits, whatever the ranks it goes on with.
//! With the other methods it goes on from where it was.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_core::flat::Flat;
use umbra_core::rng::{Purpose, Stream};
use umbra_tests::{Folder, Job, LIMIT, SavedModel, manifest, mpirun, program, start, tensors};

/// Over all workers.
const GLOBAL_BATCH: usize = Job::DLRM.batch_size;
const ROWS: u64 = 5000;
const EPOCHS: u64 = 3;
/// Of the run.
const STEPS: u64 = EPOCHS * ROWS.div_ceil(GLOBAL_BATCH as u64);

/// Evaluations between epochs, and rates that fall where one brings nothing.
const SETS: [&str; 8] = [
    "train.epochs=3",
    "data.valid=test.h5",
    "train.eval_every=7",
    "train.early_stop.patience=100",
    "train.early_stop.lr_factor=0.5",
    "train.early_stop.min_delta=0.002",
    "optim.dense.warmup_steps=20",
    "run.tensorboard=false",
];

fn folder() -> Folder {
    let folder = Folder::new();
    folder.synth("train.h5", ROWS, 0);
    folder.synth("test.h5", 503, ROWS);
    folder.write("job.toml", Job::DLRM.text());
    folder
}

/// Trains on so many ranks; up to that step only, if one is named. Returns what it said.
fn train(folder: &Folder, ranks: usize, run: &str, stop: Option<u64>, sets: &[&str]) -> String {
    let batch = format!("train.batch_size={}", GLOBAL_BATCH / ranks);
    let asked = stop.map(|step| format!("recovery.inject.stop_step={}", step - 1));
    let own: Vec<&str> = [batch.as_str()].into_iter().chain(asked.as_deref()).collect();
    let ended = folder.try_train(ranks, "job.toml", run, &[&SETS[..], &own, sets].concat());
    let (code, status) = if stop.is_some() { (75, "stopped") } else { (0, "done") };
    assert_eq!(ended.code, code, "{}", ended.stderr);
    let summary = folder.summary(run);
    assert_eq!(summary["status"], status);
    let reason = summary["reason"].as_str().unwrap_or_default();
    assert_eq!(reason.starts_with("stopped by signal 10 after step "), stop.is_some(), "{reason}");
    ended.stderr
}

/// What a run leaves.
fn left(folder: &Folder, run: &str) -> (SavedModel, [Value; 2]) {
    let summary = folder.summary(run);
    let model = SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")));
    (model, ["valid", "test"].map(|split| summary[split].clone()))
}

/// Steps of the checkpoint that a run has written last.
fn saved(folder: &Folder, run: &str) -> u64 {
    manifest(&folder.path(&format!("{run}/checkpoints/last")))["steps"].as_u64().unwrap()
}

/// Five steps of the run, in order, each once.
fn cuts(seed: u64) -> Vec<u64> {
    let stream = Stream::new(seed, Purpose::Test(0));
    let mut cuts: Vec<u64> = (0..).map(|i| 1 + stream.below(i, STEPS - 1)).take(5).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

#[test]
fn a_run_cut_into_six_is_the_run_in_one_piece() {
    let folder = folder();
    let sets = ["sync.method=bsp"];
    train(&folder, 2, "whole", None, &sets);
    let whole = left(&folder, "whole");
    for seed in [1, 2] {
        let (run, cuts) = (format!("cut-{seed}"), cuts(seed));
        for cut in &cuts {
            train(&folder, 2, &run, Some(*cut), &sets);
            assert_eq!(saved(&folder, &run), *cut, "seed {seed}: {cuts:?}");
        }
        train(&folder, 2, &run, None, &sets);
        assert!(left(&folder, &run) == whole, "seed {seed}, cut at {cuts:?}");
    }
}

#[test]
fn a_run_goes_on_with_other_ranks_to_the_same_bits() {
    let folder = folder();
    let sets = ["sync.method=bsp"];
    train(&folder, 1, "whole", None, &sets);
    for (ranks, stop) in [(4, Some(9)), (2, Some(20)), (8, Some(33)), (1, None)] {
        let said = train(&folder, ranks, "moved", stop, &sets);
        assert_eq!(said.contains(BITS), ranks != 4, "{said}");
    }
    assert!(left(&folder, "moved") == left(&folder, "whole"));
}

/// What is said when it is so.
const BITS: &str = "the results are those of a run without a stop, bit for bit";

/// With other settings, or another instruction set, it is not so, and is not said.
#[test]
fn the_same_bits_are_promised_of_the_same_arithmetic_alone() {
    let folder = folder();
    let sets = ["sync.method=bsp", "run.log_every_s=3"];
    train(&folder, 2, "run", Some(9), &sets);
    let goes_on =
        |stop, more: &[&str]| train(&folder, 2, "run", Some(stop), &[&sets, more].concat());
    assert!(goes_on(12, &["embedding.partitions=3", "run.log_every_s=2"]).contains(BITS));
    for (stop, more) in [(15, "optim.dense.lr=0.004"), (18, "seed=9"), (21, "model.dropout=0.1")] {
        let said = goes_on(stop, &[more]);
        assert!(said.contains("umbra: going on from ") && !said.contains(BITS), "{more}: {said}");
    }
}

/// Written while training goes on, or while it waits: what a stop there would have saved. (Not
/// where the run is evaluated: that is part of the state, and comes after a stop.)
#[test]
fn a_checkpoint_on_the_way_is_of_its_step() {
    let folder = folder();
    train(&folder, 2, "stopped", Some(30), &["sync.method=bsp"]);
    let path = |run: &str| folder.path(&format!("{run}/checkpoints/step-30"));
    let stopped = SavedModel::read(&path("stopped"));
    for background in ["true", "false"] {
        let set = format!("checkpoint.background={background}");
        let run = format!("run-{background}");
        let sets = ["sync.method=bsp", "checkpoint.every=10", "checkpoint.keep=100", &set];
        let said = train(&folder, 2, &run, None, &sets);
        assert!(said.contains("step-30\n"), "{said}");
        assert!(SavedModel::read(&path(&run)) == stopped, "{set}");
        let saves = &folder.summary(&run)["checkpoint"];
        // On the way, those of the best models among them, and at the end.
        assert!(saves["count"].as_u64() > Some((STEPS - 1) / 10), "{saves}");
    }
}

/// Trainers with replicas of their own go on with them: what a method remembers is there.
#[test]
fn other_methods_go_on_where_they_were() {
    let folder = folder();
    for method in ["independent", "shadow_easgd", "foreground_bmuf", "ds_sync"] {
        let set = format!("sync.method={method}");
        for (ranks, stop) in [(2, Some(15)), (2, Some(40)), (4, Some(45)), (2, None)] {
            train(&folder, ranks, method, stop, &[&set]);
        }
        let whole = format!("{method}-whole");
        train(&folder, 2, &whole, None, &[&set]);
        let auc = |run: &str| folder.summary(run)["test"]["auc"].as_f64().unwrap();
        let (cut, whole) = (auc(method), auc(&whole));
        assert!((cut - whole).abs() < 0.05, "{method}: {cut}, and {whole} in one piece");
    }
}

/// Arguments of a training with those settings.
fn arguments(run: &str, sets: &[&str]) -> Vec<String> {
    let train = ["train", "-c", "job.toml"].map(str::to_owned);
    train.into_iter().chain(Folder::sets(run, sets)).collect()
}

/// A rank is killed in the middle; the job is started again and ends as if nothing had been.
#[test]
fn a_supervised_job_survives_the_loss_of_a_rank() {
    let folder = folder();
    let sets =
        ["sync.method=bsp", "train.batch_size=128", "train.epochs=60", "run.tensorboard=false"];
    let ended = folder.try_train(2, "job.toml", "whole", &sets);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let umbra = program("umbra");
    let mut job = vec!["launch".to_owned(), "--".into()];
    job.extend(mpirun(2));
    job.push(umbra.to_str().unwrap().into());
    job.extend(arguments("lost", &[&sets[..], &["checkpoint.every=5"]].concat()));
    let all: Vec<&str> = job.iter().map(String::as_str).collect();
    let mut running = start(folder.root(), 1, &umbra, &all, &[]);
    let latest = folder.path("lost/checkpoints/LATEST");
    let rank = running.rank_pids(2)[1];
    running.until("the first checkpoint", |_| latest.exists());
    let killed = std::process::Command::new("kill").args(["-9", &rank.to_string()]).status();
    assert!(killed.unwrap().success(), "it ended before it could be killed");
    let ended = running.wait(LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("umbra: starting again after exit code "), "{}", ended.stderr);
    assert!(ended.stderr.contains("umbra: going on from "), "{}", ended.stderr);
    assert!(left(&folder, "lost") == left(&folder, "whole"));
}

#[test]
fn the_newest_checkpoints_and_the_best_are_kept() {
    let folder = folder();
    let sets = ["checkpoint.every=9", "checkpoint.keep=2", "checkpoint.save=best"];
    train(&folder, 1, "run", None, &sets);
    let names = std::fs::read_dir(folder.path("run/checkpoints")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> =
        names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    let best = manifest(&folder.path("run/checkpoints/best"))["steps"].as_u64().unwrap();
    let latest = manifest(&folder.path("run/checkpoints/last"))["steps"].as_u64().unwrap();
    assert!(steps.contains(&best) && steps.contains(&latest), "{steps:?}: {best}, {latest}");
    // Two, and the best if it is none of them.
    let newest = steps.iter().filter(|step| **step != best).count();
    assert!((1..=2).contains(&newest), "{steps:?}, and best is {best}");
}

/// The newest is damaged: the one before is taken, and which and why is said.
#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let folder = folder();
    let sets = ["sync.method=bsp", "checkpoint.every=10"];
    train(&folder, 2, "whole", None, &sets);
    let own = [&SETS[..], &sets, &["train.batch_size=128"]].concat();
    for file in ["manifest.json", "rank-00001.safetensors"] {
        let stopped = |run: &str, damaged: fn(&str) -> bool| {
            train(&folder, 2, run, Some(25), &sets);
            let steps = std::fs::read_dir(folder.path(&format!("{run}/checkpoints"))).unwrap();
            let names = steps.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let of_steps = |name: &String| name.starts_with("step-");
            let (others, whole): (Vec<_>, Vec<_>) =
                names.filter(of_steps).partition(|name| damaged(name));
            for step in &others {
                let name = format!("{run}/checkpoints/{step}/{file}");
                let mut bytes = folder.read(&name);
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                folder.write(&name, bytes);
            }
            let newest = whole.iter().filter_map(|name| name[5..].parse::<u64>().ok()).max();
            (folder.try_train(2, "job.toml", run, &own), others.len(), newest)
        };
        let (run, none) = (format!("run-{file}"), format!("none-{file}"));
        let (ended, _, newest) = stopped(&run, |name| name == "step-25");
        let newest = newest.unwrap();
        assert!((20..25).contains(&newest), "{newest}");
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let passed = "umbra: warning: passed over a checkpoint: ";
        assert_eq!(ended.stderr.matches(passed).count(), 1, "{}", ended.stderr);
        let taken = format!("step-{newest}, step {newest} of ");
        assert!(ended.stderr.contains(&taken), "{}", ended.stderr);
        assert!(left(&folder, &run) == left(&folder, "whole"));
        // All that are there.
        let (ended, all, _) = stopped(&none, |_| true);
        assert_eq!(ended.code, 4, "{}", ended.stderr);
        assert!(all > 1 && ended.stderr.matches(passed).count() == all, "{}", ended.stderr);
        assert!(ended.stderr.contains("no checkpoint here is whole"), "{}", ended.stderr);
    }
    // Asked for by name, it is an error.
    let other = ["checkpoint.resume=broken", "train.batch_size=128"];
    std::fs::create_dir(folder.path("broken")).unwrap();
    folder.write("broken/manifest.json", "{}");
    let ended = folder.try_train(2, "job.toml", "other", &other);
    assert_eq!(ended.code, 4, "{}", ended.stderr);
}

#[test]
fn a_run_stops_before_its_time_is_over() {
    let folder = folder();
    let sets = ["train.epochs=100000", "run.max_time=3", "run.tensorboard=false"];
    let ended = folder.try_train(2, "job.toml", "run", &sets);
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    assert!(ended.stderr.contains("umbra: stopped before its time is over "), "{}", ended.stderr);
    assert!(saved(&folder, "run") > 0);
}

/// A second job in the folder of one that runs is refused, and the first does not notice.
#[test]
fn a_run_folder_has_one_job() {
    let folder = folder();
    let sets = ["train.epochs=100000", "run.tensorboard=false", "checkpoint.every=20"];
    let endless = arguments("run", &sets);
    let all: Vec<&str> = endless.iter().map(String::as_str).collect();
    let mut first = start(folder.root(), 1, &program("umbra"), &all, &[]);
    let lock = folder.path("run/run.lock");
    let latest = folder.path("run/checkpoints/LATEST");
    first.until("it has saved", |_| latest.exists());
    for resume in ["checkpoint.resume=auto", "checkpoint.resume=none"] {
        let second = folder.try_train(1, "job.toml", "run", &["run.overwrite=true", resume]);
        assert_eq!(second.code, 2, "{}", second.stderr);
        assert!(second.stderr.contains("another job writes there (host "), "{}", second.stderr);
        assert!(latest.exists(), "{resume}: what the first had saved is gone");
    }
    first.signal("TERM");
    assert_eq!(first.wait(LIMIT).code, 75);
    assert!(!lock.exists());
}

/// A second job that has not chosen its folder gets one of its own: numbered, or under a scheduler
/// named after the job, which finds it again.
#[test]
fn a_second_job_without_a_name_gets_its_own_folder() {
    let folder = folder();
    let job = |sets: &[&str], environment: &[(&str, &str)]| {
        let sets = [&["run.tensorboard=false", "train.epochs=2"], sets].concat();
        let sets: Vec<String> = sets.iter().map(|set| format!("--set={set}")).collect();
        let arguments: Vec<&str> = ["train", "-c", "job.toml"]
            .into_iter()
            .chain(sets.iter().map(String::as_str))
            .collect();
        start(folder.root(), 1, &program("umbra"), &arguments, environment)
    };
    let mut first = job(&["train.epochs=100000"], &[]);
    let metrics = folder.path("runs/job/metrics.jsonl");
    first.until("it has its folder", |_| metrics.exists());
    let slurm = [("SLURM_JOB_ID", "77")];
    for (name, environment) in [("job-2", &[][..]), ("job-3", &[]), ("job-77", &slurm)] {
        let stop = if name == "job-77" { 75 } else { 0 };
        let asked = if stop == 75 { &["recovery.inject.stop_step=9"][..] } else { &[] };
        let ended = job(asked, environment).wait(LIMIT);
        assert_eq!(ended.code, stop, "{}", ended.stderr);
        let says = format!("another job writes to runs/job; the run folder is runs/{name}\n");
        assert!(ended.stderr.contains(&says), "{}", ended.stderr);
        assert!(folder.path(&format!("runs/{name}/summary.json")).exists());
    }
    first.signal("TERM");
    assert_eq!(first.wait(LIMIT).code, 75);
    // The scheduler starts the third anew: it is not the first one that it goes on from.
    let ended = job(&[], &slurm).wait(LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("going on from runs/job-77/checkpoints/"), "{}", ended.stderr);
}

/// Nothing is recorded any more: that is said.
#[test]
fn a_run_folder_that_is_moved_away_is_missed() {
    let folder = folder();
    let sets = ["train.epochs=100000", "run.tensorboard=false", "run.log_every_s=0.1"];
    let endless = arguments("run", &sets);
    let all: Vec<&str> = endless.iter().map(String::as_str).collect();
    let mut running = start(folder.root(), 1, &program("umbra"), &all, &[]);
    let reports = |run: &str| {
        let metrics = std::fs::read_to_string(folder.path(run).join("metrics.jsonl"));
        metrics.unwrap_or_default().lines().count()
    };
    running.until("it reports", |_| reports("run") > 1);
    std::fs::rename(folder.path("run"), folder.path("moved")).unwrap();
    // The file that it has open goes with its folder.
    let before = reports("moved");
    running.until("it reports again", |_| reports("moved") > before);
    running.signal("USR1");
    let ended = running.wait(LIMIT);
    let warning = "umbra: warning: run: cannot write to it any more: ";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{}", ended.stderr);
}

/// Where nothing can be written, training goes on, and what was there stays.
#[test]
fn a_checkpoint_that_cannot_be_written_is_a_warning() {
    let folder = folder();
    // A folder where a file has to go.
    std::fs::create_dir_all(folder.path("run/checkpoints/LATEST/taken")).unwrap();
    let sets = ["checkpoint.every=20", "checkpoint.save=none"];
    let own = ["train.batch_size=128", "train.epochs=3", "run.tensorboard=false"];
    let ended = folder.try_train(2, "job.toml", "run", &[&own[..], &sets].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let warnings = ended.stderr.matches("umbra: warning: no checkpoint was written: ").count();
    assert_eq!(warnings, 2, "{}", ended.stderr);
}

/// What is exported is the model: the same values under the names of tensors and fields.
#[test]
fn an_export_is_the_model_without_its_state() {
    let folder = folder();
    train(&folder, 2, "run", None, &["sync.method=bsp", "embedding.partitions=3"]);
    let export = ["export", "--checkpoint", "run", "--format", "safetensors", "--output", "model"];
    let _ = folder.umbra(1, &export).fine();
    let bytes = folder.read("model");
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let values = |name: &str| {
        let place = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap();
        let [from, to] = [0, 1].map(|end| 8 + length + usize::try_from(place(end)).unwrap());
        bytes[from..to].to_vec()
    };
    let saved = folder.path("run/checkpoints/last");
    let manifest = manifest(&saved);
    let files = manifest["files"].as_array().unwrap().iter();
    let listed = files.flat_map(|file| file["tensors"].as_array().unwrap());
    let names = listed.filter_map(|tensor| tensor["name"].as_str().unwrap().strip_prefix("dense."));
    let names: Vec<&str> = names.filter(|name| !name.contains(".state.")).collect();
    assert!(names.contains(&"top.0.weight"), "{names:?}");
    for name in names {
        assert_eq!(values(name), tensors(&saved, |it| it == format!("dense.{name}")), "{name}");
    }
    let width = 4 * usize::try_from(manifest["row_width"].as_u64().unwrap()).unwrap();
    let fields = manifest["sparse_names"].as_array().unwrap().iter();
    let tables = fields.flat_map(|field| values(&format!("embedding.{}", field.as_str().unwrap())));
    let rows = SavedModel::read(&saved).rows;
    let rows: Vec<u8> = rows.iter().flat_map(|row| row[..width].to_vec()).collect();
    assert!(tables.eq(rows.iter().copied()));

    let flat = ["export", "--checkpoint", "run", "--format", "flat", "--output", "flat"];
    let _ = folder.umbra(1, &flat).fine();
    let bytes = folder.read("flat");
    let flat = Flat::parse(&bytes).unwrap();
    let replica: Vec<f32> = flat.replica().collect();
    for tensor in flat.model().tensors() {
        let flat: Vec<u8> = tensor.places().flat_map(|at| replica[at].to_le_bytes()).collect();
        assert_eq!(flat, values(&tensor.name.to_string()), "{}", tensor.name);
    }
    let all = (0..).map_while(|row| flat.row(row)).flatten().flat_map(f32::to_le_bytes);
    assert!(all.eq(rows), "rows of the flat model");
}

/// A file that is there stays, unless told otherwise; of an export that fails nothing stays.
#[test]
fn an_export_leaves_a_whole_file_or_none() {
    let folder = folder();
    train(&folder, 1, "run", Some(3), &["sync.method=bsp"]);
    let names = || std::fs::read_dir(folder.root()).unwrap().count();
    for format in ["safetensors", "flat"] {
        let export = ["export", "--checkpoint", "run", "--format", format, "--output", format];
        folder.write(format, "mine");
        let there = names();
        let refused = folder.umbra(1, &export);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains("replace it with --overwrite"), "{}", refused.stderr);
        assert_eq!(folder.text(format), "mine");
        let told = [&export[..], &["--overwrite"]].concat();
        let _ = folder.umbra(1, &told).fine();
        assert!(folder.read(format).len() > 1000);
        assert_eq!(names(), there);
    }
    // A bit of a row: everything is written when the checksum is compared.
    let saved = folder.path("run/checkpoints/last/rank-00000.safetensors");
    let file = manifest(&folder.path("run/checkpoints/last"))["files"][0].clone();
    let mut tensors = file["tensors"].as_array().unwrap().iter();
    let rows = tensors.find(|tensor| tensor["name"] == "rows.0").unwrap();
    let mut bytes = std::fs::read(&saved).unwrap();
    let at = usize::try_from(rows["offset"].as_u64().unwrap()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&saved, bytes).unwrap();
    let there = names();
    for format in ["safetensors", "flat"] {
        let export = ["export", "--checkpoint", "run", "--format", format, "--output", "damaged"];
        let ended = folder.umbra(1, &export);
        assert_eq!(ended.code, 4, "{}", ended.stderr);
        assert!(ended.stderr.contains("rows.0 has checksum"), "{}", ended.stderr);
        assert_eq!(names(), there, "{format}");
    }
}

/// Whatever call of a save is the last one: what is there is whole, and the run goes on from it.
/// Every fifth call here, since there are some two hundred.
#[test]
fn a_save_cut_short_anywhere_leaves_one_that_is_whole() {
    const STRIDE: usize = 5;
    let folder = folder();
    let sets = [
        "sync.method=bsp",
        "train.batch_size=256",
        "train.max_examples=4096",
        "checkpoint.every=6",
        "checkpoint.keep=1",
        "run.tensorboard=false",
    ];
    let ended = folder.try_train(1, "job.toml", "whole", &sets);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let whole = left(&folder, "whole");
    let umbra = program("umbra");
    let shim = umbra.with_file_name("examples").join("libcrash_point.so");
    let mut calls = 1;
    loop {
        let run = format!("crash-{calls}");
        let arguments = arguments(&run, &sets);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (shim, after) = (shim.to_str().unwrap(), calls.to_string());
        let crash =
            [("LD_PRELOAD", shim), ("CRASH_UNDER", "/checkpoints"), ("CRASH_AFTER", &after)];
        let ended = start(folder.root(), 1, &umbra, &arguments, &crash).wait(LIMIT);
        if ended.code == 0 {
            break;
        }
        assert_eq!(ended.code, 137, "call {calls}: {}", ended.stderr);
        let ended = folder.try_train(1, "job.toml", &run, &sets);
        assert_eq!(ended.code, 0, "after call {calls}: {}", ended.stderr);
        assert!(left(&folder, &run) == whole, "after call {calls}: {}", ended.stderr);
        let verify = ["checkpoint", "verify", &run];
        let _ = folder.umbra(1, &verify).fine();
        calls += STRIDE;
    }
    assert!(calls > 40, "{calls} calls in three saves");
}
