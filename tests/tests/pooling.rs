//! Bags that are pooled where their rows are, and vectors of which what passes is sent (DCT), over
//! real ranks.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job, draws, tensors};

const ROWS: usize = 3072;
/// The global batch.
const BATCH: usize = 256;
const STEPS: u64 = (ROWS / BATCH) as u64;

/// A shop, and two bags of up to `most` of so many `keys` that decide about the click.
fn clicks((keys, most): (u32, u32), item: impl Fn(u32, u32) -> String) -> String {
    let mut below = draws();
    let mut text = String::from("click,hour,shop,interests,tags\n");
    for _ in 0..ROWS {
        let mut bag = |least: u32| -> Vec<(u32, u32)> {
            let count = if most == 1 { 1 } else { least + below(most + 1 - least) };
            (0..count).map(|_| (below(keys), below(9))).collect()
        };
        let (interests, tags) = (bag(0), bag(1));
        let taste: i64 = interests.iter().chain(&tags).map(|(key, _)| i64::from(key % 2)).sum();
        let all = (interests.len() + tags.len()) as i64;
        let click = u32::from(2 * taste + i64::from(below(3)) > all + 1);
        let (hour, shop) = (below(24), below(5));
        let spelt = |bag: &[(u32, u32)]| {
            bag.iter().map(|(key, weight)| item(*key, *weight)).collect::<Vec<_>>().join("|")
        };
        text += &format!("{click},{hour},s{shop},{},{}\n", spelt(&interests), spelt(&tags));
    }
    text
}

fn prepare(folder: &Folder, name: &str, bags: (u32, u32), weighted: bool) {
    let separator = if weighted { "weight_separator = \":\", " } else { "" };
    let bag = |column: &str| format!("{{ column = \"{column}\", {separator}separator = \"|\" }}");
    let (interests, tags) = (bag("interests"), bag("tags"));
    folder.write(
        "schema.toml",
        format!(
            "label = \"click\"\ndense = [\"hour\"]\nsparse = [\"shop\", {interests}, {tags}]\n"
        ),
    );
    let item = |key: u32, weight: u32| {
        if weighted { format!("{key}:{}", f64::from(weight) / 4.0) } else { key.to_string() }
    };
    let (input, output) = (format!("{name}.csv"), format!("{name}.h5"));
    folder.write(&input, clicks(bags, item));
    let fixed = ["prepare", "--format", "csv", "--schema", "schema.toml", "--input", &input];
    let _ = folder.umbra(1, &[&fixed[..], &["--output", &output]].concat()).fine();
}

/// The same clicks with bags of one key, of several, of several with weights, and of many.
fn folder(names: &[&str]) -> Folder {
    let folder = Folder::new();
    for name in names {
        let bags = match *name {
            "one" => (200, 1),
            "long" => (20_000, 30),
            _ => (200, 6),
        };
        prepare(&folder, name, bags, *name == "weighted");
    }
    folder.write("job.toml", Job::PLAIN.text().replace("test = \"test.h5\"\n", ""));
    folder
}

/// Trains on `data`; every test has runs of one global batch.
fn train(folder: &Folder, data: &str, ranks: usize, run: &str, more: &[&str]) -> Value {
    let data = format!("data.train={data}.h5");
    let batch = format!("train.batch_size={}", BATCH / ranks);
    let fixed = [&data, &batch, "train.worker_threads=1", "run.overwrite=true"];
    folder.train(ranks, "job.toml", run, &[&fixed[..], more].concat());
    folder.summary(run)
}

const BSP: [&str; 2] = ["sync.method=bsp", "run.step_losses=true"];

fn bsp(folder: &Folder, data: &str, ranks: usize, run: &str, more: &[&str]) -> Value {
    train(folder, data, ranks, run, &[&BSP[..], more].concat())
}

fn losses(folder: &Folder, run: &str) -> Vec<f64> {
    let text = folder.text(&format!("{run}/losses.csv"));
    text.lines().skip(1).map(|line| line.split_once(',').unwrap().1.parse().unwrap()).collect()
}

fn model(folder: &Folder, run: &str) -> Vec<u8> {
    tensors(&folder.path(run).join("checkpoints/last"), |name| {
        name.starts_with("dense") || name.starts_with("rows")
    })
}

