//! libFuzzer's cases for the target of `umbra_tests::fuzz` that UMBRA_FUZZ names. One program for
//! all: they share all of their code but a function.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use umbra_tests::fuzz::{NAMES, read_one};

static NAME: LazyLock<&'static str> = LazyLock::new(|| {
    let asked = std::env::var("UMBRA_FUZZ").unwrap_or_default();
    let found = NAMES.into_iter().find(|name| *name == asked);
    found.unwrap_or_else(|| panic!("UMBRA_FUZZ={asked}: expected one of {NAMES:?}"))
});

fuzz_target!(|case: &[u8]| read_one(*NAME, case));
