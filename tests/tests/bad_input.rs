//! The table of mistakes: what a user can get wrong, the exit code, and what the one message says.
//!
//! Configurations as such (every key, every contradiction) are tested beside the reader of
//! configurations, damaged datasets beside the reader of datasets; here it is the whole program,
//! and what several ranks make of a mistake.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Ended, Folder, LIMIT, program, start};

const JOB: &str = r#"
[data]
train = "train.h5"
test = "train.h5"
[model]
kind = "lr"
[optim.dense]
kind = "sgd"
lr = 0.1
[optim.sparse]
kind = "sgd"
lr = 0.1
"#;

struct Case {
    code: i32,
    arguments: &'static str,
    message: &'static str,
}

const fn case(code: i32, arguments: &'static str, message: &'static str) -> Case {
    Case { code, arguments, message }
}

/// What is wrong with the configuration: exit code 2.
const CONFIGURATION: &[Case] = &[
    case(2, "train -c none.toml", "cannot read the configuration none.toml"),
    case(2, "train", "`data.train` is missing: give a file or a list of files"),
    case(2, "train -c broken.toml", "broken.toml:2: not valid TOML"),
    case(2, "train -c binary.toml", "cannot read the configuration binary.toml"),
    case(
        2,
        "train -c misspelt.toml",
        "misspelt.toml:3: unknown key `data.trian`; the nearest known key is `data.train`",
    ),
    case(
        2,
        "train -c job.toml --set optim.dense.learning_rate=1",
        "the nearest known key is `optim.dense.lr`",
    ),
    case(
        2,
        "train -c job.toml --set train.epochs=0",
        "`train.epochs = 0`: expected an integer from 1",
    ),
    case(
        2,
        "train -c job.toml --set train.batch_size=-1",
        "`train.batch_size = -1`: expected an integer from 1",
    ),
    case(
        2,
        "train -c job.toml --set optim.dense.lr=nan",
        "`optim.dense.lr = nan`: expected a finite number",
    ),
    case(
        2,
        "train -c job.toml --set data.train=[]",
        "`data.train = []`: expected at least one file",
    ),
    case(2, "train -c job.toml --set sync.server.members=4", "\"auto\" has no use for it"),
    case(
        2,
        "train -c job.toml --set sync.method=hop_bw --set train.worker_threads=1",
        "fewer than the workers of all trainers",
    ),
    case(2, "train -c job.toml --set sync.method=async", "expected one of \"auto\", \"none\""),
    case(2, "train -c job.toml --set sync.alpha=0.5", "\"auto\" has no use for it"),
    case(2, "train -c job.toml --set roles.sync_ps=1", "sync.method = \"auto\" has no center"),
    case(
        5,
        "train -c job.toml --set train.pin_workers=true --set train.worker_threads=4000",
        "a core for each of 4000 worker threads",
    ),
    case(2, "train -c job.toml --set seed", "--set seed: expected KEY=VALUE"),
    case(2, "train -c job.toml --set run.dir=job.toml", "expected a folder, and this is a file"),
    case(2, "train -c job.toml --set run.dir=old", "--set run.overwrite=true"),
    case(
        2,
        "train -c job.toml --set model.kind=fm --set model.top=[8]",
        "`model.top = [8]`: expected model.kind to be one of \"dlrm\"",
    ),
    case(
        2,
        "train -c job.toml --set model.kind=dlrm --set model.bottom=[8,4]",
        "model.embedding_dim = 16",
    ),
    case(
        2,
        "train -c job.toml --set model.kind=dlrm --set model.bottom=[]",
        "[model] on this data:",
    ),
    case(2, "train none.toml", "cannot read the configuration none.toml"),
    case(2, "plan none.toml --length 1h --mtbf 1h --shards 1 --bytes-per-s 1", "none.toml"),
    case(2, "simulate none.toml --cluster none.toml", "none.toml"),
    case(
        2,
        "train job.toml --set optim.dense.lr=.x",
        "`optim.dense.lr = \".x\"`: expected a finite number",
    ),
    case(
        2,
        "train job.toml --set optim.sparse.momentum=.5",
        "expected optim.sparse.kind to be \"momentum\": optim.sparse.kind = \"sgd\" has no use",
    ),
    case(
        2,
        "train --set data.train=train.h5 --set model.kind=lr --set optim.dense.kind=momentum",
        "`optim.dense.lr` is missing",
    ),
    case(1, "reference man --output job.toml", "cannot write manual pages to job.toml"),
    case(
        2,
        "train -c job.toml --set train.early_stop.patience=2",
        "expected data.valid to be given",
    ),
    case(2, "train -c job.toml --set roles.layout=separate", "`roles.trainers` is missing"),
    case(
        2,
        "prepare --format csv --input text.h5 --output a.h5",
        "--format csv needs --schema S.toml",
    ),
    case(
        2,
        "prepare --format csv --schema none.toml --input rows.txt --output a.h5",
        "none.toml: cannot read the schema",
    ),
    case(
        2,
        "prepare --format libfm --input rows.txt --output train.h5",
        "train.h5: the output exists",
    ),
    case(
        2,
        "prepare --format libfm --input rows.txt --output none/a.h5",
        "the folder none does not exist",
    ),
    case(
        2,
        "prepare --format libfm --input rows.txt --output rows.txt --overwrite",
        "rows.txt: the output is one of the files to read",
    ),
    case(
        2,
        "prepare --format libfm --input rows.txt --output a.h5 --threads 1025",
        "--threads: expected 1 to 1024, got 1025",
    ),
    case(
        2,
        "prepare --format libfm --input rows.txt --output a.h5 --hash-size 9 --cap 5",
        "--cap is for a vocabulary that this run begins: remove --hash-size, or --cap",
    ),
    case(
        2,
        "synth --rows 2 --first-row 18446744073709551615 --output a.h5",
        "--first-row 18446744073709551615: expected at most",
    ),
];

