//! A rank that stands still for good, at exact places: before a call of MPI
//! (`examples/stop_point.rs`), in a save (`examples/crash_point.rs`). Every process ends, and says
//! what it waited for; the summary says so too.
//!
//! A handful always; every call of every function by
//! `cargo test -p umbra-tests --test stops -- --ignored --nocapture`, where `STOPS` names ranks and
//! the one that stops ("2:0 2:1 4:3").
#![allow(clippy::unwrap_used)]

use umbra_tests::{Ended, Folder, Job, LIMIT, program, start};

fn folder() -> Folder {
    Job::PLAIN.folder(1000, 500)
}

/// A short run with an evaluation and a checkpoint on the way, and a shim loaded into its ranks.
fn train(folder: &Folder, ranks: usize, shim: &str, variables: &[(&str, &str)]) -> Ended {
    let sets = [
        "sync.method=bsp",
        "data.valid=test.h5",
        "train.eval_every=2",
        "checkpoint.every=2",
        "checkpoint.resume=none",
        "run.watchdog_s=4",
        "run.overwrite=true",
    ];
    let sets = Folder::sets("run", &sets);
    let all = ["train", "-c", "job.toml"].into_iter().chain(sets.iter().map(String::as_str));
    let umbra = program("umbra");
    let shim = umbra.with_file_name("examples").join(format!("lib{shim}.so"));
    let variables = [&[("LD_PRELOAD", shim.to_str().unwrap())], variables].concat();
    // A rank that was stopped ends with the job, by its launcher: SIGKILL reaches it.
    start(folder.root(), ranks, &umbra, &all.collect::<Vec<_>>(), &variables).wait(LIMIT)
}

/// Stops `rank` before that call. `None` when there are fewer calls: the job came to its end.
fn stop(folder: &Folder, [ranks, rank]: [usize; 2], at: &str, call: usize) -> Option<Ended> {
    let (rank, call) = (rank.to_string(), call.to_string());
    let variables =
        [("STOP_RANK", &*rank), ("STOP_AT", at), ("STOP_CALL", &*call), ("STOP_SIGNAL", "19")];
    let ended = train(folder, ranks, "stop_point", &variables);
    (ended.code != 0).then_some(ended)
}

/// Exit code 1, last words of another rank that say what it waited for, and a summary that agrees.
/// Returns what was waited for.
fn gave_up(folder: &Folder, [ranks, rank]: [usize; 2], case: &str, ended: &Ended) -> String {
    let case = format!("{case}:\n{}", ended.stderr);
    assert_eq!(ended.code, 1, "{case}");
    let own = format!("umbra: [{rank}/{ranks} ");
    let words = ended.stderr.lines().filter(|line| line.contains(" gave up ("));
    let words: Vec<&str> = words.collect();
    assert!(!words.is_empty(), "{case}");
    for line in &words {
        assert!(line.starts_with("umbra: [") && !line.starts_with(&own), "{case}");
        assert!(line.ends_with("(run.watchdog_s = 4)"), "{case}");
    }
    if folder.path("run/summary.json").exists() {
        let summary = folder.summary("run");
        let reason = summary["reason"].as_str().unwrap_or_default();
        match summary["status"].as_str() {
            Some("failed") => {
                assert!(words.iter().any(|line| line.ends_with(reason)), "{reason}: {case}");
            }
            status => assert_eq!((status, reason), (Some("done"), ""), "{case}"),
        }
    }
    let waited = words[0].split_once(" s for ").unwrap().1;
    waited.split_once(" and gave up").unwrap().0.to_owned()
}

/// Where MPI itself waits, where umbra does, and while a model is scored.
#[test]
fn a_rank_that_stops_at_a_call_ends_the_job() {
    for (ranks, rank, at, call, waited, status) in [
        (2, 0, "MPI_Init_thread", 1, "MPI_Init_thread of 2 ranks", None),
        (2, 1, "MPI_Comm_idup", 1, "a communicator of 2 ranks", None),
        (4, 0, "MPI_Iallgather", 2, "agreement of 4 ranks", None),
        (2, 1, "MPI_Comm_split", 1, "a sign of life from rank 1", Some("failed")),
        (4, 2, "MPI_Ibarrier", 4, "a sign of life from rank 2", Some("failed")),
        (2, 1, "MPI_Finalize", 1, "MPI_Finalize of 2 ranks", Some("done")),
    ] {
        let folder = folder();
        let case = format!("rank {rank} of {ranks}, {at} {call}");
        let ended = stop(&folder, [ranks, rank], at, call).expect("it stops");
        assert_eq!(gave_up(&folder, [ranks, rank], &case, &ended), waited, "{}", ended.stderr);
        match status {
            Some(status) => assert_eq!(folder.summary("run")["status"], status),
            None => assert!(!folder.path("run/summary.json").exists()),
        }
    }
}

#[test]
fn a_rank_that_stops_in_a_save_ends_the_job() {
    for rank in ["0", "1"] {
        let folder = folder();
        let variables = [
            ("CRASH_UNDER", "/checkpoints/step-"),
            ("CRASH_AFTER", "3"),
            ("CRASH_RANK", rank),
            ("CRASH_SIGNAL", "19"),
        ];
        let ended = train(&folder, 2, "crash_point", &variables);
        let rank: usize = rank.parse().unwrap();
        let waited = gave_up(&folder, [2, rank], &format!("rank {rank}, in a save"), &ended);
        // Training goes on beside a save: whichever of its waits began first is over first, and
        // that may be any of the sums of a step.
        let life = format!("a sign of life from rank {rank}");
        assert!(waited == life || waited.ends_with(" of 2 ranks"), "{waited}");
        assert_eq!(folder.summary("run")["status"], "failed");
    }
}

#[test]
#[ignore = "half an hour: every call of every function"]
fn a_rank_that_stops_anywhere_ends_the_job() {
    let which = std::env::var("STOPS").unwrap_or_else(|_| "2:0 2:1 4:0 4:3".into());
    let which = which.split_whitespace().map(|pair| {
        let (ranks, rank) = pair.split_once(':').expect("STOPS is of RANKS:RANK");
        [ranks, rank].map(|number| number.parse().expect("a number"))
    });
    let mut tried = 0;
    for pair @ [ranks, rank] in which {
        for at in [
            "MPI_Init_thread",
            "MPI_Comm_idup",
            "MPI_Comm_split",
            "MPI_Iallgather",
            "MPI_Ialltoall",
            "MPI_Ibarrier",
            "MPI_Comm_free",
            "MPI_Finalize",
        ] {
            let mut call = 1;
            let folder = folder();
            while let Some(ended) = stop(&folder, pair, at, call) {
                let case = format!("rank {rank} of {ranks}, {at} {call}");
                println!("{case}: {}", gave_up(&folder, pair, &case, &ended));
                // Those of one run say nothing about the next.
                let _ = std::fs::remove_dir_all(folder.path("run"));
                call += 1;
            }
            assert!(call > 1, "{at} is never called");
            tried += call - 1;
        }
    }
    println!("stops_tried {tried}");
}
