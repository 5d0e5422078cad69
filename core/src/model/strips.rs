//! Vectors of fields whose tables have widths of their own.
//!
//! A table is several strips of w columns (`sparse/strips.rs`). A field whose vectors are as wide
//! as the model's, d, has its strips side by side; any other's vector p, of d_f columns, becomes
//! e = Pᵀ p with a trained matrix P `[d_f, d]` (Ginart et al., "Mixed Dimension Embeddings with
//! Application to Memory-Efficient Recommendation Systems", arXiv 1909.11810). The matrices stand
//! one behind the other behind all other parameters, row-major, and are f32 whatever the products
//! of layers are.
//!
//! Bodies see vectors of d columns, whatever they come from. No fused operations: the same bits on
//! every instruction set.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::space::Space;
use super::step::Tile;
use super::tensor::{Initial, Tensor};
use super::{Model, ModelError, ModelKind};
use crate::dense::replica::{Update, element};
use crate::float;
use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::pool::{Rows, add_scaled};
use crate::sparse::bag::{Bags, Pooled, RowGradients};

/// What a model must know of its tables where they are cut into strips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripShape {
    /// w: columns of a strip.
    pub width: usize,
    /// Strips of all fields.
    pub strips: usize,
    /// Σ d_f over the fields whose vectors are not d wide.
    pub projected: usize,
}

/// A planned [`StripShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strips {
    pub(super) shape: StripShape,
    /// d
    width: usize,
    /// Offset of the matrices. `[projected, d]`
    projection: usize,
}

impl Model {
    /// The same model on tables that are cut into strips. Its batches then have a bag for every
    /// strip ([`cut`](crate::sparse::cut)), and its inputs say whose each is.
    ///
    /// # Errors
    /// When the model has no vectors or strips no columns, or there are more parameters than can be
    /// counted.
    pub fn with_strips(mut self, shape: StripShape) -> Result<Self, ModelError> {
        if shape.width == 0 || self.kind == ModelKind::Lr {
            return Err(ModelError::NoEmbeddingDim);
        }
        let width = self.body.row_width() - self.first_order_columns();
        let projected = shape.projected.checked_mul(width);
        let length = projected.and_then(|it| self.parameters_len.checked_add(it));
        let length = length.filter(|length| *length < isize::MAX as usize / 8);
        self.strips = Some(Strips { shape, width, projection: self.parameters_len });
        self.parameters_len = length.ok_or(ModelError::TooLarge)?;
        Ok(self)
    }
}

impl Strips {
    /// The matrices.
    pub(super) fn tensor(&self) -> Option<Tensor> {
        // As a layer's from d columns to d.
        let initial = Initial::Normal(float::sqrt(1.0 / self.width as f32));
        let extents = [self.shape.projected, self.width];
        Tensor::plain("projection", "weight", extents, self.projection, initial)
    }

    /// Its buffers for a tile of `n` examples.
    pub(super) fn take<'a>(&self, n: usize, space: &mut Space<'a>) -> Buffers<'a> {
        let Self { shape: StripShape { projected, .. }, width, .. } = *self;
        Buffers {
            matrix: space.single(projected * width),
            narrow: space.single(n * projected),
            d_narrow: space.single(projected),
        }
    }
}

/// Buffers of a tile of n examples.
#[derive(Default)]
pub(super) struct Buffers<'a> {
    /// The matrices as they were in forward. `[projected, d]`
    matrix: &'a mut [f32],
    /// Pooled vectors that are not d wide. `[n, projected]`
    narrow: &'a mut [f32],
    /// The gradient of one of them: of d_f columns. `[projected]`, which is enough
    d_narrow: &'a mut [f32],
}

/// What brings a body the vectors of its fields, and takes their gradient.
pub(super) struct Gather<'a> {
    pub(super) strips: Option<Strips>,
    pub(super) buffers: Buffers<'a>,
}

impl Gather<'_> {
    /// The same once more.
    pub(super) const fn again(&mut self) -> Gather<'_> {
        let Buffers { matrix, narrow, d_narrow } = &mut self.buffers;
        Gather { strips: self.strips, buffers: Buffers { matrix, narrow, d_narrow } }
    }

    /// Writes the vectors of a tile to `out`, as [`Pooled`] tells.
    pub(super) fn forward(
        &mut self,
        tile: &Tile<'_>,
        parameters: &[AtomicU32],
        shape: &Pooled,
        out: &mut [f32],
    ) {
        let Some(strips) = self.strips else {
            return tile.bags.pool(tile.n, tile.rows, shape, out);
        };
        let Buffers { matrix, narrow, .. } = &mut self.buffers;
        let length = strips.shape.projected * strips.width;
        let matrix = &mut matrix[..length];
        let from = &parameters[strips.projection..][..length];
        matrix.iter_mut().zip(from).for_each(|(to, from)| *to = element(from));
        run(Forward {
            strips,
            bags: tile.bags,
            n: tile.n,
            rows: tile.rows,
            shape,
            matrix,
            narrow,
            out,
        });
    }

    /// Adds to the gradient of rows what that of a tile's vectors says, and writes that of the
    /// matrices: it is added to what is there unless the tile is the first, and applied with the
    /// last.
    pub(super) fn backward(
        self,
        tile: &Tile<'_>,
        (d_vectors, shape): (&[f32], &Pooled),
        mut d_rows: RowGradients<'_>,
        (d_parameters, fresh, update): (&mut [f32], bool, Option<Update<'_>>),
    ) {
        let Some(strips) = self.strips else {
            return tile.bags.pool_backward(tile.n, d_vectors, shape, d_rows);
        };
        let Buffers { matrix, narrow, d_narrow } = self.buffers;
        let length = strips.shape.projected * strips.width;
        let d_matrix = &mut d_parameters[strips.projection..][..length];
        if fresh {
            d_matrix.fill(0.0);
        }
        let (bags, n, matrix) = (tile.bags, tile.n, &matrix[..length]);
        run(Backward {
            strips,
            bags,
            n,
            d_vectors,
            shape,
            matrix,
            d_matrix: &mut *d_matrix,
            narrow,
            d_narrow,
            d_rows: d_rows.again(),
        });
        if let Some(update) = update {
            update.apply(strips.projection, d_matrix);
        }
    }
}

