//! The kill matrix: jobs that lose a rank at random moments, by a signal or by a panic of its own,
//! under `umbra launch`, each of which has to end, say why, clean up after itself and come to the
//! end of the run all the same.
//!
//! `cargo test -p umbra-tests --test kills -- --ignored --nocapture`; `KILLS` says how many (60),
//! `SEED` which. It prints `kills_tried`, `kills_lost` (a run that does not come to the end that it
//! has without a loss), `hangs`, `unnamed` (nobody says what was lost) and `shm_left`. Two are told
//! apart: `kills_late` came when the run was done, and do not count as tried; of ranks that are
//! killed before MPI knows them, Open MPI says that there was one, and not which
//! (`unnamed_before_mpi`).
#![allow(clippy::unwrap_used)]

use core::time::Duration;
use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use umbra_core::rng::{Purpose, Stream};
use umbra_tests::{Folder, Job, SavedModel, mpirun, process_of, program, signal};

const RANKS: usize = 4;
/// Longest life of a supervised job: three starts, a watch of six seconds, a crowded machine.
const LONGEST: Duration = Duration::from_secs(150);
/// Of a test AUC, from the run without a loss, where bits are not promised.
const AUC_BOUND: f64 = 0.05;

/// A fault that a rank is asked for, beside the signals.
const PANIC: &str = "panic";

/// Name, and settings. Four ranks each.
const JOBS: [(&str, &[&str]); 6] = [
    ("bsp collocated", &["sync.method=bsp", "train.batch_size=64", "train.epochs=20"]),
    (
        "bsp separate",
        &[
            "sync.method=bsp",
            "train.epochs=20",
            "train.batch_size=128",
            "roles.layout=separate",
            "roles.trainers=2",
            "roles.embedding_ps=2",
        ],
    ),
    (
        "shadow_easgd collocated",
        &["sync.method=shadow_easgd", "train.batch_size=64", "train.epochs=20"],
    ),
    (
        "shadow_easgd separate",
        &[
            "sync.method=shadow_easgd",
            "embedding.shared_memory=false",
            "train.epochs=20",
            "train.batch_size=128",
            "roles.layout=separate",
            "roles.trainers=2",
            "roles.embedding_ps=1",
            "roles.sync_ps=1",
        ],
    ),
    (
        "ds_sync collocated",
        &["sync.method=ds_sync", "sync.every=4", "train.batch_size=64", "train.epochs=10"],
    ),
    (
        "ds_sync separate",
        &[
            "sync.method=ds_sync",
            "sync.every=4",
            "train.epochs=10",
            "train.batch_size=128",
            "roles.layout=separate",
            "roles.trainers=2",
            "roles.embedding_ps=2",
        ],
    ),
];

/// Evaluations and saves often enough to be hit.
const SETS: [&str; 7] = [
    "data.valid=test.h5",
    "train.eval_every=25",
    "checkpoint.every=10",
    "checkpoint.full_every=3",
    "run.watchdog_s=6",
    "run.tensorboard=false",
    "run.log_every_s=1",
];

/// Arguments of a training to `run`.
fn arguments(run: &str, sets: &[&str]) -> Vec<String> {
    let train = ["train", "-c", "job.toml"].map(str::to_owned);
    train.into_iter().chain(Folder::sets(run, &[&SETS[..], sets].concat())).collect()
}

/// What a run comes to without a loss.
struct Whole {
    auc: f64,
    model: SavedModel,
    seconds: f64,
}

fn left(folder: &Folder, run: &str) -> (f64, SavedModel) {
    let auc = folder.summary(run)["test"]["auc"].as_f64().unwrap();
    (auc, SavedModel::read(&folder.path(&format!("{run}/checkpoints/last"))))
}

/// Files that Open MPI has in shared memory.
fn shared_memory() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("_segment.")).collect()
}

/// Those of `new` that no living process has in its memory.
fn nobodys(new: &BTreeSet<String>) -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("maps")).ok());
    let maps: Vec<String> = maps.collect();
    let unused = |name: &&String| maps.iter().all(|map| !map.contains(name.as_str()));
    new.iter().filter(unused).count() as u64
}

