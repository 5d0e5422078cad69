//! The micro-kernel: a tile of sums that stays in registers.
//!
//! `sums(i, j) = Σ_k A(i, k) · B(k, j)`, over words of f32s or of halves (`operand.rs`), for up to
//! `ROWS` rows and two vectors of columns. One step of k adds the outer product of a column of A,
//! broadcast element by element, and a row of B. Each sum runs over k in increasing order in one
//! register: it depends on its row of A and its column of B alone, not on its place. An
//! [`Epilogue`] then does what remains with the sums in registers.

use core::sync::atomic::AtomicU32;

use super::isa::{Isa, Source};
use super::layout::{LINE, PANEL};
use super::operand::Operand;
use super::prefetch::prefetch_at;
#[cfg(target_arch = "x86_64")]
use super::prefetch::prefetch_to_write;

/// Most rows of a tile, of any instruction set.
pub(super) const ROWS_MAX: usize = 14;

/// The left operand: A(i, k) is `first[i * row + k / run * block + k % run * step]`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) first: *const f32,
    pub(super) row: usize,
    pub(super) step: usize,
    /// `step` is 1: a constant where a tile is compiled.
    pub(super) along_rows: bool,
    /// Steps between two jumps.
    pub(super) run: usize,
    /// From run to run.
    pub(super) block: usize,
}

/// The right operand: row k starts at `first + k * stride`; meanwhile `ahead` is asked for.
///
/// It is shared memory, or private memory that is read in place: the loads are single instructions
/// then, which the compiler leaves where they are. Told about plain f32s it broadcasts A into
/// registers first and spills the sums, which takes more than twice the time.
#[derive(Clone, Copy)]
pub(super) struct Right<S, A> {
    pub(super) first: S,
    pub(super) stride: usize,
    pub(super) ahead: A,
}

/// What will be read after the tile. Asked for step by step, cache lines come while there is time
/// for them, and no faster than they are used.
pub(super) trait Ahead: Copy {
    /// Asks for the lines of so many steps.
    fn ask(self, steps: usize);
    /// That of the first of `steps` steps, and how far that of the first of the next so many is
    /// behind it, as often as `count`. Asks for all between them.
    fn every(self, steps: usize, count: usize) -> Option<(*const f32, usize)>;
    /// Those of the steps behind as many.
    fn step(self, steps: usize) -> Self;
    /// That of the first step behind a run of the left operand, from that of the run's first.
    fn jump(self) -> Self;
}

/// Nothing.
impl Ahead for () {
    #[inline(always)]
    fn ask(self, _steps: usize) {}

    #[inline(always)]
    fn every(self, _steps: usize, _count: usize) -> Option<(*const f32, usize)> {
        None
    }

    #[inline(always)]
    fn step(self, _steps: usize) {}

    #[inline(always)]
    fn jump(self) {}
}

/// Lines of a panel, or a tile's share of them.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) at: *const f32,
    /// From step to step, at most a line.
    step: usize,
    /// From run to run.
    block: usize,
}

impl Lines {
    /// All from `at` on; `block` elements from run to run.
    pub(super) const fn new(at: *const f32, block: usize) -> Self {
        Self { at, step: PANEL, block }
    }

    /// Those from run `number` on.
    #[inline(always)]
    pub(super) fn from(self, number: usize) -> Self {
        Self { at: self.at.wrapping_add(number * self.block), ..self }
    }

    /// Those of tile `number` of `count`: where there are many, an eighth of a run's, each asked
    /// for in four steps. A line a step in two tiles of ten made a step of a DLRM 1 % longer, on
    /// an Intel core.
    #[inline(always)]
    pub(super) fn of_tile(self, number: usize, count: usize) -> Self {
        let shares = match count {
            8.. => 8,
            4.. => 4,
            _ => 2,
        };
        let step = self.step / shares;
        Self { at: self.at.wrapping_add(number % shares * PANEL * step), step, ..self }
    }
}

impl Ahead for Lines {
    #[inline(always)]
    fn ask(self, steps: usize) {
        for step in 0..steps {
            prefetch_at(self.at.wrapping_add(step * self.step));
        }
    }

