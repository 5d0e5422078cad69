//! `umbra bench` as its callers use it: the JSON they read, and their mistakes. What it measures is
//! not judged here.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::Folder;

/// A small model on the small synthetic world, with settings that take no time.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.synth("train.h5", 2000, 0);
    folder.write(
        "job.toml",
        "[data]\ntrain = \"train.h5\"\n[model]\nkind = \"dlrm\"\nembedding_dim = 4\n\
         bottom = [8, 4]\ntop = [8]\n[optim.dense]\nkind = \"adagrad\"\nlr = 0.01\n\
         [optim.sparse]\nkind = \"rowwise_adagrad\"\nlr = 0.01\n",
    );
    folder
}

const QUICK: [&str; 6] = ["--batch", "16,64", "--seconds", "0.02", "--samples", "3"];

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

#[test]
fn the_peak_alone_names_the_processor() {
    let ended = Folder::new().umbra(1, &["bench", "--peak-only", "--json", "-"]).fine();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(number(&report, "peak_gflops") > 0.0);
    assert_eq!(report["steps"], serde_json::json!([]));
    // With AMX products of bf16s are no instruction of a vector.
    let of_bf16s = report["peak_bf16_over_f32"].as_f64();
    assert_eq!(of_bf16s.is_some(), report["simd"] != "amx", "{report}");
    assert!(of_bf16s.is_none_or(|ratio| ratio > 0.0), "{report}");
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if cpuinfo.contains("cpu family") {
        let machine = report["machine"].as_str().unwrap();
        assert!(machine.contains(" (family ") && machine.contains(", model "), "{machine}");
    }
}

#[test]
fn figures_are_as_the_contract_says() {
    let folder = folder();
    let arguments =
        ["bench", "-c", "job.toml", "--data", "train.h5", "--workers", "1,2", "--json", "-"];
    let ended = folder.umbra(1, &[&arguments[..], &QUICK].concat()).fine();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["version"], 1);
    assert!(
        ["amx", "avx512", "avx2", "neon", "plain"].contains(&report["simd"].as_str().unwrap()),
        "{report}"
    );
    assert!(report["machine"].is_string() && number(&report, "cores") >= 1.0);
    assert!(number(&report, "peak_gflops") > 0.0);

    // Every part of the step, with one rate each.
    let kernels = report["kernels"].as_array().unwrap();
    for kernel in kernels {
        assert!(kernel["shape"].is_string(), "{kernel}");
        let rates = ["gflops", "gb_per_second", "mrows_per_second"];
        let rates: Vec<f64> = rates.iter().filter_map(|rate| kernel[rate].as_f64()).collect();
        assert!(rates.len() == 1 && rates[0] > 0.0, "{kernel}");
        assert_eq!(kernel["share"].is_number(), kernel["gflops"].is_number(), "{kernel}");
    }
    let count = |name| kernels.iter().filter(|kernel| kernel["kernel"] == name).count();
    // 4 layers in tiles of 16 and of 64, of which the first passes no gradient on; 2 batch sizes.
    assert_eq!(["forward", "data_gradient", "weight_gradient"].map(count), [8, 6, 8]);
    assert_eq!(["dot", "dot_backward"].map(count), [2, 2]);
    assert_eq!(["coalesce", "row_lookup", "row_update", "dense_update"].map(count), [2, 2, 2, 1]);

    // Every combination once.
    let steps = report["steps"].as_array().unwrap();
    let mut combinations: Vec<(&str, u64, u64)> = steps
        .iter()
        .map(|step| {
            let source = step["source"].as_str().unwrap();
            (source, step["batch"].as_u64().unwrap(), step["workers"].as_u64().unwrap())
        })
        .collect();
    combinations.sort_unstable();
    let both = |source| [(source, 16, 1), (source, 16, 2), (source, 64, 1), (source, 64, 2)];
    assert_eq!(combinations, [both("hdf5"), both("memory")].concat());

    for step in steps {
        assert_eq!((&step["model"], &step["optimizer"]), (&"job".into(), &ADAGRADS.into()));
        // 4-8-4; 9 vectors of 4 are 36 pairs; 40-8-1.
        let flop = 2 * (2 * 4 * 8 + 3 * (8 * 4 + 40 * 8 + 8) + 3 * 36 * 4);
        assert_eq!(step["flop_per_example"], flop);
        let samples: Vec<f64> =
            step["samples"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        let (low, high) = (number(step, "low"), number(step, "high"));
        let middle = number(step, "examples_per_second");
        assert!(samples.len() == 3 && samples.contains(&middle), "{step}");
        assert!(0.0 < low && low <= middle && middle <= high, "{step}");
        assert!(number(step, "examples_per_cpu_second") > 0.0 && number(step, "peak_gflops") > 0.0);
        let share = number(step, "floor_share");
        assert!(0.0 < share && share < 1.0, "{step}");
        assert!(number(step, "row_floor_share") > 0.0, "{step}");
    }
    assert!(ended.stderr.contains("examples/s"), "the table is on stderr: {}", ended.stderr);
}