/// Strips of every field, and where its columns are among those that are projected; `None` where
/// its vector is d wide.
fn fields(starts: &[u32], strips: Strips) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
    let mut next = 0;
    starts.windows(2).map(move |ends| {
        let own = ends[0] as usize..ends[1] as usize;
        let columns = own.len() * strips.shape.width;
        let at = (columns != strips.width).then_some(next);
        next += if at.is_some() { columns } else { 0 };
        (own, at)
    })
}

struct Forward<'a> {
    strips: Strips,
    bags: Bags<'a>,
    n: usize,
    rows: &'a [f32],
    shape: &'a Pooled,
    matrix: &'a [f32],
    narrow: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { strips, bags, n, rows, shape, matrix, narrow, out } = self;
        let StripShape { width, projected, .. } = strips.shape;
        let first = shape.columns.start;
        let columns = first..first + width;
        let rows = Rows { elements: rows, stride: bags.row_width, columns };
        for example in 0..n {
            let bag = example * bags.fields;
            let narrow = &mut narrow[example * projected..][..projected];
            let out = &mut out[example * shape.stride + shape.at..];
            for ((own, at), out) in fields(bags.firsts, strips).zip(out.chunks_mut(strips.width)) {
                let wide = own.len() * width;
                let vector = at.map_or(&mut *out, |at| &mut narrow[at..at + wide]);
                for (strip, vector) in own.zip(vector.chunks_exact_mut(width)) {
                    bags.pool_bag(isa, bag + strip, &rows, vector);
                }
                if let Some(at) = at {
                    out.fill(0.0);
                    let matrix = matrix[at * strips.width..].chunks_exact(strips.width);
                    for (x, row) in narrow[at..at + wide].iter().zip(matrix) {
                        add_scaled(isa, *x, row, out);
                    }
                }
            }
        }
    }
}

struct Backward<'a> {
    strips: Strips,
    bags: Bags<'a>,
    n: usize,
    d_vectors: &'a [f32],
    shape: &'a Pooled,
    matrix: &'a [f32],
    d_matrix: &'a mut [f32],
    narrow: &'a [f32],
    d_narrow: &'a mut [f32],
    d_rows: RowGradients<'a>,
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { strips, bags, n, d_vectors, shape, .. } = self;
        let Self { matrix, d_matrix, narrow, d_narrow, mut d_rows, .. } = self;
        let StripShape { width, projected, .. } = strips.shape;
        let first = shape.columns.start;
        let columns = first..first + width;
        for example in 0..n {
            let bag = example * bags.fields;
            let narrow = &narrow[example * projected..][..projected];
            let d = &d_vectors[example * shape.stride + shape.at..];
            for ((own, at), d) in fields(bags.firsts, strips).zip(d.chunks(strips.width)) {
                let d_vector = match at {
                    None => d,
                    Some(at) => {
                        let wide = own.len() * width;
                        let d_vector = &mut d_narrow[..wide];
                        let places = at * strips.width..(at + wide) * strips.width;
                        let rows = matrix[places.clone()].chunks_exact(strips.width);
                        let d_rows = d_matrix[places].chunks_exact_mut(strips.width);
                        let products = d_vector.iter_mut().zip(&narrow[at..at + wide]);
                        for (((d_x, x), row), d_row) in products.zip(rows).zip(d_rows) {
                            *d_x = product(row, d);
                            add_scaled(isa, *x, d, d_row);
                        }
                        &*d_vector
                    }
                };
                for (strip, d) in own.zip(d_vector.chunks_exact(width)) {
                    bags.pool_bag_backward(isa, bag + strip, (d, &columns), &mut d_rows);
                }
            }
        }
    }
}

/// The sum of x_i·y_i, in an order that no instruction set changes.
#[inline(always)]
fn product(x: &[f32], y: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    let (x_blocks, y_blocks) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let mut rest = 0.0;
    for (x, y) in x_blocks.remainder().iter().zip(y_blocks.remainder()) {
        rest += x * y;
    }
    for (x, y) in x_blocks.zip(y_blocks) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    rest + sums.iter().sum::<f32>()
}