/// Waits for the end; past `LONGEST` ends all of it and says so with `None`.
fn wait(mut job: Child) -> Option<(i32, String)> {
    let mut stderr = job.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![];
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let begun = Instant::now();
    let status = loop {
        match job.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > LONGEST => {
                let all = umbra_tests::below(job.id());
                all.into_iter().chain([job.id()]).for_each(|pid| signal(pid, "KILL"));
                let _ = job.wait();
                println!("{}", reader.join().unwrap());
                return None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Some((status.code().unwrap_or(-1), reader.join().unwrap()))
}

#[test]
#[ignore = "a quarter of an hour: 60 jobs that lose a rank"]
fn no_kill_loses_a_run() {
    let number = |name: &str, fallback| {
        std::env::var(name).map_or(fallback, |text| text.parse().expect("a number"))
    };
    let (kills, seed) = (number("KILLS", 60), number("SEED", 1));
    println!("kills_seed {seed}");
    let folder = Folder::new();
    folder.synth("train.h5", 6000, 0);
    folder.synth("test.h5", 1000, 6000);
    folder.write("job.toml", Job::DLRM.text());
    let mut wholes: Vec<Option<Whole>> = JOBS.iter().map(|_| None).collect();
    let [mut lost, mut hangs, mut unnamed, mut early, mut late, mut shm_left] = [0_u64; 6];
    let mut tried = 0;
    for kill in 0..2 * kills {
        if tried == kills {
            break;
        }
        let stream = Stream::new(seed, Purpose::Test(u32::try_from(kill).unwrap()));
        let job = usize::try_from(kill).unwrap() % JOBS.len();
        let (name, sets) = JOBS[job];
        let whole = wholes[job].get_or_insert_with(|| {
            let run = format!("whole-{job}");
            // The shorter of two: a machine that is busy for the first would make most kills late.
            let seconds = [(); 2].map(|()| {
                let begun = Instant::now();
                let again = [&SETS[..], sets, &["run.overwrite=true"]].concat();
                let _ = folder.train(RANKS, "job.toml", &run, &again);
                begun.elapsed().as_secs_f64()
            });
            let seconds = seconds[0].min(seconds[1]);
            let (auc, model) = left(&folder, &run);
            println!("{name}: {seconds:.1} s without a loss, AUC {auc:.4}");
            Whole { auc, model, seconds }
        });
        let fault = ["KILL", "STOP", "ABRT", PANIC][usize::try_from(stream.below(0, 4)).unwrap()];
        // Trainers panic: of separate layouts the first two ranks.
        let ranks = if fault == PANIC && name.ends_with("separate") { 2 } else { RANKS as u64 };
        let rank = usize::try_from(stream.below(1, ranks)).unwrap();
        // Behind some checkpoints: it comes in a run that has not gone on from one.
        let step = 40 + stream.below(3, 120);
        let panic = [
            format!("recovery.inject.panic_trainer={rank}"),
            format!("recovery.inject.panic_step={step}"),
        ];
        let panic: Vec<&str> =
            panic.iter().filter(|_| fault == PANIC).map(String::as_str).collect();
        let share = f64::from(u32::try_from(stream.below(2, 1000)).unwrap()) / 1000.0;
        let before = shared_memory();
        let run = format!("kill-{kill}");
        let umbra = program("umbra");
        let mut command = Command::new(&umbra);
        command.args(["launch", "--"]).args(mpirun(RANKS));
        command
            .arg(&umbra)
            .args(arguments(&run, &[sets, &panic].concat()))
            .current_dir(folder.root());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        umbra_tests::as_a_user(&mut command);
        let mut started = command.spawn().unwrap();
        let victim = if fault == PANIC {
            None
        } else {
            std::thread::sleep(Duration::from_secs_f64(share * whole.seconds));
            loop {
                let victim = process_of(started.id(), rank);
                if victim.is_some() || started.try_wait().unwrap().is_some() {
                    break victim;
                }
            }
        };
        let saving = std::fs::read_dir(folder.path(&format!("{run}/checkpoints")));
        let mut entries = saving.into_iter().flatten().flatten();
        let saving = entries.any(|entry| entry.file_name().to_string_lossy().ends_with(".tmp"));
        if let Some(victim) = victim {
            signal(victim, fault);
        }
        let moment = Instant::now();
        let when = if fault == PANIC { format!("step {step}") } else { format!("{share:.3}") };
        let what = format!("{kill}: {name}, {fault} of rank {rank} at {when}");
        let Some((code, said)) = wait(started) else {
            (hangs, tried) = (hangs + 1, tried + 1);
            println!("{what}: HANGS");
            continue;
        };
        let again = said.contains("umbra: starting again after exit code ");
        // Open MPI's line about the rank, its own last words, or those of one that waited for it.
        let own = format!("umbra: [{rank}/{RANKS} ");
        let names_it = said.contains(&format!("rank {rank} "))
            || said.contains(&own)
            || said.contains(" gave up (");
        if code != 0 {
            (lost, tried) = (lost + 1, tried + 1);
            println!("{what}: LOST, exit code {code}\n{said}");
            continue;
        }
        let (auc, model) = left(&folder, &run);
        let same = if name.starts_with("bsp") {
            (auc, &model) == (whole.auc, &whole.model)
        } else {
            (auc - whole.auc).abs() <= AUC_BOUND
        };
        let new: BTreeSet<String> = shared_memory().difference(&before).cloned().collect();
        let shm = nobodys(&new);
        let seconds = moment.elapsed().as_secs_f64();
        let saving = if saving { ", in a save" } else { "" };
        let note = if again { "" } else { ", which was late" };
        println!("{what}{saving}{note}: the end after {seconds:.1} s, AUC {auc:.4}");
        shm_left += shm;
        late += u64::from(!again);
        tried += u64::from(again);
        let before_mpi = said.contains("but 1 process returned");
        early += u64::from(again && !names_it && before_mpi);
        let nobody = again && !names_it && !before_mpi;
        unnamed += u64::from(nobody);
        if !same || folder.summary(&run)["status"] != "done" {
            lost += 1;
            println!("LOST: {auc} and not {}\n{said}", whole.auc);
        } else if shm > 0 || nobody {
            println!("{shm} left in shared memory: {new:?}\n{said}");
        }
        // The disk need not hold them all.
        let _ = std::fs::remove_dir_all(folder.path(&run));
    }
    for (name, count) in [
        ("kills_tried", tried),
        ("kills_late", late),
        ("kills_lost", lost),
        ("hangs", hangs),
        ("unnamed", unnamed),
        ("unnamed_before_mpi", early),
        ("shm_left", shm_left),
    ] {
        println!("{name} {count}");
    }
    assert_eq!([lost, hangs, unnamed, shm_left], [0; 4]);
    assert_eq!(tried, kills, "too many came late");
}
