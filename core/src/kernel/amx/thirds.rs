//! Products of thirds by AMX: of nine products of bf16s those six that an f32 would show.
//!
//! Operands stand as registers are loaded, one step of sixteen words after another
//! (`kernel/thirds/mod.rs`), so the loop counts steps and knows nothing else.

use core::arch::asm;

use super::super::isa::Isa;
use super::super::layout::{Activations, width_at};
use super::super::thirds::{PLANE, STEP, Thirds, Turned};
use super::super::tile::Epilogue;
use super::{SIDE, Sums, TILE, configure, put};

/// The sums of a tile for which the registers are configured, over so many steps. The order of the
/// products: with the first parts of f32s numbered 0 and the last ones 2, those of A and B are
/// (2, 0), (0, 0), (0, 2), (0, 1), (1, 1), (1, 0), so that a part is mostly loaded once a step.
///
/// # Safety
/// The machine has AMX. Both operands are good for reading as many steps.
#[inline(always)]
unsafe fn multiply(steps: usize, a: *const f32, b: *const f32) -> Sums {
    const BYTES: usize = size_of::<f32>();
    let mut sums = Sums::NEW;
    // SAFETY: the caller's promise. The sums are as large as four registers.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {steps}, {steps}",
            "jz 3f",
            "2:",
            "tileloadd tmm4, [{a} + {row} + 2 * {plane}]",
            "tileloadd tmm6, [{b} + {row}]",
            "tileloadd tmm7, [{b} + {row} + {half}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a} + {row} + 2 * {plane} + {half}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{a} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {row} + {half}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{b} + {row} + 2 * {plane}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {row} + 2 * {plane} + {half}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{b} + {row} + {plane}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {row} + {plane} + {half}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{a} + {row} + {plane}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {row} + {plane} + {half}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {row} + {half}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, {step}",
            "add {b}, {step}",
            "dec {steps}",
            "jnz 2b",
            "3:",
            "mov {row}, {row_of_sums}",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + {half_row}], tmm1",
            "tilestored [{sums} + {row} + {half_sums}], tmm2",
            "tilestored [{sums} + {row} + {half_sums} + {half_row}], tmm3",
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            row = inout(reg) SIDE * BYTES => _,
            steps = inout(reg) steps => _,
            sums = in(reg) &raw mut sums,
            plane = const PLANE * BYTES,
            half = const PLANE / 2 * BYTES,
            step = const STEP * BYTES,
            row_of_sums = const TILE * BYTES,
            half_row = const SIDE * BYTES,
            half_sums = const SIDE * TILE * BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
    sums
}

/// `C[n, width] = A[n, depth] · B[depth, width]`, tile by tile, of a B of one tile; `epilogue(row)`
/// makes that of the tile at (row, 0).
///
/// # Safety
/// The machine has AMX. The epilogues fit their tiles.
#[inline(always)]
pub(in super::super) unsafe fn product<I: Isa, E: Epilogue>(
    isa: I,
    a: Thirds<'_>,
    b: Thirds<'_>,
    epilogue: impl Fn(usize) -> E,
) {
    assert!(a.depth() == b.depth() && b.count() <= TILE, "a tile's columns over the same depth");
    let (n, width) = (a.count(), b.count());
    let mut configured = 0;
    for first in (0..n).step_by(TILE) {
        let rows = TILE.min(n - first);
        // SAFETY: the caller's promise; a tile of thirds has as many steps.
        unsafe {
            if configured != rows {
                configure(rows, width);
                configured = rows;
            }
            let sums = multiply(a.steps(), a.tile(first), b.tile(0));
            put(isa, (rows, width), &sums, &epilogue(first));
        }
    }
}

/// The product d_Yᵀ·X over examples, as that of `weight.rs`: `epilogue(at, len, row)` makes that of
/// the tile whose elements lie in `at..at + len` with rows `row` apart. `d_y`: of
/// [`super::super::split_examples`]
///
/// # Safety
/// The machine has AMX. The epilogues fit their tiles.
#[inline(always)]
pub(in super::super) unsafe fn outer<I: Isa, E: Epilogue>(
    isa: I,
    x: Activations<'_>,
    d_y: Thirds<'_>,
    epilogue: impl Fn(usize, usize, usize) -> E,
) {
    let (inputs, outputs) = (x.width(), d_y.count());
    let mut turned = Turned::NEW;
    let of_tile = |block: usize, first: usize| {
        let (rows, width) = (width_at(inputs, block), width_at(outputs, first));
        epilogue(first * inputs + block * width, rows * width, width)
    };
    for block in (0..inputs).step_by(TILE) {
        let a = turned.turn(isa, x, block);
        assert_eq!(a.depth(), d_y.depth(), "examples");
        let rows = a.count();
        let mut configured = 0;
        for first in (0..outputs).step_by(TILE) {
            let width = width_at(outputs, first);
            match (first + TILE < outputs, block + TILE < inputs) {
                (true, _) => of_tile(block, first + TILE).ask(TILE * TILE),
                (false, true) => of_tile(block + TILE, 0).ask(TILE * TILE),
                (false, false) => {}
            }
            // SAFETY: as above.
            unsafe {
                if configured != width {
                    configure(rows, width);
                    configured = width;
                }
                let sums = multiply(a.steps(), a.tile(0), d_y.tile(first));
                put(isa, (rows, width), &sums, &of_tile(block, first));
            }
        }
    }
}
