//! Optimizer updates of shared parameters: one pass over them, or in the registers of a weight
//! gradient.
//!
//! Elements are read, updated and written a vector at a time. No fused operations: an update has
//! the same bits on every instruction set.

use core::sync::atomic::AtomicU32;

use super::isa::{Isa, Kernel, run};
use super::prefetch::prefetch_at;
use super::row_values::{RowValues, store_words};
use super::tile::{Epilogue, ROWS_MAX, ask, load, store_shared};

/// What an optimizer does to a vector of elements.
pub(crate) trait Rule: Copy {
    /// Planes of state, at most 2.
    fn planes(&self) -> usize;

    /// The element and its state after an update by its gradient: `[parameter, first, second]`.
    /// Planes the rule does not have go through untouched.
    fn apply<I: Isa>(&self, isa: I, element: [I::Vector; 3], gradient: I::Vector)
    -> [I::Vector; 3];

    /// η, if the rule is `p ← p − ηg` and nothing else: that little is done without leaving the
    /// registers where sums are.
    fn descent(&self) -> Option<f32> {
        None
    }
}

/// Shared parameters and the planes of their state, element by element. Planes the rule does not
/// have are empty.
#[derive(Clone, Copy)]
pub(crate) struct Elements<'a> {
    planes: [&'a [AtomicU32]; 3],
}

impl<'a> Elements<'a> {
    /// `parameters` and their `state`, the first plane before the second.
    ///
    /// # Panics
    /// When the state is not that of the rule.
    pub(crate) fn new(
        rule: &impl Rule,
        parameters: &'a [AtomicU32],
        state: &'a [AtomicU32],
    ) -> Self {
        let n = parameters.len();
        assert_eq!(state.len(), rule.planes() * n, "state of another length");
        let (first, second) = state.split_at(rule.planes().min(1) * n);
        Self { planes: [parameters, first, second] }
    }

    /// Elements `at..at + len`.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        let part = |plane: &'a [AtomicU32]| match plane {
            [] => plane,
            _ => &plane[at..at + len],
        };
        Self { planes: self.planes.map(part) }
    }

    pub(super) const fn len(&self) -> usize {
        self.planes[0].len()
    }
}

/// Updates every element by its gradient. `gradient`: as many
pub(crate) fn update(rule: &impl Rule, elements: Elements<'_>, gradient: &[f32]) {
    assert_eq!(gradient.len(), elements.len(), "gradient of another length than the parameters");
    run(Update { rule, elements, gradient });
}

pub(super) struct Update<'a, R> {
    pub(super) rule: &'a R,
    pub(super) elements: Elements<'a>,
    pub(super) gradient: &'a [f32],
}

impl<R: Rule> Kernel for Update<'_, R> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let epilogue = Apply::new(*self.rule, self.elements, None, 0);
        for (gradient, at) in self.gradient.chunks(I::LANES).zip((0..).step_by(I::LANES)) {
            // SAFETY: the gradient is as long as the elements.
            unsafe {
                let g = load(isa, gradient.as_ptr(), gradient.len());
                epilogue.put(isa, 0, at, gradient.len(), g);
            }
        }
    }
}

/// [`update`] of a row in a kernel: few elements, whose last vector is rarely whole. `state`: the
/// rule's planes, one behind the other
#[inline(always)]
pub(crate) fn update_row<I: Isa, V: RowValues>(
    isa: I,
    rule: &impl Rule,
    values: V,
    state: &[AtomicU32],
    gradient: &[f32],
) {
    let n = gradient.len();
    assert_eq!(values.as_words().len(), V::words(n), "gradient of another length than the row");
    assert_eq!(state.len(), rule.planes() * n, "state of another length");
    let (first, second) = state.split_at(rule.planes().min(1) * n);
    let planes = [first, second];
    let mut at = 0;
    while at < n {
        let noise = values.noise(at);
        let end = n.min(at.saturating_add(V::RUN));
        // Whole vectors in a loop of their own, which asks nothing of any of them: between two
        // requests for rows that are far there is to be little else to do.
        while end - at >= I::LANES {
            // SAFETY: lengths were compared; `at` is in the run of the noise.
            unsafe { update_vector(isa, rule, (values, &noise), planes, gradient, (at, I::LANES)) }
            at += I::LANES;
        }
        if at < end {
            // SAFETY: as above.
            unsafe { update_vector(isa, rule, (values, &noise), planes, gradient, (at, end - at)) }
            at = end;
        }
    }
}

