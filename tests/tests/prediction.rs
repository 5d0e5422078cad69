//! What ranks send and receive is what `umbra train --dry-run` predicts.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job};

const GLOBAL_BATCH: usize = 256;
/// Steps of 256 examples: a hundred.
const ROWS: u64 = 25_600;
const DLRM: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [32, 8]\ntop = [32, 16]\n\
            batch_norm = true",
    optim: [("adam", 0.001), ("rowwise_adagrad", 0.05)],
    batch_size: GLOBAL_BATCH,
};
/// Greatest difference, over what was counted. Which rows a step touches is chance.
const ERROR_MAX: f64 = 0.02;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.synth("train.h5", ROWS, 0);
    folder.write("job.toml", DLRM.text().replace("test = \"test.h5\"\n", ""));
    folder
}

fn dry_run(folder: &Folder, sets: &[&str], more: &[&str]) -> Value {
    let sets = Folder::sets("planned", sets);
    let arguments = ["train", "-c", "job.toml", "--dry-run", "--json"].into_iter();
    let arguments: Vec<&str> =
        arguments.chain(sets.iter().map(String::as_str)).chain(more.iter().copied()).collect();
    serde_json::from_str(&folder.umbra(1, &arguments).fine().stdout).unwrap()
}

/// Plans on one rank as if there were `ranks`, trains on so many, and compares.
fn counts_what_was_predicted(folder: &Folder, ranks: usize, run: &str, sets: &[&str]) {
    let sets = [sets, &["checkpoint.save=none", "run.tensorboard=false"]].concat();
    let planned = dry_run(folder, &sets, &["--ranks", &ranks.to_string()]);
    folder.train(ranks, "job.toml", run, &sets);
    let summary = folder.summary(run);
    let steps = summary["steps"].as_f64().unwrap();
    let counted = summary["wire"]["ranks"].as_array().unwrap();
    let predicted = planned["ranks"].as_array().unwrap();
    assert_eq!((counted.len(), predicted.len()), (ranks, ranks));
    let mut compared = 0;
    for (counted, predicted) in counted.iter().zip(predicted) {
        assert_eq!(counted["rank"], predicted["rank"]);
        for kind in ["embedding", "dense"] {
            for figure in ["messages_sent", "bytes_sent", "messages_received", "bytes_received"] {
                let counted = counted[kind][figure].as_f64().unwrap() / steps;
                let predicted = predicted[kind][figure].as_f64().unwrap();
                let error = (predicted - counted).abs();
                assert!(
                    error <= ERROR_MAX * counted,
                    "{run}, {kind} {figure}: {counted} a step, predicted {predicted}\n{summary}"
                );
                compared += u32::from(counted > 0.0);
            }
        }
    }
    assert!(compared >= 4 * u32::try_from(ranks).unwrap(), "{compared} figures");
}

#[test]
fn bsp_sends_what_was_predicted() {
    let folder = folder();
    for ranks in [2, 4] {
        let batch = format!("train.batch_size={}", GLOBAL_BATCH / ranks);
        counts_what_was_predicted(&folder, ranks, &format!("bsp-{ranks}"), &[&batch]);
    }
}

/// Rows of bf16s travel as they are.
#[test]
fn rows_of_bf16s_take_what_was_predicted() {
    let folder = folder();
    let sets = ["train.batch_size=128", "embedding.precision=bf16"];
    counts_what_was_predicted(&folder, 2, "half", &sets);
    folder.train(2, "job.toml", "whole", &["train.batch_size=128", "checkpoint.save=none"]);
    let [half, whole] = ["half", "whole"].map(|run| {
        let ranks = &folder.summary(run)["wire"]["ranks"];
        ranks[0]["embedding"]["bytes_received"].as_f64().unwrap()
    });
    // Of a request 4 bytes a row, of the answer 16 in place of 32, of the gradients 36 either way.
    let ratio = half / whole;
    assert!((ratio - 56.0 / 72.0).abs() < 0.02, "{ratio}");
}

/// A strip of a table is a table: a row number and so many values for each of an id's strips.
#[test]
fn strips_of_tables_take_what_was_predicted() {
    let folder = folder();
    for (run, sets) in [
        ("widths", &["embedding.dims={C1=4,C2=16}"][..]),
        ("columns", &["embedding.columns=2", "embedding.placement=tables"]),
    ] {
        counts_what_was_predicted(&folder, 2, run, &[&["train.batch_size=128"], sets].concat());
    }
}

/// Norms over each slice's own batch: their statistics are a sum of their own.
#[test]
fn bsp_with_local_norms_sends_what_was_predicted() {
    let sets = ["train.batch_size=128", "sync.batch_norm=local"];
    counts_what_was_predicted(&folder(), 2, "local", &sets);
}

