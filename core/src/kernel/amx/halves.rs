//! Products of halves by AMX, with the operands of every other set: an example's words of
//! neighbouring columns are a row of A, a panel's row in bf16 is a row of B. Only X of the gradient
//! of W has to be transposed, once for all outputs. Nothing is denormal, since operands are as
//! `isa/mod.rs` says.

use core::arch::asm;
use core::mem::{MaybeUninit, offset_of};

use super::super::isa::{InPlace, Isa};
use super::super::layout::{Activations, PANEL, place, width_at};
use super::super::tile::{Epilogue, Left, load, store};
use super::super::transpose::transpose_part;
use super::super::weight::EXAMPLES;
use super::{SIDE, Sums, TILE, configure, put};

/// Rows of A: row i starts at `first + i * row`, and its step k, of sixteen words, `k / 2 * block +
/// k % 2 * 16` behind that. `rest`, `rest_row` apart: those of a last step, with zeros behind what
/// there is.
#[derive(Clone, Copy)]
struct Rows {
    first: *const f32,
    row: usize,
    block: usize,
    rest: *const f32,
    rest_row: usize,
}

/// Rows of B: row k starts at `first + k * row`. `rest`, [`TILE`] apart: those of a last step, with
/// zeros behind what there is.
#[derive(Clone, Copy)]
struct Columns {
    first: *const f32,
    row: usize,
    rest: *const f32,
}

/// What the loop below reads.
#[repr(C)]
struct Operands {
    rest_a: *const f32,
    rest_b: *const f32,
    rest_row_a: usize,
    rest_row_b: usize,
    step_b: usize,
    /// Whether there is a last step of a few words, 0 or 1.
    rests: usize,
    /// Behind the first sixteen rows of the last step's.
    second_rest: usize,
}

/// The sums of a tile of `rows` × `columns`, for which the registers are configured, over `depth`
/// words.
///
/// # Safety
/// The machine has AMX. The operands are good for reading the tile's rows and columns.
#[inline(always)]
unsafe fn multiply((rows, columns): (usize, usize), depth: usize, a: Rows, b: Columns) -> Sums {
    const WORD: usize = size_of::<f32>();
    let mut sums = Sums::NEW;
    let operands = Operands {
        rest_a: a.rest,
        rest_b: b.rest,
        rest_row_a: a.rest_row * WORD,
        rest_row_b: TILE * WORD,
        step_b: SIDE * b.row * WORD,
        rests: usize::from(!depth.is_multiple_of(SIDE)),
        second_rest: if rows > SIDE { SIDE * a.rest_row * WORD } else { 0 },
    };
    // A register too many reads what the first does.
    let second_a = if rows > SIDE { SIDE * a.row * WORD } else { 0 };
    let second_b = if columns > SIDE { SIDE * WORD } else { 0 };
    // SAFETY: the caller's promise; rows behind the tile's are not touched, as configured. The sums
    // are as large as four registers.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {steps}, {steps}",
            "jz 3f",
            "2:",
            "tileloadd tmm4, [{a} + {row_a}]",
            "tileloadd tmm6, [{b} + {row_b}]",
            "lea {second}, [{b} + {second_b}]",
            "tileloadd tmm7, [{second} + {row_b}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "lea {second}, [{a} + {second_a}]",
            "tileloadd tmm5, [{second} + {row_a}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, {step_a}",
            "add {b}, [{operands} + {step_b}]",
            "xchg {step_a}, {next_step_a}",
            "dec {steps}",
            "jnz 2b",
            "3:",
            "cmp qword ptr [{operands} + {rests}], 0",
            "je 4f",
            "mov {a}, [{operands} + {rest_a}]",
            "mov {b}, [{operands} + {rest_b}]",
            "mov {row_a}, [{operands} + {rest_row_a}]",
            "mov {row_b}, [{operands} + {rest_row_b}]",
            "tileloadd tmm4, [{a} + {row_a}]",
            "tileloadd tmm6, [{b} + {row_b}]",
            "add {b}, {second_b}",
            "tileloadd tmm7, [{b} + {row_b}]",
            "add {a}, [{operands} + {second_rest}]",
            "tileloadd tmm5, [{a} + {row_a}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "4:",
            "mov {row_a}, {row}",
            "tilestored [{sums} + {row_a}], tmm0",
            "tilestored [{sums} + {row_a} + {half_row}], tmm1",
            "add {sums}, {half}",
            "tilestored [{sums} + {row_a}], tmm2",
            "tilestored [{sums} + {row_a} + {half_row}], tmm3",
            a = inout(reg) a.first => _,
            b = inout(reg) b.first => _,
            row_a = inout(reg) a.row * WORD => _,
            row_b = inout(reg) b.row * WORD => _,
            second_a = in(reg) second_a,
            second_b = in(reg) second_b,
            step_a = inout(reg) SIDE * WORD => _,
            next_step_a = inout(reg) a.block.wrapping_sub(SIDE).wrapping_mul(WORD) => _,
            steps = inout(reg) depth / SIDE => _,
            operands = in(reg) &raw const operands,
            second = out(reg) _,
            sums = inout(reg) &raw mut sums => _,
            step_b = const offset_of!(Operands, step_b),
            rests = const offset_of!(Operands, rests),
            rest_a = const offset_of!(Operands, rest_a),
            rest_b = const offset_of!(Operands, rest_b),
            rest_row_a = const offset_of!(Operands, rest_row_a),
            rest_row_b = const offset_of!(Operands, rest_row_b),
            second_rest = const offset_of!(Operands, second_rest),
            row = const TILE * WORD,
            half_row = const SIDE * WORD,
            half = const SIDE * TILE * WORD,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
    sums
}

