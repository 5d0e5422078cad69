//! Signals, lost and stuck ranks, damaged data: every job ends, soon, and says why.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use core::time::Duration;
use std::path::Path;

use umbra_tests::{Ended, Folder, Job, LIMIT, Running, is_mpich, mpirun, program, signal, start};

fn folder() -> Folder {
    Job::PLAIN.folder(4000, 500)
}

/// A training that would take for ever, under way: it has reported steps.
fn endless(folder: &Folder, ranks: usize, sets: &[&str]) -> Running {
    let sets = [&["train.epochs=100000", "run.log_every_s=0.1"], sets].concat();
    let sets = Folder::sets("run", &sets);
    let arguments: Vec<&str> =
        ["train", "-c", "job.toml"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let mut running = start(folder.root(), ranks, &program("umbra"), &arguments, &[]);
    let metrics = folder.path("run/metrics.jsonl");
    let reports = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
    running.until("it reported steps", |_| reports(&metrics) >= 2);
    running
}

/// Lines on stderr that are umbra's own, progress aside.
fn said(ended: &Ended) -> Vec<&str> {
    let ours = |line: &&str| line.starts_with("umbra: ") && !line.contains("warning");
    ended.stderr.lines().filter(ours).collect()
}

fn stopped(folder: &Folder, ended: &Ended, number: i32) {
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    assert_eq!(folder.summary("run")["status"], "stopped");
    assert!(folder.summary("run")["steps"].as_u64().unwrap() > 0);
    let lines = said(ended);
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    assert!(lines[0].contains(&format!("stopped by signal {number} ")), "{}", lines[0]);
}

/// A job whose launcher has passed a signal on. That of MPICH 4.0 may lose the exit codes of such
/// ranks (pmodels/mpich#5930 and #7057), and ends with 0: what they did, they tell in other ways.
fn passed_on(mut ended: Ended) -> Ended {
    if is_mpich() && ended.code == 0 {
        ended.code = 75;
    }
    ended
}

/// A supervised job that trains to the end, and then does something else.
fn launch_and_then(folder: &Folder, then: &str) -> Ended {
    let umbra = program("umbra");
    let train = Folder::sets("run", &["train.max_examples=640", "run.tensorboard=false"]);
    let job = format!("{} train -c job.toml {}; {then}", umbra.display(), train.join(" "));
    start(folder.root(), 1, &umbra, &["launch", "--", "sh", "-c", &job], &[]).wait(LIMIT)
}

/// A rank can be lost while MPI ends: what such a job leaves is a run that is done.
#[test]
fn a_run_that_is_done_is_not_started_again() {
    let folder = folder();
    let ended = launch_and_then(&folder, "exit 1");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let says = "umbra: the run was done before the job ended with exit code 1";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
    assert!(!ended.stderr.contains("starting again"), "{}", ended.stderr);
    assert_eq!(folder.summary("run")["status"], "done");
}

/// A rank that stops when its peers have left MPI already is missed by its launcher alone, which
/// would wait for ever.
#[test]
fn a_process_that_stands_still_behind_a_run_that_is_done_is_ended() {
    let folder = folder();
    let ended = launch_and_then(&folder, "kill -STOP $$");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("a process of its job stands still"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("starting again"), "{}", ended.stderr);
}

/// A worker that panics ends the job, with a line that says where; started again, it goes on.
#[test]
fn a_panic_is_survived_like_the_loss_of_a_rank() {
    let folder = folder();
    let umbra = program("umbra");
    let sets = [
        "checkpoint.every=10",
        "train.batch_size=32",
        "sync.method=bsp",
        "run.tensorboard=false",
        "recovery.inject.panic_trainer=1",
        "recovery.inject.panic_step=35",
    ];
    let train = Folder::sets("run", &sets);
    let mut job = vec!["launch".to_owned(), "--".into()];
    job.extend(mpirun(2));
    job.extend([umbra.to_str().unwrap(), "train", "-c", "job.toml"].map(str::to_owned));
    let all: Vec<&str> = job.iter().chain(&train).map(String::as_str).collect();
    let ended = start(folder.root(), 1, &umbra, &all, &[]).wait(LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("as recovery.inject asks"), "{}", ended.stderr);
    assert!(ended.stderr.contains("umbra: starting again after exit code 1"), "{}", ended.stderr);
    assert!(ended.stderr.contains("umbra: going on from "), "{}", ended.stderr);
    assert_eq!(folder.summary("run")["status"], "done");
}

/// A process of the last start that still ends has the folder until it has ended.
#[test]
fn a_supervised_start_waits_for_the_folder() {
    let folder = folder();
    let sets = Folder::sets("run", &["train.max_examples=640", "run.tensorboard=false"]);
    let train = format!("{} train -c job.toml {}", program("umbra").display(), sets.join(" "));
    // A lock on the file, from before a start on and until then.
    let hold = |until: &str| {
        format!(
            "mkdir -p run; (flock 9; touch held; {until}) 9>run/run.lock & \
             while [ ! -e held ]; do sleep .01; done"
        )
    };
    // However long that start takes.
    let held = hold("while [ ! -e over ]; do sleep .05; done");
    let job = format!("{held}; {train}; code=$?; touch over; exit $code");
    let alone = start(folder.root(), 1, Path::new("sh"), &["-c", &job], &[]).wait(LIMIT);
    assert_eq!(alone.code, 2, "{}", alone.stderr);
    std::fs::remove_file(folder.root().join("held")).unwrap();
    let job = format!("{}; {train}", hold("sleep 2"));
    let umbra = program("umbra");
    let ended =
        start(folder.root(), 1, &umbra, &["launch", "--", "sh", "-c", &job], &[]).wait(LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(folder.summary("run")["status"], "done");
}

/// Four workers without a synchronization method stop one by one, while others wait for the reader.
#[test]
fn sigterm_stops_a_single_process_at_a_step() {
    for _ in 0..3 {
        let folder = folder();
        let running = endless(&folder, 1, &["train.worker_threads=4", "data.prefetch_batches=1"]);
        running.signal("TERM");
        stopped(&folder, &running.wait(LIMIT), 15);
    }
}

/// mpirun passes SIGUSR1 on to all ranks.
#[test]
fn sigusr1_to_mpirun_stops_all_ranks() {
    for sets in [&["sync.method=bsp"][..], &["sync.method=local_sgd", "sync.every=4"]] {
        let folder = folder();
        let running = endless(&folder, 2, sets);
        running.signal("USR1");
        stopped(&folder, &passed_on(running.wait(LIMIT)), 10);
    }
}

/// The ranks agree: what one was told holds for all.
#[test]
fn sigterm_to_one_rank_stops_all() {
    for (sets, rank) in [
        (&["sync.method=bsp"][..], 1),
        (&["sync.method=local_sgd", "sync.every=4"], 2),
        (&["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1"], 0),
    ] {
        let folder = folder();
        let mut running = endless(&folder, 3, sets);
        signal(running.rank_pids(3)[rank], "TERM");
        stopped(&folder, &running.wait(LIMIT), 15);
    }
}

/// One stretch of training without end, so that the main threads, which agree between stretches,
/// never do: a rank that only holds rows hears of the stop, and tells of it, by heartbeats alone.
#[test]
fn a_stop_reaches_all_ranks_from_one_that_does_not_train() {
    let separate = ["roles.layout=separate", "roles.embedding_ps=1", "data.test=[]"];
    for (ranks, name, number, sets) in [
        (4, "USR1", 10, &["roles.trainers=3", "sync.method=local_sgd", "sync.every=4"][..]),
        (3, "TERM", 15, &["roles.trainers=2", "sync.method=bsp"]),
        (2, "TERM", 15, &["roles.trainers=1"]),
    ] {
        let folder = folder();
        let mut running = endless(&folder, ranks, &[&separate[..], sets].concat());
        signal(running.rank_pids(ranks)[ranks - 1], name);
        stopped(&folder, &running.wait(LIMIT), number);
    }
}

/// A trainer whose data has ended waits for a round that the other's pace holds back for longer
/// than the watch allows: nobody is lost. The other trains until it is told to stop, so the wait
/// lasts whatever the machine is.
#[test]
fn a_pace_slower_than_the_watch_loses_nobody() {
    let folder = folder();
    let short = ["recovery.inject.short_trainer=1", "recovery.inject.short_share=0.00001"];
    let pace = ["sync.method=shadow_ma", "sync.min_interval_us=8000000", "run.watchdog_s=3"];
    let running = endless(&folder, 2, &[&short[..], &pace].concat());
    std::thread::sleep(Duration::from_secs(6));
    running.signal("USR1");
    stopped(&folder, &passed_on(running.wait(LIMIT)), 10);
}

/// The signal masks of a process: (caught, pending).
fn masks(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |hex| u64::from_str_radix(hex.trim(), 16).unwrap())
    };
    (mask("SigCgt:"), mask("ShdPnd:") | mask("SigPnd:"))
}

