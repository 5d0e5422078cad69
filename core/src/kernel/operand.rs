//! What stands in a word of a product's operands: an f32, or two bf16s.
//!
//! The kernels of `linear.rs` and `weight.rs` count words and are the same for both. Of *halves*, a
//! word holds two neighbours of the sum, the first in its lower half: of a product over columns,
//! columns 2 k and 2 k + 1 of an example; of one over examples, examples 2 k and 2 k + 1 of a
//! column. Where their number is odd, the last word's upper half is 0. So a matrix of activations
//! has two forms of halves, `[n, width / 2]` and `[n / 2, width]` words, both in the layouts of
//! `layout.rs` (`round.rs` makes them).
//!
//! A step of a product of halves adds the term of the upper halves and then that of the lower ones,
//! each sum rounded to f32, as VDPBF16PS does; terms are exact. Operands are never so small that a
//! sum could be denormal (`isa/mod.rs`), so every instruction set gives the same bits, but for the
//! linear layers of [`super::Simd::Amx`], whose sums have an order of their own (`amx/mod.rs`).

use super::isa::Isa;

/// In what the operands of products are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As they are.
    #[default]
    F32,
    /// To bf16, and multiplied as such; sums are f32.
    Bf16,
}

/// A word of an operand.
pub(super) trait Operand: Copy {
    /// Words are two bf16s.
    const HALVES: bool;
    /// `c` plus what the words `a` and `b` add to it.
    fn add<I: Isa>(isa: I, a: I::Vector, b: I::Vector, c: I::Vector) -> I::Vector;
}

/// One f32.
#[derive(Clone, Copy)]
pub(super) struct Whole;

impl Operand for Whole {
    const HALVES: bool = false;

    #[inline(always)]
    fn add<I: Isa>(isa: I, a: I::Vector, b: I::Vector, c: I::Vector) -> I::Vector {
        isa.multiply_add(a, b, c)
    }
}

/// Two bf16s.
#[derive(Clone, Copy)]
pub(super) struct Halves;

impl Operand for Halves {
    const HALVES: bool = true;

    #[inline(always)]
    fn add<I: Isa>(isa: I, a: I::Vector, b: I::Vector, c: I::Vector) -> I::Vector {
        isa.dot_halves(a, b, c)
    }
}
