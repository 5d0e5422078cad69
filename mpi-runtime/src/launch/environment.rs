//! Was this job started the way its user meant? The launcher's environment against MPI's own count.
//!
//! A program linked with one MPI and started by another's launcher, or by `srun` with the wrong
//! PMI, becomes N jobs of one rank that all write the same files (open-mpi/ompi#13523). MPI cannot
//! tell; the environment can. Every launcher that says how many processes it started must agree
//! with MPI, the closest one first: inside an allocation `mpirun` starts its daemons as a Slurm
//! step, so Slurm's numbers count only where no MPI launcher left its own. Which launcher would be
//! the right one depends on the library ([`Family`]), and so does the cure.

use core::fmt;
use std::collections::BTreeSet;

use crate::comm::library::{self, Family};
use crate::error::Error;

/// A launch that is not what the job needs. Exit code 5.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A launcher started more processes than MPI sees.
    #[error(
        "{variable} = {expected}: {launcher} started {expected} processes, but MPI sees {ranks}; \
         {cure}"
    )]
    Ranks {
        /// Who started the processes.
        launcher: &'static str,
        /// The environment variable that tells.
        variable: &'static str,
        /// Its value.
        expected: usize,
        /// MPI's number of ranks.
        ranks: usize,
        /// What to do.
        cure: &'static str,
    },
    /// `srun` without a PMI: MPI cannot find the other processes, and some libraries abort over it.
    #[error(
        "srun started {expected} processes without a PMI by which MPI could connect them; try \
         \"srun --mpi={plugin} …\" (srun --mpi=list shows what this Slurm offers), or \"mpirun -n \
         {expected}\" inside the allocation"
    )]
    Unconnected {
        /// SLURM_STEP_NUM_TASKS.
        expected: usize,
        /// The plugin of Slurm's that would do.
        plugin: &'static str,
    },
    /// `srun --mpi=pmi2` of a program that is linked with Open MPI, which ends it for that.
    #[error(
        "srun started {expected} processes with a PMI that Open MPI is rarely built with; try \
         \"srun --mpi=pmix …\" (srun --mpi=list shows what this Slurm offers), or \"mpirun -n \
         {expected}\" inside the allocation; if this Open MPI has Slurm's PMI, set \
         UMBRA_ALLOW_PMI2=1"
    )]
    Pmi2 {
        /// SLURM_STEP_NUM_TASKS.
        expected: usize,
    },
    /// One process in a batch script that has room for more.
    #[error(
        "the batch job has SLURM_NTASKS = {expected} tasks, but umbra runs as one process in the \
         batch script; put \"srun --mpi={plugin}\" or \"mpirun\" before it, or set \
         UMBRA_ALLOW_SINGLETON=1 if one process is what you want"
    )]
    Batch {
        /// SLURM_NTASKS.
        expected: usize,
        /// The plugin of Slurm's that would do.
        plugin: &'static str,
    },
    /// No room for the memory through which ranks of a node talk.
    #[error(
        "{folder} has {free} MiB free, and MPI needs {needed} MiB there for this node's ranks; \
         give it more (docker run --shm-size=1g, apptainer --bind /tmp:/dev/shm, mount -o \
         remount,size=1g {folder}), remove what lies there, or let ranks talk by TCP: mpirun --mca \
         btl tcp,self"
    )]
    Segments {
        /// Where it would be.
        folder: String,
        /// MiB free there.
        free: u64,
        /// MiB needed there.
        needed: u64,
    },
    /// Several processes of a verb that is one.
    #[error("{verb} is one process, and {processes} were started; run it without mpirun or srun")]
    OneProcess {
        /// The verb.
        verb: &'static str,
        /// Processes there are.
        processes: usize,
    },
    /// `[roles]` asks for another number of ranks.
    #[error(
        "{sum} need {wanted} ranks, but the job has {ranks}; start it with mpirun -n {wanted} \
         (srun -n {wanted}), or change [roles]"
    )]
    Roles {
        /// The keys and their values.
        sum: String,
        /// Ranks they need.
        wanted: usize,
        /// Ranks there are.
        ranks: usize,
    },
}

/// Refuses a Slurm step that MPI could not start in. Not collective; called before MPI is started.
///
/// # Errors
/// A step, and nothing in the environment by which its tasks could find each other, or nothing that
/// the library understands: some end the process for that.
pub fn check_before_mpi(env: &dyn Fn(&str) -> Option<String>) -> Result<(), LaunchError> {
    // Asked for only where it matters: most launches are no steps.
    if env("SLURM_STEP_ID").is_none() {
        return Ok(());
    }
    check_step(env, library::family())
}

