//! Tables of several widths, and tables that are cut by columns, over real ranks.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use umbra_tests::{Folder, Job, draws, manifest};

const ROWS: usize = 1024;
/// The global batch.
const BATCH: usize = 128;
const DIMS: &str = "embedding.dims={shop=2,seen=16,item=16}";
const SHARED: &str = "embedding.shared=[[\"seen\", \"item\"]]";
const BAGS: &str = "embedding.pool_at=ps";

/// An hour, a shop, what was seen last and bags of what was bought: `train.h5`.
fn folder(model: &'static str) -> Folder {
    let folder = Folder::new();
    let mut below = draws();
    let mut text = String::from("click,hour,shop,seen,item\n");
    for _ in 0..ROWS {
        let (seen, bought) = (below(900), (0..below(4)).map(|_| below(900)).collect::<Vec<_>>());
        let click = u32::from(seen % 2 + bought.iter().map(|it| it % 2).sum::<u32>() > 1);
        let bought: Vec<String> = bought.iter().map(|it| format!("i{it}")).collect();
        let (hour, shop, bought) = (below(24), below(5), bought.join("|"));
        text += &format!("{click},{hour},s{shop},i{seen},{bought}\n");
    }
    folder.write("train.csv", text);
    folder.write(
        "schema.toml",
        "label = \"click\"\ndense = [\"hour\"]\nsparse = [\"shop\", { column = \"seen\", \
         hash_size = 50 }, { column = \"item\", separator = \"|\", hash_size = 50 }]\n",
    );
    let prepare = ["prepare", "--format", "csv", "--schema", "schema.toml"];
    let files = ["--input", "train.csv", "--output", "train.h5"];
    let _ = folder.umbra(1, &[&prepare[..], &files].concat()).fine();
    // Adam makes a difference in the last bit ten times as large every step.
    let job = Job { model, optim: [("adam", 0.01), ("adam", 0.01)], batch_size: BATCH };
    folder.write("job.toml", job.text().replace("test = \"test.h5\"\n", ""));
    folder
}

const DLRM: &str = "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [12]";
const WIDE_DEEP: &str = "kind = \"wide_deep\"\nembedding_dim = 8\ntop = [12]";

/// Trains under `bsp` and returns the exported model.
fn trained(folder: &Folder, ranks: usize, more: &[&str]) -> Vec<u8> {
    let batch = format!("train.batch_size={}", BATCH / ranks);
    let fixed = ["sync.method=bsp", &batch, "run.overwrite=true"];
    folder.train(ranks, "job.toml", "run", &[&fixed[..], more].concat());
    folder.export("run", "safetensors")
}

/// The header of a file of tensors.
fn header(file: &[u8]) -> Value {
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    serde_json::from_slice(&rest[..length]).unwrap()
}

/// A table that is cut learns what it learns whole, to the bit, on any ranks: each strip has the
/// first values, the gradient and the optimizer state of its columns.
#[test]
fn tables_that_are_cut_learn_the_same() {
    for model in [DLRM, WIDE_DEEP] {
        let folder = folder(model);
        let expected = trained(&folder, 1, &[]);
        for (ranks, columns, more) in [
            (1, 2, &[][..]),
            (2, 4, &["embedding.placement=tables"]),
            (4, 1, &["embedding.placement=tables", "embedding.partitions=3"]),
            (2, 8, &[]),
        ] {
            let columns = format!("embedding.columns={columns}");
            let own = trained(&folder, ranks, &[&[&*columns], more].concat());
            assert!(own == expected, "{model}, {ranks} ranks, {columns}, {more:?}");
        }
        let saved = manifest(&folder.path("run/checkpoints/last"));
        assert_eq!(saved["strips"], Value::Null, "not cut in pieces of its own width");
        // Whatever updates its elements one by one.
        for kind in ["sgd", "adagrad"] {
            let kind = format!("optim.sparse.kind={kind}");
            let whole = trained(&folder, 1, &[&kind]);
            assert!(whole != expected, "{kind}");
            let own = trained(&folder, 2, &[&kind, "embedding.columns=2"]);
            assert!(own == whole, "{model}, {kind}");
        }
    }
}

/// Vectors of 2, 16 and 8 in a model of 8: the same model on any ranks, wherever rows are, also
/// where those who hold rows pool, and two fields may share the wide table.
#[test]
fn tables_of_several_widths_are_the_same_wherever_their_rows_are() {
    for model in [DLRM, WIDE_DEEP] {
        let folder = folder(model);
        let expected = trained(&folder, 1, &[DIMS, SHARED]);
        let first = u32::from(model == WIDE_DEEP);
        let saved = manifest(&folder.path("run/checkpoints/last"));
        assert_eq!(saved["strips"], json!({ "of_field": [1, 8, 8], "first_order": first }));
        let tensors = header(&expected);
        assert_eq!(tensors["embedding.shop"]["shape"], json!([6, 2 + first]));
        assert_eq!(tensors["embedding.seen"]["shape"], json!([50, 16 + first]));
        assert_eq!(tensors["embedding.item"], Value::Null, "the table of seen");
        assert_eq!(tensors["projection.weight"]["shape"], json!([2 + 16 + 16, 8]));
        for (ranks, more) in [
            (2, &["embedding.placement=tables"][..]),
            (4, &["embedding.columns=1", "embedding.placement=tables"]),
            (4, &["embedding.partitions=3"]),
        ] {
            let own = trained(&folder, ranks, &[&[DIMS, SHARED], more].concat());
            assert!(own == expected, "{model}, {ranks} ranks, {more:?}");
        }
        let [one, other] = [1, 2].map(|ranks| trained(&folder, ranks, &[DIMS, BAGS]));
        assert_eq!(header(&one), header(&other));
        assert_eq!(header(&one)["embedding.item"]["shape"], json!([50, 16 + first]));
    }
}

