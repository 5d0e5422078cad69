//! What the core could do at best: multiply-adds on registers alone.

use core::marker::PhantomData;

use super::isa::{Isa, Kernel, run, run_halves};
use super::operand::{Halves, Operand, Precision, Whole};

/// Independent sums: more than latency times instructions per cycle of every processor of today.
const SUMS: usize = 12;
/// Rounds between two looks at the sums.
const ROUNDS: u64 = 64;

/// Runs `iterations` rounds of independent multiply-adds of the selected instruction set and
/// returns the floating point operations they were. Timed by the caller, it is the ceiling of every
/// kernel that multiplies vectors of this precision; matrices in registers ([`super::Simd::Amx`])
/// multiply more.
#[must_use]
pub fn peak_burst(precision: Precision, iterations: u32) -> u64 {
    let (rounds, mut flop) = (u64::from(iterations), 0);
    match precision {
        Precision::F32 => run(Burst { operand: PhantomData::<Whole>, rounds, flop: &mut flop }),
        Precision::Bf16 => {
            run_halves(Burst { operand: PhantomData::<Halves>, rounds, flop: &mut flop })
        }
    }
    flop
}

struct Burst<'a, O> {
    operand: PhantomData<O>,
    rounds: u64,
    flop: &'a mut u64,
}

impl<O: Operand> Kernel for Burst<'_, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // Products are far below what would change the sums: no overflow, no denormal numbers.
        let (a, b) = core::hint::black_box((isa.splat(0.5), isa.splat(1e-20)));
        let mut sums = [isa.splat(2.0); SUMS];
        for _ in 0..self.rounds {
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = O::add(isa, a, b, *sum);
                }
            }
        }
        core::hint::black_box(sums);
        let terms = if O::HALVES { 2 * I::LANES } else { I::LANES };
        *self.flop = self.rounds * ROUNDS * (2 * SUMS * terms) as u64;
    }
}