fn check_step(env: &dyn Fn(&str) -> Option<String>, family: Family) -> Result<(), LaunchError> {
    let any = |names: &[&str]| names.iter().any(|name| env(name).is_some());
    let tasks = env("SLURM_STEP_NUM_TASKS").and_then(|tasks| tasks.trim().parse().ok());
    let (Some(step), Some(expected)) = (env("SLURM_STEP_ID"), tasks) else { return Ok(()) };
    if is_batch_step(&step) || any(&["OMPI_COMM_WORLD_SIZE", "PMIX_RANK"]) {
        return Ok(());
    }
    let pmi = any(&["PMI_RANK", "PMI_FD"]);
    // It needs a PMI for a single task, too.
    let alone = expected < 2 && family != (Family::OpenMpi { major: 4 });
    match family {
        _ if alone => Ok(()),
        Family::OpenMpi { .. } if pmi && env("UMBRA_ALLOW_PMI2").as_deref() != Some("1") => {
            Err(LaunchError::Pmi2 { expected })
        }
        _ if pmi => Ok(()),
        _ => Err(LaunchError::Unconnected { expected, plugin: family.slurm_plugin() }),
    }
}

/// Compares what the launchers left in the environment with MPI's `rank` and `size`. Not
/// collective; every process checks for itself, since wrongly started processes cannot talk.
///
/// # Errors
/// The launcher that disagrees, and the cure.
pub fn check(
    env: &dyn Fn(&str) -> Option<String>,
    rank: usize,
    size: usize,
) -> Result<(), LaunchError> {
    check_for(env, library::family(), rank, size)
}

