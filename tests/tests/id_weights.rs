//! Weights of ids, from a csv to a prediction: weights of 1 change no bit, ranks change none, and
//! an id of weight 2 is the id twice.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Folder, Job, SavedModel, draws};

const ROWS: usize = 1024;
const RUN: [&str; 4] =
    ["sync.method=bsp", "run.step_losses=true", "run.tensorboard=false", "train.epochs=2"];

/// Clicks with bags of 0 to 3 interests, each spelt by `item` from its number and a weight.
fn clicks(item: impl Fn(u32, f32) -> String) -> String {
    let mut below = draws();
    let mut text = String::from("click,hour,shop,interests\n");
    for _ in 0..ROWS {
        let items: Vec<(u32, u32)> = (0..below(4)).map(|_| (below(30), below(9))).collect();
        let taste: u32 = items.iter().map(|(key, weight)| key % 2 * weight).sum();
        let click = u32::from(taste + below(6) > 7);
        let spelt: Vec<String> =
            items.iter().map(|&(key, weight)| item(key, weight as f32 / 4.0)).collect();
        let (hour, shop) = (below(24), below(5));
        text += &format!("{click},{hour},s{shop},{}\n", spelt.join("|"));
    }
    text
}

/// `NAME.csv` and `NAME.h5` of such clicks.
fn prepare(folder: &Folder, name: &str, item: impl Fn(u32, f32) -> String) {
    let weighted =
        if name == "none" || name == "twice" { "" } else { "weight_separator = \":\", " };
    folder.write(
        "schema.toml",
        format!(
            "label = \"click\"\ndense = [\"hour\"]\nsparse = [\"shop\", {{ column = \"interests\", \
             {weighted}separator = \"|\" }}]\n"
        ),
    );
    folder.write(&format!("{name}.csv"), clicks(item));
    let (input, output) = (format!("{name}.csv"), format!("{name}.h5"));
    let fixed = ["prepare", "--format", "csv", "--schema", "schema.toml", "--input", &input];
    let _ = folder.umbra(1, &[&fixed[..], &["--output", &output]].concat()).fine();
}

/// All that a run and its model give.
#[derive(PartialEq)]
struct Outcome {
    losses: String,
    model: SavedModel,
    test: String,
    eval: String,
    predictions: String,
}

fn train(folder: &Folder, data: &str, ranks: usize, batch: usize, pooling: &str) -> Outcome {
    let (run, file) = (format!("{data}-{pooling}-{ranks}"), format!("{data}.h5"));
    let pooling = format!("model.pooling={pooling}");
    let train = format!("data.train={file}");
    let test = format!("data.test={file}");
    let batch = format!("train.batch_size={}", batch / ranks);
    folder.train(ranks, "job.toml", &run, &[&RUN[..], &[&train, &test, &batch, &pooling]].concat());
    let checkpoint = format!("{run}/checkpoints/last");
    let output = format!("{run}.txt");
    let arguments = ["predict", "--checkpoint", &checkpoint, "--data", &file, "--output", &output];
    let _ = folder.umbra(ranks, &arguments).fine();
    let mut eval = folder.eval(ranks, &run, &file);
    // All but what is measured.
    eval.as_object_mut()
        .unwrap()
        .retain(|name, _| ["auc", "logloss", "examples"].contains(&&**name));
    assert_eq!(eval.as_object().unwrap().len(), 3, "{eval}");
    Outcome {
        losses: folder.text(&format!("{run}/losses.csv")),
        model: SavedModel::read(&folder.path(&checkpoint)),
        test: folder.summary(&run)["test"].to_string(),
        eval: eval.to_string(),
        predictions: folder.text(&output),
    }
}

/// Adam, batch norm and dropout: a difference in the last bit would be seen.
#[test]
fn weights_of_one_and_ranks_change_no_bit() {
    let folder = Folder::new();
    folder.write("job.toml", Job::DLRM.text());
    prepare(&folder, "none", |key, _| format!("i{key}"));
    prepare(&folder, "ones", |key, _| format!("i{key}:{}", if key % 2 == 0 { "1" } else { "" }));
    prepare(&folder, "some", |key, weight| format!("i{key}:{weight}"));
    for (pooling, ranks_max) in [("sum", 2), ("mean", 1)] {
        let train = |data, ranks| train(&folder, data, ranks, 256, pooling);
        let (none, some) = (train("none", 1), train("some", 1));
        assert!(none == train("ones", 1), "{pooling}: weights of 1 are none");
        assert!(some.losses != none.losses && some.predictions != none.predictions);
        for ranks in 2..=ranks_max {
            assert!(some == train("some", ranks), "{pooling}: {ranks} ranks are one");
            assert!(none == train("ones", ranks), "{pooling}: weights of 1 on {ranks} ranks");
        }
    }

    let shown = |name| folder.umbra(1, &["data", "inspect", name]).fine().stdout;
    assert!(shown("some.h5").contains(", ids have weights"), "{}", shown("some.h5"));
    assert!(!shown("none.h5").contains("weights"), "{}", shown("none.h5"));
    let verified = folder.umbra(1, &["data", "verify", "some.h5"]).fine().stdout;
    assert!(verified.contains("its fingerprint is that of its content"), "{verified}");
    let mixed = "data.train=[\"none.h5\", \"some.h5\"]";
    let refused = folder.try_train(1, "job.toml", "mixed", &[mixed, "data.test=none.h5"]);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
}

/// The same sums, in another order.
#[test]
fn an_id_of_weight_two_is_the_id_twice() {
    let folder = Folder::new();
    folder.write("job.toml", Job::PLAIN.text());
    prepare(&folder, "heavy", |key, _| format!("i{key}:2"));
    prepare(&folder, "twice", |key, _| format!("i{key}|i{key}"));
    for ranks in [1, 2] {
        let [heavy, twice] = ["heavy", "twice"].map(|data| train(&folder, data, ranks, 64, "sum"));
        let last = |text: &str| -> Vec<f64> {
            let numbers = text.lines().map(|line| line.rsplit([',', ' ', '\t']).next().unwrap());
            numbers.filter_map(|number| number.parse().ok()).collect()
        };
        for (one, other) in
            [(&heavy.losses, &twice.losses), (&heavy.predictions, &twice.predictions)]
        {
            let (one, other) = (last(one), last(other));
            assert!(one.len() == other.len() && one.len() >= 2 * ROWS / 64, "{}", one.len());
            for (a, b) in one.iter().zip(&other) {
                assert!((a - b).abs() < 1e-6 * a.abs().max(1.0), "{ranks} ranks: {a} and {b}");
            }
        }
    }
}