/// The job file is a pipe that nobody writes to: the process waits in its first step, for as long
/// as the test needs to be sure that the signals come one after the other.
#[test]
fn a_second_sigterm_leaves_at_once() {
    let bit = |number: u64| 1 << (number - 1);
    let folder = folder();
    let made = std::process::Command::new("mkfifo").arg(folder.path("pipe.toml")).status();
    assert!(made.unwrap().success());
    let arguments = ["train", "-c", "pipe.toml"];
    let mut running = start(folder.root(), 1, &program("umbra"), &arguments, &[]);
    // SIGUSR2's handler is the last to be installed.
    running.until("its handlers are there", |job| masks(job.pid()).0 & bit(12) != 0);
    running.signal("TERM");
    running.until("the first was taken", |job| masks(job.pid()).1 & bit(15) == 0);
    running.signal("TERM");
    let ended = running.wait(LIMIT);
    assert_eq!(ended.code, 143, "{}", ended.stderr);
}

#[test]
fn a_killed_rank_ends_the_job() {
    for rank in [0, 1] {
        let folder = folder();
        let mut running = endless(&folder, 2, &[]);
        signal(running.rank_pids(2)[rank], "KILL");
        let ended = running.wait(LIMIT);
        assert_ne!(ended.code, 0, "{}", ended.stderr);
    }
}

