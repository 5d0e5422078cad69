//! The products of a linear layer, of thirds: those of `linear.rs` and `weight.rs`, with their
//! epilogues. W is split panel by panel while the panel before is multiplied, into lines that are
//! near.

use core::sync::atomic::AtomicU32;

#[cfg(target_arch = "x86_64")]
use super::super::amx;
use super::super::isa::{Isa, Kernel, run_tiles};
use super::super::layout::{Activations, ActivationsMut, PANEL, place, width_at};
use super::super::linear::{Affine, Mask, Masked, check_mask};
use super::super::tile::{Epilogue, Sum};
use super::super::update::{Apply, Elements, Rule};
use super::super::weight::EXAMPLES_AT_MOST;
use super::made::{Columns, Make, Panels, Rows, TransposedPanels};
use super::{DEPTH, STEP, Thirds, thirds_len};

/// As [`super::super::forward`]. Scratch: [`thirds_len`] of the examples over the inputs, and that
/// of two panels, `2 * PANEL` outputs over the inputs
///
/// # Panics
/// When shapes do not fit together, or the machine cannot multiply thirds.
pub fn forward_of_thirds(
    x: Activations<'_>,
    weight: &[AtomicU32],
    bias: Option<&[AtomicU32]>,
    relu: bool,
    y: &mut ActivationsMut<'_>,
    scratch: (&mut [f32], &mut [f32]),
) {
    check(x, weight.len(), y, &scratch);
    assert!(bias.is_none_or(|bias| bias.len() == y.view().width()), "length of the bias");
    run_tiles(ForwardOfThirds { x, weight, bias, relu, y, scratch });
}

/// As [`super::super::data_gradient`]. Scratch: [`thirds_len`] of the examples over the outputs,
/// and that of two panels, `2 * PANEL` inputs over the outputs
///
/// # Panics
/// When shapes do not fit together, or the machine cannot multiply thirds.
pub fn data_gradient_of_thirds(
    d_y: Activations<'_>,
    weight: &[AtomicU32],
    mask: Option<Mask<'_>>,
    d_x: &mut ActivationsMut<'_>,
    scratch: (&mut [f32], &mut [f32]),
) {
    check(d_y, weight.len(), d_x, &scratch);
    check_mask(mask, d_x);
    run_tiles(DataGradientOfThirds { d_y, weight, mask, d_x, scratch });
}

fn check(
    a: Activations<'_>,
    weight: usize,
    c: &ActivationsMut<'_>,
    (rows, panels): &(&mut [f32], &mut [f32]),
) {
    let (c, depth) = (c.view(), a.width());
    assert_eq!(a.n(), c.n(), "examples of both sides");
    assert_eq!(weight, depth * c.width(), "length of W");
    assert!(rows.len() >= thirds_len(a.n(), depth), "scratch of examples");
    assert!(panels.len() >= thirds_len(2 * PANEL, depth), "scratch of two panels");
}

struct ForwardOfThirds<'a, 'y> {
    x: Activations<'a>,
    weight: &'a [AtomicU32],
    bias: Option<&'a [AtomicU32]>,
    relu: bool,
    y: &'a mut ActivationsMut<'y>,
    scratch: (&'a mut [f32], &'a mut [f32]),
}

impl Kernel for ForwardOfThirds<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (count, strides) = (self.y.view().width(), self.y.view().strides());
        let (depth, to) = (self.x.width(), self.y.as_mut_ptr());
        let panels = Panels { weight: self.weight, depth, count };
        let epilogue = |first: usize, row: usize| Affine {
            bias: self.bias.map(|bias| bias.as_ptr().wrapping_add(first)),
            relu: self.relu,
            to: to.wrapping_add(place(strides, row, first)),
            row: strides.row,
        };
        let rows = (Rows(self.x), self.scratch.0.as_mut_ptr().cast());
        let tiles = two_tiles(self.scratch.1, depth);
        // SAFETY: Y has the rows and columns, and there is scratch for all rows of X, as `check`
        // saw.
        unsafe { sweep::<_, _, _, _, false>(isa, (panels, tiles), rows, epilogue) }
    }
}

struct DataGradientOfThirds<'a, 'x> {
    d_y: Activations<'a>,
    weight: &'a [AtomicU32],
    mask: Option<Mask<'a>>,
    d_x: &'a mut ActivationsMut<'x>,
    scratch: (&'a mut [f32], &'a mut [f32]),
}

