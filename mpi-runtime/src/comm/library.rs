//! The MPI library: which one the program was compiled against, and which one it runs with.
//!
//! They may differ, since what is found when the program starts need not be what was there when it
//! was built. Both can be asked for before MPI is started.

use super::guard::guarded;
use super::raw;

/// The library whose `mpi.h` the program was compiled against: "Open MPI 4.1.4", "MPICH 4.0.2", and
/// of others the version of the standard.
#[must_use]
pub fn compiled_against() -> String {
    let raw::Header { open_mpi: [major, minor, release], mpich, standard } = raw::header();
    match (major, mpich) {
        (1.., _) => format!("Open MPI {major}.{minor}.{release}"),
        (0, 1..) => format!("MPICH {}", of_mpich(mpich)),
        (0, 0) => format!("MPI {}.{}", standard[0], standard[1]),
    }
}

/// "4.0.2" of 40002300: MPICH's digits are those of major, minor (2), revision (2), kind and patch.
fn of_mpich(number: u32) -> String {
    format!("{}.{}.{}", number / 10_000_000, number / 100_000 % 100, number / 1000 % 100)
}

/// The library that the program runs with, as it calls itself, in one line.
#[must_use]
pub fn running() -> String {
    name(&guarded(mpi::environment::library_version).unwrap_or_default())
}

/// Of what a library says of itself, its name and version.
fn name(version: &str) -> String {
    let first = version.lines().next().unwrap_or_default().trim_end_matches('\0').trim();
    let name = first.split(',').next().unwrap_or(first);
    // MPICH has its version in a column of its own: "MPICH Version:\t4.0.2".
    let name = name.replace(" Version:", "");
    let words: Vec<&str> = name.split_whitespace().collect();
    if words.is_empty() { "unknown".into() } else { words.join(" ") }
}

/// Libraries that are launched in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI.
    OpenMpi {
        /// The first number of its version.
        major: u32,
    },
    /// MPICH.
    Mpich,
    /// Any other.
    Other,
}

impl Family {
    /// The plugin of Slurm's by which `srun` connects its processes.
    #[must_use]
    pub const fn slurm_plugin(self) -> &'static str {
        match self {
            Self::Mpich => "pmi2",
            Self::OpenMpi { .. } | Self::Other => "pmix",
        }
    }

    fn of(name: &str) -> Self {
        if let Some(version) = name.strip_prefix("Open MPI v") {
            let major = version.split('.').next().and_then(|major| major.parse().ok());
            return Self::OpenMpi { major: major.unwrap_or(0) };
        }
        if name.starts_with("MPICH ") { Self::Mpich } else { Self::Other }
    }
}

/// The family of the library that the program runs with.
#[must_use]
pub fn family() -> Family {
    Family::of(&running())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries() {
        let open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, May 26, 2022\0";
        assert_eq!(name(open_mpi), "Open MPI v4.1.4");
        assert_eq!(name("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr 7\n"), "MPICH 4.0.2");
        let intel = "Intel(R) MPI Library 2021.9 for Linux* OS";
        assert_eq!(name(&format!("{intel}\n")), intel);
        assert_eq!(name(""), "unknown");
        assert_eq!(Family::of("Open MPI v4.1.4"), Family::OpenMpi { major: 4 });
        assert_eq!(Family::of("Open MPI v5.0.11rc1"), Family::OpenMpi { major: 5 });
        assert_eq!([Family::of("MPICH 4.0.2"), Family::of(intel)], [Family::Mpich, Family::Other]);
        assert_eq!((of_mpich(40_002_300), of_mpich(50_101_300)), ("4.0.2".into(), "5.1.1".into()));
    }

    /// What the tests were linked with is what they were compiled against, and says so unasked.
    #[test]
    fn both_are_known_before_mpi_is_started() {
        let (compiled, running) = (compiled_against(), running());
        let family = |text: &str| text.split_whitespace().next().map(str::to_owned);
        assert_eq!(family(&compiled), family(&running), "{compiled}; {running}");
    }
}
