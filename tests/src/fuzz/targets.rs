//! What is fuzzed, by name: what a case is, what it starts from, and the memory that it may take.

use std::path::Path;

use super::memory::held_by;
use super::mutate::Dice;
use super::{messages, records, rows, saved, settings, tokens};

/// Reads a case, and says whether it was any good.
pub(super) type Read = Box<dyn FnMut(&[u8], &mut Dice) -> Result<bool, String>>;

/// Something to fuzz.
pub(super) struct Fuzzed {
    pub(super) good: Vec<Vec<u8>>,
    pub(super) read: Read,
}

impl Fuzzed {
    pub(super) fn new(
        good: Vec<Vec<u8>>,
        read: impl FnMut(&[u8], &mut Dice) -> Result<bool, String> + 'static,
    ) -> Self {
        Self { good, read: Box::new(read) }
    }
}

/// By what names they go.
pub const NAMES: [&str; 15] = [
    "job",
    "set",
    "cluster",
    "schema",
    "cores",
    "rows",
    "bags",
    "coded",
    "links",
    "post",
    "tokens",
    "manifest",
    "checkpoint",
    "flat",
    "records",
];

/// What is called `name`; files go to `folder`, which is its own.
pub(super) fn named(name: &str, folder: &Path) -> Fuzzed {
    std::fs::create_dir_all(folder).unwrap();
    let Fuzzed { good, mut read } = match name {
        "job" => settings::job(),
        "set" => settings::set(),
        "cluster" => settings::cluster(),
        "schema" => settings::schema(),
        "cores" => settings::cores(),
        "rows" => rows::rows(),
        "bags" => rows::bags(),
        "coded" => messages::coded(),
        "links" => messages::links(),
        "post" => messages::post(),
        "tokens" => tokens::tokens(),
        "manifest" => saved::manifest(),
        "checkpoint" => saved::checkpoint(folder),
        "flat" => saved::flat(),
        "records" => records::records(folder),
        _ => panic!("{name}: expected one of {NAMES:?}"),
    };
    Fuzzed::new(good, move |case, dice| {
        let (outcome, held) = held_by(|| read(case, dice));
        if held > HELD_MAX + HELD_PER_BYTE * case.len() {
            return Err(format!("{held} bytes of memory for a case of {}", case.len()));
        }
        outcome
    })
}

/// Memory that a case may take, whatever it is: the buffers of files among it.
const HELD_MAX: usize = 8 << 20;
/// And that it may take besides, for each of its bytes.
const HELD_PER_BYTE: usize = 1 << 10;