impl Kernel for DataGradientOfThirds<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (count, strides) = (self.d_x.view().width(), self.d_x.view().strides());
        let (depth, to) = (self.d_y.width(), self.d_x.as_mut_ptr());
        let panels = TransposedPanels::new(self.weight, depth, count);
        let epilogue = |first: usize, row: usize| {
            let at = place(strides, row, first);
            Masked {
                mask: self.mask.map(|mask| (mask.y.as_ptr().wrapping_add(at), mask.scale)),
                to: to.wrapping_add(at),
                row: strides.row,
            }
        };
        let rows = (Rows(self.d_y), self.scratch.0.as_mut_ptr().cast());
        let tiles = two_tiles(self.scratch.1, depth);
        // SAFETY: d_X, laid out as the mask, has the rows and columns, and there is scratch for all
        // rows of d_Y, as `check` saw.
        unsafe { sweep::<_, _, _, _, false>(isa, (panels, tiles), rows, epilogue) }
    }
}

/// For two tiles of W over `depth`.
fn two_tiles(scratch: &mut [f32], depth: usize) -> [&mut [[f32; STEP]]; 2] {
    let (steps, _) = scratch.as_chunks_mut();
    let (first, second) = steps.split_at_mut(depth.div_ceil(DEPTH));
    [first, second]
}

/// [`super::super::weight_gradient`].
pub(in super::super) struct GradientOfThirds<'a> {
    pub(in super::super) x: Activations<'a>,
    pub(in super::super) d_y: Thirds<'a>,
    pub(in super::super) fresh: bool,
    pub(in super::super) d_weight: &'a mut [f32],
}

impl Kernel for GradientOfThirds<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (add, to) = (!self.fresh, self.d_weight.as_mut_ptr());
        let epilogue = |at, _, row| Sum { add, to: to.wrapping_add(at), row };
        // SAFETY: d_W has the shape of the product, as `Factors::check` saw.
        unsafe { outer(isa, self.x, self.d_y, epilogue) }
    }
}

/// [`super::super::weight_update`].
pub(in super::super) struct UpdateOfThirds<'a, R> {
    pub(in super::super) x: Activations<'a>,
    pub(in super::super) d_y: Thirds<'a>,
    /// The gradient so far.
    pub(in super::super) before: Option<&'a [f32]>,
    pub(in super::super) rule: &'a R,
    pub(in super::super) weight: Elements<'a>,
}

impl<R: Rule> Kernel for UpdateOfThirds<'_, R> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let epilogue = |at, len, row| {
            let before = self.before.map(|before| before.as_ptr().wrapping_add(at));
            Apply::new(*self.rule, self.weight.part(at, len), before, row)
        };
        // SAFETY: W and the gradient so far have the shape of the product, as `Factors::check` saw.
        unsafe { outer(isa, self.x, self.d_y, epilogue) }
    }
}

/// The product d_Yᵀ·X over examples, as that of `weight.rs`: `epilogue(at, len, row)` makes that of
/// the tile whose elements lie in `at..at + len` with rows `row` apart.
///
/// # Safety
/// The epilogues fit their tiles.
#[inline(always)]
unsafe fn outer<I: Isa, E: Epilogue>(
    isa: I,
    x: Activations<'_>,
    d_y: Thirds<'_>,
    epilogue: impl Fn(usize, usize, usize) -> E,
) {
    let (inputs, outputs) = (x.width(), d_y.count());
    let of_tile = |block: usize, first: usize| {
        let (rows, width) = (width_at(inputs, block), width_at(outputs, first));
        epilogue(first * inputs + block * width, rows * width, width)
    };
    let [mut first, mut second] = [Tile::NEW; 2];
    let tiles = [&mut first.0[..], &mut second.0[..]];
    let d_y = (d_y, d_y.steps().cast_mut());
    // SAFETY: the caller's promise. Nothing is written of an operand that is there.
    unsafe { sweep::<_, _, _, _, true>(isa, (Columns::new(x), tiles), d_y, of_tile) }
}

/// A tile over examples.
#[repr(C, align(64))]
struct Tile([[f32; STEP]; EXAMPLES_AT_MOST / DEPTH]);

impl Tile {
    const NEW: Self = Self([[0.0; STEP]; EXAMPLES_AT_MOST / DEPTH]);
}

/// As that of `amx/thirds.rs`, by the only set that has an instruction for it.
///
/// # Safety
/// As there.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is no such set"))]
unsafe fn sweep<I: Isa, M: Make, O: Make, E: Epilogue, const LEFT: bool>(
    isa: I,
    swept: (M, [&mut [[f32; STEP]]; 2]),
    other: (O, *mut [f32; STEP]),
    epilogue: impl Fn(usize, usize) -> E,
) {
    assert!(I::TILES, "thirds are multiplied by matrices in registers");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the set says that there are some; the rest is the caller's promise.
    unsafe {
        amx::thirds::sweep::<I, M, O, E, LEFT>(isa, swept, other, epilogue);
    }
}