/// What is wrong with files and checkpoints: exit codes 3 and 4.
const FILES: &[Case] = &[
    case(
        3,
        "prepare --format libfm --input /dev/null --output a.h5",
        "/dev/null: the input is empty",
    ),
    case(3, "train -c job.toml --set data.train=none.h5", "none.h5: cannot open"),
    case(3, "train -c job.toml --set data.test=text.h5", "text.h5: not an HDF5 file"),
    case(3, "train -c job.toml --set data.train=empty.h5", "empty.h5: not an HDF5 file"),
    case(3, "train -c job.toml --set data.train=cut.h5", "cut.h5: cannot open the file"),
    case(3, "train -c job.toml --set data.train=folder", "folder"),
    case(
        3,
        "train -c job.toml --set data.test=other.h5",
        "train.h5 and other.h5 differ in number of dense features: train.h5 has 4",
    ),
    case(
        3,
        "train -c job.toml --dry-run --set data.test=other.h5",
        "prepare both with one vocabulary",
    ),
    case(3, "eval --checkpoint saved --data none.h5", "none.h5: cannot open"),
    case(3, "prepare --format libfm --input none --output a.h5", "none: cannot read the input"),
    case(
        3,
        "prepare --format libfm --input empty.h5 --output a.h5",
        "empty.h5: the input is empty",
    ),
    case(
        3,
        "prepare --format criteo --input rows.txt --output a.h5",
        "rows.txt:1: expected 40 columns, got 1",
    ),
    case(
        3,
        "prepare --format libfm --input rows.txt --output a.h5 --vocabulary train.h5",
        "train.h5: no vocabulary inside",
    ),
    case(4, "eval --checkpoint none --data train.h5", "none is no checkpoint: neither it nor"),
    case(4, "predict --checkpoint . --data train.h5 --output p", "is no checkpoint"),
    case(4, "eval --checkpoint folder --data train.h5", "RUN/checkpoints"),
    case(
        4,
        "eval --checkpoint newer --data train.h5",
        "checkpoint version 99; this program reads version 2",
    ),
    case(4, "eval --checkpoint torn --data train.h5", "the file is cut or torn"),
    case(4, "eval --checkpoint damaged --data train.h5", "the file is damaged"),
    case(4, "eval --checkpoint garbled --data train.h5", "not a manifest of this program"),
    case(4, "eval --checkpoint saved --data other.h5", "saved: the number of dense features is"),
    case(
        2,
        "predict --checkpoint saved --data train.h5 --output none/p",
        "none/p: the folder none does not exist: create it first",
    ),
];

