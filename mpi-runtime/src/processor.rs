//! The core that a thread runs on: staying there, the time it was had, and what it can do.

use core::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use umbra_core::kernel::peak_burst;

use crate::error::Error;

/// Keeps the calling thread on this core.
///
/// # Errors
/// When the system refuses.
pub fn stay_on(core: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
        .map_err(|error| Error::Launch(format!("cannot keep a thread on core {core}: {error}")))
}

/// Time for which the calling thread has had a core.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// f32 GFLOP/s of the calling thread when it does nothing but multiply and add in registers, with the
/// instruction set in use: what nothing on this core can exceed at its clock of now. Takes [`BURST`].
#[must_use]
pub fn peak_gflops() -> f64 {
    let (start, mut flop) = (thread_time(), 0);
    loop {
        flop += peak_burst(ITERATIONS);
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

/// The processor's name for itself.
#[must_use]
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.map(|line| line.trim_start_matches([' ', '\t', ':']));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_no_core() {
        let start = thread_time();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_time() - start < Duration::from_millis(40));
    }

    #[test]
    fn the_peak_is_measured() {
        let peak = peak_gflops();
        assert!(peak.is_finite() && peak > 0.0, "{peak}");
    }
}
