//! Whole tables in partitions: the same model wherever rows are, fewer bytes where bags are pooled
//! by those who hold them, checkpoints that either way of dealing reads.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job, SavedModel, draws, manifest};

const ROWS: u32 = 2048;
/// The global batch.
const BATCH: usize = 256;

/// Two bags of `most` of 20 000 keys, less evenly a shop.
fn folder(most: u32) -> Folder {
    let folder = Folder::new();
    let mut below = draws();
    let mut text = String::from("click,hour,shop,interests,tags\n");
    for _ in 0..ROWS {
        let mut bag = || (0..most).map(|_| below(20_000).to_string()).collect::<Vec<_>>();
        let (interests, tags) = (bag().join("|"), bag().join("|"));
        text += &format!("{},{},s{},{interests},{tags}\n", below(2), below(24), below(5));
    }
    folder.write("clicks.csv", text);
    folder.write(
        "schema.toml",
        "label = \"click\"\ndense = [\"hour\"]\nsparse = [\"shop\", { column = \"interests\", \
         separator = \"|\" }, { column = \"tags\", separator = \"|\" }]\n",
    );
    let prepare = ["prepare", "--format", "csv", "--schema", "schema.toml", "--input"];
    let files = ["clicks.csv", "--output", "train.h5"];
    let _ = folder.umbra(1, &[&prepare[..], &files].concat()).fine();
    folder.write("job.toml", Job::PLAIN.text().replace("test = \"test.h5\"\n", ""));
    folder
}

/// Trains under `bsp`, a partition a rank, steps of one global batch.
fn train(folder: &Folder, ranks: usize, run: &str, more: &[&str]) -> Value {
    let batch = format!("train.batch_size={}", BATCH / ranks);
    let fixed = ["sync.method=bsp", &batch, "embedding.partitions=1", "run.overwrite=true"];
    folder.train(ranks, "job.toml", run, &[&fixed[..], more].concat());
    folder.summary(run)
}

fn last(folder: &Folder, run: &str) -> SavedModel {
    SavedModel::read(&folder.path(run).join("checkpoints/last"))
}

const TABLES: &str = "embedding.placement=tables";

/// Where rows are is not what they learn: under `bsp` to the bit, and in the file that other
/// programs read.
#[test]
fn a_model_is_the_same_wherever_its_rows_are() {
    let folder = folder(4);
    for ranks in [2, 4] {
        // Of six or twelve partitions three have rows.
        for more in [&[][..], &["embedding.partitions=3"], &["embedding.precision=bf16"]] {
            // Adam makes a difference in the last bit ten times as large every step.
            let adam = ["optim.sparse.kind=adam", "optim.sparse.lr=0.01"];
            let sets = [&adam, more].concat();
            train(&folder, ranks, "rows", &sets);
            let summary = train(&folder, ranks, "tables", &[&sets[..], &[TABLES]].concat());
            assert_eq!(summary["wire"]["embedding_placement"], "tables");
            let saved = manifest(&folder.path("tables/checkpoints/last"));
            assert_eq!(saved["owners"].as_array().unwrap().len(), 3);
            // Rounding of bf16s is by the row's number.
            if more != ["embedding.precision=bf16"] {
                assert!(last(&folder, "tables") == last(&folder, "rows"), "{ranks} ranks");
                for format in ["safetensors", "flat"] {
                    let [rows, tables] = ["rows", "tables"].map(|run| folder.export(run, format));
                    assert!(rows == tables, "{ranks} ranks, {format}");
                }
            }
        }
    }
}

/// A run that stops goes on from where its rows were to where they are now.
#[test]
fn checkpoints_are_read_either_way() {
    let folder = folder(4);
    train(&folder, 2, "whole", &["train.epochs=2"]);
    let expected = last(&folder, "whole");
    for (first, then) in
        [((4, TABLES), (2, "seed=7")), ((2, "seed=7"), (4, TABLES)), ((2, TABLES), (4, TABLES))]
    {
        let sets = |(ranks, placement): (usize, &'static str)| {
            let batch = format!("train.batch_size={}", BATCH / ranks);
            let fixed = ["sync.method=bsp", "train.epochs=2", "embedding.partitions=1"];
            let own = [batch, placement.to_owned()];
            fixed.into_iter().map(str::to_owned).chain(own).collect::<Vec<String>>()
        };
        let run = |(ranks, placement), more: &[&str]| {
            let sets = sets((ranks, placement));
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            folder.try_train(ranks, "job.toml", "run", &[&sets[..], more].concat())
        };
        let stop = ["recovery.inject.stop_step=9", "run.overwrite=true"];
        let ended = run(first, &stop);
        assert_eq!(ended.code, 75, "{first:?}: {}", ended.stderr);
        let _ = run(then, &[]).fine();
        assert!(last(&folder, "run") == expected, "{first:?}, then {then:?}");
    }
}

/// A bag's vector comes from the one rank that has its table, not from all; who chooses by bytes
/// chooses that, where it is even.
#[test]
fn whole_tables_answer_with_one_vector_a_bag() {
    let folder = folder(30);
    let bytes = |run: &Value| run["wire"]["embedding_bytes"].as_f64().unwrap();
    let ps = "embedding.pool_at=ps";
    let dealt = train(&folder, 4, "dealt", &[ps]);
    let whole = train(&folder, 4, "whole", &[ps, TABLES]);
    let ratio = bytes(&whole) / bytes(&dealt);
    assert!(ratio < 0.6, "{ratio}");
    for (run, placement) in [(&dealt, "embedding.placement=rows"), (&whole, TABLES)] {
        let sets = ["sync.method=bsp", "train.batch_size=64", "embedding.partitions=1"];
        let sets = Folder::sets("planned", &[&sets[..], &[ps, placement]].concat());
        let plan = ["train", "-c", "job.toml", "--dry-run", "--json", "--ranks", "4"];
        let plan: Vec<&str> = plan.into_iter().chain(sets.iter().map(String::as_str)).collect();
        let plan: Value = serde_json::from_str(&folder.umbra(1, &plan).fine().stdout).unwrap();
        let sent = |rank: &Value| rank["embedding"]["bytes_sent"].as_f64().unwrap();
        let planned: f64 = plan["ranks"].as_array().unwrap().iter().map(sent).sum();
        let counted = bytes(run) / run["steps"].as_f64().unwrap();
        assert!((planned / counted - 1.0).abs() < 0.02, "{placement}: {planned} of {counted}");
    }
    for (ranks, more, chosen) in [
        // Two tables for two ranks.
        (2, &[ps][..], "tables"),
        // And for four.
        (4, &[ps], "rows"),
        // Distinct rows are as many wherever they are.
        (2, &["embedding.pool_at=trainer"], "rows"),
    ] {
        let auto = ["embedding.placement=auto"];
        let run = train(&folder, ranks, "auto", &[more, &auto].concat());
        assert_eq!(run["wire"]["embedding_placement"], chosen, "{ranks} ranks, {more:?}");
    }
}