/// What is wrong with the launch: exit code 5.
const LAUNCH: &[Case] = &[case(
    5,
    "train -c job.toml --set roles.trainers=3",
    "roles.trainers = 3 need 3 ranks, but the job has 1; start it with mpirun -n 3",
)];

/// Variables that a launcher left, the exit code, the message.
type Launched = (&'static [(&'static str, &'static str)], i32, &'static str);

/// Launchers that MPI knows nothing of.
const LAUNCHED: &[Launched] = &[
    (
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "0")],
        5,
        "srun --mpi=pmix",
    ),
    (
        &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")],
        5,
        "UMBRA_ALLOW_SINGLETON=1",
    ),
    (&[("MPI_LOCALNRANKS", "2")], 5, "MPICH's mpiexec started 2 processes, but MPI sees 1"),
    (
        &[("UMBRA_SIMD", "sse9")],
        2,
        "UMBRA_SIMD=sse9: an instruction set is one of plain, avx2, avx512, amx, neon",
    ),
    (
        &[("UMBRA_MPI_THREADS", "single")],
        2,
        "UMBRA_MPI_THREADS=single: a thread level is one of multiple, serialized",
    ),
];

/// Two ranks make the same mistake together, or only one of them.
const TOGETHER: &[Case] = &[
    case(2, "train -c none.toml", "cannot read the configuration none.toml"),
    case(2, "train -c job.toml --set sync.method=none", "keeps 2 trainers together"),
    case(3, "train -c job.toml --set data.train=none.h5", "none.h5: cannot open"),
    case(4, "eval --checkpoint damaged --data train.h5", "the file is damaged"),
    case(5, "train -c job.toml --set roles.trainers=3", "need 3 ranks, but the job has 2"),
    case(5, "synth --rows 10 --output a.h5", "synth is one process, and 2 were started"),
    case(
        1,
        "train -c job.toml --set optim.dense.lr=1e38 --set optim.sparse.lr=1e38",
        "the model has diverged; lower the learning rates",
    ),
];

/// A folder with everything that the tables name.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.synth("train.h5", 2000, 0);
    folder.write("job.toml", JOB);
    folder.write("broken.toml", "[data]\ntrain = \n");
    folder.write("misspelt.toml", "[data]\n# A comment.\ntrian = \"train.h5\"\n");
    folder.write("binary.toml", [0xff, 0xfe, 0x00]);
    folder.write("text.h5", "not HDF5 at all");
    folder.write("empty.h5", "");
    folder.write("rows.txt", "1 3:1 4:1\n0 5:1 4:1\n");
    let whole = folder.read("train.h5");
    folder.write("cut.h5", &whole[..whole.len() / 2]);
    std::fs::create_dir(folder.path("folder")).unwrap();
    let libfm = ["prepare", "--format", "libfm", "--input", "rows.txt", "--output", "other.h5"];
    let _ = folder.umbra(1, &libfm).fine();
    folder.train(1, "job.toml", "old", &[]);
    let copy = |name: &str, change: &dyn Fn(&Folder)| {
        std::fs::create_dir(folder.path(name)).unwrap();
        for file in std::fs::read_dir(folder.path("old/checkpoints/last")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path(name).join(file.file_name())).unwrap();
        }
        change(&folder);
    };
    copy("saved", &|_| ());
    copy("newer", &|folder| {
        let manifest = folder.text("newer/manifest.json");
        folder.write("newer/manifest.json", manifest.replace("\"version\":2,", "\"version\":99,"));
    });
    copy("torn", &|folder| {
        let rows = folder.read("torn/rank-00000.safetensors");
        folder.write("torn/rank-00000.safetensors", &rows[..rows.len() - 4]);
    });
    copy("damaged", &|folder| {
        let mut rows = folder.read("damaged/rank-00000.safetensors");
        let middle = rows.len() / 2;
        rows[middle] ^= 1;
        folder.write("damaged/rank-00000.safetensors", rows);
    });
    copy("garbled", &|folder| folder.write("garbled/manifest.json", "{\"version\": 2}"));
    folder
}

