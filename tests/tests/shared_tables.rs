//! Fields that share a table: one set of rows, whoever brings an id.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Folder, Job, draws, manifest};

const ROWS: usize = 1024;
/// The global batch.
const BATCH: usize = 128;
/// Ids of a shared table.
const ITEMS: usize = 50;
/// f32s of a row: the vector and a weight.
const WIDTH: usize = 9;
const SHARED: &str = "embedding.shared=[[\"seen\", \"item\"]]";

/// Items that were seen last and are looked at, and a shop, as the fields `order`: `train.h5`, and
/// with the items exchanged `other.h5`.
fn folder(order: [&str; 3]) -> Folder {
    let folder = Folder::new();
    let mut below = draws();
    let rows: Vec<[u32; 4]> = (0..ROWS).map(|_| [2, 900, 5, 900].map(&mut below)).collect();
    let text = |items: [usize; 2]| {
        let line = |row: &[u32; 4]| {
            format!("{},i{},s{},i{}\n", row[0], row[items[0]], row[2], row[items[1]])
        };
        format!("click,seen,shop,item\n{}", rows.iter().map(line).collect::<String>())
    };
    let fields = order.map(|name| match name {
        "shop" => "\"shop\"".to_owned(),
        _ => format!("{{ column = \"{name}\", hash_size = {ITEMS} }}"),
    });
    let fields = fields.join(", ");
    folder.write("schema.toml", format!("label = \"click\"\nsparse = [{fields}]\n"));
    for (name, items) in [("train", [1, 3]), ("other", [3, 1])] {
        let (csv, h5) = (format!("{name}.csv"), format!("{name}.h5"));
        folder.write(&csv, text(items));
        let prepare = ["prepare", "--format", "csv", "--schema", "schema.toml", "--input", &csv];
        let _ = folder.umbra(1, &[&prepare[..], &["--output", &h5]].concat()).fine();
    }
    // No dense features: a factorization machine, whose score is a sum over fields. Adam makes a
    // difference in the last bit ten times as large every step.
    let job = Job {
        model: "kind = \"fm\"\nembedding_dim = 8",
        optim: [("adam", 0.01), ("adam", 0.01)],
        batch_size: BATCH,
    };
    folder.write("job.toml", job.text().replace("test = \"test.h5\"\n", ""));
    folder
}

const APART: [&str; 3] = ["seen", "shop", "item"];

/// Trains under `bsp` and returns the exported model.
fn trained(folder: &Folder, ranks: usize, more: &[&str]) -> Vec<u8> {
    let batch = format!("train.batch_size={}", BATCH / ranks);
    let fixed = ["sync.method=bsp", &batch, "run.overwrite=true"];
    folder.train(ranks, "job.toml", "run", &[&fixed[..], more].concat());
    folder.export("run", "safetensors")
}

/// Ranks, partitions and placement are not what is learnt.
#[test]
fn a_shared_table_is_the_same_wherever_its_rows_are() {
    let folder = folder(APART);
    let expected = trained(&folder, 1, &[SHARED]);
    let saved = manifest(&folder.path("run/checkpoints/last"));
    assert_eq!(saved["table_of"], serde_json::json!([0, 1, 0]));
    for ranks in [2, 4] {
        for placement in ["rows", "tables"] {
            let placement = format!("embedding.placement={placement}");
            let own = trained(&folder, ranks, &[SHARED, &placement, "embedding.partitions=2"]);
            assert!(own == expected, "{ranks} ranks, {placement}");
        }
    }
    // A table of its own for every field in the flat model: the same one twice.
    let flat = folder.export("run", "flat");
    let (shops, row) = (6, 4 * WIDTH);
    let rows = &flat[flat.len() - 8 - (2 * ITEMS + shops) * row..flat.len() - 8];
    assert!(rows[..ITEMS * row] == rows[(ITEMS + shops) * row..]);
    assert!(rows.iter().any(|byte| *byte != 0));
    // And half of the items' rows.
    let apart = trained(&folder, 2, &[]);
    assert_eq!(apart.len().abs_diff(expected.len()) / (ITEMS * row), 1);
}

