//! `umbra doctor`: is this machine, this MPI and this launch fit to train? With cures.

use core::fmt;

use umbra_core::kernel::{self, Simd};

use crate::comm::guard::ThreadLevel;
use crate::comm::{Comm, loss};
use crate::error::Error;
use crate::launch::environment::{self, Cores, LaunchError};
use crate::launch::world::World;
use crate::record::build_hash;

/// What one rank knows of its place.
struct Place {
    host: String,
    cores: Cores,
}

/// What was found.
struct Findings {
    library: String,
    threads: ThreadLevel,
    /// The loss of a rank does not end a job.
    survives: bool,
    launch: Result<(), LaunchError>,
    places: Vec<Place>,
    simd: Simd,
    hdf5: (u8, u8, u8),
    deflate: bool,
    yields: bool,
}

/// Looks, and prints on rank 0. *Collective over `control`.*
///
/// # Errors
/// A launch that is not what it seems.
pub(super) fn run(world: &World, control: &Comm) -> Result<(), Error> {
    let env = |name: &str| std::env::var(name).ok();
    let own = format!("{}\n{}", world.host, Cores::allowed());
    let places = control.all_gather_varied(own.as_bytes(), "places of ranks")?;
    let places = places.iter().map(|bytes| Place::parse(&String::from_utf8_lossy(bytes)));
    let findings = Findings {
        library: world.library(),
        threads: world.threads,
        survives: loss::is_survivable(),
        launch: environment::check(&env, world.rank, world.size),
        places: places.collect(),
        simd: kernel::selected(),
        hdf5: hdf5::library_version(),
        deflate: hdf5::filters::deflate_available(),
        yields: env("OMPI_MCA_mpi_yield_when_idle").is_some_and(|value| value == "1"),
    };
    // Wrongly started processes are each alone and would all speak.
    if environment::launched_rank(&env).unwrap_or(world.rank) == 0 {
        use std::io::Write;
        // A closed stdout is no failure.
        let _ = write!(std::io::stdout().lock(), "{findings}");
    }
    findings.launch.map_err(|_| Error::Elsewhere { rank: 0, code: 5 })
}

impl Place {
    fn parse(text: &str) -> Self {
        let (host, cores) = text.split_once('\n').unwrap_or((text, ""));
        Self { host: host.into(), cores: Cores::parse(cores) }
    }
}

impl Findings {
    /// Hosts in the order of their first rank, with their ranks.
    fn hosts(&self) -> Vec<(&str, Vec<usize>)> {
        let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
        for (rank, place) in self.places.iter().enumerate() {
            match hosts.iter_mut().find(|(host, _)| *host == place.host) {
                Some((_, ranks)) => ranks.push(rank),
                None => hosts.push((&place.host, vec![rank])),
            }
        }
        hosts
    }

    fn write_host(&self, f: &mut fmt::Formatter<'_>, host: &str, ranks: &[usize]) -> fmt::Result {
        let mut cores = Cores::default();
        for &rank in ranks {
            cores.join(&self.places[rank].cores);
        }
        let (count, share) = (cores.count(), cores.count() / ranks.len());
        writeln!(
            f,
            "{}  node       {host}: {} ranks on {count} cores ({cores}); default worker threads: \
             {}",
            mark(share >= 1),
            ranks.len(),
            share.max(1)
        )?;
        if share >= 1 {
            return Ok(());
        }
        writeln!(
            f,
            "            cure: start at most {count} ranks on this node, or give them more cores \
             (mpirun --bind-to none)"
        )?;
        if !self.yields {
            writeln!(
                f,
                "            cure: export OMPI_MCA_mpi_yield_when_idle=1, or waiting ranks steal \
                 time"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "{}  umbra      {version} ({})", mark(true), build_hash())?;
        writeln!(f, "{}  MPI        {}; {}", mark(true), self.library, self.threads)?;
        if self.survives {
            writeln!(f, "            jobs go on without a rank that is lost")?;
        }
        if self.threads == ThreadLevel::Serialized {
            writeln!(f, "            the threads of a rank take turns to call MPI")?;
        }
        let ranks = self.places.len();
        writeln!(f, "{}  launch     {ranks} ranks", mark(self.launch.is_ok()))?;
        if let Err(error) = &self.launch {
            writeln!(f, "            {error}")?;
        }
        for (host, ranks) in self.hosts() {
            self.write_host(f, host, &ranks)?;
        }
        let (major, minor, patch) = self.hdf5;
        writeln!(
            f,
            "{}  HDF5       {major}.{minor}.{patch}, gzip filter {}",
            mark(self.deflate),
            if self.deflate { "there" } else { "missing" }
        )?;
        if !self.deflate {
            writeln!(f, "            cure: use an HDF5 built with zlib (Debian: libhdf5-dev)")?;
        }
        let fast = self.simd != Simd::Plain;
        writeln!(f, "{}  SIMD       {}", mark(fast), self.simd)?;
        if !fast {
            writeln!(
                f,
                "            this processor has no AVX2 with FMA (or hides it): training is \
                 several \
                 times slower"
            )?;
        }
        Ok(())
    }
}

const fn mark(fine: bool) -> &'static str {
    if fine { "ok  " } else { "LOOK" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(places: &[&str]) -> Findings {
        Findings {
            library: "Open MPI v4.1.4".into(),
            threads: ThreadLevel::Multiple,
            survives: false,
            launch: Ok(()),
            places: places.iter().map(|text| Place::parse(text)).collect(),
            simd: Simd::Avx2,
            hdf5: (1, 10, 8),
            deflate: true,
            yields: false,
        }
    }

    #[test]
    fn a_sound_machine_needs_no_cure() {
        let text = findings(&["n0\n0-1", "n0\n2-3", "n1\n0-3"]).to_string();
        assert!(text.contains("n0: 2 ranks on 4 cores (0-3); default worker threads: 2"), "{text}");
        assert!(text.contains("n1: 1 ranks on 4 cores (0-3); default worker threads: 4"), "{text}");
        assert!(!text.contains("LOOK") && !text.contains("cure"), "{text}");
    }

    #[test]
    fn what_is_wrong_comes_with_its_cure() {
        let mut findings = findings(&["n0\n0", "n0\n0"]);
        findings.launch = Err(LaunchError::Batch { expected: 8, plugin: "pmix" });
        findings.deflate = false;
        findings.simd = Simd::Plain;
        let text = findings.to_string();
        for cure in
            ["at most 1 ranks", "yield_when_idle=1", "UMBRA_ALLOW_SINGLETON", "libhdf5-dev", "AVX2"]
        {
            assert!(text.contains(cure), "{cure}: {text}");
        }
        assert_eq!(text.matches("LOOK").count(), 4, "{text}");
    }
}