/// [`update_row`] of the `count` elements from `at` on, by the noise of their run.
///
/// # Safety
/// There are as many values, gradients, and elements of the planes that the rule has.
#[inline(always)]
unsafe fn update_vector<I: Isa, V: RowValues>(
    isa: I,
    rule: &impl Rule,
    (values, noise): (V, &V::Noise),
    planes: [&[AtomicU32]; 2],
    gradient: &[f32],
    (at, count): (usize, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut element = [values.load(isa, at, count), isa.zero(), isa.zero()];
        for (element, plane) in element[1..].iter_mut().zip(planes).take(rule.planes()) {
            *element = load(isa, plane.as_ptr().add(at), count);
        }
        let gradient = load(isa, gradient.as_ptr().add(at), count);
        let element = rule.apply(isa, element, gradient);
        values.store(isa, at, count, element[0], noise);
        for (element, plane) in element[1..].iter().zip(planes).take(rule.planes()) {
            store_words(isa, &plane[at..], count, *element);
        }
    }
}

/// An update as the epilogue of the product that completes a gradient. Rows of the tile are `row`
/// elements apart.
#[derive(Clone, Copy)]
pub(super) struct Apply<R> {
    rule: R,
    planes: [*const AtomicU32; 3],
    /// The gradient so far.
    gradient: Option<*const f32>,
    row: usize,
}

impl<R: Rule> Apply<R> {
    pub(super) const fn new(
        rule: R,
        elements: Elements<'_>,
        gradient: Option<*const f32>,
        row: usize,
    ) -> Self {
        let [p, m, v] = elements.planes;
        Self { rule, planes: [p.as_ptr(), m.as_ptr(), v.as_ptr()], gradient, row }
    }
}

impl<R: Rule> Epilogue for Apply<R> {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector) {
        let at = row * self.row + column;
        let planes = self.rule.planes();
        // SAFETY: the caller's promise: the tile is inside the elements; of the planes only those
        // that the rule has are touched.
        unsafe {
            let mut gradient = sum;
            if let Some(before) = self.gradient {
                gradient = isa.add(load(isa, before.add(at), count), gradient);
            }
            let mut element = [isa.zero(); 3];
            for (element, plane) in element.iter_mut().zip(self.planes).take(1 + planes) {
                *element = load(isa, plane.add(at), count);
            }
            let element = self.rule.apply(isa, element, gradient);
            for (element, plane) in element.into_iter().zip(self.planes).take(1 + planes) {
                store_shared(isa, plane.add(at), count, element);
            }
        }
    }

    #[inline(always)]
    unsafe fn claim<I: Isa>(&self, isa: I, row: usize, column: usize) {
        let at = row * self.row + column;
        for plane in self.planes.into_iter().take(1 + self.rule.planes()) {
            // The next tile's rows, which are behind this one's: stores wait for their lines one
            // after another, reads do not.
            prefetch_at(plane.wrapping_add(at + ROWS_MAX * self.row));
            // SAFETY: the caller's promise: the tile is inside the elements.
            unsafe { isa.claim(plane.add(at)) }
        }
    }

    #[inline(always)]
    fn ask(&self, len: usize) {
        for plane in self.planes.into_iter().take(1 + self.rule.planes()) {
            ask(plane.cast(), len);
        }
        if let Some(before) = self.gradient {
            ask(before, len);
        }
    }

    /// By way of memory, or in registers where that is little: unrolled over the sums of a tile,
    /// another update would be as much code as a hundred products.
    #[inline(always)]
    unsafe fn put_tile<I: Isa, const MR: usize, const NV: usize>(
        &self,
        isa: I,
        row: usize,
        part: usize,
        sums: [[I::Vector; NV]; MR],
    ) {
        if let Some(rate) = self.rule.descent() {
            let descent =
                |before| Descent { rate, parameters: self.planes[0], before, row: self.row };
            // SAFETY: the caller's promise.
            return unsafe {
                // Which of them it is, is asked once and not of every vector.
                match self.gradient {
                    None => descent(None).put_tile(isa, row, part, sums),
                    Some(before) => descent(Some(before)).put_tile(isa, row, part, sums),
                }
            };
        }
        let sums: &[[I::Vector; NV]] = core::hint::black_box(&sums);
        // A copy that nothing else can reach: what its fields hold stays in registers while shared
        // memory is written.
        let own = *self;
        for (i, sums) in sums.iter().enumerate() {
            let sums: &[I::Vector] = core::hint::black_box(sums);
            for (j, sum) in sums.iter().enumerate() {
                let count = if j + 1 < NV { I::LANES } else { part };
                // SAFETY: as above.
                unsafe { own.put(isa, row + i, j * I::LANES, count, *sum) }
            }
        }
    }
}

