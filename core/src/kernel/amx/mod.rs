//! Products by AMX: eight registers, each a matrix of sixteen rows of sixteen words.
//!
//! One instruction, TDPBF16PS, adds to a matrix of sums the product of sixteen rows of A, sixteen
//! words each, and sixteen rows of B; a word is two bf16s. *A sum is rounded in another order than
//! by the tiles of `tile.rs`*: for each sixteen words, the products of their lower halves are added
//! up from 0, and those of their upper halves as well, and the sum of the two is added to what
//! there was. Everything is rounded to nearest. Where the depth is no multiple of sixteen words,
//! zeros follow. So [`super::Simd::Amx`] has bits of its own, for which tests have plain twins.
//!
//! - `halves.rs`: of bf16s, in the layouts of every other set
//! - `thirds.rs`: of f32s as sums of three bf16s each, in a layout of their own
//!
//! The configuration, which says how many rows and columns registers have, belongs to a thread. It
//! is loaded where shapes change and released behind a kernel ([`release`]), so that a switch of
//! threads need not save eight kilobytes. A register's rows are read by sixteen loads, each of one
//! cache line where memory starts with one: elsewhere products take twice as long.

use core::arch::asm;
use core::mem::MaybeUninit;

use super::isa::Isa;
use super::layout::PANEL;
use super::tile::Epilogue;

pub(super) mod halves;
pub(super) mod thirds;

/// Rows, or words of a row, of a register.
const SIDE: usize = 16;
/// Rows and columns of a tile of sums: two registers each way.
const TILE: usize = 2 * SIDE;
const _: () = assert!(TILE == PANEL, "a row of a block is two registers wide, and so is a panel");

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Gives registers the shapes of a tile of `rows` × `columns` sums: 0 to 3 are the sums, 4 and 5
/// rows of A, 6 and 7 of B. Those that a small tile has no use for are as large as the first.
///
/// # Safety
/// The machine has AMX, and the process may use it.
unsafe fn configure(rows: usize, columns: usize) {
    let second = |of: usize| if of > SIDE { of - SIDE } else { of };
    let (above, below) = (rows.min(SIDE), second(rows));
    let (left, right) = (columns.min(SIDE), second(columns));
    let mut configuration = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let shapes = [
        (above, left),
        (above, right),
        (below, left),
        (below, right),
        (above, SIDE),
        (below, SIDE),
        (SIDE, left),
        (SIDE, right),
    ];
    for (at, (rows, words)) in shapes.into_iter().enumerate() {
        #[expect(clippy::cast_possible_truncation, reason = "at most 16 rows of 64 bytes")]
        {
            configuration.rows[at] = rows as u8;
            configuration.row_bytes[at] = (words * size_of::<f32>()) as u16;
        }
    }
    // SAFETY: the caller's promise; sixty-four bytes are read. Registers become 0.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const configuration, out("tmm0") _, out("tmm1") _,
            out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            out("tmm7") _, options(nostack, preserves_flags, readonly));
    }
}

/// Gives the registers back.
///
/// # Safety
/// The machine has AMX.
pub(super) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tilerelease", out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags, nomem));
    }
}

/// The sums of a tile.
#[repr(C, align(64))]
struct Sums([[MaybeUninit<f32>; TILE]; TILE]);

impl Sums {
    const NEW: Self = Self([[MaybeUninit::uninit(); TILE]; TILE]);

    const fn row(&self, row: usize) -> *const f32 {
        self.0.as_ptr().wrapping_add(row).cast()
    }
}

/// Gives an epilogue the sums of a tile.
///
/// # Safety
/// The tile is one the epilogue was made for.
#[inline(always)]
unsafe fn put<I: Isa>(
    isa: I,
    (rows, columns): (usize, usize),
    sums: &Sums,
    epilogue: &impl Epilogue,
) {
    debug_assert_eq!(I::LANES, SIDE, "a vector is a row of a register");
    // SAFETY: the caller's promise.
    unsafe {
        // What a whole row is, the compiler is to know.
        match columns {
            TILE => put_rows::<I, 2>(isa, (rows, SIDE), sums, epilogue),
            SIDE => put_rows::<I, 1>(isa, (rows, SIDE), sums, epilogue),
            17.. => put_rows::<I, 2>(isa, (rows, columns - SIDE), sums, epilogue),
            _ => put_rows::<I, 1>(isa, (rows, columns), sums, epilogue),
        }
    }
}

/// Rows that an epilogue is given at once: their sums fit the registers.
const ROWS: usize = 8;

/// [`put`] of rows of `NV` vectors, the last of `part` columns.
///
/// # Safety
/// The tile is one the epilogue was made for.
#[inline(always)]
unsafe fn put_rows<I: Isa, const NV: usize>(
    isa: I,
    (rows, part): (usize, usize),
    sums: &Sums,
    epilogue: &impl Epilogue,
) {
    let many = rows / ROWS * ROWS;
    // SAFETY: rows of the tile are written; the rest is the caller's promise.
    unsafe {
        for row in (0..many).step_by(ROWS) {
            epilogue.put_tile(isa, row, part, load_rows::<I, ROWS, NV>(isa, row, sums));
        }
        for row in many..rows {
            epilogue.put_tile(isa, row, part, load_rows::<I, 1, NV>(isa, row, sums));
        }
    }
}

/// The sums of `MR` rows.
///
/// # Safety
/// They are written.
#[inline(always)]
unsafe fn load_rows<I: Isa, const MR: usize, const NV: usize>(
    isa: I,
    row: usize,
    sums: &Sums,
) -> [[I::Vector; NV]; MR] {
    let mut vectors = [[isa.zero(); NV]; MR];
    for (i, vectors) in vectors.iter_mut().enumerate() {
        for (j, vector) in vectors.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *vector = unsafe { isa.load(sums.row(row + i).add(j * SIDE)) };
        }
    }
    vectors
}