/// The parts of a job whose products are of bf16s are measured in bf16.
#[test]
fn parts_have_the_precision_of_the_job() {
    let folder = folder();
    let job = folder.text("job.toml");
    // As wide as products of bf16s have to be.
    let job = job.replace("embedding_dim = 4", "embedding_dim = 32");
    let job = job.replace("[8, 4]", "[32]").replace("[8]", "[64]");
    folder.write("job.toml", format!("{job}[train]\nprecision = \"bf16\"\n"));
    let arguments = ["bench", "-c", "job.toml", "--workers", "1", "--json", "-"];
    let ended = folder.umbra(1, &[&arguments[..], &QUICK].concat()).fine();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let kernels = report["kernels"].as_array().unwrap();
    let shapes = |name: &str| -> Vec<&str> {
        let own = kernels.iter().filter(|kernel| kernel["kernel"] == name);
        own.map(|kernel| kernel["shape"].as_str().unwrap()).collect()
    };
    for (name, count) in [
        ("forward", 6),
        ("data_gradient", 4),
        ("weight_gradient", 6),
        ("dot", 2),
        ("dot_backward", 2),
    ] {
        let shapes = shapes(name);
        // 4-32, 68-64 and 64-1, in tiles of 16 and of 64.
        assert_eq!(shapes.len(), count, "{name}: {shapes:?}");
        assert!(shapes.iter().all(|shape| shape.ends_with(" bf16")), "{name}: {shapes:?}");
    }
    // The others are too narrow.
    assert_eq!(shapes("round"), ["64x68 bf16"; 2]);
}

const ADAGRADS: &str = "rowwise_adagrad+adagrad";

#[test]
fn a_file_takes_the_json_and_stdout_the_table() {
    let folder = folder();
    let arguments = ["bench", "-c", "job.toml", "--workers", "1", "--json", "figures.json"];
    let ended = folder.umbra(1, &[&arguments[..], &["--steps-only"], &QUICK].concat()).fine();
    assert!(ended.stdout.contains("examples/s"), "{}", ended.stdout);
    let report: Value = serde_json::from_str(&folder.text("figures.json")).unwrap();
    assert_eq!(report["kernels"], Value::Array(vec![]));
    // Without --data a job's training data only gives the shape.
    assert!(report["steps"].as_array().unwrap().iter().all(|step| step["source"] == "memory"));
}

#[test]
fn mistakes_have_their_exit_codes() {
    let folder = folder();
    let cases: [(&[&str], i32, &str); 15] = [
        (&["--batch", "0"], 2, "--batch"),
        (&["--batch", "128,x"], 2, "--batch"),
        (&["--optimizer", "adam"], 2, "possible values: sgd, rowwise_adagrad"),
        (&["--workers", "0"], 2, "--workers"),
        (&["--seconds", "0"], 2, "expected seconds from 0.001 to 3600"),
        (&["--samples", "0"], 2, "--samples"),
        (&["-c", "job.toml", "--optimizer", "sgd"], 2, "cannot be used with"),
        (&["--shape", "rows"], 2, "possible values: criteo-kaggle, mlperf"),
        (&["--precision", "f16"], 2, "possible values: f32, bf16"),
        (&["-c", "job.toml", "--precision", "bf16"], 2, "cannot be used with"),
        (&["-c", "job.toml", "--rows", "bf16"], 2, "cannot be used with"),
        (&["-c", "job.toml", "--shape", "rows64"], 2, "cannot be used with"),
        (&["-c", "no.toml"], 2, "no.toml"),
        (&["--data", "no.h5"], 3, "no.h5"),
        (&["-c", "job.toml", "--data", "train.h5", "--batch", "2048"], 3, "has 2000 rows"),
    ];
    for (arguments, code, message) in cases {
        let ended = folder.umbra(1, &[&["bench"], arguments].concat());
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{arguments:?}: {}", ended.stdout);
    }
}