/// Words of a last step, with zeros behind them: up to [`TILE`] rows of A, or [`SIDE`] of B.
#[repr(C, align(64))]
struct Rest<const ROWS: usize, const WORDS: usize>([[f32; WORDS]; ROWS]);

impl<const ROWS: usize, const WORDS: usize> Rest<ROWS, WORDS> {
    const NEW: Self = Self([[0.0; WORDS]; ROWS]);

    /// `rows` of `words` words from `from` on, `row` apart.
    ///
    /// # Safety
    /// It is good for reading them.
    #[inline(always)]
    unsafe fn copy<I: Isa>(
        &mut self,
        isa: I,
        (rows, words): (usize, usize),
        (from, row): (*const f32, usize),
    ) {
        for (i, to) in self.0[..rows].iter_mut().enumerate() {
            for at in (0..words).step_by(I::LANES) {
                let count = I::LANES.min(words - at);
                // SAFETY: the caller's promise.
                unsafe {
                    let x = load(isa, from.wrapping_add(i * row + at), count);
                    store(isa, to[at..].as_mut_ptr(), count, x);
                }
            }
        }
    }
}

/// `C[n, width] = A[n, depth] · panel[width, depth]ᵀ` of halves, tile by tile; `epilogue(row)`
/// makes that of the tile at (row, 0). `a` finds the rows of A from one on.
///
/// # Safety
/// The machine has AMX. `panel` is good for reading `width * depth` elements, and the epilogues fit
/// their tiles.
#[inline(always)]
pub(in super::super) unsafe fn product<I: Isa, E: Epilogue>(
    isa: I,
    (n, depth): (usize, usize),
    a: impl Fn(usize) -> Left,
    (panel, width): (*const f32, usize),
    epilogue: impl Fn(usize) -> E,
) {
    let (whole, left) = (depth / SIDE * SIDE, depth % SIDE);
    let (mut rest_a, mut rest_b) = (Rest::<TILE, SIDE>::NEW, Rest::<SIDE, TILE>::NEW);
    // SAFETY: the caller's promise: the panel's last rows.
    unsafe { rest_b.copy(isa, (left, width), (panel.wrapping_add(whole * width), width)) }
    let b = Columns { first: panel, row: width, rest: rest_b.0.as_ptr().cast() };
    let mut configured = 0;
    for first in (0..n).step_by(TILE) {
        let rows = TILE.min(n - first);
        let (epilogue, from) = (epilogue(first), a(first));
        // SAFETY: the caller's promise: rows of A that there are.
        unsafe {
            if configured != rows {
                configure(rows, width);
                configured = rows;
            }
            if left > 0 {
                let at = whole / from.run * from.block + whole % from.run;
                rest_a.copy(isa, (rows, left), (from.first.wrapping_add(at), from.row));
            }
            let a = Rows {
                first: from.first,
                row: from.row,
                block: from.block,
                rest: rest_a.0.as_ptr().cast(),
                rest_row: SIDE,
            };
            let sums = multiply((rows, width), depth, a, b);
            put(isa, (rows, width), &sums, &epilogue);
        }
    }
}