    #[inline(always)]
    fn every(self, steps: usize, count: usize) -> Option<(*const f32, usize)> {
        let apart = steps * self.step;
        if apart > LINE {
            for line in (0..count * apart).step_by(LINE).filter(|line| line % apart > 0) {
                prefetch_at(self.at.wrapping_add(line));
            }
        }
        Some((self.at, apart))
    }

    #[inline(always)]
    fn step(self, steps: usize) -> Self {
        Self { at: self.at.wrapping_add(steps * self.step), ..self }
    }

    #[inline(always)]
    fn jump(self) -> Self {
        Self { at: self.at.wrapping_add(self.block), ..self }
    }
}

/// What happens to a vector of sums.
pub(super) trait Epilogue {
    /// Takes the sums of `count` columns from `column` of row `row` of the tile; `count` is
    /// `LANES` unless the tile ends there.
    ///
    /// # Safety
    /// The tile is one the epilogue was made for.
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector);

    /// Told of every vector of the tile before its sums are made, which takes longer than lines
    /// take from memory or from core to core: asks for those that will be changed.
    ///
    /// # Safety
    /// The tile is one the epilogue was made for.
    #[inline(always)]
    unsafe fn claim<I: Isa>(&self, _isa: I, _row: usize, _column: usize) {}

    /// Asks for the `len` elements of the tile, which lie together, to change them soon.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "of matrices in registers"))]
    fn ask(&self, _len: usize) {}

    /// Takes all sums of rows of the tile from `row` on; the last vector of a row has `part`
    /// columns.
    ///
    /// # Safety
    /// The tile is one the epilogue was made for.
    #[inline(always)]
    unsafe fn put_tile<I: Isa, const MR: usize, const NV: usize>(
        &self,
        isa: I,
        row: usize,
        part: usize,
        sums: [[I::Vector; NV]; MR],
    ) {
        // SAFETY: the caller's promise.
        unsafe { put_each(self, isa, row, part, sums) }
    }
}

/// Gives `epilogue` the sums of rows from `row` on, vector by vector.
///
/// # Safety
/// As for [`Epilogue::put_tile`].
#[inline(always)]
pub(super) unsafe fn put_each<I: Isa, E: Epilogue + ?Sized, const MR: usize, const NV: usize>(
    epilogue: &E,
    isa: I,
    row: usize,
    part: usize,
    sums: [[I::Vector; NV]; MR],
) {
    for (i, sums) in sums.iter().enumerate() {
        for (j, sum) in sums.iter().enumerate() {
            let count = if j + 1 < NV { I::LANES } else { part };
            // SAFETY: the caller's promise.
            unsafe { epilogue.put(isa, row + i, j * I::LANES, count, *sum) }
        }
    }
}

/// Writes or adds a tile to rows `row` apart.
pub(super) struct Sum {
    pub(super) add: bool,
    pub(super) to: *mut f32,
    pub(super) row: usize,
}

impl Epilogue for Sum {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector) {
        // SAFETY: the caller's promise: the tile is inside the matrix.
        unsafe {
            let to = self.to.add(row * self.row + column);
            let sum = if self.add { isa.add(sum, load(isa, to.cast_const(), count)) } else { sum };
            store(isa, to, count, sum);
        }
    }

    #[inline(always)]
    unsafe fn claim<I: Isa>(&self, _: I, row: usize, column: usize) {
        if self.add {
            prefetch_at(self.to.wrapping_add(row * self.row + column));
        }
    }

    #[inline(always)]
    fn ask(&self, len: usize) {
        if self.add {
            ask(self.to, len);
        }
    }
}

/// Asks for elements that will be changed.
#[inline(always)]
pub(super) fn ask(from: *const f32, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(LINE) {
        prefetch_to_write(from.wrapping_add(at));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len);
}

/// Sums of the steps before those of a tile, and how far apart their rows are; without them a tile
/// begins with zeros.
pub(super) type Before = Option<(*const f32, usize)>;

