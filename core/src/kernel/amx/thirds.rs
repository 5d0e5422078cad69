//! Products of thirds by AMX: of nine products of bf16s those six that an f32 would show.
//!
//! Operands stand as registers are loaded, one step of sixteen words after another
//! (`kernel/thirds/mod.rs`), so the loop counts steps and knows nothing else. While matrices are
//! multiplied, the vector units take the sums of the tile before to its epilogue, and make the next
//! tile of one of the operands.

use core::arch::asm;

use super::super::isa::Isa;
use super::super::layout::width_at;
use super::super::thirds::{Make, PLANE, Part, STEP};
use super::super::tile::Epilogue;
use super::{ROWS, SIDE, Sums, TILE, configure, load_rows, put};

/// Work of the vector units, in parts.
trait Beside {
    /// Does a part of it: about as much as products of half a step take.
    fn part(&mut self);
}

/// The sums of a tile for which the registers are configured, over so many steps, where [`store`]
/// finds them. The order of the products: with the first parts of f32s numbered 0 and the last ones
/// 2, those of A and B are (2, 0), (0, 0), (0, 2), (0, 1), (1, 1), (1, 0), so that a part is mostly
/// loaded once a step.
///
/// Between the assembly of two parts of a step there is code of the compiler's, which has no use
/// for matrices: it leaves their registers as they are.
///
/// # Safety
/// The machine has AMX. Both operands are good for reading as many steps. The work beside them
/// multiplies no matrices.
#[inline(always)]
unsafe fn multiply(
    steps: usize,
    (mut a, mut b): (*const f32, *const f32),
    beside: &mut impl Beside,
) {
    const BYTES: usize = size_of::<f32>();
    macro_rules! half_a_step {
        ($($line:literal),* $(,)?) => {
            asm!(
                $($line,)*
                a = in(reg) a,
                b = in(reg) b,
                row = in(reg) SIDE * BYTES,
                plane = const PLANE * BYTES,
                half = const PLANE / 2 * BYTES,
                options(nostack, readonly, preserves_flags),
            )
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem, preserves_flags),
        );
        for _ in 0..steps {
            half_a_step!(
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
            );
            beside.part();
            half_a_step!(
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
            );
            beside.part();
            a = a.wrapping_add(STEP);
            b = b.wrapping_add(STEP);
        }
    }
}

/// Writes what [`multiply`] left in the registers.
///
/// # Safety
/// The machine has AMX, and registers are configured as they were.
#[inline(always)]
unsafe fn store(sums: &mut Sums) {
    const BYTES: usize = size_of::<f32>();
    // SAFETY: the caller's promise. The sums are as large as four registers.
    unsafe {
        asm!(
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + {half_row}], tmm1",
            "tilestored [{sums} + {row} + {half_sums}], tmm2",
            "tilestored [{sums} + {row} + {half_sums} + {half_row}], tmm3",
            sums = in(reg) &raw mut *sums,
            row = in(reg) TILE * BYTES,
            half_row = const SIDE * BYTES,
            half_sums = const SIDE * TILE * BYTES,
            options(nostack, preserves_flags),
        );
    }
}

/// An operand's tile that is made.
struct Making<'a, M> {
    make: M,
    tile: &'a mut [[f32; STEP]],
    /// Its first row or column.
    first: usize,
    /// Parts of it that were made, and how many there are.
    made: usize,
    count: usize,
    /// Parts at once.
    parts: usize,
}

impl<'a, M: Make> Making<'a, M> {
    /// Of the first tile, which there is. So many calls of [`Self::make_some`] for each of its
    /// steps make it all.
    #[inline(always)]
    fn new(make: M, tile: &'a mut [[f32; STEP]], calls: usize) -> Self {
        let (count, parts) = (tile.len() * M::PARTS, M::PARTS.div_ceil(calls));
        Self { make, tile, first: 0, made: 0, count, parts }
    }

    /// Begins with the tile whose first row or column this is, if there is one.
    #[inline(always)]
    fn begin(&mut self, first: usize) {
        self.first = first;
        self.made = if first < self.make.size().0 { 0 } else { self.count };
    }

    #[inline(always)]
    fn make<I: Isa>(&mut self, isa: I, parts: usize) {
        if M::PARTS == 0 {
            return;
        }
        for _ in 0..parts.min(self.count - self.made) {
            let (step, part) = (self.made / M::PARTS, self.made % M::PARTS);
            let at = Part { first: self.first, step, part };
            // SAFETY: `begin` found that there is the tile, which has this step.
            unsafe { self.make.part(isa, at, &mut self.tile[step]) }
            self.made += 1;
        }
    }

    /// Makes the next parts.
    #[inline(always)]
    fn make_some<I: Isa>(&mut self, isa: I) {
        self.make(isa, self.parts);
    }

    /// Makes what is left.
    #[inline(always)]
    fn make_rest<I: Isa>(&mut self, isa: I) {
        self.make(isa, self.count);
    }
}

/// The sums of the last tile, and their epilogue.
struct Last<E> {
    sums: Sums,
    /// Of the rows from `row` on; none when all were taken.
    epilogue: Option<E>,
    row: usize,
}

