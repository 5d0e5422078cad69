//! A scratch folder with datasets, jobs and runs.

use core::time::Duration;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::launch::{Ended, LIMIT, program, signal, start};

/// Workers sleep most of a step, so that rounds beside the steps come as often whatever else the
/// cores have to do: steps of a test's model end before a thread beside them has its turn.
pub const TIME_FOR_ROUNDS: &str = "recovery.inject.slow_factor=10";

/// A folder that goes away with the test.
#[derive(Debug)]
pub struct Folder {
    folder: tempfile::TempDir,
}

/// A job file's text, made from what tests change.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The `[model]` section's lines.
    pub model: &'static str,
    /// `optim.dense` and `optim.sparse`: kind and learning rate.
    pub optim: [(&'static str, f64); 2],
    /// Examples of the global batch over `workers`.
    pub batch_size: usize,
}

impl Job {
    /// All that a step depends on: both moments of Adam, which makes a difference in the last bit
    /// ten times as large every step, running statistics, dropout. Nothing hides.
    pub const DLRM: Self = Self {
        model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]\n\
                batch_norm = true\ndropout = 0.2",
        optim: [("adam", 0.005), ("adam", 0.005)],
        batch_size: 256,
    };

    /// The same without what takes time or hides a fault: tests of how jobs end.
    pub const PLAIN: Self = Self {
        model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
        optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
        batch_size: 64,
    };

    /// The text; data is train.h5 and test.h5.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { model, optim: [dense, sparse], batch_size } = self;
        format!(
            "seed = 7\n[data]\ntrain = \"train.h5\"\ntest = \"test.h5\"\n[model]\n{model}\n\
             [optim.dense]\nkind = \"{}\"\nlr = {}\n[optim.sparse]\nkind = \"{}\"\nlr = {}\n\
             [train]\nbatch_size = {batch_size}\nworker_threads = 1\n\
             [run]\nwatchdog_s = 120\n",
            dense.0, dense.1, sparse.0, sparse.1
        )
    }

    /// A folder with `rows` rows to train from, the next `test_rows` to test with, and this job as
    /// job.toml.
    #[must_use]
    pub fn folder(&self, rows: u64, test_rows: u64) -> Folder {
        let folder = Folder::new();
        folder.synth("train.h5", rows, 0);
        folder.synth("test.h5", test_rows, rows);
        folder.write("job.toml", self.text());
        folder
    }
}

impl Folder {
    /// An empty folder.
    #[must_use]
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder itself: where programs are started.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// Reads a file.
    #[must_use]
    pub fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Reads a text file.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// Writes `rows` rows of the small synthetic world to `name`, from number `first_row` on.
    /// Returns the AUC of the planted model, where there are both classes.
    ///
    /// By the program: a file that this process wrote would stay locked in whatever child another
    /// test happens to start meanwhile.
    pub fn synth(&self, name: &str, rows: u64, first_row: u64) -> Option<f64> {
        let (rows, first) = (rows.to_string(), first_row.to_string());
        let given = ["synth", "--overwrite", "--output", name];
        let arguments = [&given[..], &["--rows", &rows, "--first-row", &first]].concat();
        let ended = self.umbra(1, &arguments).fine();
        ended.stdout.contains("planted AUC").then(|| ended.figure("planted AUC"))
    }

    /// Runs `umbra` on `ranks` ranks in the folder.
    #[must_use]
    pub fn umbra(&self, ranks: usize, arguments: &[&str]) -> Ended {
        start(self.root(), ranks, &program("umbra"), arguments, &[]).wait(LIMIT)
    }

    /// Trains `job` on `ranks` ranks into the run folder `run`, with more settings; it must end
    /// well.
    pub fn train(&self, ranks: usize, job: &str, run: &str, sets: &[&str]) -> Ended {
        self.try_train(ranks, job, run, sets).fine()
    }

    /// As [`Folder::train`]; it may end as it will.
    #[must_use]
    pub fn try_train(&self, ranks: usize, job: &str, run: &str, sets: &[&str]) -> Ended {
        let sets = Self::sets(run, sets);
        let arguments: Vec<&str> =
            ["train", "-c", job].into_iter().chain(sets.iter().map(String::as_str)).collect();
        self.umbra(ranks, &arguments)
    }

    /// As [`Folder::train`] with `job.toml` into `run`, and rank `rank` stands still for five
    /// seconds once steps were reported; the run must be long enough for that.
    pub fn train_with_a_pause(&self, ranks: usize, rank: usize, sets: &[&str]) -> Ended {
        let sets = Self::sets("run", &[sets, &["run.log_every_s=0.1"]].concat());
        let arguments: Vec<&str> = ["train", "-c", "job.toml"]
            .into_iter()
            .chain(sets.iter().map(String::as_str))
            .collect();
        let mut running = start(self.root(), ranks, &program("umbra"), &arguments, &[]);
        let metrics = self.path("run/metrics.jsonl");
        running.until("it reported steps", |_| metrics.metadata().is_ok_and(|file| file.len() > 0));
        let pid = running.rank_pids(ranks)[rank];
        signal(pid, "STOP");
        std::thread::sleep(Duration::from_secs(5));
        signal(pid, "CONT");
        running.wait(LIMIT).fine()
    }

    /// `--set` arguments: the run folder `run`, its checkpoints, and `sets`.
    #[must_use]
    pub fn sets(run: &str, sets: &[&str]) -> Vec<String> {
        let own = [format!("run.dir={run}"), format!("checkpoint.dir={run}/checkpoints")];
        let all = own.into_iter().chain(sets.iter().map(|set| (*set).to_owned()));
        all.flat_map(|set| ["--set".to_owned(), set]).collect()
    }

    /// The summary of a run.
    #[must_use]
    pub fn summary(&self, run: &str) -> Value {
        serde_json::from_slice(&self.read(&format!("{run}/summary.json"))).unwrap()
    }

    /// The model of a checkpoint, or of a run's last one, as `umbra export` writes it.
    #[must_use]
    pub fn export(&self, checkpoint: &str, format: &str) -> Vec<u8> {
        let file = format!("{}.{format}", checkpoint.replace('/', "-"));
        let export = ["export", "--overwrite", "--checkpoint", checkpoint, "--format", format];
        let _ = self.umbra(1, &[&export[..], &["--output", &file]].concat()).fine();
        self.read(&file)
    }

    /// What `umbra eval --json` prints for the last checkpoint of a run.
    #[must_use]
    pub fn eval(&self, ranks: usize, run: &str, data: &str) -> Value {
        let checkpoint = format!("{run}/checkpoints/last");
        let arguments = ["eval", "--checkpoint", &checkpoint, "--data", data, "--json"];
        let ended = self.umbra(ranks, &arguments).fine();
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stdout))
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}
