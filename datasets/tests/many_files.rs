//! A dataset of more files than a process may hold open.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{PLAIN, Shape, Table};
use rustix::process::{Resource, Rlimit, setrlimit};
use umbra_datasets::{Dataset, Pipeline, Reading, TrainOrder};

const FILES: usize = 1000;
const ROWS: usize = 300;
const SHAPE: Shape = Shape { rows: ROWS, ..PLAIN };
/// Names the folder to the process that reads under the limit.
const FOLDER: &str = "UMBRA_TEST_MANY_FILES";

#[test]
fn a_thousand_files_are_read_with_few_of_them_open() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        read_all(PathBuf::from(folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let first = path(folder.path().into(), 0);
    Table::new(SHAPE, 1).write(SHAPE, &first, ROWS);
    for number in 1..FILES {
        std::fs::copy(&first, path(folder.path().into(), number)).unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_thousand_files_are_read_with_few_of_them_open", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", text.lines().find(|line| line.contains("open files")).unwrap());
}

fn path(folder: PathBuf, number: usize) -> PathBuf {
    folder.join(format!("part-{number}.h5"))
}

/// Reads an epoch in a process that may hold 64 files open.
fn read_all(folder: PathBuf) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let paths: Vec<PathBuf> = (0..FILES).map(|number| path(folder.clone(), number)).collect();
    let dataset = Dataset::open(&paths).unwrap();
    let order = TrainOrder { seed: 1, workers_total: 1, lanes: 8, batch_size: 512, shuffle: true };
    let reading = Reading { threads: 2, ..Reading::from(4) };
    let (pipeline, mut batches) = Pipeline::train(&dataset, &order, 0..1, 0..2, reading).unwrap();
    let (mut seen, mut open_max) = (vec![0u8; FILES * ROWS], 0);
    while let Some(batch) = batches[0].next(&mut || ()).unwrap() {
        batch.row.iter().for_each(|&row| seen[usize::try_from(row).unwrap()] += 1);
        batches[0].recycle(batch);
        open_max = open_max.max(std::fs::read_dir("/proc/self/fd").unwrap().count());
    }
    pipeline.join();
    assert!(seen.iter().all(|&times| times == 2), "every row once an epoch");
    assert!(open_max < 40, "{open_max} open files of 64");
    println!("{open_max} open files at most, of {FILES}");
}