fn check_for(
    env: &dyn Fn(&str) -> Option<String>,
    family: Family,
    rank: usize,
    size: usize,
) -> Result<(), LaunchError> {
    let number = |name: &str| env(name).and_then(|value| value.trim().parse::<usize>().ok());
    let mut counted = false;
    for (variable, launcher) in LAUNCHERS {
        let Some(expected) = number(variable) else { continue };
        counted |= *variable != LOCAL_RANKS;
        let fits = if *variable == LOCAL_RANKS { expected <= size } else { expected == size };
        if !fits {
            let cure = other_mpi(family);
            return Err(LaunchError::Ranks { launcher, variable, expected, ranks: size, cure });
        }
    }
    if counted || size > 1 {
        return Ok(());
    }
    // One rank, and no MPI launcher says that it meant one.
    if let Some(pmix_rank) = number("PMIX_RANK").filter(|&pmix_rank| pmix_rank > rank) {
        return Err(LaunchError::Ranks {
            launcher: "a PMIx launcher",
            variable: "PMIX_RANK",
            expected: pmix_rank + 1,
            ranks: size,
            cure: other_mpi(family),
        });
    }
    match env("SLURM_STEP_ID").or_else(|| env("SLURM_STEPID")) {
        Some(step) if !is_batch_step(&step) => match number("SLURM_STEP_NUM_TASKS") {
            Some(expected @ 2..) => Err(LaunchError::Ranks {
                launcher: "srun",
                variable: "SLURM_STEP_NUM_TASKS",
                expected,
                ranks: size,
                cure: other_pmi(family),
            }),
            _ => Ok(()),
        },
        Some(step) if step.trim() == INTERACTIVE_STEP => Ok(()),
        // Slurm sets SLURM_PROCID in a batch script, and not in the shell of `salloc`.
        step if step.is_some() || env("SLURM_PROCID").is_some() => match number("SLURM_NTASKS") {
            Some(expected @ 2..) if env("UMBRA_ALLOW_SINGLETON").as_deref() != Some("1") => {
                Err(LaunchError::Batch { expected, plugin: family.slurm_plugin() })
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// A step that is no `srun`: the batch script, its container, an interactive shell.
fn is_batch_step(step: &str) -> bool {
    matches!(step.trim(), "batch" | BATCH_STEP | EXTERN_STEP | INTERACTIVE_STEP)
}

/// The rank that a launcher gave this process, read before MPI is started; `None` without one.
#[must_use]
pub fn launched_rank(env: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
    ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"]
        .into_iter()
        .chain(env("SLURM_STEP_ID").map(|_| "SLURM_PROCID"))
        .find_map(|name| env(name)?.trim().parse().ok())
}

/// Name of the machine, read before MPI is started.
#[must_use]
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".into(), |name| name.trim().to_owned())
}

/// When the scheduler ends the job, seconds since 1970; `None` without one, or one that does not
/// say.
#[must_use]
pub fn scheduled_end(env: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    env("SLURM_JOB_END_TIME")?.trim().parse().ok()
}

/// What the scheduler calls the job; `None` without one. A job that it starts anew keeps it.
#[must_use]
pub fn scheduled_job(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    env("SLURM_JOB_ID").or_else(|| env("PBS_JOBID")).filter(|job| !job.is_empty())
}

/// How many processes a launcher started, read before MPI is started; 1 without one.
#[must_use]
pub fn launched_processes(env: &dyn Fn(&str) -> Option<String>) -> usize {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]
        .into_iter()
        .find_map(|name| env(name)?.trim().parse().ok())
        .unwrap_or(1)
}

/// Variable, launcher: who counts processes, closest to the process first.
const LAUNCHERS: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", "a PMI launcher (MPICH's mpiexec, srun --mpi=pmi2)"),
    (LOCAL_RANKS, "MPICH's mpiexec"),
];
const LOCAL_RANKS: &str = "MPI_LOCALNRANKS";
/// Step ids of Slurm that are no `srun` step.
const BATCH_STEP: &str = "4294967291";
const EXTERN_STEP: &str = "4294967292";
const INTERACTIVE_STEP: &str = "4294967290";

/// The cure for a launcher of another MPI than the library.
const fn other_mpi(family: Family) -> &'static str {
    match family {
        Family::OpenMpi { .. } => {
            "umbra is linked with Open MPI (umbra --version names it): use Open MPI's mpirun, on \
             Debian mpirun.openmpi -n N umbra …, or srun --mpi=pmix"
        }
        Family::Mpich => {
            "umbra is linked with MPICH (umbra --version names it): use MPICH's mpiexec, on Debian \
             mpirun.mpich -n N umbra …, or srun --mpi=pmi2"
        }
        Family::Other => {
            "umbra is linked with another MPI than the one that launched it: use the mpirun of the \
             MPI that umbra --version names"
        }
    }
}

/// The cure for a `srun` of another PMI than the library's.
const fn other_pmi(family: Family) -> &'static str {
    match family {
        Family::Mpich => {
            "srun and the MPI library do not understand each other: try \"srun --mpi=pmi2 …\" \
             (srun --mpi=list shows what this Slurm offers), or MPICH's mpiexec inside the \
             allocation"
        }
        _ => {
            "srun and the MPI library do not understand each other: try \"srun --mpi=pmix …\" \
             (srun --mpi=list shows what this Slurm offers), or \"mpirun -n N\" inside the \
             allocation"
        }
    }
}

/// Cores a process may run on: its affinity mask.
///
/// Written and read as Linux writes it, "0-3,8", so that ranks of a node can exchange masks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(BTreeSet<usize>);

