//! Text that is almost right ends with rows or a message, never with a panic or without an end.
//! The same, millions of times: `examples/fuzz_prepare.rs`.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod mutate;
mod run;
mod targets;

/// Cases of each, some seconds in all.
const CASES: [(&str, u64); 6] = [
    ("criteo", 30_000),
    ("libfm", 30_000),
    ("csv", 30_000),
    ("schema", 20_000),
    ("parquet", 300),
    ("prepare", 60),
];

#[test]
fn no_text_ends_in_a_panic_or_never() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(CASES.map(|(name, _)| name), targets::NAMES);
    run::quiet_panics();
    let outcomes = CASES.map(|(name, cases)| run::fuzz(name, folder.path(), 1, cases, 1));
    let _ = std::panic::take_hook();
    for ((name, cases), outcome) in CASES.into_iter().zip(outcomes) {
        assert_eq!(outcome.failures, [""; 0], "{name}");
        assert_eq!(outcome.cases, cases, "{name}");
        assert!(outcome.accepted > 0, "{name}: some are read to their end");
    }
}
