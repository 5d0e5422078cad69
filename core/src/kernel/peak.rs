//! What the core could do at best: multiply-adds on registers alone.

use super::isa::{Isa, Kernel, run};

/// Independent sums: more than latency times instructions per cycle of every processor of today.
const SUMS: usize = 12;
/// Rounds between two looks at the sums.
const ROUNDS: u64 = 64;

/// Runs `iterations` rounds of independent multiply-adds of the selected instruction set and
/// returns the floating point operations they were. Timed by the caller, it is the ceiling of every
/// kernel.
#[must_use]
pub fn peak_burst(iterations: u32) -> u64 {
    let mut flop = 0;
    run(Burst { rounds: u64::from(iterations), flop: &mut flop });
    flop
}

struct Burst<'a> {
    rounds: u64,
    flop: &'a mut u64,
}

impl Kernel for Burst<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // x ← x · a + b settles at 1: no overflow, no denormal numbers.
        let (a, b) = core::hint::black_box((isa.splat(0.5), isa.splat(0.5)));
        let mut sums = [isa.splat(2.0); SUMS];
        for _ in 0..self.rounds {
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = isa.multiply_add(*sum, a, b);
                }
            }
        }
        core::hint::black_box(sums);
        *self.flop = self.rounds * ROUNDS * (2 * SUMS * I::LANES) as u64;
    }
}
