//! The micro-kernel: one tile of C in registers.
//!
//! `MR` × `NR` sums are held in local arrays; one step of the depth adds the outer product of a
//! column of the A panel and a row of the B panel. The compiler turns the inner arrays into vector
//! registers, because every length is a constant.

/// Sum over the depth of a panel of A `[depth, MR]` and a panel of B `[depth, NR]`.
///
/// `FUSED` uses the fused multiply-add, which is a slow library call where the instruction set has
/// none.
#[inline(always)]
pub(super) fn tile<const MR: usize, const NR: usize, const FUSED: bool>(
    a: &[f32],
    b: &[f32],
) -> [[f32; NR]; MR] {
    let mut sums = [[0.0f32; NR]; MR];
    let (a, _) = a.as_chunks::<MR>();
    let (b, _) = b.as_chunks::<NR>();
    for (a, b) in a.iter().zip(b) {
        for (row, &a) in sums.iter_mut().zip(a) {
            for (sum, &b) in row.iter_mut().zip(b) {
                *sum = if FUSED { a.mul_add(b, *sum) } else { *sum + a * b };
            }
        }
    }
    sums
}
