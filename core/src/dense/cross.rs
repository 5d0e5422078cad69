//! The cross network of DCN v2: Wang et al., "DCN V2", arXiv 2008.13535, section 3.2.
//!
//! x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l, all of one width. With a rank (section 3.5, without its
//! mixture of experts) W_l = U_l V_lᵀ.
//!
//! Backward, with u_l = W_l x_l + b_l and d the gradient of x_{l+1}: d_u = d ⊙ x_0, from which
//! those of W, b and x_l follow as in any linear layer; to the gradient of x_0 comes d ⊙ u_l, to
//! that of x_l comes d.
//!
//! Every matrix `[n, width]` here has the layout `Strides::padded`: row-major, so that an
//! element-wise product is a loop over rows.

use core::sync::atomic::AtomicU32;

use super::linear::Linear;
use super::mlp::MAX_LAYERS;
use super::replica::Update;
use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::{Activations, ActivationsMut, Strides, Transposed, blocked_len, padded_len};

/// One layer: shapes and offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossLayer {
    /// Vᵀ `[rank, width]`, without bias. Without a rank there is none.
    pub down: Option<Linear>,
    /// U `[width, rank]`, or W `[width, width]`; with b.
    pub up: Linear,
}

/// Layers of one width and one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossNetwork {
    layers: [CrossLayer; MAX_LAYERS],
    count: usize,
}

/// What backward reads.
#[derive(Clone, Copy)]
pub struct CrossStored<'a> {
    /// Transposed matrices of the step. `[transposed_len]`
    pub transposed: &'a [f32],
    /// x_0 `[n, width]`
    pub x0: &'a [f32],
    /// As forward left it. `[stored_len(n)]`
    pub stored: &'a [f32],
}

/// Where backward writes.
pub struct CrossBackward<'a> {
    /// Gradient of the parameters of the model.
    pub parameters: &'a mut [f32],
    /// Set the gradients of parameters instead of adding to them.
    pub fresh: bool,
    /// These examples complete the gradients: update the parameters with them.
    pub update: Option<Update<'a>>,
    /// Gradient of the output on entry, scratch afterwards. `[n, width]`
    pub d: &'a mut [f32],
    /// The gradient of x_0 is added to this. `[n, width]`
    pub d_x0: &'a mut [f32],
    /// `[scratch_len(n)]`
    pub scratch: &'a mut [f32],
}

impl CrossNetwork {
    /// Appends a layer; `None` when the network is full.
    #[must_use]
    pub fn push(&mut self, layer: CrossLayer) -> Option<()> {
        *self.layers.get_mut(self.count)? = layer;
        self.count += 1;
        Some(())
    }

    /// The layers, first to last.
    #[must_use]
    pub fn layers(&self) -> &[CrossLayer] {
        &self.layers[..self.count]
    }

    /// Width of x.
    const fn width(&self) -> usize {
        self.layers[0].up.outputs
    }

    /// Width of Vᵀ x_l, or 0.
    fn rank(&self) -> usize {
        self.layers[0].down.map_or(0, |down| down.outputs)
    }

    /// f32s of `[n, width]`.
    const fn matrix_len(&self, n: usize) -> usize {
        padded_len(n, self.width())
    }

    /// f32s stored of `n` examples by one layer: u, x_{l+1} and Vᵀ x_l.
    fn layer_stored_len(&self, n: usize) -> usize {
        2 * self.matrix_len(n) + blocked_len(n, self.rank())
    }

    /// f32s stored of `n` examples.
    #[must_use]
    pub fn stored_len(&self, n: usize) -> usize {
        self.count * self.layer_stored_len(n)
    }

    /// f32s of scratch of a backward pass: the gradients of u, of x_l and of Vᵀ x_l.
    #[must_use]
    pub fn scratch_len(&self, n: usize) -> usize {
        self.layer_stored_len(n)
    }

    /// f32s of the transposed matrices.
    #[must_use]
    pub fn transposed_len(&self) -> usize {
        self.layers().iter().map(CrossLayer::matrices_len).sum()
    }

    /// Transposes the matrices for [`Self::backward`]. `transposed: [transposed_len]`
    pub fn transpose(&self, parameters: &[AtomicU32], transposed: &mut [f32]) {
        let mut rest = transposed;
        for linear in self.layers().iter().flat_map(|layer| layer.down.iter().chain([&layer.up])) {
            let (here, after) = rest.split_at_mut(linear.matrix_len());
            linear.transpose(parameters, here);
            rest = after;
        }
    }