/// Every other way that rows and replicas take: workers that share tables, methods in the
/// background and on servers, bf16 rows. They learn, and the model is scored.
#[test]
fn every_way_of_rows_takes_strips() {
    let folder = folder(DLRM);
    for (ranks, more) in [
        (1, &["train.worker_threads=2"][..]),
        (2, &["sync.method=shadow_ma"]),
        (2, &["sync.method=gba", "roles.sync_ps=1"]),
        (2, &["sync.method=shadow_ma", "embedding.shared_memory=false", "embedding.links=2"]),
        (2, &["sync.method=bsp", "embedding.precision=bf16", "embedding.pool_at=auto"]),
        (2, &["sync.method=bsp", "embedding.placement=auto", "embedding.columns=1"]),
        (
            2,
            &[
                "sync.method=shadow_ma",
                "recovery.mode=cpr",
                "recovery.priority=ssu",
                "recovery.mtbf_s=60",
            ],
        ),
    ] {
        let fixed = [DIMS, "train.epochs=6", "run.overwrite=true", "train.batch_size=32"];
        folder.train(ranks, "job.toml", "run", &[&fixed[..], more].concat());
        let auc = folder.eval(2, "run", "train.h5")["auc"].as_f64().unwrap();
        assert!(auc > 0.8, "{more:?}: {auc}");
    }
}

/// A run that was stopped goes on on other ranks, and only with the widths it had.
#[test]
fn checkpoints_know_how_tables_are_cut() {
    let folder = folder(DLRM);
    let expected = trained(&folder, 2, &[DIMS, "train.epochs=2"]);
    let on = |ranks: usize, more: &[&str]| {
        let batch = format!("train.batch_size={}", BATCH / ranks);
        let fixed = ["sync.method=bsp", &batch, "train.epochs=2"];
        folder.try_train(ranks, "job.toml", "run", &[&fixed[..], more].concat())
    };
    let stop = ["recovery.inject.stop_step=5", "run.overwrite=true"];
    let ended = on(4, &[&stop[..], &[DIMS]].concat());
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    for other in ["embedding.dims={shop=2,seen=16}", "embedding.columns=2"] {
        let ended = on(2, &[other]);
        assert_eq!(ended.code, 4, "{}", ended.stderr);
    }
    let _ = on(2, &[DIMS, "embedding.placement=tables"]).fine();
    assert!(folder.export("run", "safetensors") == expected);
    // A new run begins with the model, if its tables are as wide.
    let still = ["optim.dense.lr=1e-30", "optim.sparse.lr=1e-30", "sync.method=bsp"];
    let warm = [&["checkpoint.warm_start=run"], &still[..]].concat();
    let begun = |more: &str| {
        let sets = [&warm[..], &["train.batch_size=64", "run.overwrite=true", more]].concat();
        folder.try_train(2, "job.toml", "warm", &sets)
    };
    let _ = begun(DIMS).fine();
    let [one, other] = ["run", "warm"].map(|run| folder.eval(1, run, "train.h5")["auc"].clone());
    assert_eq!(one, other);
    let refused = begun("embedding.columns=2");
    assert_eq!(refused.code, 4, "{}", refused.stderr);
}

#[test]
fn widths_that_do_not_fit_are_refused() {
    let folder = folder(DLRM);
    for (set, said) in [
        ("embedding.dims={sho=2}", "no field \"sho\"; nearest is \"shop\""),
        ("embedding.dims={shop=0}", "a table of widths from 1 to"),
        ("embedding.dims=[8]", "a table of widths from 1 to"),
        ("embedding.columns=3", "expected a divisor of 8"),
        ("roles.dense_partitions=2", "embedding.dims is left out"),
    ] {
        let shop = if set.contains("dims") { &[][..] } else { &["embedding.dims={shop=4}"] };
        let shop = if set.contains("columns") { &[] } else { shop };
        let ended = folder.try_train(1, "job.toml", "run", &[shop, &[set]].concat());
        assert_eq!(ended.code, 2, "{set}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{set}: {}", ended.stderr);
    }
    let ended = folder.try_train(1, "job.toml", "run", &["embedding.dims={seen=4}", SHARED]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("whose table it shares"), "{}", ended.stderr);
    let lr = ["model.kind=lr", "model.bottom=[]", "model.top=[]", "embedding.dims={shop=4}"];
    let ended = folder.try_train(1, "job.toml", "run", &lr);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("embedding.dims"), "{}", ended.stderr);
}
