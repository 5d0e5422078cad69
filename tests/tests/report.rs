//! `umbra report`: what it says of runs, whatever state they are in, and that its page needs
//! nothing else.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use umbra_tests::{Ended, Folder, Job};

/// Writes the records of a run that is done.
fn run(folder: &Folder, name: &str, method: &str, lr: f64, auc: f64) {
    std::fs::create_dir_all(folder.path(name)).unwrap();
    let summary = json!({
        "version": 1, "status": "done", "git": "abc", "seed": 1, "ranks": 2, "worker_threads": 3,
        "examples": 480_000, "seconds": 12.5, "examples_per_second": 38_400.0,
        "test": { "examples": 100, "auc": auc, "logloss": 0.25 },
        "sync": { "method": method, "gap_mean": 21.4 },
        "wire": { "dense_bytes": 9_000_000, "embedding_bytes": 500_000, "from_the_future": 1 },
        "from_the_future": [1],
    });
    folder.write(&format!("{name}/summary.json"), summary.to_string());
    let config = format!(
        "seed = 1\n[data]\ntrain = [\"a.h5\"]\n[optim.dense]\nlr = {lr}\n[sync]\nmethod = \
         \"{method}\"\n[run]\ndir = \"{}\"\n[from_the_future]\nkey = 1\n",
        name.len()
    );
    folder.write(&format!("{name}/config.toml"), config);
    let line = |step: u64| {
        let point = json!({ "step": step, "examples": step * 256, "seconds": step as f64 / 8.0,
            "logloss": 1.0 / step as f64, "time": 1.7e9, "from_the_future": {} });
        format!("{point}\n")
    };
    folder.write(&format!("{name}/metrics.jsonl"), (1..=5).map(line).collect::<String>());
}

fn report(folder: &Folder, arguments: &[&str]) -> Ended {
    folder.umbra(1, &[&["report"], arguments].concat())
}