    /// The output within what forward stored. `[n, width]`
    #[must_use]
    pub fn output<'a>(&self, n: usize, stored: &'a [f32]) -> Activations<'a> {
        let (from, len) =
            (self.count.saturating_sub(1) * self.layer_stored_len(n), self.matrix_len(n));
        self.view(n, &stored[from + len..from + 2 * len])
    }

    /// Crosses `x0` `[n, width]`; `stored: [stored_len(n)]` is written.
    pub fn forward(&self, parameters: &[AtomicU32], n: usize, x0: &[f32], stored: &mut [f32]) {
        let (len, width) = (self.matrix_len(n), self.width());
        let strides = Strides::padded(width);
        let (mut x, mut rest) = (x0, stored);
        for layer in self.layers() {
            let (u, after) = rest.split_at_mut(len);
            let (next, after) = after.split_at_mut(len);
            let (low, after) = after.split_at_mut(blocked_len(n, self.rank()));
            let mut out = ActivationsMut::new(&mut *u, n, width, strides);
            let input = self.view(n, x);
            match layer.down {
                None => layer.up.forward(parameters, input, false, &mut out),
                Some(down) => {
                    let mut low = ActivationsMut::blocked(low, n, down.outputs);
                    down.forward(parameters, input, false, &mut low);
                    layer.up.forward(parameters, low.view(), false, &mut out);
                }
            }
            run(Next { row: strides.row, width, x0, u, x, next });
            (x, rest) = (next, after);
        }
    }

    /// Gradients of the parameters and of x_0.
    pub fn backward(&self, n: usize, from: CrossStored<'_>, out: CrossBackward<'_>) {
        let (len, width) = (self.matrix_len(n), self.width());
        let strides = Strides::padded(width);
        let row = strides.row;
        let CrossBackward { parameters, fresh, update, d, d_x0, scratch } = out;
        let (d_u, scratch) = scratch.split_at_mut(len);
        let (d_x, scratch) = scratch.split_at_mut(len);
        let mut transposed_end = self.transposed_len();
        for (number, layer) in self.layers().iter().enumerate().rev() {
            let start = number * self.layer_stored_len(n);
            let u = &from.stored[start..start + len];
            let x = match number {
                0 => from.x0,
                _ => &from.stored[start - self.layer_stored_len(n) + len..][..len],
            };
            run(Back { row, width, x0: from.x0, u, d, d_u, d_x0 });
            let transposed_start = transposed_end - layer.matrices_len();
            let transposed = &from.transposed[transposed_start..transposed_end];
            let (x, of_u) = (self.view(n, x), self.view(n, d_u));
            let mut of_x = ActivationsMut::new(&mut *d_x, n, width, strides);
            match layer.down {
                None => {
                    let mut of = layer.up.operands((x, 0..n), of_u, true, &[], &mut []);
                    layer.up.data_gradient(&mut of, Transposed::Made(transposed), None, &mut of_x);
                    layer.up.gradient(of, fresh, update, parameters);
                }
                Some(down) => {
                    let rank = down.outputs;
                    let (of_down, of_up) = transposed.split_at(down.matrix_len());
                    let low = &from.stored[start + 2 * len..][..blocked_len(n, rank)];
                    let low = Activations::blocked(low, n, rank);
                    let mut d_low = ActivationsMut::blocked(&mut *scratch, n, rank);
                    let mut of = layer.up.operands((low, 0..n), of_u, true, &[], &mut []);
                    layer.up.data_gradient(&mut of, Transposed::Made(of_up), None, &mut d_low);
                    layer.up.gradient(of, fresh, update, parameters);
                    let mut of = down.operands((x, 0..n), d_low.view(), true, &[], &mut []);
                    down.data_gradient(&mut of, Transposed::Made(of_down), None, &mut of_x);
                    down.gradient(of, fresh, update, parameters);
                }
            }
            self.add(d_x, d);
            transposed_end = transposed_start;
        }
        self.add(d, d_x0);
    }

    fn view<'a>(&self, n: usize, x: &'a [f32]) -> Activations<'a> {
        Activations::new(x, n, self.width(), Strides::padded(self.width()))
    }

    /// sum += x, both `[n, width]`.
    fn add(&self, x: &[f32], sum: &mut [f32]) {
        let row = Strides::padded(self.width()).row;
        run(Add { row, width: self.width(), x, sum });
    }
}

/// next = x0 · u + x, `[n, width]` with rows `row` apart, as all below.
struct Next<'a> {
    row: usize,
    width: usize,
    x0: &'a [f32],
    u: &'a [f32],
    x: &'a [f32],
    next: &'a mut [f32],
}

impl Kernel for Next<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Self { row, width, x0, u, x, next } = self;
        let known = x0.chunks(row).zip(u.chunks(row)).zip(x.chunks(row));
        for (next, ((x0, u), x)) in next.chunks_mut(row).zip(known) {
            for (next, ((x0, u), x)) in next[..width].iter_mut().zip(x0.iter().zip(u).zip(x)) {
                *next = x0 * u + x;
            }
        }
    }
}

/// d_u = d · x0, and d_x0 += d · u.
struct Back<'a> {
    row: usize,
    width: usize,
    x0: &'a [f32],
    u: &'a [f32],
    d: &'a [f32],
    d_u: &'a mut [f32],
    d_x0: &'a mut [f32],
}

impl Kernel for Back<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Self { row, width, x0, u, d, d_u, d_x0 } = self;
        let known = d.chunks(row).zip(x0.chunks(row)).zip(u.chunks(row));
        let made = d_u.chunks_mut(row).zip(d_x0.chunks_mut(row));
        for ((d_u, d_x0), ((d, x0), u)) in made.zip(known) {
            let made = d_u[..width].iter_mut().zip(d_x0);
            for ((d_u, d_x0), ((d, x0), u)) in made.zip(d.iter().zip(x0).zip(u)) {
                *d_u = d * x0;
                *d_x0 += d * u;
            }
        }
    }
}

/// sum += x
struct Add<'a> {
    row: usize,
    width: usize,
    x: &'a [f32],
    sum: &'a mut [f32],
}

impl Kernel for Add<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for (sum, x) in self.sum.chunks_mut(self.row).zip(self.x.chunks(self.row)) {
            for (sum, x) in sum[..self.width].iter_mut().zip(x) {
                *sum += x;
            }
        }
    }
}

impl CrossLayer {
    fn matrices_len(&self) -> usize {
        self.up.matrix_len() + self.down.map_or(0, |down| down.matrix_len())
    }
}
