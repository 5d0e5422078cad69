//! The products of a linear layer, of thirds: those of `linear.rs` and `weight.rs`, with their
//! epilogues. W is split panel by panel just before it is multiplied, into lines that are near.

use core::sync::atomic::AtomicU32;

#[cfg(target_arch = "x86_64")]
use super::super::amx;
use super::super::isa::{InPlace, Isa, Kernel, run_tiles};
use super::super::layout::{Activations, ActivationsMut, PANEL, place, width_at};
use super::super::linear::{Affine, Mask, Masked, check_mask};
use super::super::tile::{Epilogue, Sum};
use super::super::transpose::transpose_panel;
use super::super::update::{Apply, Elements, Rule};
use super::split::split_panel;
use super::{Thirds, thirds_len};

/// As [`super::super::forward`]. `x`: of [`super::split_columns`]; `scratch`: [`thirds_len`] of a
/// panel, `PANEL` outputs over the inputs
///
/// # Panics
/// When shapes do not fit together, or the machine cannot multiply thirds.
pub fn forward_of_thirds(
    x: Thirds<'_>,
    weight: &[AtomicU32],
    bias: Option<&[AtomicU32]>,
    relu: bool,
    y: &mut ActivationsMut<'_>,
    scratch: &mut [f32],
) {
    check(x, weight.len(), y, scratch);
    assert!(bias.is_none_or(|bias| bias.len() == y.view().width()), "length of the bias");
    run_tiles(ForwardOfThirds { x, weight, bias, relu, y, scratch });
}

/// As [`super::super::data_gradient`]. `d_y`: of [`super::split_columns`]; `scratch`:
/// [`thirds_len`] of a panel, `PANEL` inputs over the outputs, and behind it as many f32s as a
/// panel of Wᵀ has
///
/// # Panics
/// When shapes do not fit together, or the machine cannot multiply thirds.
pub fn data_gradient_of_thirds(
    d_y: Thirds<'_>,
    weight: &[AtomicU32],
    mask: Option<Mask<'_>>,
    d_x: &mut ActivationsMut<'_>,
    scratch: &mut [f32],
) {
    check(d_y, weight.len(), d_x, scratch);
    check_mask(mask, d_x);
    run_tiles(DataGradientOfThirds { d_y, weight, mask, d_x, scratch });
}

fn check(a: Thirds<'_>, weight: usize, c: &ActivationsMut<'_>, scratch: &[f32]) {
    let c = c.view();
    assert_eq!(a.count(), c.n(), "examples of both sides");
    assert_eq!(weight, a.depth() * c.width(), "length of W");
    assert!(scratch.len() >= thirds_len(PANEL, a.depth()), "scratch of a panel");
}

struct ForwardOfThirds<'a, 'y> {
    x: Thirds<'a>,
    weight: &'a [AtomicU32],
    bias: Option<&'a [AtomicU32]>,
    relu: bool,
    y: &'a mut ActivationsMut<'y>,
    scratch: &'a mut [f32],
}

impl Kernel for ForwardOfThirds<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (columns, strides) = (self.y.view().width(), self.y.view().strides());
        let (depth, to) = (self.x.depth(), self.y.as_mut_ptr());
        let panel = &mut self.scratch[..thirds_len(PANEL, depth)];
        for first in (0..columns).step_by(PANEL) {
            let width = width_at(columns, first);
            let from = (self.weight[first * depth..].as_ptr(), width);
            let epilogue = |row: usize| Affine {
                bias: self.bias.map(|bias| bias.as_ptr().wrapping_add(first)),
                relu: self.relu,
                to: to.wrapping_add(place(strides, row, first)),
                row: strides.row,
            };
            // SAFETY: W has that panel, as `check` saw, and Y the rows and columns.
            unsafe {
                split_panel(isa, (depth, width), from, panel);
                product(isa, self.x, Thirds::new(panel, width, depth), epilogue);
            }
        }
    }
}

struct DataGradientOfThirds<'a, 'x> {
    d_y: Thirds<'a>,
    weight: &'a [AtomicU32],
    mask: Option<Mask<'a>>,
    d_x: &'a mut ActivationsMut<'x>,
    scratch: &'a mut [f32],
}

impl Kernel for DataGradientOfThirds<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (columns, strides) = (self.d_x.view().width(), self.d_x.view().strides());
        let (depth, to) = (self.d_y.depth(), self.d_x.as_mut_ptr());
        let (panel, turned) = self.scratch.split_at_mut(thirds_len(PANEL, depth));
        for first in (0..columns).step_by(PANEL) {
            let width = width_at(columns, first);
            let turned = &mut turned[..depth * width];
            let epilogue = |row: usize| {
                let at = place(strides, row, first);
                Masked {
                    mask: self.mask.map(|mask| (mask.y.as_ptr().wrapping_add(at), mask.scale)),
                    to: to.wrapping_add(at),
                    row: strides.row,
                }
            };
            // SAFETY: W has the shape, as `check` saw, and d_X, laid out as the mask, the rows and
            // columns.
            unsafe {
                let size = (depth, columns);
                transpose_panel(isa, self.weight, size, first, turned.as_mut_ptr());
                let from = (InPlace(turned.as_ptr()), width);
                split_panel(isa, (depth, width), from, panel);
                product(isa, self.d_y, Thirds::new(panel, width, depth), epilogue);
            }
        }
    }
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

/// `C[n, width] = A · B` of a B of one tile, by the only set that has an instruction for it.
///
/// # Safety
/// The epilogues fit their tiles.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is no such set"))]
unsafe fn product<I: Isa, E: Epilogue>(
    isa: I,
    a: Thirds<'_>,
    b: Thirds<'_>,
    epilogue: impl Fn(usize) -> E,
) {
    assert!(I::TILES, "thirds are multiplied by matrices in registers");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the set says that there are some; the rest is the caller's promise.
    unsafe {
        amx::thirds::product(isa, a, b, epilogue);
    }
}

/// The product d_Yᵀ·X, so as well.
///
/// # Safety
/// The epilogues fit their tiles.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is no such set"))]
unsafe fn outer<I: Isa, E: Epilogue>(
    isa: I,
    x: Activations<'_>,
    d_y: Thirds<'_>,
    epilogue: impl Fn(usize, usize, usize) -> E,
) {
    assert!(I::TILES, "thirds are multiplied by matrices in registers");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        amx::thirds::outer(isa, x, d_y, epilogue);
    }
}
