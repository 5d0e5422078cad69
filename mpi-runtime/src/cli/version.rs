//! `umbra --version`: what this program is, was built with, and runs with.
//!
//! The first line is that of `umbra -V`. Nothing here starts MPI.

use core::fmt;
use std::io::Write as _;

use hdf5::filters;
use umbra_core::kernel::{self, Simd};

use crate::comm::library;

/// What `--version` prints.
struct Version {
    mpi: String,
    mpi_compiled: String,
    hdf5: (u8, u8, u8),
    /// Filters of HDF5, and whether it has them.
    filters: [(&'static str, bool); 2],
    used: Simd,
    supported: Vec<Simd>,
}

/// "0.1.0 (COMMIT)"
pub(super) const fn short() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("UMBRA_GIT"), ")")
}

/// Prints all of it. A closed stdout is no failure.
pub(super) fn print() {
    // A set that the processor has not is refused by the verbs; here the best is in use then.
    let _ = super::choose_simd();
    let version = Version {
        mpi: library::running(),
        mpi_compiled: library::compiled_against(),
        hdf5: hdf5::library_version(),
        filters: [("gzip", filters::deflate_available()), ("szip", filters::szip_available())],
        used: kernel::selected(),
        supported: Simd::ALL.into_iter().filter(|set| set.is_supported()).collect(),
    };
    let _ = write!(std::io::stdout().lock(), "{version}");
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mpi, mpi_compiled, hdf5: (major, minor, patch), used, .. } = self;
        writeln!(f, "umbra {}", short())?;
        writeln!(f, "MPI   {mpi}, compiled against {mpi_compiled}")?;
        let there = self.filters.iter().filter(|(_, there)| *there).map(|(name, _)| *name);
        let there: Vec<&str> = there.collect();
        let filters = if there.is_empty() { "none".into() } else { there.join(", ") };
        writeln!(f, "HDF5  {major}.{minor}.{patch}, filters: {filters}")?;
        let supported: Vec<&str> = self.supported.iter().map(|set| set.name()).collect();
        writeln!(f, "SIMD  {used}, of {} that this processor has", supported.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_named() {
        let mut version = Version {
            mpi: "Open MPI v5.0.11".into(),
            mpi_compiled: "Open MPI 4.1.4".into(),
            hdf5: (1, 10, 8),
            filters: [("gzip", true), ("szip", false)],
            used: Simd::Avx2,
            supported: vec![Simd::Plain, Simd::Avx2],
        };
        let text = version.to_string();
        for part in [
            concat!("umbra ", env!("CARGO_PKG_VERSION"), " ("),
            "\nMPI   Open MPI v5.0.11, compiled against Open MPI 4.1.4\n",
            "\nHDF5  1.10.8, filters: gzip\n",
            "\nSIMD  avx2, of plain, avx2 that this processor has\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        version.filters[0].1 = false;
        assert!(version.to_string().contains("filters: none"));
    }
}
