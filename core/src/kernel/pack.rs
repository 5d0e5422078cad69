//! Packing: a block of a strided matrix, rearranged in the order the micro-kernel reads it.
//!
//! Van Zee and van de Geijn, "BLIS: a framework for rapidly instantiating BLAS functionality",
//! ACM TOMS 41(3), 2015, section 4.2. A block of `lead` × `depth` becomes panels of `W` leads:
//! `out[panel][depth][W]`, the last panel padded with zeros. For A, leads are rows; for B,
//! columns; depth is the summed dimension of both.

/// A block of a strided matrix: element (lead, depth) is `data[lead * lead_stride + depth * depth_stride]`.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) data: &'a [f32],
    pub(super) leads: usize,
    pub(super) depth: usize,
    pub(super) lead_stride: usize,
    pub(super) depth_stride: usize,
}

/// Packs `block` into panels of `W` leads. `out` is `[ceil(leads / W), depth, W]`.
#[inline(always)]
pub(super) fn pack<const W: usize>(block: Block<'_>, out: &mut [f32]) {
    let panels = out.chunks_exact_mut(W * block.depth);
    for (panel, lead) in panels.zip((0..block.leads).step_by(W)) {
        let from = &block.data[lead * block.lead_stride..];
        let leads = W.min(block.leads - lead);
        let (rows, _) = panel.as_chunks_mut::<W>();
        if leads == W && block.lead_stride == 1 {
            copy_rows(from, block.depth_stride, rows);
        } else if leads == W && block.depth_stride == 1 {
            transpose(from, block.lead_stride, rows);
        } else {
            for (depth, row) in rows.iter_mut().enumerate() {
                let at = depth * block.depth_stride;
                for (w, to) in row.iter_mut().enumerate() {
                    *to = if w < leads { from[at + w * block.lead_stride] } else { 0.0 };
                }
            }
        }
    }
}

/// Leads are contiguous in memory: every row of the panel is a copy.
#[inline(always)]
fn copy_rows<const W: usize>(from: &[f32], depth_stride: usize, rows: &mut [[f32; W]]) {
    for (depth, row) in rows.iter_mut().enumerate() {
        let at = depth * depth_stride;
        row.copy_from_slice(&from[at..at + W]);
    }
}

/// Depth is contiguous in memory: the panel is a transpose, done in squares that stay in registers
/// or the first cache level.
#[inline(always)]
fn transpose<const W: usize>(from: &[f32], lead_stride: usize, rows: &mut [[f32; W]]) {
    const SIDE: usize = 8;
    let (squares, rest) = rows.as_chunks_mut::<SIDE>();
    let done = squares.len() * SIDE;
    for (square, depth) in squares.iter_mut().zip((0..).step_by(SIDE)) {
        for w in 0..W {
            let at = w * lead_stride + depth;
            let run: &[f32] = &from[at..at + SIDE];
            for (row, &x) in square.iter_mut().zip(run) {
                row[w] = x;
            }
        }
    }
    for (row, depth) in rest.iter_mut().zip(done..) {
        for (w, to) in row.iter_mut().enumerate() {
            *to = from[w * lead_stride + depth];
        }
    }
}