/// An id's row learns from all fields that share it: exchanging them changes nothing.
#[test]
fn who_brings_an_id_makes_no_difference() {
    // Side by side: a sum of two is the same either way, to the bit.
    let folder = folder(["seen", "item", "shop"]);
    for ranks in [1, 2] {
        let [one, other] = ["train.h5", "other.h5"]
            .map(|data| trained(&folder, ranks, &[SHARED, &format!("data.train={data}")]));
        assert!(one == other, "{ranks} ranks");
        let [one, other] = ["train.h5", "other.h5"]
            .map(|data| trained(&folder, ranks, &[&format!("data.train={data}")]));
        assert!(one != other, "{ranks} ranks: tables of their own");
    }
    let _ = trained(&folder, 2, &[SHARED]);
    let [one, other] = ["train.h5", "other.h5"].map(|data| {
        let predict = ["predict", "--checkpoint", "run/checkpoints/last", "--data", data];
        let output = ["--overwrite", "--output", "scores.csv"];
        let _ = folder.umbra(2, &[&predict[..], &output].concat()).fine();
        let text = folder.text("scores.csv");
        let last = |line: &str| line.rsplit(',').next()?.parse::<f64>().ok();
        text.lines().filter_map(last).collect::<Vec<f64>>()
    });
    // In which order a score's fields are added up is the instruction set's affair.
    assert_eq!((one.len(), other.len()), (ROWS, ROWS));
    assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-6), "scores");
}

/// A run that was stopped goes on on other ranks, and only with the tables it had.
#[test]
fn checkpoints_know_whose_table_it_is() {
    let folder = folder(APART);
    let expected = trained(&folder, 2, &[SHARED, "train.epochs=2"]);
    let on = |ranks: usize, more: &[&str]| {
        let batch = format!("train.batch_size={}", BATCH / ranks);
        let fixed = ["sync.method=bsp", &batch, "train.epochs=2"];
        folder.try_train(ranks, "job.toml", "run", &[&fixed[..], more].concat())
    };
    let stop = ["recovery.inject.stop_step=5", "run.overwrite=true"];
    let ended = on(4, &[&stop[..], &[SHARED]].concat());
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    let apart = on(2, &[]);
    assert_eq!(apart.code, 4, "{}", apart.stderr);
    assert!(apart.stderr.contains("embedding.shared"), "{}", apart.stderr);
    let _ = on(2, &[SHARED, "embedding.placement=tables"]).fine();
    assert!(folder.export("run", "safetensors") == expected);
}

#[test]
fn fields_that_cannot_share_are_refused() {
    let folder = folder(APART);
    for (shared, said) in [
        ("[[\"seen\", \"itm\"]]", "no field \"itm\"; nearest is \"item\""),
        ("[[\"seen\", \"item\"], [\"item\", \"shop\"]]", "\"item\" stands there twice"),
        ("[[\"seen\", \"shop\"]]", "\"seen\" has 50 ids and \"shop\" has 6"),
        ("[[\"seen\"]]", "a list of lists of two names or more"),
    ] {
        let ended =
            folder.try_train(1, "job.toml", "run", &[&format!("embedding.shared={shared}")]);
        assert_eq!(ended.code, 2, "{shared}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{shared}: {}", ended.stderr);
    }
    // As many ids, and other keys behind them.
    folder.write("keys.csv", "click,seen,item\n1,a,x\n0,b,y\n");
    folder.write("keys.toml", "label = \"click\"\nsparse = [\"seen\", \"item\"]\n");
    let prepare = ["prepare", "--format", "csv", "--schema", "keys.toml", "--input", "keys.csv"];
    let _ = folder.umbra(1, &[&prepare[..], &["--output", "keys.h5"]].concat()).fine();
    let ended = folder.try_train(1, "job.toml", "run", &["data.train=keys.h5", SHARED]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("key lists of their own"), "{}", ended.stderr);
}
