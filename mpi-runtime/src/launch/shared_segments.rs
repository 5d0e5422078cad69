//! Has the node room for the memory that ranks of an MPI library talk through?
//!
//! Ranks on a node exchange messages through files in `/dev/shm`, which every rank makes in
//! MPI_Init. Containers often give it 64 MB. An MPI library that finds no room there falls back to
//! TCP, aborts with words of its own, or dies of SIGBUS when it writes. So the first rank of a node
//! looks before. Rows that ranks of a node share are no such files: they are memory of the system
//! without a name (`memory.rs`), which no size of `/dev/shm` bounds.

use rustix::fs::statvfs;

use crate::launch::environment::LaunchError;

/// Where segments are, unless Open MPI was told of another folder.
const FOLDER: &str = "/dev/shm";

/// A segment of a rank in Open MPI 4.1 (`btl_vader_segment_size`) and what goes with it. Open MPI 5
/// has segments of 16 MiB that are filled as they are used: those of a rank that does not send much
/// stay below this.
const OF_A_RANK: u64 = (4 << 20) + (64 << 10);

/// What a node has, and what its ranks need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Their folder.
    pub folder: String,
    /// Bytes free in it.
    pub free: u64,
    /// Bytes that segments of this node's ranks take.
    pub needed: u64,
}

impl Segments {
    /// Of this node as the launcher has left it in the environment; `None` where its ranks share
    /// no memory, or no launcher says how many there are. *Not collective; before MPI is started.*
    #[must_use]
    pub fn look(env: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| env(name).and_then(|value| value.trim().parse::<u64>().ok());
        let ranks = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"].into_iter().find_map(number);
        let ranks = ranks.filter(|ranks| *ranks > 1)?;
        if env("OMPI_MCA_btl").is_some_and(|transports| !uses_memory(&transports)) {
            return None;
        }
        let folder = env("OMPI_MCA_btl_vader_backing_directory");
        let folder = folder.unwrap_or_else(|| FOLDER.to_owned());
        let size = number("OMPI_MCA_btl_vader_segment_size").map_or(OF_A_RANK, |size| size + 65536);
        let free = free_bytes(&folder)?;
        Some(Self { folder, free, needed: ranks * size })
    }

    /// Refuses a folder that is too small.
    ///
    /// # Errors
    /// What is free, what is needed, and the cure.
    pub fn check(&self) -> Result<(), LaunchError> {
        if self.free >= self.needed {
            return Ok(());
        }
        let Self { folder, free, needed } = self.clone();
        Err(LaunchError::Segments { folder, free: mebibytes(free), needed: mebibytes(needed) })
    }
}

/// The first rank of a node looks, for all of it. *Not collective; before MPI is started.*
///
/// # Errors
/// As [`Segments::check`].
pub fn check(env: &dyn Fn(&str) -> Option<String>) -> Result<(), LaunchError> {
    let first = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"].into_iter().find_map(env);
    if first.is_none_or(|rank| rank.trim() != "0") {
        return Ok(());
    }
    Segments::look(env).map_or(Ok(()), |segments| segments.check())
}

/// Bytes that this user may still write in the file system of `folder`.
#[must_use]
pub fn free_bytes(folder: &str) -> Option<u64> {
    let about = statvfs(folder).ok()?;
    Some(about.f_bavail * about.f_frsize)
}

/// Whether `transports`, as `OMPI_MCA_btl` lists them, has the one through shared memory.
fn uses_memory(transports: &str) -> bool {
    let named = |names: &str| names.split(',').any(|name| ["vader", "sm"].contains(&name.trim()));
    match transports.trim().strip_prefix('^') {
        Some(excluded) => !named(excluded),
        None => named(transports),
    }
}

/// Rounded up: what is needed is enough.
const fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn transports_without_memory_need_none() {
        for (transports, uses) in [
            ("tcp,self", false),
            ("self,vader,tcp", true),
            ("^vader", false),
            ("^openib", true),
            ("sm,self", true),
        ] {
            assert_eq!(uses_memory(transports), uses, "{transports}");
        }
    }

    #[test]
    fn what_is_too_small_is_said_in_numbers() {
        let segments = Segments { folder: "/x".into(), free: 1 << 20, needed: 9 << 20 };
        let error = segments.check().unwrap_err().to_string();
        assert!(error.contains("/x has 1 MiB free") && error.contains("9 MiB"), "{error}");
        assert_eq!(Segments { free: 9 << 20, ..segments }.check(), Ok(()));
    }

    #[test]
    fn one_rank_needs_no_segments() {
        let alone = |name: &str| (name == "OMPI_COMM_WORLD_LOCAL_SIZE").then(|| "1".to_owned());
        assert_eq!(Segments::look(&alone), None);
        let two = |name: &str| (name == "OMPI_COMM_WORLD_LOCAL_SIZE").then(|| "2".to_owned());
        assert_eq!(Segments::look(&two).map(|segments| segments.needed), Some(2 * OF_A_RANK));
    }
}