/// The update of [`Rule::descent`].
struct Descent {
    rate: f32,
    parameters: *const AtomicU32,
    /// The gradient so far.
    before: Option<*const f32>,
    row: usize,
}

impl Epilogue for Descent {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector) {
        let at = row * self.row + column;
        // SAFETY: the caller's promise: the tile is inside the parameters and their gradient.
        unsafe {
            let mut gradient = sum;
            if let Some(before) = self.before {
                gradient = isa.add(load(isa, before.add(at), count), gradient);
            }
            let parameter = load(isa, self.parameters.add(at), count);
            let parameter = isa.sub(parameter, isa.mul(isa.splat(self.rate), gradient));
            store_shared(isa, self.parameters.add(at), count, parameter);
        }
    }
}

/// Updates plain slices of equal length; planes the rule does not have are empty.
#[inline(always)]
pub(crate) fn update_slices<I: Isa>(
    isa: I,
    rule: &impl Rule,
    [parameters, first, second]: [&mut [f32]; 3],
    gradient: &[f32],
) {
    let n = gradient.len();
    assert_eq!(parameters.len(), n, "gradient of another length than the parameters");
    for (plane, number) in [(&*first, 1), (&*second, 2)] {
        assert_eq!(
            plane.len(),
            if rule.planes() < number { 0 } else { n },
            "length of plane {number}"
        );
    }
    let planes = [parameters.as_mut_ptr(), first.as_mut_ptr(), second.as_mut_ptr()];
    for at in (0..n).step_by(I::LANES) {
        let count = I::LANES.min(n - at);
        // SAFETY: lengths were compared; of the planes only those that the rule has are touched.
        unsafe {
            let mut element = [isa.zero(); 3];
            for (element, plane) in element.iter_mut().zip(planes).take(1 + rule.planes()) {
                *element = load(isa, plane.add(at).cast_const(), count);
            }
            let gradient = load(isa, gradient.as_ptr().add(at), count);
            let element = rule.apply(isa, element, gradient);
            for (element, plane) in element.into_iter().zip(planes).take(1 + rule.planes()) {
                super::tile::store(isa, plane.add(at), count, element);
            }
        }
    }
}

/// Σ g² of a gradient.
#[inline(always)]
pub(crate) fn sum_of_squares<I: Isa>(isa: I, gradient: &[f32]) -> f32 {
    let (mut sum, n, mut at) = (isa.zero(), gradient.len(), 0);
    while at < n {
        let count = I::LANES.min(n - at);
        // SAFETY: `count` elements from `at` on.
        let g = unsafe { load(isa, gradient.as_ptr().add(at), count) };
        sum = isa.add(sum, isa.mul(g, g));
        at += I::LANES;
    }
    sum_of_lanes(isa, sum)
}

/// Σ (g + λ p)² of a row, added as [`sum_of_squares`] does it.
#[inline(always)]
pub(crate) fn sum_of_squares_decayed<I: Isa, V: RowValues>(
    isa: I,
    decay: f32,
    values: V,
    gradient: &[f32],
) -> f32 {
    let words = V::words(gradient.len());
    assert_eq!(values.as_words().len(), words, "gradient of another length than the row");
    let (decay, mut sum) = (isa.splat(decay), isa.zero());
    let (n, mut at) = (gradient.len(), 0);
    while at < n {
        let count = I::LANES.min(n - at);
        // SAFETY: `count` elements of both from `at` on.
        unsafe {
            let p = values.load(isa, at, count);
            let g = isa.add(load(isa, gradient.as_ptr().add(at), count), isa.mul(decay, p));
            sum = isa.add(sum, isa.mul(g, g));
        }
        at += I::LANES;
    }
    sum_of_lanes(isa, sum)
}

/// The sum of the lanes, halves by halves.
#[inline(always)]
pub(super) fn sum_of_lanes<I: Isa>(isa: I, x: I::Vector) -> f32 {
    let mut lanes = lanes(isa, x);
    for half in [8, 4, 2, 1] {
        let (left, right) = lanes.split_at_mut(half);
        left.iter_mut().zip(right).for_each(|(left, right)| *left += *right);
    }
    lanes[0]
}

/// The lanes, zeros behind them.
#[inline(always)]
pub(super) fn lanes<I: Isa>(isa: I, x: I::Vector) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    // SAFETY: sixteen elements hold a vector of every set.
    unsafe { isa.store(lanes.as_mut_ptr(), x) }
    lanes
}