/// The lines of a table: each a list of its cells.
fn cells(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn runs_stand_in_a_table_and_what_differs_below() {
    let folder = Folder::new();
    run(&folder, "sweep/task-10", "bsp", 0.01, 0.75);
    run(&folder, "sweep/task-9", "shadow_ma", 0.01, 0.8125);
    let text = report(&folder, &["sweep"]).fine().stdout;
    let cells = cells(&text);
    let heading = "run status method ranks×threads examples seconds examples/s test AUC log loss";
    assert!(cells[0].join(" ").starts_with(heading), "{text}");
    let row = "task-9 done shadow_ma 2×3 480000 12.5 38400 0.812500 0.250000 21.4 9.5 MB";
    assert_eq!(cells[1].join(" "), row);
    assert_eq!(cells[2][..3], ["task-10", "done", "bsp"]);
    // Aligned: numbers end in the same column.
    let lines: Vec<&str> = text.lines().collect();
    let end = |line: &str, of: &str| line.split(of).next().unwrap().chars().count();
    assert_eq!(end(lines[1], "480000"), end(lines[2], "480000"), "{text}");
    assert!(text.contains("\nkeys that differ\n"), "{text}");
    assert!(text.contains("  sync.method  shadow_ma (task-9) · bsp (task-10)\n"), "{text}");
    for same in ["optim.dense.lr", "run.dir", "seed"] {
        assert!(!text.contains(same), "{same} does not differ:\n{text}");
    }
    // Run by run, in the order they are given in, each once.
    run(&folder, "other", "bsp", 0.02, 0.5);
    let text = report(&folder, &["sweep/task-10", "other", "sweep"]).fine().stdout;
    let names: Vec<&str> = text.lines().skip(1).take(3).map(|line| &line[..12]).collect();
    assert_eq!(names, ["sweep/task-1", "other       ", "sweep/task-9"], "{text}");
    let rates = "  optim.dense.lr  0.01 (sweep/task-10, sweep/task-9) · 0.02 (other)\n";
    assert!(text.contains(rates), "{text}");
    let alone = report(&folder, &["other"]).fine().stdout;
    assert!(!alone.contains("differ"), "{alone}");
}

#[test]
fn runs_in_any_state_are_shown() {
    let folder = Folder::new();
    run(&folder, "runs/whole", "bsp", 0.01, 0.75);
    run(&folder, "runs/cut", "bsp", 0.01, 0.75);
    let points = folder.text("runs/cut/metrics.jsonl");
    folder.write("runs/cut/metrics.jsonl", &points[..points.len() - 20]);
    // Of an older version, under way: nothing is known but what it has reported.
    let running = json!({ "version": 1, "status": "running", "ranks": 2, "worker_threads": 1 });
    run(&folder, "runs/running", "bsp", 0.01, 0.75);
    folder.write("runs/running/summary.json", running.to_string());
    let failed = json!({ "status": "failed", "reason": "rank 1 on vm was killed" });
    run(&folder, "runs/failed", "bsp", 0.01, 0.75);
    folder.write("runs/failed/summary.json", failed.to_string());
    std::fs::remove_file(folder.path("runs/failed/config.toml")).unwrap();
    run(&folder, "runs/damaged", "bsp", 0.01, 0.75);
    folder.write("runs/damaged/summary.json", "{\"version\": 1,");
    folder.write("runs/damaged/config.toml", "[sync");
    std::fs::create_dir_all(folder.path("runs/bare")).unwrap();
    folder.write("runs/bare/metrics.jsonl", "");
    std::fs::create_dir_all(folder.path("runs/none/checkpoints")).unwrap();

    let text = report(&folder, &["runs", "--output", "page.html"]).fine().stdout;
    let rows = cells(&text);
    let row = |name: &str| rows.iter().find(|row| row.first() == Some(&name)).unwrap().join(" ");
    assert_eq!(row("running"), "running running bsp 2×1 1280 0.6 - - - - -");
    assert!(row("failed").starts_with("failed failed - - 1280 0.6 -"), "{text}");
    assert!(row("damaged").starts_with("damaged unknown - - 1280"), "{text}");
    assert!(row("bare").starts_with("bare unknown -"), "{text}");
    assert!(row("cut").starts_with("cut done bsp"), "{text}");
    for note in [
        "cut: the last line of metrics.jsonl is cut short",
        "failed: rank 1 on vm was killed",
        "failed: there is no config.toml",
        "damaged: summary.json is damaged",
        "damaged: config.toml is damaged",
        "bare: there is no summary.json",
        "running: figures so far",
    ] {
        assert!(text.lines().any(|line| line.starts_with(note)), "no `{note}` in:\n{text}");
    }
    assert!(!text.contains("whole: "), "{text}");
    let data = data(&folder.text("page.html"));
    let runs = data["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    let cut = runs.iter().find(|run| run["name"] == "cut").unwrap();
    assert_eq!(cut["points"]["step"], json!([1.0, 2.0, 3.0, 4.0]));
}

/// The data in a page.
fn data(page: &str) -> Value {
    let rest = page.split("<script id=\"data\" type=\"application/json\">").nth(1).unwrap();
    serde_json::from_str(rest.split("</script>").next().unwrap()).unwrap()
}

#[test]
fn a_page_needs_nothing_else_and_names_are_no_markup() {
    let folder = Folder::new();
    run(&folder, "runs/plain", "bsp", 0.01, 0.75);
    // As a path: the folder `<`, and in it `script><b>…`.
    let bad = "</script><b>{{data}}<!--";
    run(&folder, &format!("runs/{bad}"), "bsp", 0.02, 0.75);
    let reason = json!({ "status": "failed", "reason": "</script><img src=x>\u{2028}" });
    folder.write(&format!("runs/{bad}/summary.json"), reason.to_string());
    let page = report(&folder, &["runs", "--output", "-"]).fine().stdout;
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));

    let names: Vec<Value> = data(&page)["runs"].as_array().unwrap().to_vec();
    assert!(names.iter().any(|run| run["name"] == bad), "the name is not in the data");
    assert_eq!(page.matches("<script").count(), 3);
    assert_eq!(page.matches("</script").count(), 3);
    assert!(!page.contains("<b>") && !page.contains("<img") && !page.contains("<!--"));
    for part in [
        ".u-wrap",
        ":root {",
        "<pre>run ",
        "The MIT License",
        "uPlot=",
        "const report",
        "function chart(",
        "function runTable(",
        "function tiles(",
        "main();",
    ] {
        assert!(page.contains(part), "the page is without {part}");
    }

    // The one address is in the head of the charting library, a comment.
    let is_address = |rest: &&str| rest.starts_with("://") || rest.starts_with("s://");
    let outside = page.split("http").skip(1).filter(is_address).map(|rest| &rest[..30]);
    assert_eq!(outside.collect::<Vec<_>>(), ["s://github.com/leeoniya/uPlot "]);
    for (attribute, allowed) in [("href=\"", &["#", "data:,"][..]), ("src=\"", &[])] {
        for value in page.split(attribute).skip(1) {
            assert!(allowed.iter().any(|start| value.starts_with(start)), "{attribute}{value:.40}");
        }
    }
    for way in ["url(", "@import", "fetch(", "XMLHttpRequest", "sendBeacon", "import("] {
        assert!(!page.contains(way), "the page has {way}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn what_is_no_run_and_what_is_no_output_is_refused() {
    let folder = Folder::new();
    run(&folder, "run", "bsp", 0.01, 0.75);
    std::fs::create_dir_all(folder.path("empty/checkpoints")).unwrap();
    folder.write("page.html", "mine");
    for (arguments, what) in [
        (&["nothing"][..], "nothing: there is no such folder: expected the folder of a run"),
        (&["run", "empty"], "empty: there is no run in it"),
        (&["run/summary.json"], "run/summary.json: this is a file: expected the folder of a run"),
        (&["run", "--output", "page.html"], "page.html: the output exists"),
        (&["run", "--output", "run"], "run: the output is a folder"),
        (&["run", "--output", "no/page.html"], "no/page.html: the folder no does not exist"),
        (&["run", "--overwrite"], "--output"),
        (&[], "RUN"),
    ] {
        let ended = report(&folder, arguments);
        assert_eq!(ended.code, 2, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(what), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
    assert_eq!(folder.text("page.html"), "mine");
    let again = ["run", "--output", "page.html", "--overwrite"];
    let text = report(&folder, &again).fine().stdout;
    assert!(text.contains("\npage  page.html, "), "{text}");
    assert!(folder.text("page.html").starts_with("<!DOCTYPE html>"));
    // Nothing is left beside it, and nothing in the run.
    let names = |path| std::fs::read_dir(folder.path(path)).unwrap().count();
    assert_eq!((names("."), names("run")), (3, 3));
}

#[test]
fn a_run_of_today_is_read_whole() {
    let folder = Job::PLAIN.folder(4000, 1000);
    let sets = ["run.trace=true", "train.max_examples=2000", "run.tensorboard=false"];
    folder.train(1, "job.toml", "run", &sets);
    let summary = folder.summary("run");
    let text = report(&folder, &["run", "--output", "page.html"]).fine().stdout;
    let auc = format!("{:.6}", summary["test"]["auc"].as_f64().unwrap());
    let rows = cells(&text);
    let examples = summary["examples"].to_string();
    assert_eq!(rows[1][..5], ["run", "done", "none", "1×1", &examples], "{text}");
    assert!(rows[1].contains(&auc.as_str()), "{text}");
    assert_eq!(rows.iter().filter(|row| row.first() == Some(&"run:")).count(), 0, "{text}");
    let data = data(&folder.text("page.html"));
    let read = &data["runs"][0];
    assert_eq!(read["summary"], summary);
    assert_eq!(read["config"]["optim.sparse.kind"], "rowwise_adagrad");
    assert!(read["points"]["logloss"].as_array().is_some_and(|points| !points.is_empty()));
    let thread = &read["activity"]["threads"][0];
    assert!(thread["kinds"]["step"]["count"].as_u64().is_some_and(|count| count > 0), "{thread}");
}