fn wire(run: &Value, name: &str) -> u64 {
    run["wire"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", run["wire"]))
}

/// Partial sums add up to the sums: to rounding where bags have several values, and to the bit
/// where a bag is on one rank.
#[test]
fn where_bags_are_pooled_changes_rounding_at_most() {
    let folder = folder(&["one", "many", "weighted"]);
    for (data, pooling, ranks) in [
        ("one", "sum", 2),
        ("one", "mean", 4),
        ("many", "sum", 2),
        ("many", "sum", 4),
        ("many", "mean", 2),
        ("weighted", "sum", 4),
        ("weighted", "mean", 2),
    ] {
        let what = format!("{data}, {pooling}, {ranks} ranks");
        let pooling = format!("model.pooling={pooling}");
        bsp(&folder, data, ranks, "trainer", &[&pooling]);
        bsp(&folder, data, ranks, "ps", &[&pooling, "embedding.pool_at=ps"]);
        let (trainer, ps) = (losses(&folder, "trainer"), losses(&folder, "ps"));
        assert_eq!((trainer.len() as u64, ps.len() as u64), (STEPS, STEPS), "{what}");
        assert!(trainer[11] < trainer[0], "{what}: nothing is learnt");
        for (one, other) in trainer.iter().zip(&ps) {
            assert!((one - other).abs() < 1e-6, "{what}: {one} and {other}");
        }
        let same = model(&folder, "trainer") == model(&folder, "ps");
        assert_eq!(same, data == "one", "{what}");
    }
}

/// With all elements kept they are the vectors that pass no threshold, and what is counted is what
/// was sent.
#[test]
fn all_elements_are_the_vectors_and_the_ledger_adds_up() {
    let folder = folder(&["many"]);
    for ranks in [2, 4] {
        let rows = bsp(&folder, "many", ranks, "rows", &[]);
        let ps = bsp(&folder, "many", ranks, "ps", &["embedding.pool_at=ps"]);
        let all = ["compress.mp_keep=1", "compress.values=f32"];
        let all = bsp(&folder, "many", ranks, "all", &all);
        assert!(model(&folder, "all") == model(&folder, "ps"), "{ranks} ranks");
        assert!(folder.text("all/losses.csv") == folder.text("ps/losses.csv"));
        let few = bsp(&folder, "many", ranks, "few", &["compress.mp_keep=0.2"]);
        // Of every step and pair of ranks an answer of three words says that a push was taken.
        let acks = 12 * STEPS * (ranks * (ranks - 1)) as u64;
        for run in [&ps, &all, &few] {
            let sent = wire(run, "embedding_bytes");
            assert_eq!(wire(run, "embedding_bytes_coded") + acks, sent, "{}", run["wire"]);
        }
        for run in [&ps, &all] {
            let [kept, there] =
                ["kept", "total"].map(|of| wire(run, &format!("embedding_elements_{of}")));
            assert!(kept == there && kept > 0);
            assert_eq!(wire(run, "embedding_bytes_coded"), wire(run, "embedding_bytes_uncoded"));
        }
        assert_eq!(wire(&few, "embedding_bytes_uncoded"), wire(&ps, "embedding_bytes_coded"));
        // What rows would have taken, to the byte.
        assert_eq!(wire(&ps, "embedding_bytes_rows") + acks, wire(&rows, "embedding_bytes"));
        assert_eq!(rows["wire"]["embedding_bytes_rows"], Value::Null);
        let share = wire(&few, "embedding_elements_kept") as f64
            / wire(&few, "embedding_elements_total") as f64;
        assert!((0.1..0.3).contains(&share), "{share}");
    }
}

/// What a threshold lets through depends on nobody's speed.
#[test]
fn masked_runs_repeat_bit_for_bit_and_learn() {
    let folder = folder(&["many"]);
    let keep = ["compress.mp_keep=0.3", "compress.refresh_every=4", "data.test=many.h5"];
    for ranks in [2, 4] {
        let first = bsp(&folder, "many", ranks, "first", &keep);
        let again = bsp(&folder, "many", ranks, "again", &keep);
        assert!(model(&folder, "first") == model(&folder, "again"), "{ranks} ranks");
        assert!(folder.text("first/losses.csv") == folder.text("again/losses.csv"));
        assert_eq!(wire(&first, "embedding_bytes_coded"), wire(&again, "embedding_bytes_coded"));
        let auc = |run: &Value, of: &str| run[of]["auc"].as_f64().unwrap();
        assert!(auc(&first, "test") > 0.55 && auc(&first, "test_masked") > 0.55, "{first}");
        assert!(first["test"] != first["test_masked"]);
        assert_eq!(first["test_masked"], again["test_masked"]);
    }
}

#[test]
fn every_kind_of_method_trains_through_masks() {
    let folder = folder(&["weighted"]);
    let switch = ["sync.switch.to=bsp", "sync.switch.at=[9]"];
    let separate = ["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=2"];
    for (method, ranks, more) in [
        ("gba", 2, &[][..]),
        ("gba", 2, &switch),
        ("async_ps", 3, &[]),
        ("shadow_easgd", 2, &["train.worker_threads=2"]),
        ("foreground_ma", 3, &[]),
        ("bsp", 4, &separate),
        ("auto", 1, &[]),
    ] {
        let method = format!("sync.method={method}");
        let fixed = [&*method, "compress.mp_keep=0.5", "train.epochs=4"];
        let run = train(&folder, "weighted", ranks, "run", &[&fixed[..], more].concat());
        assert_eq!(run["status"], "done", "{method}");
        let loss = run["train"]["logloss"].as_f64().unwrap();
        assert!(loss < 0.69, "{method}: {loss}");
        assert!(ranks == 1 || wire(&run, "embedding_elements_kept") > 0, "{method}");
    }
}

/// What is not finite passes every mask, and ends the run as it does without.
#[test]
fn what_is_not_finite_is_told() {
    let folder = folder(&["many"]);
    let bad = [
        "sync.method=bsp",
        "data.train=many.h5",
        "recovery.inject.nan_trainer=1",
        "recovery.inject.nan_step=5",
    ];
    let run = |name: &str, more: &[&str]| {
        let ended = folder.try_train(2, "job.toml", name, &[&bad[..], more].concat());
        (ended.code, folder.summary(name)["status"].clone())
    };
    let plain = run("plain", &[]);
    assert_eq!(run("masked", &["compress.mp_keep=0.2"]), plain);
}

/// Vectors without thresholds have no memory: where rows stay where they are, a run that goes on is
/// the one that never stopped.
#[test]
fn a_run_that_goes_on_says_what_it_keeps() {
    let folder = folder(&["many"]);
    for (key, bits) in [("embedding.pool_at=ps", true), ("compress.mp_keep=0.5", false)] {
        let whole = [key, "train.epochs=2"];
        bsp(&folder, "many", 2, "whole", &whole);
        let fixed = ["data.train=many.h5", "train.batch_size=128", "run.step_losses=true"];
        let sets = [&fixed[..], &["sync.method=bsp"], &whole].concat();
        let stop = [&sets[..], &["recovery.inject.stop_step=9", "run.overwrite=true"]].concat();
        let ended = folder.try_train(2, "job.toml", "run", &stop);
        assert_eq!(ended.code, 75, "{}", ended.stderr);
        let ended = folder.train(2, "job.toml", "run", &sets);
        let said = ended.stderr.contains("bit for bit");
        assert_eq!(said, bits, "{key}: {}", ended.stderr);
        assert!(!bits || model(&folder, "run") == model(&folder, "whole"));
    }
}

#[test]
fn keys_without_effect_are_refused() {
    let folder = folder(&[]);
    for (set, says) in [
        ("compress.mp_keep=0", "compress.mp_keep"),
        ("compress.values=f32", "or compress.mp_keep"),
        ("embedding.pool_at=somewhere", "embedding.pool_at"),
    ] {
        let ended = folder.try_train(2, "job.toml", "run", &["data.train=none.h5", set]);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}

fn dry_run(folder: &Folder, ranks: usize, sets: &[&str], more: &[&str]) -> String {
    let ranks = ranks.to_string();
    let fixed = [&["train", "-c", "job.toml", "--dry-run", "--ranks", &ranks], more].concat();
    let sets = Folder::sets("planned", sets);
    let arguments: Vec<&str> = fixed.into_iter().chain(sets.iter().map(String::as_str)).collect();
    folder.umbra(1, &arguments).fine().stdout
}

/// Nothing is predicted that is not so: of whole vectors all ranks' bytes and messages, and with
/// thresholds about as many, since what is far above passes for a while.
#[test]
fn bytes_of_vectors_are_expected_before_a_run() {
    let folder = folder(&["many", "weighted"]);
    let separate = ["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=2"];
    let cases = [
        ("many", 2, "bsp", &["embedding.pool_at=ps"][..]),
        ("many", 4, "bsp", &["embedding.pool_at=ps", "train.worker_threads=2"]),
        ("weighted", 2, "foreground_ma", &["embedding.pool_at=ps", "model.pooling=mean"]),
        ("weighted", 4, "bsp", &[&["embedding.pool_at=ps"], &separate[..]].concat()),
        ("many", 2, "bsp", &["compress.mp_keep=0.2"]),
        ("many", 4, "bsp", &["compress.mp_keep=0.2", "compress.values=f32"]),
    ];
    for (data, ranks, method, more) in cases {
        let (data, method) = (format!("data.train={data}.h5"), format!("sync.method={method}"));
        let batch = format!("train.batch_size={}", BATCH / ranks);
        let fixed = [&*data, &batch, &method, "train.worker_threads=1", "run.overwrite=true"];
        let sets = [&fixed[..], more].concat();
        let planned = dry_run(&folder, ranks, &sets, &["--json"]);
        let planned: Value = serde_json::from_str(&planned).unwrap();
        folder.train(ranks, "job.toml", "run", &sets);
        let run = folder.summary("run");
        let steps = run["steps"].as_f64().unwrap();
        let counted = run["wire"]["ranks"].as_array().unwrap().iter();
        for (counted, planned) in counted.zip(planned["ranks"].as_array().unwrap()) {
            for figure in ["messages_sent", "bytes_sent", "messages_received", "bytes_received"] {
                let sent = counted["embedding"][figure].as_f64().unwrap() / steps;
                let expected = planned["embedding"][figure].as_f64().unwrap();
                let exact = figure.starts_with("messages") || more[0].ends_with("ps");
                let (least, most) = if exact { (0.98, 1.02) } else { (0.75, 1.25) };
                let fits = least * expected <= sent && sent <= most * expected;
                assert!(fits, "{sets:?}, {figure}: {sent} a step, expected {expected}");
            }
            assert!(planned["embedding_held_bytes"].as_f64().unwrap() > 0.0);
        }
        let said = dry_run(&folder, ranks, &sets, &[]);
        assert!(said.contains("\nrows        a step") && said.contains("\nunder way "), "{said}");
    }
}

/// `pool_at` in the configuration that a run has written.
fn pool_at(folder: &Folder, run: &str) -> String {
    let config = folder.text(&format!("{run}/config.toml"));
    let line = config.lines().find_map(|line| line.strip_prefix("pool_at = ")).unwrap();
    line.trim_matches('"').to_owned()
}

/// Distinct rows where a bag has one key, vectors where bags are long and keys are many; and the
/// run is that of who sets it.
#[test]
fn auto_is_what_sends_fewer_bytes() {
    let folder = folder(&["one", "long"]);
    for (data, chosen, ranks) in
        [("one", "trainer", 2), ("one", "trainer", 4), ("long", "ps", 2), ("long", "ps", 4)]
    {
        let set = format!("embedding.pool_at={chosen}");
        let plain = bsp(&folder, data, ranks, "plain", &[&set]);
        let auto = bsp(&folder, data, ranks, "auto", &["embedding.pool_at=auto"]);
        assert_eq!(auto["wire"]["embedding_pool_at"], chosen, "{}", auto["wire"]);
        assert_eq!(pool_at(&folder, "auto"), chosen);
        assert!(model(&folder, "auto") == model(&folder, "plain"), "{data}, {ranks} ranks");
        assert!(folder.text("auto/losses.csv") == folder.text("plain/losses.csv"));
        assert_eq!(wire(&auto, "embedding_bytes"), wire(&plain, "embedding_bytes"));
        assert_eq!(plain["wire"]["embedding_pool_at"], Value::Null);
        let of = |name: &str| {
            let bytes = auto["wire"][format!("embedding_step_bytes_{name}")].as_f64();
            bytes.unwrap_or_else(|| panic!("{}", auto["wire"]))
        };
        let other = if chosen == "ps" { "trainer" } else { "ps" };
        assert!(of(chosen) < of(other), "{}", auto["wire"]);
        let sent = wire(&auto, "embedding_bytes") as f64 / STEPS as f64;
        assert!((of(chosen) / sent - 1.0).abs() < 0.02, "{sent} a step: {}", auto["wire"]);
        if chosen == "ps" {
            // What rows would have been, without the pushes' acknowledgements.
            let rows = wire(&auto, "embedding_bytes_rows") as f64 / STEPS as f64;
            assert!((of(other) / rows - 1.0).abs() < 0.02, "{rows} a step: {}", auto["wire"]);
        }
        let (data, batch) =
            (format!("data.train={data}.h5"), format!("train.batch_size={}", BATCH / ranks));
        let sets = [&*data, &batch, "sync.method=bsp", "embedding.pool_at=auto"];
        let planned: Value =
            serde_json::from_str(&dry_run(&folder, ranks, &sets, &["--json"])).unwrap();
        assert_eq!(planned["pooling"]["pool_at"], chosen);
        assert_eq!(planned["pooling"][format!("bytes_{chosen}")], of(chosen));
        let said = dry_run(&folder, ranks, &sets, &[]);
        assert!(said.contains(&format!("expected: it is \"{chosen}\"")), "{said}");
    }
}

/// The choice is made once; nothing is left open where there is none.
#[test]
fn a_run_keeps_what_was_chosen() {
    let folder = folder(&["long"]);
    let auto = "embedding.pool_at=auto";
    let change = ["sync.method=gba", "sync.switch.to=bsp", "sync.switch.at=[6]", auto];
    let run = train(&folder, "long", 2, "changed", &change);
    assert_eq!(run["wire"]["embedding_pool_at"], "ps");
    assert!(wire(&run, "embedding_bytes_rows") > wire(&run, "embedding_bytes_coded"));
    // By bytes it would be "ps": what a run has begun with it goes on with.
    for (before, says) in [(auto, "it is \"ps\"\n"), ("embedding.pool_at=trainer", "as before it")]
    {
        let fixed = ["data.train=long.h5", "train.batch_size=128", "train.epochs=2"];
        let fixed = [&fixed[..], &BSP].concat();
        let chosen = if before == auto { "ps" } else { "trainer" };
        bsp(&folder, "long", 2, "whole", &["train.epochs=2", before]);
        let stop = ["recovery.inject.stop_step=9", "run.overwrite=true", before];
        let ended = folder.try_train(2, "job.toml", "run", &[&fixed[..], &stop].concat());
        assert_eq!(ended.code, 75, "{}", ended.stderr);
        let ended = folder.train(2, "job.toml", "run", &[&fixed[..], &[auto]].concat());
        assert!(ended.stderr.contains("bit for bit"), "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
        assert!(model(&folder, "run") == model(&folder, "whole"), "{before}");
        assert_eq!(folder.summary("run")["wire"]["embedding_pool_at"], chosen);
        assert_eq!(pool_at(&folder, "run"), chosen);
    }
    // Alone nobody sends anything; with thresholds vectors travel whatever the bytes.
    for (ranks, keep, expected) in [(1, &[][..], "trainer"), (2, &["compress.mp_keep=0.5"], "ps")] {
        let run = train(&folder, "long", ranks, "settled", &[&[auto], keep].concat());
        assert_eq!(pool_at(&folder, "settled"), expected);
        assert_eq!(run["wire"]["embedding_pool_at"], Value::Null);
    }
    folder.write(
        "cluster.toml",
        "trainers = 2\nsteps = 5\n[link]\nbytes_per_s = 1e8\n[compute]\nexample_us = 10\n",
    );
    let sets = Folder::sets("virtual", &["data.train=long.h5", auto]);
    let verb = ["simulate", "-c", "job.toml", "--cluster", "cluster.toml"];
    let verb: Vec<&str> = verb.into_iter().chain(sets.iter().map(String::as_str)).collect();
    drop(folder.umbra(1, &verb).fine());
    assert_eq!(pool_at(&folder, "virtual"), "trainer");
}