impl Cores {
    /// The mask of this process. Under a quota on processor time, no more cores of it than the
    /// quota amounts to.
    #[must_use]
    pub fn allowed() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        // The standard library knows quotas as well as masks, but only gives a number.
        let count = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
        match list.map(Self::parse) {
            Some(cores) if !cores.0.is_empty() => Self(cores.0.into_iter().take(count).collect()),
            _ => Self((0..count).collect()),
        }
    }

    /// Reads "0-3,8"; what is not a number or a range is left out, and what no machine has.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        let ranges = list.trim().split(',').filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.trim().parse::<usize>().ok();
            Some(number(first)?..=number(last)?.min(CORE_MAX))
        });
        let mut cores = Self::default();
        ranges.for_each(|range| cores.0.extend(range));
        cores
    }

    /// Adds the cores of another rank of the node.
    pub fn join(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// Their numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// How many cores.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The greatest number of a core that a kernel can be built for.
const CORE_MAX: usize = (1 << 13) - 1;

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if_eq(&(last + 1)) {
                last = next;
            }
            let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
            write!(f, "{separator}{range}")?;
            separator = ",";
        }
        Ok(())
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Launch(error.to_string())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    type Case = (&'static str, &'static [(&'static str, &'static str)], usize, usize);

    fn env<'a>(variables: &'a [(&str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
    }

    const OPEN_MPI: Family = Family::OpenMpi { major: 4 };

    fn run(&(_, variables, rank, size): &Case) -> Result<(), LaunchError> {
        check_for(&env(variables), OPEN_MPI, rank, size)
    }

    #[test]
    fn honest_launches_pass() {
        let cases: &[Case] = &[
            ("a shell", &[], 0, 1),
            ("mpirun -n 4", &[("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "3")], 3, 4),
            ("mpirun -n 1", &[("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "0")], 0, 1),
            ("mpiexec.hydra -n 2", &[("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")], 1, 2),
            ("two nodes", &[("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")], 1, 4),
            ("srun -n 4", &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")], 2, 4),
            (
                "srun -n 1",
                &[
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_STEP_NUM_TASKS", "1"),
                    ("SLURM_NTASKS", "1"),
                    ("SLURM_PROCID", "0"),
                ],
                0,
                1,
            ),
            (
                "srun -n 1 of 8",
                &[
                    ("SLURM_STEP_ID", "3"),
                    ("SLURM_STEP_NUM_TASKS", "1"),
                    ("SLURM_NTASKS", "8"),
                    ("SLURM_PROCID", "0"),
                ],
                0,
                1,
            ),
            ("heterogeneous step", &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], 0, 6),
            (
                "mpirun -n 1 whose daemon is a step of 4",
                &[
                    ("OMPI_COMM_WORLD_SIZE", "1"),
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_STEP_NUM_TASKS", "4"),
                ],
                0,
                1,
            ),
            ("the shell of salloc", &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")], 0, 1),
            (
                "an interactive step",
                &[
                    ("SLURM_STEP_ID", "4294967290"),
                    ("SLURM_NTASKS", "8"),
                    ("SLURM_PROCID", "0"),
                    ("SLURM_STEP_NUM_TASKS", "1"),
                ],
                0,
                1,
            ),
            (
                "sbatch -n 1",
                &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "1"), ("SLURM_PROCID", "0")],
                0,
                1,
            ),
            ("sbatch without -n", &[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0")], 0, 1),
            (
                "sbatch -n 8, one process on purpose",
                &[
                    ("SLURM_JOB_ID", "7"),
                    ("SLURM_NTASKS", "8"),
                    ("SLURM_PROCID", "0"),
                    ("UMBRA_ALLOW_SINGLETON", "1"),
                ],
                0,
                1,
            ),
            (
                "sbatch -n 8 with mpirun",
                &[("OMPI_COMM_WORLD_SIZE", "8"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")],
                5,
                8,
            ),
        ];
        for case in cases {
            assert_eq!(run(case), Ok(()), "{}", case.0);
        }
    }

    #[test]
    fn wrong_launches_are_refused_with_a_cure() {
        let cases: &[(Case, &str)] = &[
            (
                (
                    "srun with the wrong PMI",
                    &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "2")],
                    0,
                    1,
                ),
                "srun --mpi=pmix",
            ),
            (
                (
                    "the same, old name",
                    &[("SLURM_STEPID", "0"), ("SLURM_STEP_NUM_TASKS", "4")],
                    0,
                    1,
                ),
                "srun --mpi=pmix",
            ),
            (
                (
                    "srun --mpi=pmi2 under Open MPI",
                    &[("PMI_SIZE", "4"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")],
                    0,
                    1,
                ),
                "srun --mpi=pmix",
            ),
            (
                (
                    "Open MPI's mpirun, MPICH's library",
                    &[("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "1")],
                    0,
                    1,
                ),
                "umbra --version",
            ),
            (
                ("MPICH's mpiexec, Open MPI's library", &[("MPI_LOCALNRANKS", "2")], 0, 1),
                "umbra --version",
            ),
            (("prterun, another library", &[("PMIX_RANK", "3")], 0, 1), "umbra --version"),
            (("half the ranks", &[("OMPI_COMM_WORLD_SIZE", "4")], 1, 2), "umbra --version"),
            (
                (
                    "sbatch -n 8, no launcher",
                    &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")],
                    0,
                    1,
                ),
                "UMBRA_ALLOW_SINGLETON=1",
            ),
            (
                (
                    "the same with a step id",
                    &[("SLURM_STEP_ID", "4294967291"), ("SLURM_NTASKS", "8")],
                    0,
                    1,
                ),
                "UMBRA_ALLOW_SINGLETON=1",
            ),
            (
                ("the same by name", &[("SLURM_STEP_ID", "batch"), ("SLURM_NTASKS", "8")], 0, 1),
                "UMBRA_ALLOW_SINGLETON=1",
            ),
        ];
        for (case, cure) in cases {
            let error = run(case).expect_err(case.0);
            assert!(error.to_string().contains(cure), "{}: {error}", case.0);
        }
    }

    #[test]
    fn the_launcher_is_known_before_mpi_is() {
        let mpirun = env(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")]);
        assert_eq!((launched_rank(&mpirun), launched_processes(&mpirun)), (Some(2), 4));
        let batch = env(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]);
        assert_eq!((launched_rank(&batch), launched_processes(&batch)), (None, 1));
        let step =
            env(&[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")]);
        assert_eq!((launched_rank(&step), launched_processes(&step)), (Some(1), 2));
    }

    #[test]
    fn a_step_without_a_pmi_is_refused_before_mpi_aborts_over_it() {
        let refused = |family, variables: &[(&str, &str)]| check_step(&env(variables), family);
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        for (family, plugin) in [(OPEN_MPI, "pmix"), (Family::Mpich, "pmi2")] {
            let error = LaunchError::Unconnected { expected: 2, plugin };
            assert_eq!(refused(family, &step), Err(error));
            for launcher in ["PMIX_RANK", "OMPI_COMM_WORLD_SIZE"] {
                assert_eq!(refused(family, &[step[0], step[1], (launcher, "0")]), Ok(()));
            }
        }
        let batch = [("SLURM_STEP_ID", BATCH_STEP), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(refused(OPEN_MPI, &batch), Ok(()));
        assert_eq!(refused(OPEN_MPI, &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "2")]), Ok(()));
    }

    #[test]
    fn a_pmi_is_not_everybodys() {
        let pmi2 = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("PMI_RANK", "1")];
        assert_eq!(check_step(&env(&pmi2), Family::Mpich), Ok(()));
        let refused = Err(LaunchError::Pmi2 { expected: 2 });
        assert_eq!(check_step(&env(&pmi2), OPEN_MPI), refused);
        assert_eq!(check_step(&env(&pmi2), Family::OpenMpi { major: 5 }), refused);
        let asked = [&pmi2[..], &[("UMBRA_ALLOW_PMI2", "1")]].concat();
        assert_eq!(check_step(&env(&asked), OPEN_MPI), Ok(()));
    }

    /// Open MPI 4 ends a step of one task without a PMI, others run as one process.
    #[test]
    fn a_step_of_one_task() {
        let one = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        let refused = Err(LaunchError::Unconnected { expected: 1, plugin: "pmix" });
        assert_eq!(check_step(&env(&one), OPEN_MPI), refused);
        for family in [Family::OpenMpi { major: 5 }, Family::Mpich, Family::Other] {
            assert_eq!(check_step(&env(&one), family), Ok(()));
        }
    }

    #[test]
    fn the_cure_is_the_librarys_own() {
        let srun = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        let mpiexec = [("MPI_LOCALNRANKS", "2")];
        let mpirun = [("OMPI_COMM_WORLD_SIZE", "4")];
        for (family, variables, cure) in [
            (Family::Mpich, &srun[..], "srun --mpi=pmi2"),
            (Family::Mpich, &mpirun, "mpirun.mpich"),
            (OPEN_MPI, &srun, "srun --mpi=pmix"),
            (OPEN_MPI, &mpiexec, "mpirun.openmpi"),
            (Family::Other, &mpirun, "umbra --version"),
        ] {
            let error = check_for(&env(variables), family, 0, 1).unwrap_err();
            assert!(error.to_string().contains(cure), "{cure}: {error}");
        }
    }

    #[test]
    fn masks_are_written_as_linux_writes_them() {
        for list in ["0", "0-3", "0-3,8", "1,3,5-6"] {
            assert_eq!(Cores::parse(list).to_string(), list);
        }
        let mut cores = Cores::parse("\t0-1\n");
        cores.join(&Cores::parse("1-2"));
        assert_eq!(cores, Cores::parse("0-2"));
        assert_eq!(Cores::parse("nonsense"), Cores::default());
        assert_eq!(Cores::parse("8190-18446744073709551615").to_string(), "8190-8191");
        assert_eq!(Cores::parse("9000-18446744073709551615,2").to_string(), "2");
        assert!(Cores::allowed().count() >= 1);
    }
}
