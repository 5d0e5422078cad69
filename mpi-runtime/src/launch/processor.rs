//! The core that a thread runs on: staying there, the time it was had, and what it can do.

use core::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use umbra_core::kernel::{Precision, peak_burst};

use crate::error::Error;
use crate::launch::environment::Cores;
use crate::launch::world::NodeFacts;

/// Keeps the calling thread on this core.
///
/// # Errors
/// When the system refuses.
pub fn stay_on(core: usize) -> Result<(), Error> {
    stay_on_any(&[core])
}

fn stay_on_any(cores: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set)
        .map_err(|error| Error::Launch(format!("cannot keep a thread on core {cores:?}: {error}")))
}

/// Refuses more worker threads than a rank on `host` may use cores: they would take turns, and a
/// step would last as much longer. Several ranks that share cores are only warned of: at a desk
/// that is how a job of many ranks is tried out.
///
/// # Errors
/// Fewer cores than workers, unless `UMBRA_ALLOW_OVERSUBSCRIBE=1` says that this is meant.
pub fn check_cores(cores: &Cores, workers: usize, host: &str) -> Result<(), Error> {
    let of_node = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let meant = std::env::var("UMBRA_ALLOW_OVERSUBSCRIBE").is_ok_and(|value| value == "1");
    if meant { Ok(()) } else { enough_cores(cores, workers, Cores::parse(&of_node).count(), host) }
}

fn enough_cores(cores: &Cores, workers: usize, of_node: usize, host: &str) -> Result<(), Error> {
    let own = cores.count();
    if workers <= own {
        return Ok(());
    }
    let binding = if own < of_node {
        format!(
            ", bound to fewer than the {of_node} of {host}: start with mpirun --bind-to none, or \
             --map-by slot:PE={workers} (srun --cpus-per-task={workers}); or"
        )
    } else {
        format!(", all that {host} has:")
    };
    Err(Error::Launch(format!(
        "train.worker_threads = {workers}, and a rank may use {own} {} ({cores}){binding} set \
         train.worker_threads = {own}, or UMBRA_ALLOW_OVERSUBSCRIBE=1 in the environment if \
         threads are to take turns",
        if own == 1 { "core" } else { "cores" }
    )))
}

/// Which cores the threads of a rank stay on; empty when they stay nowhere.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    workers: Vec<usize>,
    beside: Vec<usize>,
}

impl Pins {
    /// The first `workers` of this rank's cores for the workers, the others for threads beside
    /// them.
    ///
    /// # Errors
    /// Fewer cores than workers, or cores that other ranks of the node may use too.
    pub fn new(cores: &Cores, workers: usize, node: &NodeFacts) -> Result<Self, Error> {
        if cores.count() < workers {
            return Err(Error::Launch(format!(
                "train.pin_workers = true wants a core for each of {workers} worker threads, and \
                 this \
                 rank may use {}: lower train.worker_threads, or start the rank with more cores",
                cores.count()
            )));
        }
        if cores.count() * node.ranks > node.cores {
            return Err(Error::Launch(format!(
                "train.pin_workers = true wants cores of its own for each rank, and {} ranks \
                 share {} \
                 cores of a node: bind them, as mpirun --map-by slot:PE={workers} and srun \
                 --cpus-per-task={workers} --cpu-bind=cores do",
                node.ranks, node.cores
            )));
        }
        let cores: Vec<usize> = cores.numbers().collect();
        let (workers, beside) = cores.split_at(workers);
        Ok(Self { workers: workers.to_vec(), beside: beside.to_vec() })
    }

    /// Keeps the calling thread, worker `index`, on its core.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn worker(&self, index: usize) -> Result<(), Error> {
        self.workers.get(index).map_or(Ok(()), |core| stay_on(*core))
    }

    /// Keeps the calling thread off the workers' cores, if there are others.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn beside(&self) -> Result<(), Error> {
        if self.beside.is_empty() { Ok(()) } else { stay_on_any(&self.beside) }
    }
}

/// Time for which the calling thread has had a core.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// GFLOP/s of the calling thread when it does nothing but multiply and add in vectors, with the
/// instruction set in use: what nothing on this core can exceed at its clock of now that does not
/// multiply matrices in registers. Takes [`BURST`].
#[must_use]
pub fn peak_gflops(precision: Precision) -> f64 {
    let (start, mut flop) = (thread_time(), 0);
    loop {
        flop += peak_burst(precision, ITERATIONS);
        let time = thread_time() - start;
        if time >= BURST {
            return flop as f64 / time.as_secs_f64() / 1e9;
        }
    }
}

/// Length of a burst.
pub const BURST: Duration = Duration::from_millis(2);

/// Iterations between two looks at the clock.
const ITERATIONS: u32 = 1000;

/// The processor's name for itself, with family and model where it tells them: processors that
/// differ by a factor of two go by one name.
#[must_use]
pub fn machine() -> String {
    name_in(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn name_in(cpuinfo: &str) -> String {
    let value = |key| {
        let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.find_map(|(name, value)| (name.trim() == key).then(|| value.trim()))
    };
    let name = value("model name").unwrap_or(std::env::consts::ARCH);
    match (value("cpu family"), value("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_no_core() {
        let start = thread_time();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_time() - start < Duration::from_millis(40));
    }

    #[test]
    fn more_workers_than_cores_are_refused_with_a_cure() {
        let refused = |cores: &str, workers, of_node| {
            let checked = enough_cores(&Cores::parse(cores), workers, of_node, "n0");
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(refused("0-3", 4, 8), Ok(()));
        let bound = refused("3", 4, 8).unwrap_err();
        assert!(bound.contains("1 core (3), bound") && bound.contains("slot:PE=4"), "{bound}");
        let small = refused("0-1", 4, 2).unwrap_err();
        assert!(small.contains("2 cores (0-1), all that n0 has"), "{small}");
        assert!(small.contains("train.worker_threads = 2"), "{small}");
    }

    #[test]
    fn workers_and_others_have_cores_of_their_own() {
        let node = NodeFacts { ranks: 2, cores: 8, node_of: vec![0, 0], hosts: vec![] };
        let pins = Pins::new(&Cores::parse("4-7"), 3, &node).unwrap();
        assert_eq!((pins.workers, pins.beside), (vec![4, 5, 6], vec![7]));
        let error = Pins::new(&Cores::parse("4-7"), 5, &node).unwrap_err().to_string();
        assert!(error.contains("each of 5 worker threads"), "{error}");
        let error = Pins::new(&Cores::parse("0-7"), 3, &node).unwrap_err().to_string();
        assert!(error.contains("2 ranks share 8 cores"), "{error}");
    }

    #[test]
    fn a_processor_has_family_and_model() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\
                    model name\t: AMD EPYC\n\nprocessor\t: 1\ncpu family\t: 26\n";
        assert_eq!(name_in(text), "AMD EPYC (family 25, model 17)");
        assert_eq!(name_in("processor : 0\nBogoMIPS : 50\n"), std::env::consts::ARCH);
    }

    #[test]
    fn the_peak_is_measured() {
        for precision in [Precision::F32, Precision::Bf16] {
            let peak = peak_gflops(precision);
            assert!(peak.is_finite() && peak > 0.0, "{precision:?}: {peak}");
        }
    }
}