#[test]
fn a_trainer_with_rows_elsewhere_sends_what_was_predicted() {
    let folder = folder();
    for ranks in [2, 4] {
        let servers = format!("roles.embedding_ps={}", ranks - 1);
        let messages = "embedding.shared_memory=false";
        let sets = ["roles.layout=separate", "roles.trainers=1", &servers, messages];
        counts_what_was_predicted(&folder, ranks, &format!("apart-{ranks}"), &sets);
    }
}

/// A launch knows which of its ranks are on one node.
#[test]
fn ranks_of_a_node_send_each_other_no_rows_as_predicted() {
    let folder = folder();
    let apart = ["roles.layout=separate", "roles.trainers=1", "roles.embedding_ps=1"];
    let together = ["sync.method=independent", "train.batch_size=128"];
    for (run, sets) in [("apart", &apart[..]), ("together", &together[..])] {
        let arguments = ["train", "-c", "job.toml", "--dry-run", "--json"].into_iter();
        let sets_of_run = Folder::sets(run, sets);
        let arguments: Vec<&str> =
            arguments.chain(sets_of_run.iter().map(String::as_str)).collect();
        let planned = folder.umbra(2, &arguments).fine().stdout;
        let planned: Value = serde_json::from_str(&planned).unwrap();
        folder.train(2, "job.toml", run, sets);
        let counted = &folder.summary(run)["wire"]["ranks"];
        for rank in 0..2 {
            for figure in ["messages_sent", "bytes_sent", "messages_received", "bytes_received"] {
                let [predicted, counted] = [&planned["ranks"], counted]
                    .map(|ranks| ranks[rank]["embedding"][figure].as_f64().unwrap());
                assert_eq!((predicted, counted), (0.0, 0.0), "{run}, rank {rank}, {figure}");
            }
        }
        let elsewhere = dry_run(&folder, sets, &["--ranks", "2"]);
        let sent = elsewhere["ranks"][0]["embedding"]["bytes_sent"].as_f64().unwrap();
        assert!(sent > 0.0, "{run}: ranks that are not there have a node each");
    }
}

#[test]
fn a_number_of_ranks_is_for_a_dry_run() {
    let folder = folder();
    let refused = folder.umbra(1, &["train", "-c", "job.toml", "--ranks", "8"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    let text = |ranks: &str| {
        let arguments = ["train", "-c", "job.toml", "--dry-run", "--ranks", ranks];
        folder.umbra(1, &arguments).fine().stdout
    };
    let thousand = text("1000");
    for line in ["1000 trainers", "\nrows ", "\ndense ", "\nunder way "] {
        assert!(thousand.contains(line), "{thousand}");
    }
    assert!(!text("1").contains("\nrows "), "one rank sends nothing");
}

/// What a worker computes is measured, so times differ from one plan to the next; on a slow link
/// they are what is sent.
#[test]
fn a_plan_has_the_time_of_a_step_by_every_method() {
    let folder = folder();
    let plan = |ranks: &str, sets: &[&str]| {
        let arguments = ["plan", "job.toml", "--ranks", ranks, "--link", "1e6"].into_iter();
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        folder.umbra(1, &arguments.chain(sets).collect::<Vec<_>>()).fine().stdout
    };
    let text = plan("4", &["sync.method=shadow_ma", "model.top=[256,256]"]);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("step time   "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[1][0], "shadow_ma", "the job's comes first: {text}");
    let ms = |method: &str| -> f64 {
        let line = lines.iter().find(|line| line[0] == method);
        line.unwrap_or_else(|| panic!("{method}: {text}"))[1].parse().unwrap()
    };
    for method in ["independent", "local_sgd", "ds_sync", "shadow_easgd", "async_ps", "gba"] {
        assert!(ms(method) > 0.0, "{text}");
    }
    // A gradient takes longer than rows on a link of a megabyte per second; a round that is made
    // in every sixteenth step, by default, takes less.
    assert!(ms("bsp") > 2.0 * ms("independent"), "{text}");
    assert!(ms("bsp") > 2.0 * ms("local_sgd"), "{text}");
    let alone = plan("1", &[]);
    assert_eq!(alone.matches("\nstep time ").count(), 2, "only `none`: {alone}");
    // What takes virtual time by the square of its workers is left out, and the job's own with it.
    let many = plan("300", &["sync.method=gba", "train.worker_threads=1"]);
    assert!(many.contains("gba              not planned: 300 workers on servers"), "{many}");
    assert!(many.contains("\nstep time   bsp "), "{many}");
    let refused = folder.umbra(1, &["plan", "job.toml", "--ranks", "4", "--link", "0"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("expected a number above 0"), "{}", refused.stderr);
}
