//! Days of clicks: rows in their order, figures from before they are learnt, and a model that goes
//! on into tables that have grown.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job, SavedModel, manifest};

/// Clicks of two fields of `keys` keys each, as csv. The n-th key of a field is seen more often
/// than the next, so it has id n + 1, whatever keys come behind it.
fn day(keys: usize, weight: u32) -> String {
    let of_key = |key: usize| core::iter::repeat_n(key, 4 * (keys - key) + 16);
    let seen: Vec<usize> = (0..keys).flat_map(of_key).collect();
    let mut text = String::from("click,user,item,hour,weight\n");
    for row in 0..seen.len() {
        // Both are permutations of the rows: 11 and 13 do not divide their number.
        let (user, item) = (seen[(row * 13 + 5) % seen.len()], seen[(row * 11 + 3) % seen.len()]);
        let click = u32::from((user + 2 * item + row % 2).is_multiple_of(3));
        text += &format!("{click},u{user:02},i{item:02},{},{weight}\n", row % 24);
    }
    text
}

const SCHEMA: &str = "label = \"click\"\ndense = [\"hour\"]\nsparse = [\"user\", \"item\"]\n\
                      weight = \"weight\"\n";

/// Keys of each field on three days.
const KEYS: [usize; 3] = [8, 12, 15];

/// The days as data sets, each with the vocabulary of the day before and its own new keys: dayN.h5,
/// idleN.h5 of weights 0, from which nothing is learnt, and day1-as-3.h5, the first with the ids
/// of the third.
fn days() -> Folder {
    let folder = Folder::new();
    folder.write("job.toml", Job::PLAIN.text().replace("test = \"test.h5\"\n", ""));
    folder.write("schema.toml", SCHEMA);
    for (number, keys) in (1..).zip(KEYS) {
        for (kind, weight) in [("day", 1), ("idle", 0)] {
            folder.write(&format!("{kind}{number}.csv"), day(keys, weight));
            let (name, before) = (format!("{kind}{number}"), format!("day{}.h5", number - 1));
            let grown = ["--vocabulary", &*before, "--grow"];
            prepare(&folder, &name, &name, if number > 1 { &grown } else { &[] });
        }
    }
    prepare(&folder, "day1", "day1-as-3", &["--vocabulary", "day3.h5"]);
    folder
}

fn prepare(folder: &Folder, text: &str, output: &str, more: &[&str]) {
    let (input, output) = (format!("{text}.csv"), format!("{output}.h5"));
    let fixed = ["prepare", "--format", "csv", "--schema", "schema.toml", "--input", &input];
    let _ = folder.umbra(1, &[&fixed[..], &["--output", &output], more].concat()).fine();
}

fn saved(folder: &Folder, run: &str) -> SavedModel {
    SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")))
}

/// Rows of a table of `keys` keys, and the key that is none.
fn table(model: &SavedModel, field: usize, keys: usize) -> &[Vec<u8>] {
    &model.rows[field * (keys + 1)..(field + 1) * (keys + 1)]
}

fn predictions(folder: &Folder, run: &str, data: &str) -> String {
    let checkpoint = format!("{run}/checkpoints/last");
    let output = format!("{run}-{data}.txt");
    let arguments = ["predict", "--checkpoint", &checkpoint, "--data", data, "--output", &output];
    let _ = folder.umbra(1, &arguments).fine();
    folder.text(&output)
}