/// The others give up with a message that says what they waited for; the first rank names the late.
#[test]
fn a_stuck_rank_is_named_and_the_job_ends() {
    for (ranks, stuck, sets) in [
        (3, 1, &["sync.method=bsp"][..]),
        (2, 1, &["sync.method=local_sgd", "sync.every=4"]),
        (2, 0, &["sync.method=bsp"]),
        (3, 2, &["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1"]),
    ] {
        let folder = folder();
        let sets = [&["run.watchdog_s=5"], sets].concat();
        let mut running = endless(&folder, ranks, &sets);
        let pid = running.rank_pids(ranks)[stuck];
        signal(pid, "STOP");
        let ended = running.wait(LIMIT);
        signal(pid, "KILL");
        let case = format!("rank {stuck} of {ranks}, {sets:?}:\n{}", ended.stderr);
        assert_eq!(ended.code, 1, "{case}");
        // mpirun wakes the stuck rank up to end it; it was not waiting, and does not say so.
        let own = format!("[{stuck}/{ranks} ");
        let gave_up: Vec<&str> =
            said(&ended).into_iter().filter(|line| line.contains(" gave up ")).collect();
        assert!(gave_up.iter().all(|line| !line.contains(&own)), "{case}");
        assert!(!gave_up.is_empty(), "{case}");
        for line in gave_up {
            assert!(line.contains(" s for ") && line.contains("(run.watchdog_s = 5)"), "{case}");
        }
        if stuck > 0 {
            let mut lines = ended.stderr.lines();
            assert!(lines.any(|line| line.contains("the furthest behind first:")), "{case}");
            let first = lines.next().unwrap();
            assert!(first.starts_with(&format!("umbra:   rank {stuck}: ")), "{case}");
        }
    }
}

/// The validation file becomes a pipe that nobody writes to: the reader waits in a system call for
/// ever, as it would on a file system that hangs, and the workers wait for the reader.
#[test]
fn a_reader_that_hangs_ends_the_job() {
    // A file that is replaced while a pass reads it has changed, and that is another end.
    let hangs = || {
        let folder = folder();
        folder.synth("valid.h5", 500, 4500);
        let sets = ["data.valid=valid.h5", "train.eval_every=200", "run.watchdog_s=4"];
        let running = endless(&folder, 1, &sets);
        let pipe = folder.path("pipe.h5");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::rename(&pipe, folder.path("valid.h5")).unwrap();
        let ended = running.wait(LIMIT);
        (ended.code != 3 || !ended.stderr.contains("changed while it was used")).then_some(ended)
    };
    let ended = (0..20).find_map(|_| hangs()).unwrap();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let lines = said(&ended);
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    assert!(lines[0].contains(" s for a batch from the reader thread and gave up"), "{}", lines[0]);
    assert!(lines[0].ends_with("(run.watchdog_s = 4)"), "{}", lines[0]);
}