/// Computes a tile of `rows` ≤ `ROWS` rows and `columns` ≤ 2 · `LANES` columns, both 1 or more,
/// over so many `steps`, behind those before.
///
/// # Safety
/// The operands are good for reading the tile's rows and columns, B from its first row to its last
/// with all that lies between them, so are the sums before, and the epilogue is made for it.
#[inline(always)]
pub(super) unsafe fn tile<I: Isa, O: Operand>(
    (isa, _): (I, O),
    (rows, columns): (usize, usize),
    steps: (usize, Before),
    a: Left,
    b: Right<impl Source, impl Ahead>,
    epilogue: &impl Epilogue,
) {
    let whole = columns.is_multiple_of(I::LANES);
    // SAFETY: the caller's promise.
    unsafe {
        match (columns > I::LANES, whole) {
            (true, true) => of_width::<I, O, 2, true>(isa, (rows, columns), steps, a, b, epilogue),
            (true, false) => {
                of_width::<I, O, 2, false>(isa, (rows, columns), steps, a, b, epilogue)
            }
            (false, true) => of_width::<I, O, 1, true>(isa, (rows, columns), steps, a, b, epilogue),
            (false, false) => {
                of_width::<I, O, 1, false>(isa, (rows, columns), steps, a, b, epilogue)
            }
        }
    }
}