#[test]
fn a_model_goes_on_into_tables_that_have_grown() {
    let folder = days();
    let train = |ranks: usize, data: &str, run: &str, more: &[&str]| {
        let data = format!("data.train={data}.h5");
        folder.train(ranks, "job.toml", run, &[&[&*data, "run.tensorboard=false"], more].concat())
    };
    train(1, "day1", "first", &["train.epochs=3"]);
    let first = saved(&folder, "first");
    let warm = "checkpoint.warm_start=first/checkpoints/last";
    for ranks in [1, 2, 3] {
        // The same vocabulary: the same model, with all of its state.
        let same = format!("same-{ranks}");
        train(ranks, "idle1", &same, &[warm]);
        assert!(saved(&folder, &same) == first, "{ranks} ranks");
        let updates = |run: &str| {
            manifest(&folder.path(&format!("{run}/checkpoints/last")))["updates"].clone()
        };
        assert_eq!(updates(&same), updates("first"));

        // One that has grown: what was there, and behind it what a new table begins with.
        let (grown, fresh) = (format!("grown-{ranks}"), format!("fresh-{ranks}"));
        let ended = train(ranks, "idle2", &grown, &[warm, "embedding.partitions=2"]);
        assert!(ended.stderr.contains("18 rows, and 8 new ones"), "{}", ended.stderr);
        train(ranks, "idle2", &fresh, &[]);
        let (grown, fresh) = (saved(&folder, &grown), saved(&folder, &fresh));
        assert!(grown.dense == first.dense && grown.dense != fresh.dense);
        for field in [0, 1] {
            let old = table(&first, field, KEYS[0]);
            let (now, begun) = (table(&grown, field, KEYS[1]), table(&fresh, field, KEYS[1]));
            assert_eq!(now[..old.len()], old[..], "{ranks} ranks: field {field}");
            assert_eq!(now[old.len()..], begun[old.len()..], "{ranks} ranks: field {field}");
            assert_ne!(now[..old.len()], begun[..old.len()]);
        }
    }
    // Without optimizer state that of all rows begins anew, whatever it was.
    let bare = [warm, "checkpoint.warm_state=false"];
    train(2, "idle2", "bare", &bare);
    let (bare_model, fresh) = (saved(&folder, "bare"), saved(&folder, "fresh-2"));
    let values = |rows: &[Vec<u8>]| rows.iter().map(|row| row[..32].to_vec()).collect::<Vec<_>>();
    for field in [0, 1] {
        let (now, old) = (table(&bare_model, field, KEYS[1]), table(&first, field, KEYS[0]));
        assert_eq!(values(&now[..old.len()]), values(old));
        let begun = table(&fresh, field, KEYS[1]);
        assert!(now.iter().zip(begun).all(|(now, begun)| now[32..] == begun[32..]));
    }
    let other = [&bare[..], &["optim.sparse.kind=adam", "optim.dense.kind=sgd"]].concat();
    train(1, "idle2", "other", &other);

    // The next days: ids are stable, so a model scores the old clicks as it did.
    train(2, "day2", "second", &[warm]);
    train(1, "idle3", "third", &["checkpoint.warm_start=second"]);
    let (second, third) = (saved(&folder, "second"), saved(&folder, "third"));
    assert!(second.dense == third.dense && second.dense != first.dense);
    prepare(&folder, "day1", "day1-as-2", &["--vocabulary", "day2.h5"]);
    let scored = predictions(&folder, "second", "day1-as-2.h5");
    assert_eq!(scored, predictions(&folder, "third", "day1-as-3.h5"));
    assert_ne!(scored, predictions(&folder, "first", "day1.h5"));
}

#[test]
fn a_model_that_does_not_fit_is_refused() {
    let folder = days();
    folder.train(1, "job.toml", "second", &["data.train=day2.h5"]);
    let refused = |code: i32, says: &str, sets: &[&str]| {
        let all = [&["data.train=day2.h5", "checkpoint.warm_start=second"], sets].concat();
        for ranks in [1, 2] {
            let ended = folder.try_train(ranks, "job.toml", "refused", &all);
            assert_eq!(ended.code, code, "{}", ended.stderr);
            assert!(ended.stderr.contains(says), "{}", ended.stderr);
        }
    };
    let rows =
        "field 0 `user` has 13 rows in the checkpoint and 9 here: a vocabulary may only grow";
    refused(4, rows, &["data.train=day1.h5"]);
    // Other keys, or keys of which nobody can tell.
    folder.write("others.csv", day(14, 1).replace(",u0", ",v0").replace(",u1", ",v1"));
    prepare(&folder, "others", "others", &[]);
    let keys = "field 0 `user`: its key list does not begin with the saved model's";
    refused(4, keys, &["data.train=others.h5"]);
    refused(4, "none of data.train keeps it", &["data.train=day1-as-3.h5"]);
    refused(4, "[model] is", &["model.top=[24, 8]"]);
    refused(4, "checkpoint.warm_state = false", &["optim.dense.kind=adam"]);
    refused(4, "is no checkpoint", &["checkpoint.warm_start=nowhere"]);
    let alone = ["data.train=day2.h5", "checkpoint.warm_state=false"];
    let ended = folder.try_train(1, "job.toml", "refused", &alone);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("checkpoint.warm_start"), "{}", ended.stderr);
    // What a run is to replace it does not begin with.
    let own = ["data.train=day2.h5", "checkpoint.warm_start=second", "run.overwrite=true"];
    let ended = folder.try_train(1, "job.toml", "second", &own);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("this run's own folder"), "{}", ended.stderr);
    assert!(folder.path("second/checkpoints/last/manifest.json").exists());
}

