//! The parts of the runtime that talk, on 2, 3 and 4 real ranks: `src/bin/mpi_checks` checks, this
//! runs it.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use umbra_tests::{Ended, Folder, LIMIT, is_mpich, start};

const NAMES: [&str; 39] = [
    "all_gather",
    "all_gather_varied",
    "exchange",
    "all_to_all_varied",
    "all_gather_stretches",
    "barrier",
    "subset",
    "reduce",
    "combined",
    "lost",
    "traffic",
    "mailbox_ring",
    "mailbox_storm",
    "large_messages",
    "receive_does_not_block",
    "nobody_takes",
    "a_silent_sender",
    "one_call_a_look",
    "post_pieces",
    "post_selects",
    "a_receiver_that_stands_still",
    "model_average",
    "elastic",
    "protocol",
    "selecting_receive",
    "missing_endpoint",
    "row_traffic",
    "near_rows",
    "scores",
    "evaluation",
    "trace",
    "checkpoints",
    "image",
    "row_saves",
    "coded_sum",
    "coded_averages",
    "coded_groups",
    "parts",
    "sections",
];

/// What holds of a library that sends a large message only while its sender calls it. With MPICH
/// one crosses while its sender stands still.
const SENDERS_PART: &str = "a_silent_sender";

fn run(ranks: usize, arguments: &[&str], threads: &str) -> Ended {
    let folder = Folder::new();
    let program = Path::new(env!("CARGO_BIN_EXE_mpi_checks"));
    let variables = [("UMBRA_MPI_THREADS", threads)];
    start(folder.root(), ranks, program, arguments, &variables).wait(LIMIT)
}

fn all_hold(ranks: usize) {
    for threads in ["multiple", "serialized"] {
        all_hold_at(ranks, threads);
    }
}

fn all_hold_at(ranks: usize, threads: &str) {
    let names = NAMES.into_iter().filter(|&name| name != SENDERS_PART || !is_mpich());
    let names: Vec<&str> = names.collect();
    let ended = run(ranks, &names, threads).fine();
    let expected: String = names.iter().map(|name| format!("ok {name}\n")).collect();
    assert_eq!(ended.stdout, expected, "{threads}: {}", ended.stderr);
}

#[test]
fn every_check_holds_on_2_ranks() {
    all_hold(2);
}

/// Not a power of two: trees are lopsided.
#[test]
fn every_check_holds_on_3_ranks() {
    all_hold(3);
}

#[test]
fn every_check_holds_on_4_ranks() {
    all_hold(4);
}

/// Ranks that play two roles, and a vector that many halve. Sums alone: the machine has fewer
/// cores.
#[test]
fn sums_hold_on_5_to_8_ranks() {
    for ranks in 5..=8 {
        let ended = run(ranks, &["reduce", "combined"], "multiple").fine();
        assert_eq!(ended.stdout, "ok reduce\nok combined\n", "{ranks} ranks: {}", ended.stderr);
    }
}

#[test]
fn a_panic_on_one_rank_ends_the_job_and_names_rank_and_host() {
    for threads in ["multiple", "serialized"] {
        let ended = run(3, &["panic"], threads);
        assert_eq!(ended.code, 1, "{threads}: {}", ended.stderr);
        let said: Vec<&str> =
            ended.stderr.lines().filter(|line| line.starts_with("umbra: ")).collect();
        let [line] = said[..] else { panic!("{threads}: one line expected: {}", ended.stderr) };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let start = format!("umbra: [2/3 {}] panic at ", host.trim());
        assert!(line.starts_with(&start), "{threads}: {line}");
        assert!(line.ends_with(": as asked"), "{threads}: {line}");
    }
}
