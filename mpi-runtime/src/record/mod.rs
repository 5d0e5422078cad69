//! What a run leaves behind and what it says while it runs.
//!
//! Map: `run_folder.rs` owns the folder, by `lock.rs` · `summary.rs` the figures of a whole run,
//! `failure.rs` of one that came to no orderly end ·
//! `metrics.rs` one line per report · `tensorboard.rs` the same as curves,
//! `hparams.rs` with what it was set to · `progress.rs` lines and
//! bars on stderr. All of it on rank 0; nothing here talks MPI.

mod failure;
mod hparams;
mod lock;
pub mod metrics;
pub mod progress;
mod run_folder;
pub mod summary;
pub mod tensorboard;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub use failure::{NOTE, fail, has_ended, is_done, told_to_stop};
pub use metrics::Report;
pub use progress::{Loudness, Progress, SAVED, loudness, note, say, say_saved, set_loudness};
pub use run_folder::{Claim, RunFolder};
pub use summary::{
    CheckpointFigures, EvalFigures, ExchangedFigures, MemoryFigures, ProgressiveFigures, RankLoss,
    RecoveryFigures, RowSaveFigures, Status, Summary, SyncFigures, SyncSwitch, TrainFigures,
    TrainerSync, WaitFigures, WireFigures, WireOfRank,
};

use crate::config::Config;
use crate::error::Error;

/// What a configuration needs at least; tests add to it.
#[cfg(test)]
const LEAST: [&str; 6] = [
    "data.train=a",
    "model.kind=lr",
    "optim.dense.kind=sgd",
    "optim.dense.lr=1",
    "optim.sparse.kind=sgd",
    "optim.sparse.lr=1",
];

/// Commit the program was built from, with "-dirty" for changed files; "unknown" outside git.
#[must_use]
pub const fn build_hash() -> &'static str {
    env!("UMBRA_GIT")
}

/// Seconds since 1970, to the millisecond.
#[must_use]
pub fn unix_seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1e3).round() / 1e3
}

/// Hash of a configuration: FNV-1a, 64 bit, of its TOML.
///
/// # Errors
/// A configuration that cannot be written as TOML.
pub fn config_hash(config: &Config) -> Result<String, Error> {
    let hash = config_toml(config)?.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

fn config_toml(config: &Config) -> Result<String, Error> {
    config.to_toml().map_err(|error| Error::Usage(format!("configuration as TOML: {error}")))
}

/// Writes a file so that it is there whole or not at all: temporary name, fsync, rename, fsync of
/// the folder.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    write_by_way_of(path, &path.with_file_name(format!(".{name}.tmp")), content)
}

/// As [`write_atomically`], with that temporary name.
fn write_by_way_of(path: &Path, temporary: &Path, content: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = File::create(temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    };
    write().map_err(|source| Error::file(path, "write it", source))
}