/// What a run says of its first pass.
fn progressive(folder: &Folder, run: &str) -> Value {
    folder.summary(run)["progressive"].clone()
}

#[test]
fn every_example_is_scored_once_before_it_is_learnt() {
    let folder = Job::DLRM.folder(3001, 503);
    let common = ["train.progressive=true", "data.shuffle=false", "run.tensorboard=false"];
    let train = |ranks: usize, run: &str, sets: &[&str]| {
        folder.train(ranks, "job.toml", run, &[&common[..], sets].concat());
    };
    // Where nothing is learnt, figures are those of an evaluation.
    let still = ["optim.dense.lr=1e-30", "optim.sparse.lr=1e-30", "model.batch_norm=false"];
    train(1, "still", &[&still[..], &["model.dropout=0"]].concat());
    let (before, after) = (progressive(&folder, "still"), folder.eval(1, "still", "train.h5"));
    assert_eq!(before["examples"], 3001);
    for (figure, by) in [("auc", 1e-4), ("logloss", 1e-9), ("calibration", 1e-9)] {
        let (one, two) = (before[figure].as_f64().unwrap(), after[figure].as_f64().unwrap());
        assert!((one - two).abs() < by, "{figure}: {one}, {two}");
    }
    // In time order and under bsp they do not depend on ranks; later passes do not count.
    let bsp = ["sync.method=bsp", "train.eval_every=4", "train.epochs=2"];
    let passes = [(1, 1), (2, 1), (4, 1), (2, 2)].map(|(ranks, threads)| {
        let run = format!("bsp-{ranks}-{threads}");
        let batch = format!("train.batch_size={}", 256 / (ranks * threads));
        let threads = format!("train.worker_threads={threads}");
        train(ranks, &run, &[&bsp[..], &[&batch, &threads]].concat());
        let model = saved(&folder, &run);
        (run.clone(), progressive(&folder, &run), model)
    });
    let (run, figures, model) = &passes[0];
    for (other, theirs, other_model) in &passes[1..] {
        assert_eq!(theirs, figures, "{other}");
        assert!(other_model == model, "{other}");
    }
    assert_eq!((&figures["examples"], &figures["from_step"]), (&3001.into(), &0.into()));
    // Windows of 4 steps of 256 examples, of which the last is cut by the end of the pass.
    let metrics = folder.text(&format!("{run}/metrics.jsonl"));
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let windows: Vec<u64> =
        lines.filter_map(|line| line["progressive"]["examples"].as_u64()).collect();
    assert_eq!(windows, [1024, 1024, 953]);
    // A run that goes on says from where it counts.
    let stop = [&bsp[..], &["recovery.inject.stop_step=5", "train.batch_size=256"]].concat();
    let all = [&common[..], &stop].concat();
    assert_eq!(folder.try_train(1, "job.toml", "goes-on", &all).code, 75);
    train(1, "goes-on", &[&bsp[..], &["train.batch_size=256"]].concat());
    let rest = progressive(&folder, "goes-on");
    assert_eq!((&rest["from_step"], &rest["examples"]), (&6.into(), &(3001 - 6 * 256).into()));
    assert!(saved(&folder, "goes-on") == *model);
}