/// Lines that are not mpirun's own, nor a warning or a progress line.
fn messages(ended: &Ended) -> Vec<&str> {
    let lines = ended.stderr.lines().filter(|line| line.starts_with("umbra: "));
    lines.filter(|line| !line.starts_with("umbra: warning: ")).collect()
}

fn check(case: &Case, ended: &Ended) {
    let Case { code, arguments, message } = case;
    let all = &ended.stderr;
    assert_eq!(ended.code, *code, "{arguments}: {all}");
    let said = messages(ended);
    assert_eq!(said.len(), 1, "{arguments}: one message expected: {all}");
    assert!(said[0].contains(message), "{arguments}: {all}");
    assert!(!all.contains("panic") && !all.contains("backtrace"), "{arguments}: {all}");
    assert!(ended.stdout.is_empty(), "{arguments}: {}", ended.stdout);
}

#[test]
fn a_mistake_is_one_message_and_its_exit_code() {
    let folder = folder();
    let cases = || CONFIGURATION.iter().chain(FILES).chain(LAUNCH);
    assert!(cases().count() >= 25);
    for case in cases() {
        let arguments: Vec<&str> = case.arguments.split(' ').collect();
        check(case, &folder.umbra(1, &arguments));
    }
    for (variables, code, message) in LAUNCHED {
        let arguments = ["train", "-c", "job.toml"];
        let running = start(folder.root(), 1, &program("umbra"), &arguments, variables);
        check(&case(*code, "train in another environment", message), &running.wait(LIMIT));
    }
    // Messages of the argument parser show the usage as well.
    for arguments in [&["frobnicate"][..], &["train", "--bogus"], &["synth", "--rows", "0"], &[]] {
        let ended = folder.umbra(1, arguments);
        assert_eq!(ended.code, 2, "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panic"), "{arguments:?}: {}", ended.stderr);
    }
    assert!(!folder.path("runs").exists() && !folder.path("a.h5").exists(), "left behind");
}

#[test]
fn a_mistake_on_two_ranks_is_one_message_as_well() {
    let folder = folder();
    for case in TOGETHER {
        let arguments: Vec<&str> = case.arguments.split(' ').collect();
        check(case, &folder.umbra(2, &arguments));
    }
    // Every rank says what it can't parse, once together.
    let ended = folder.umbra(2, &["train", "--bogus"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert_eq!(
        ended.stderr.matches("unexpected argument '--bogus'").count(),
        1,
        "{}",
        ended.stderr
    );
}

/// Rows of another file in the middle of a run are not trained on as if nothing had happened.
#[test]
fn data_that_change_under_a_run_are_noticed() {
    for ranks in [1, 2] {
        let folder = Folder::new();
        folder.synth("train.h5", 2000, 0);
        folder.synth("other.h5", 2000, 2000);
        folder.write("job.toml", JOB);
        let sets = ["train.epochs=100000", "data.test=[]", "run.log_every_s=0.1"];
        let sets = Folder::sets("run", &sets);
        let arguments: Vec<&str> = ["train", "-c", "job.toml"]
            .into_iter()
            .chain(sets.iter().map(String::as_str))
            .collect();
        let mut running = start(folder.root(), ranks, &program("umbra"), &arguments, &[]);
        let metrics = folder.path("run/metrics.jsonl");
        running.until("it reports", |_| metrics.metadata().is_ok_and(|found| found.len() > 0));
        std::fs::rename(folder.path("other.h5"), folder.path("train.h5")).unwrap();
        let ended = running.wait(LIMIT);
        assert_eq!(ended.code, 3, "{}", ended.stderr);
        let says = "train.h5: changed while it was used: ";
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}
