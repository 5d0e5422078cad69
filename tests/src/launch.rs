//! Programs as a user starts them, alone and under mpirun.
//!
//! Nothing here waits for ever: a program that outlives [`LIMIT`] is ended by its own process id
//! and the test fails with what it had printed. One MPI job runs at a time in a test program: jobs
//! of several ranks side by side would only steal each other's cores.
//!
//! Which MPI that is, the library says that the tests were linked with; `MPIRUN` names its launcher
//! where that is not `mpirun`.

use core::time::Duration;
use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tempfile::TempDir;
use umbra_mpi::comm::library::{self, Family};

/// Longest life of a started program. Generous: machines that run tests are crowded.
pub const LIMIT: Duration = Duration::from_secs(240);

/// What `hpc/env.sh` sets, for people who start `cargo test` without it.
const DEFAULTS: [(&str, &str); 9] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    // Not of env.sh: tests have more threads than machines have cores.
    ("UMBRA_ALLOW_OVERSUBSCRIBE", "1"),
];

/// Whether the tests, and the programs beside them, were built with MPICH.
#[must_use]
pub fn is_mpich() -> bool {
    library::family() == Family::Mpich
}

/// The words that start `ranks` processes of the program named after them.
#[must_use]
pub fn mpirun(ranks: usize) -> Vec<String> {
    let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut words = vec![launcher, "-n".into(), ranks.to_string()];
    // MPICH's has no such option: it never refuses.
    if !is_mpich() {
        words.push("--oversubscribe".into());
    }
    words
}

/// The variable in which the launcher tells a process its rank.
fn rank_variable() -> &'static str {
    if is_mpich() { "PMI_RANK" } else { "OMPI_COMM_WORLD_RANK" }
}

/// The process of a rank below the process `root`, once there is one.
#[must_use]
pub fn process_of(root: u32, rank: usize) -> Option<u32> {
    let mark = format!("{}={rank}", rank_variable());
    below(root).into_iter().find(|pid| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    })
}

/// Marks that a launcher leaves: a test started under one is not a rank of it.
const LAUNCHERS: [&str; 4] = ["OMPI_COMM", "PMI", "SLURM_", "MPI_LOCAL"];

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, or 128 + the signal that ended it.
    pub code: i32,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr.
    pub stderr: String,
}

impl Ended {
    /// This, if it ended well.
    #[must_use]
    pub fn fine(self) -> Self {
        assert_eq!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The value that a table on stdout gives for `name`.
    #[must_use]
    pub fn figure(&self, name: &str) -> f64 {
        let value = self.stdout.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with("  ").then(|| rest.trim().parse().ok()).flatten()
        });
        value.unwrap_or_else(|| panic!("no figure {name} in:\n{}", self.stdout))
    }
}

/// A program of this workspace, built beside the tests.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    // target/PROFILE/deps/TEST → target/PROFILE/NAME
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join(name);
    assert!(
        path.exists(),
        "{} is not there: run `cargo build --workspace --bins` (with the same profile) first",
        path.display()
    );
    path
}

/// A program under way.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
    output: [JoinHandle<String>; 2],
    ended: bool,
    _sessions: TempDir,
    _seats: Option<Seats>,
}

/// Places for ranks: jobs wait for most of their time, so two small ones of a test program run at
/// once; a larger one has the machine for itself.
#[derive(Debug)]
struct Seats(usize);

/// Ranks of all jobs at once.
const SEATS: usize = 4;

static FREE: Mutex<usize> = Mutex::new(SEATS);
static FREED: Condvar = Condvar::new();

impl Seats {
    /// Waits for the places of a job of `ranks` ranks.
    fn take(ranks: usize) -> Self {
        let wanted = ranks.min(SEATS);
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = FREED.wait_while(free, |free| *free < wanted);
        *taken.unwrap_or_else(PoisonError::into_inner) -= wanted;
        Self(wanted)
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        FREED.notify_all();
    }
}

/// Starts `program` in `folder`: alone when `ranks` is 1, else under mpirun.
#[must_use]
pub fn start(
    folder: &Path,
    ranks: usize,
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Running {
    let mut command = if ranks > 1 {
        let words = mpirun(ranks);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    } else {
        Command::new(program)
    };
    as_a_user(&mut command);
    // Open MPI 4 makes a folder for the sessions of a user on a host, and a job's end takes it
    // away: of two jobs that make it at the same moment one ends. Every launch has its own.
    let sessions = tempfile::tempdir().unwrap();
    command.env("OMPI_MCA_orte_tmpdir_base", sessions.path());
    command.args(arguments).current_dir(folder).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let seats = (ranks > 1).then(|| Seats::take(ranks));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let output = [drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap())];
    let what = format!("{ranks} × {} {}", program.display(), arguments.join(" "));
    Running { child, what, output, ended: false, _sessions: sessions, _seats: seats }
}

/// Gives a command the environment of a user's shell that has sourced `hpc/env.sh`.
pub fn as_a_user(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if LAUNCHERS.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    for (name, value) in DEFAULTS {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

/// The children of the process `pid`, and theirs.
#[must_use]
pub fn below(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|line| {
            line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    children.into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

/// Reads a stream to its end on a thread of its own.
fn drain(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = vec![];
        stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    /// The process that was started: the program, or mpirun.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Process ids of the ranks under mpirun, wherever that is below this program, by rank; waits
    /// until all of `ranks` are there.
    pub fn rank_pids(&mut self, ranks: usize) -> Vec<u32> {
        let mut pids = vec![];
        self.until("the ranks to start", |job| {
            pids = (0..ranks).filter_map(|rank| process_of(job.pid(), rank)).collect();
            pids.len() == ranks
        });
        pids
    }

    /// Waits until `there` says so, while the program lives.
    pub fn until(&mut self, what: &str, mut there: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !there(self) {
            if self.child.try_wait().unwrap().is_some() {
                let text = self.texts();
                panic!("{} ended before {what}:\n{}{}", self.what, text[0], text[1]);
            }
            if start.elapsed() > LIMIT {
                self.give_up(&format!("waiting for {what}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end; past `limit` ends the program and fails.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() > limit => self.give_up("waiting for its end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let [stdout, stderr] = self.texts();
        Ended { code: code(status), stdout, stderr }
    }

    /// Ends the program and fails.
    fn give_up(&mut self, doing: &str) -> ! {
        self.end();
        let [stdout, stderr] = self.texts();
        panic!("{} outlived its limit, {doing}\nstdout:\n{stdout}\nstderr:\n{stderr}", self.what);
    }

    /// mpirun passes SIGTERM on to its ranks and then kills them; after that it is killed itself.
    fn end(&mut self) {
        signal(self.pid(), "TERM");
        for _ in 0..1000 {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn texts(&mut self) -> [String; 2] {
        self.ended = true;
        let empty = || std::thread::spawn(String::new);
        core::mem::replace(&mut self.output, [empty(), empty()]).map(|text| text.join().unwrap())
    }

    /// Sends a signal, "USR1", to the process that was started.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }
}

impl Drop for Running {
    /// A test that failed on the way leaves nothing running.
    fn drop(&mut self) {
        if !self.ended && self.child.try_wait().unwrap().is_none() {
            self.end();
        }
    }
}

/// Sends a signal, "USR1", to a process of ours. One that has just ended is no failure.
pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).output().unwrap();
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