impl<E: Epilogue> Last<E> {
    /// Gives the epilogue some rows.
    #[inline(always)]
    fn put_some<I: Isa>(&mut self, isa: I) {
        if let Some(epilogue) = &self.epilogue {
            // SAFETY: the sums of a whole tile were written, for which this epilogue was made.
            unsafe {
                let sums = load_rows::<I, ROWS, 2>(isa, self.row, &self.sums);
                epilogue.put_tile(isa, self.row, SIDE, sums);
            }
            self.row += ROWS;
            if self.row == TILE {
                self.epilogue = None;
            }
        }
    }

    /// Gives the epilogue what is left.
    #[inline(always)]
    fn put_rest<I: Isa>(&mut self, isa: I) {
        while self.epilogue.is_some() {
            self.put_some(isa);
        }
    }

    /// Writes the sums of a tile, behind what is left of the last one's. Its epilogue is for later
    /// if rows and columns are all there.
    ///
    /// # Safety
    /// As for [`store`]; the epilogue fits the tile.
    #[inline(always)]
    unsafe fn store<I: Isa>(&mut self, isa: I, (rows, columns): (usize, usize), epilogue: E) {
        self.put_rest(isa);
        // SAFETY: the caller's promise.
        unsafe {
            store(&mut self.sums);
            if (rows, columns) == (TILE, TILE) {
                (self.epilogue, self.row) = (Some(epilogue), 0);
            } else {
                put(isa, (rows, columns), &self.sums, &epilogue);
            }
        }
    }
}

/// What is done beside products.
struct Others<'a, I, M, O, E> {
    isa: I,
    last: Last<E>,
    swept: Making<'a, M>,
    other: Making<'a, O>,
}

impl<I: Isa, M: Make, O: Make, E: Epilogue> Beside for Others<'_, I, M, O, E> {
    #[inline(always)]
    fn part(&mut self) {
        self.last.put_some(self.isa);
        self.swept.make_some(self.isa);
        self.other.make_some(self.isa);
    }
}

/// `C = A · B`. The tiles of one operand, the rows of A if `LEFT` or else the columns of B, are
/// made one after another, and each is multiplied with all tiles of the other operand, which are
/// made meanwhile with the first one. `epilogue(swept, other)` makes that of the tile that begins
/// with this row or column of the one and of the other. With the operands comes where their tiles
/// are made: two of the one, all of the other.
///
/// # Safety
/// The machine has AMX. There is room for all tiles of the other operand, or they are there. The
/// epilogues fit their tiles.
#[inline(always)]
pub(in super::super) unsafe fn sweep<I: Isa, M: Make, O: Make, E: Epilogue, const LEFT: bool>(
    isa: I,
    (swept, [tile, next]): (M, [&mut [[f32; STEP]]; 2]),
    (other, to): (O, *mut [f32; STEP]),
    epilogue: impl Fn(usize, usize) -> E,
) {
    let ((count, depth), (with, other_depth)) = (swept.size(), other.size());
    assert!(depth == other_depth, "sums over the same depth");
    let steps = depth.div_ceil(TILE);
    if count == 0 || with == 0 {
        return;
    }
    let tile_at = |first: usize| to.wrapping_add(first / TILE * steps);
    let tile_of_other = |first| match O::PARTS {
        0 => Default::default(),
        // SAFETY: the caller's promise. Nothing else writes a tile, or reads it before it is made.
        _ => unsafe { core::slice::from_raw_parts_mut(tile_at(first), steps) },
    };
    let mut tile = &mut tile[..steps];
    let mut others = Others {
        isa,
        last: Last { sums: Sums::NEW, epilogue: None, row: 0 },
        swept: Making::new(swept, &mut next[..steps], 2 * with.div_ceil(TILE)),
        other: Making::new(other, tile_of_other(0), 2),
    };
    others.swept.make_rest(isa);
    others.other.make_rest(isa);
    for first in (0..count).step_by(TILE) {
        core::mem::swap(&mut tile, &mut others.swept.tile);
        others.swept.begin(first + TILE);
        let (made, mut configured) = (width_at(count, first), 0);
        for second in (0..with).step_by(TILE) {
            match (second + TILE < with, first + TILE < count) {
                (true, _) => epilogue(first, second + TILE).ask(TILE * TILE),
                (false, true) => epilogue(first + TILE, 0).ask(TILE * TILE),
                (false, false) => {}
            }
            if first == 0 && second + TILE < with {
                others.other.tile = tile_of_other(second + TILE);
                others.other.begin(second + TILE);
            }
            let width = width_at(with, second);
            let (a, b) = (tile.as_ptr().cast(), tile_at(second).cast_const().cast());
            let (size, operands) =
                if LEFT { ((made, width), (a, b)) } else { ((width, made), (b, a)) };
            // SAFETY: the caller's promise; both tiles have as many steps.
            unsafe {
                if configured != width {
                    configure(size.0, size.1);
                    configured = width;
                }
                multiply(steps, operands, &mut others);
                others.last.store(isa, size, epilogue(first, second));
            }
            others.other.make_rest(isa);
        }
        others.swept.make_rest(isa);
    }
    others.last.put_rest(isa);
}