/// Xᵀ of [`TILE`] columns, in blocks of as many words.
#[repr(C, align(64))]
struct Turned([[[MaybeUninit<f32>; TILE]; TILE]; EXAMPLES / TILE]);

/// The product d_Yᵀ·X of halves, as that of `weight.rs`: `epilogue(at, len, row)` makes that of the
/// tile whose elements lie in `at..at + len` with rows `row` apart.
///
/// # Safety
/// The machine has AMX. The epilogues fit their tiles.
#[inline(always)]
pub(in super::super) unsafe fn outer<I: Isa, E: Epilogue>(
    isa: I,
    x: Activations<'_>,
    d_y: Activations<'_>,
    epilogue: impl Fn(usize, usize, usize) -> E,
) {
    let (n, inputs, outputs) = (x.n(), x.width(), d_y.width());
    let (xs, ys) = (x.strides(), d_y.strides());
    let (whole, left) = (n / SIDE * SIDE, n % SIDE);
    assert!(n <= EXAMPLES, "words of a block of the sum");
    let mut turned = Turned([const { [[MaybeUninit::uninit(); TILE]; TILE] }; EXAMPLES / TILE]);
    let mut rest_b = Rest::<SIDE, TILE>::NEW;
    let of_tile = |block: usize, first: usize| {
        let (rows, width) = (width_at(inputs, block), width_at(outputs, first));
        epilogue(first * inputs + block * width, rows * width, width)
    };
    for block in (0..inputs).step_by(PANEL) {
        let rows = width_at(inputs, block);
        let to: *mut f32 = turned.0.as_mut_ptr().cast();
        let from = x.as_ptr().wrapping_add(place(xs, 0, block));
        for k in (0..n).step_by(SIDE) {
            let to = to.wrapping_add(k / TILE * TILE * TILE + k % TILE);
            for row in (0..rows).step_by(SIDE) {
                let size = (SIDE.min(n - k), SIDE.min(rows - row));
                let from = (InPlace(from.wrapping_add(k * xs.row + row)), xs.row);
                let to = to.wrapping_add(row * TILE);
                // SAFETY: words of X, and rows of what is turned, which has as many.
                unsafe {
                    if size.0 < SIDE {
                        for row in 0..size.1 {
                            isa.store(to.add(row * TILE), isa.zero());
                        }
                    }
                    transpose_part(isa, size, from, (to, TILE));
                }
            }
        }
        let a = Rows {
            first: to,
            row: TILE,
            block: TILE * TILE,
            rest: to.wrapping_add(whole / TILE * TILE * TILE + whole % TILE),
            rest_row: TILE,
        };
        let mut configured = 0;
        for first in (0..outputs).step_by(PANEL) {
            let width = width_at(outputs, first);
            let from = d_y.as_ptr().wrapping_add(place(ys, 0, first));
            let tile = (rows, width);
            let epilogue = of_tile(block, first);
            match (first + PANEL < outputs, block + PANEL < inputs) {
                (true, _) => of_tile(block, first + PANEL).ask(PANEL * PANEL),
                (false, true) => of_tile(block + PANEL, 0).ask(PANEL * PANEL),
                (false, false) => {}
            }
            // SAFETY: both views hold these columns; the rest is the caller's promise.
            unsafe {
                if configured != width {
                    configure(rows, width);
                    configured = width;
                }
                let rest = from.wrapping_add(whole * ys.row);
                rest_b.copy(isa, (left, width), (rest, ys.row));
                let b = Columns { first: from, row: ys.row, rest: rest_b.0.as_ptr().cast() };
                let sums = multiply(tile, n, a, b);
                put(isa, tile, &sums, &epilogue);
            }
        }
    }
}
