//! `--quiet` and `--verbose`.

use clap::Args;

use crate::record::{Loudness, set_loudness};

/// How much a verb that takes long says on stderr. Results go to stdout in any case.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Verbosity {
    /// Say errors, warnings and the result alone
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say every report, and more of how it runs
    #[arg(short, long)]
    verbose: bool,
}

/// Of a verb that says little.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Quiet {
    /// Say errors, warnings and the result alone
    #[arg(short, long)]
    quiet: bool,
}

impl Verbosity {
    /// From now on the program says so much.
    pub(super) fn set(self) {
        set_loudness(match self {
            Self { quiet: true, .. } => Loudness::Quiet,
            Self { verbose: true, .. } => Loudness::Verbose,
            _ => Loudness::Normal,
        });
    }
}

impl Quiet {
    /// From now on the program says so much.
    pub(super) fn set(self) {
        set_loudness(if self.quiet { Loudness::Quiet } else { Loudness::Normal });
    }
}