/// Kilobytes of memory that a process has.
fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |kb| kb.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Tables of 90 MB a rank, of which the stuck one has filled a part: the others wait for it before
/// the first step, where nothing but its heartbeat says that it is gone.
#[test]
fn a_rank_that_stops_while_tables_fill_is_named_and_the_job_ends() {
    for stuck in [0, 1] {
        let folder = folder();
        let sets = Folder::sets(
            "run",
            &["run.watchdog_s=5", "model.embedding_dim=2048", "model.bottom=[16, 2048]"],
        );
        let arguments: Vec<&str> = ["train", "-c", "job.toml"]
            .into_iter()
            .chain(sets.iter().map(String::as_str))
            .collect();
        let mut running = start(folder.root(), 2, &program("umbra"), &arguments, &[]);
        running.until("the run has a folder", |_| folder.path("run").exists());
        let pid = running.rank_pids(2)[stuck];
        let before = resident_kb(pid);
        running.until("tables fill", |_| resident_kb(pid) > before + 30_000);
        signal(pid, "STOP");
        let ended = running.wait(LIMIT);
        signal(pid, "KILL");
        assert_eq!(ended.code, 1, "{}", ended.stderr);
        let line =
            format!(" s for a sign of life from rank {stuck} and gave up (run.watchdog_s = 5)");
        assert!(said(&ended).iter().any(|said| said.ends_with(&line)), "{}", ended.stderr);
    }
}

/// MPI_Abort asks the launcher, which stands still here.
#[test]
fn a_rank_that_gives_up_ends_though_the_launcher_does_not_answer() {
    let folder = folder();
    let mut running = endless(&folder, 2, &["sync.method=bsp", "run.watchdog_s=5"]);
    let pids = running.rank_pids(2);
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    running.signal("STOP");
    signal(pids[1], "STOP");
    running.until("the first rank has ended", |_| matches!(state(pids[0]), None | Some('Z')));
    signal(pids[1], "KILL");
    running.signal("CONT");
    assert_ne!(running.wait(LIMIT).code, 0);
}

/// A scheduler may suspend a job for longer than any deadline: that is no waiting.
#[test]
fn a_suspended_job_goes_on() {
    let folder = folder();
    let mut running = endless(&folder, 2, &["sync.method=bsp", "run.watchdog_s=4"]);
    let pids = running.rank_pids(2);
    pids.iter().for_each(|pid| signal(*pid, "STOP"));
    std::thread::sleep(Duration::from_secs(7));
    pids.iter().for_each(|pid| signal(*pid, "CONT"));
    let metrics = folder.path("run/metrics.jsonl");
    let reports = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
    let before = reports(&metrics);
    running.until("it reports more steps", |_| reports(&metrics) > before + 1);
    running.signal("USR1");
    stopped(&folder, &passed_on(running.wait(LIMIT)), 10);
}

/// Damage in the middle of the training file is met while both ranks train.
#[test]
fn a_damaged_chunk_ends_training_with_one_message() {
    let folder = folder();
    folder.synth("train.h5", 60_000, 0);
    let chunk = {
        let file = hdf5::File::open(folder.path("train.h5")).unwrap();
        let sparse = file.dataset("sparse").unwrap();
        sparse.chunk_info(sparse.num_chunks().unwrap() / 3).unwrap()
    };
    let mut bytes = folder.read("train.h5");
    bytes[(chunk.addr + chunk.size / 2) as usize] ^= 1;
    folder.write("train.h5", bytes);
    for (ranks, sets) in [
        (1, &["train.worker_threads=2"][..]),
        (1, &["sync.method=bsp"]),
        (2, &["sync.method=bsp"]),
        (2, &["sync.method=local_sgd", "train.worker_threads=2"]),
        // The other trainer would go on for ever, and the threads beside the workers with it.
        (2, &["sync.method=shadow_ma", "train.epochs=100000"]),
        (2, &["sync.method=shadow_easgd", "train.epochs=100000"]),
        (2, &["sync.method=independent", "train.epochs=100000"]),
    ] {
        let sets = [&["run.overwrite=true", "run.watchdog_s=20"], sets].concat();
        let ended = folder.try_train(ranks, "job.toml", "run", &sets);
        let case = format!("{ranks} ranks, {sets:?}:\n{}", ended.stderr);
        assert_eq!(ended.code, 3, "{case}");
        let lines = said(&ended);
        assert_eq!(lines.len(), 1, "{case}");
        for part in ["train.h5", "`sparse`", "the file is damaged: copy or prepare it again"] {
            assert!(lines[0].contains(part), "{part}: {case}");
        }
    }
}

/// Nothing is left of a job that was given up: the helper itself must not hang.
#[test]
#[should_panic(expected = "outlived its limit")]
fn the_time_limit_ends_a_job() {
    let folder = folder();
    let _ = endless(&folder, 2, &[]).wait(Duration::from_millis(1));
}