/// Chooses the compiled height.
///
/// # Safety
/// As for [`tile`]; `columns` fill `NV` vectors, the last one completely if `WHOLE`.
#[inline(always)]
unsafe fn of_width<I: Isa, O: Operand, const NV: usize, const WHOLE: bool>(
    isa: I,
    (rows, columns): (usize, usize),
    steps: (usize, Before),
    a: Left,
    b: Right<impl Source, impl Ahead>,
    epilogue: &impl Epilogue,
) {
    const { assert!(I::ROWS <= ROWS_MAX, "heights below") }
    debug_assert!(rows <= I::ROWS);
    macro_rules! heights {
        ($($height:literal)*) => {
            match rows {
                // SAFETY: the caller's promise.
                $($height if $height <= I::ROWS => unsafe {
                    of_size::<I, O, $height, NV, WHOLE>(isa, columns, steps, a, b, epilogue);
                },)*
                _ => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    heights!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// Computes a tile of `MR` rows and `NV` vectors.
///
/// # Safety
/// As for [`of_width`].
#[inline(always)]
unsafe fn of_size<I: Isa, O: Operand, const MR: usize, const NV: usize, const WHOLE: bool>(
    isa: I,
    columns: usize,
    (depth, before): (usize, Before),
    a: Left,
    b: Right<impl Source, impl Ahead>,
    epilogue: &impl Epilogue,
) {
    let part = columns - (NV - 1) * I::LANES;
    for i in 0..MR {
        for j in 0..NV {
            // SAFETY: the caller's promise.
            unsafe { epilogue.claim(isa, i, j * I::LANES) }
        }
    }
    let mut sums = [[isa.zero(); NV]; MR];
    if const { I::DEPTH < usize::MAX }
        && let Some((first, row)) = before
    {
        for (i, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                let from = first.wrapping_add(i * row + j * I::LANES);
                let count = if WHOLE || j + 1 < NV { I::LANES } else { part };
                // SAFETY: the caller's promise.
                *sum = unsafe { load(isa, from, count) };
            }
        }
    }
    let (mut left, mut run, mut row, mut lines) = (depth, a.first, b.first, b.ahead);
    while left > 0 {
        let mut steps = a.run.min(left);
        left -= steps;
        // Past the last step the pointers are never followed; wrapping, they need not point
        // anywhere.
        let (mut column, mut line) = (run, lines);
        // SAFETY: the caller's promise.
        unsafe {
            // Of large tiles: small ones are few, and each height is compiled.
            if const { I::STEPS > 1 && 2 * MR > I::ROWS && NV == 2 && !O::HALVES } {
                // Whole vectors are read, of narrower tiles too: what is behind a row of B there
                // lies before the next one or in it, if it is not the last: a row and a distance
                // have more than half of two vectors each. Those sums are not kept. A mask would
                // take one register more than there are.
                let last = usize::from(!WHOLE && left == 0);
                let count = (steps - last) / I::STEPS;
                steps -= count * I::STEPS;
                if a.along_rows {
                    let lines = line.every(I::STEPS, count).unwrap_or((column, 0));
                    isa.add_steps(count, (column, a.row), (row, b.stride), lines, &mut sums);
                    column = column.wrapping_add(count * I::STEPS);
                    row = row.advance(count * I::STEPS * b.stride);
                } else {
                    line.ask(count * I::STEPS);
                    for _ in 0..count {
                        for step in 0..I::STEPS {
                            let numbers = (column.add(step * a.step), a.row);
                            let row = row.advance(step * b.stride);
                            add_step::<I, O, MR, NV, true>(isa, numbers, row, part, &mut sums);
                        }
                        column = column.wrapping_add(I::STEPS * a.step);
                        row = row.advance(I::STEPS * b.stride);
                    }
                }
                line = line.step(count * I::STEPS);
            }
            for _ in 0..steps {
                line.ask(1);
                add_step::<I, O, MR, NV, WHOLE>(isa, (column, a.row), row, part, &mut sums);
                column = column.wrapping_add(a.step);
                row = row.advance(b.stride);
                line = line.step(1);
            }
        }
        run = run.wrapping_add(a.block);
        lines = lines.jump();
    }
    // SAFETY: the caller's promise.
    unsafe { epilogue.put_tile::<I, MR, NV>(isa, 0, if WHOLE { I::LANES } else { part }, sums) }
}

/// Adds the outer product of a column of A, whose numbers are `row` apart, and a row of B, whose
/// last vector has `part` columns.
///
/// # Safety
/// Both are good for reading.
#[inline(always)]
unsafe fn add_step<I: Isa, O: Operand, const MR: usize, const NV: usize, const WHOLE: bool>(
    isa: I,
    (column, row): (*const f32, usize),
    b: impl Source,
    part: usize,
    sums: &mut [[I::Vector; NV]; MR],
) {
    const { assert!(NV == 1 || NV == 2, "a first vector and a next one") }
    let mut vectors = [isa.zero(); NV];
    // SAFETY: the caller's promise.
    unsafe {
        for (j, vector) in vectors.iter_mut().enumerate() {
            *vector = match (WHOLE || j + 1 < NV, j) {
                (true, 0) => b.load(isa),
                (true, _) => b.load_next(isa),
                (false, _) => b.advance(j * I::LANES).load_part(isa, part),
            };
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            let x = isa.load_splat(column.add(i * row));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = O::add(isa, x, vector, *sum);
            }
        }
    }
}

/// Cuts `0..len` into equal parts, as few as have at most `most` elements: start and length of
/// each.
#[inline(always)]
pub(super) fn even(len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = len.div_ceil(most);
    (0..parts).map(move |part| {
        let start = part * len / parts;
        (start, (part + 1) * len / parts - start)
    })
}

/// Copies a few elements: less than a call of the library's function takes.
///
/// # Safety
/// Both are good for `len` elements.
#[inline(always)]
pub(super) unsafe fn copy<I: Isa>(isa: I, (from, to): (*const f32, *mut f32), len: usize) {
    for at in (0..len).step_by(I::LANES) {
        let count = I::LANES.min(len - at);
        // SAFETY: the caller's promise.
        unsafe { store(isa, to.add(at), count, load(isa, from.add(at), count)) }
    }
}

/// Reads `count` elements: all lanes or fewer.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
pub(super) unsafe fn load<I: Isa>(isa: I, from: impl Source, count: usize) -> I::Vector {
    // SAFETY: the caller's promise.
    unsafe { if count == I::LANES { from.load(isa) } else { from.load_part(isa, count) } }
}

/// Writes `count` elements: all lanes or fewer.
///
/// # Safety
/// `to` is good for writing them.
#[inline(always)]
pub(super) unsafe fn store<I: Isa>(isa: I, to: *mut f32, count: usize, x: I::Vector) {
    // SAFETY: the caller's promise.
    unsafe { if count == I::LANES { isa.store(to, x) } else { isa.store_part(to, count, x) } }
}

/// Writes `count` shared elements: all lanes or fewer.
///
/// # Safety
/// `to` is good for writing them.
#[inline(always)]
pub(super) unsafe fn store_shared<I: Isa>(
    isa: I,
    to: *const AtomicU32,
    count: usize,
    x: I::Vector,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == I::LANES {
            isa.store_shared(to, x);
        } else {
            isa.store_shared_part(to, count, x);
        }
    }
}
