//! C = A·B (or C += A·B) for single precision matrices of any stride.
//!
//! Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3),
//! 2008; loop names and block letters are those of BLIS (ACM TOMS 41(3), 2015). A: `[m, k]`,
//! B: `[k, n]`, C: `[m, n]`. Nothing is allocated: the packed blocks live in the lent workspace.
//!
//! Invariant: the sum of an element runs over k in increasing order, in blocks that depend on k
//! alone. See the module above for what follows.

use super::micro::{self, Plain, Vector};
#[cfg(target_arch = "x86_64")]
use super::micro::{Avx2, Avx512};
use super::pack::{Block, pack};
use super::{Matrix, MatrixMut};
use super::{Simd, selected};

/// Rows of A in a packed block: 96 × 256 × 4 B = 96 KiB, within a second-level cache.
const MC: usize = 96;
/// Depth of the packed blocks.
const KC: usize = 256;
/// Columns of B in a packed block: 512 × 256 × 4 B = 512 KiB, half a second-level cache.
const NC: usize = 512;

/// Upper bounds of the tile of every instruction set; `MC` and `NC` are multiples of all tiles.
const MR_MAX: usize = 16;
const NR_MAX: usize = 32;
/// Bytes of a cache line, to which the packed blocks are aligned.
const LINE: usize = 64;

/// Elements of workspace that [`gemm`] needs for `[m, k]`·`[k, n]`, whatever the instruction set.
/// Never decreases when m, n or k grows.
#[must_use]
pub fn workspace_len(m: usize, n: usize, k: usize) -> usize {
    // A last tile may reach past the end by one row or column less than its size.
    let (a, b) = (m.min(MC) + MR_MAX - 1, n.min(NC) + NR_MAX - 1);
    (a + b) * k.min(KC) + 2 * LINE / size_of::<f32>()
}

/// C = A·B, or C += A·B if `accumulate`. With an empty sum (k = 0) C is set to zero or kept.
///
/// # Panics
/// When the shapes do not fit together or `workspace` is shorter than [`workspace_len`].
pub fn gemm(
    a: Matrix<'_>,
    b: Matrix<'_>,
    accumulate: bool,
    c: &mut MatrixMut<'_>,
    workspace: &mut [f32],
) {
    assert_eq!(a.columns, b.rows, "columns of A and rows of B");
    assert_eq!((a.rows, b.columns), (c.rows, c.columns), "shape of A·B and shape of C");
    let needed = workspace_len(c.rows, c.columns, a.columns);
    assert!(workspace.len() >= needed, "workspace needs {needed} f32, got {}", workspace.len());
    match selected() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a set is only ever selected after `is_supported` found its features.
        Simd::Avx512 => unsafe { gemm_avx512(a, b, accumulate, c, workspace) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Simd::Avx2 => unsafe { gemm_avx2(a, b, accumulate, c, workspace) },
        _ => gemm_plain(a, b, accumulate, c, workspace),
    }
}

/// 12 × 32: 24 sums, 2 vectors of B, 1 of A, in 32 registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn gemm_avx512(a: Matrix, b: Matrix, accumulate: bool, c: &mut MatrixMut, workspace: &mut [f32]) {
    // SAFETY: the features of this function are those of the vector.
    unsafe { blocked::<Avx512, 12, 2, 32>(a, b, accumulate, c, workspace) }
}

/// 6 × 16: 12 sums, 2 vectors of B, 1 of A, in 16 registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn gemm_avx2(a: Matrix, b: Matrix, accumulate: bool, c: &mut MatrixMut, workspace: &mut [f32]) {
    // SAFETY: the features of this function are those of the vector.
    unsafe { blocked::<Avx2, 6, 2, 16>(a, b, accumulate, c, workspace) }
}

/// 4 × 8: 8 sums, 2 vectors of B, 1 of A, in 16 registers.
fn gemm_plain(a: Matrix, b: Matrix, accumulate: bool, c: &mut MatrixMut, workspace: &mut [f32]) {
    // SAFETY: this vector needs no instruction set.
    unsafe { blocked::<Plain, 4, 2, 8>(a, b, accumulate, c, workspace) }
}

/// The five loops around the micro-kernel. `NR` is `NV` vectors.
///
/// # Safety
/// The instruction set of `V` is supported.
#[inline(always)]
unsafe fn blocked<V: Vector, const MR: usize, const NV: usize, const NR: usize>(
    a: Matrix<'_>,
    b: Matrix<'_>,
    accumulate: bool,
    c: &mut MatrixMut<'_>,
    workspace: &mut [f32],
) {
    const { assert!(NR == NV * V::LANES) }
    const { assert!(MC.is_multiple_of(MR) && NC.is_multiple_of(NR) && MR <= MR_MAX && NR <= NR_MAX) }
    let (m, n, k) = (c.rows, c.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            c.data.chunks_mut(c.row_stride).take(m).for_each(|row| row[..n].fill(0.0));
        }
        return;
    }
    // Equal blocks of the depth rather than a full one and a crumb.
    let kc_max = k.div_ceil(k.div_ceil(KC));
    let skip = workspace.as_ptr().align_offset(LINE).min(LINE / size_of::<f32>());
    let (packed_b, rest) = workspace[skip..].split_at_mut(n.min(NC).next_multiple_of(NR) * kc_max);
    let skip = rest.as_ptr().align_offset(LINE).min(LINE / size_of::<f32>());
    let packed_a = &mut rest[skip..];

    // Loop 5: columns of C.
    for jc in (0..n).step_by(NC) {
        let nc = NC.min(n - jc);
        // Loop 4: depth.
        for pc in (0..k).step_by(kc_max) {
            let kc = kc_max.min(k - pc);
            let block = Block {
                data: &b.data[pc * b.row_stride + jc * b.column_stride..],
                leads: nc,
                depth: kc,
                lead_stride: b.column_stride,
                depth_stride: b.row_stride,
            };
            let packed_b = &mut packed_b[..nc.next_multiple_of(NR) * kc];
            pack::<NR>(block, packed_b);
            let add = accumulate || pc > 0;
            // Loop 3: rows of C.
            for ic in (0..m).step_by(MC) {
                let mc = MC.min(m - ic);
                let block = Block {
                    data: &a.data[ic * a.row_stride + pc * a.column_stride..],
                    leads: mc,
                    depth: kc,
                    lead_stride: a.row_stride,
                    depth_stride: a.column_stride,
                };
                let packed_a = &mut packed_a[..mc.next_multiple_of(MR) * kc];
                pack::<MR>(block, packed_a);
                // Loops 2 and 1: tiles.
                for (panel_b, jr) in packed_b.chunks_exact(NR * kc).zip((jc..).step_by(NR)) {
                    for (panel_a, ir) in packed_a.chunks_exact(MR * kc).zip((ic..).step_by(MR)) {
                        // SAFETY: the caller's promise.
                        unsafe {
                            let sums = micro::tile::<V, MR, NV>(panel_a, panel_b);
                            store::<V, MR, NV, NR>(&sums, (ir, jr), add, c);
                        }
                    }
                }
            }
        }
    }
}

/// Writes a tile at (row, column) `at`, cut where C ends.
///
/// # Safety
/// The instruction set of `V` is supported.
#[inline(always)]
unsafe fn store<V: Vector, const MR: usize, const NV: usize, const NR: usize>(
    sums: &[[V; NV]; MR],
    at: (usize, usize),
    add: bool,
    c: &mut MatrixMut<'_>,
) {
    let (row, column) = at;
    let columns = NR.min(c.columns - column);
    let rows = MR.min(c.rows - row);
    for (i, sums) in sums.iter().enumerate() {
        if i >= rows {
            break;
        }
        let start = (row + i) * c.row_stride + column;
        let to = &mut c.data[start..start + columns];
        let (vectors, rest) = to.split_at_mut(columns / V::LANES * V::LANES);
        for (sum, to) in sums.iter().zip(vectors.chunks_exact_mut(V::LANES)) {
            // SAFETY: the caller's promise.
            unsafe { put(*sum, add, to) }
        }
        if !rest.is_empty() {
            // The edge of C: the same operation on a copy of a whole vector.
            let mut copy = [0.0; NR];
            let copy = &mut copy[..V::LANES];
            copy.iter_mut().zip(&*rest).for_each(|(copy, x)| *copy = *x);
            // SAFETY: the caller's promise.
            unsafe { put(sums[columns / V::LANES], add, copy) }
            rest.iter_mut().zip(copy).for_each(|(x, copy)| *x = *copy);
        }
    }
}

/// Writes or adds a vector of a tile. `to: [LANES]`
///
/// # Safety
/// The instruction set of `V` is supported.
#[inline(always)]
unsafe fn put<V: Vector>(sum: V, add: bool, to: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let value = if add { V::load(to).add(sum) } else { sum };
        value.store(to);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Stream};
    use std::vec::Vec;

    /// The twin: the definition, in double precision.
    fn naive(a: &Matrix, b: &Matrix, i: usize, j: usize) -> f64 {
        (0..a.columns)
            .map(|p| {
                let x = a.data[i * a.row_stride + p * a.column_stride];
                let y = b.data[p * b.row_stride + j * b.column_stride];
                f64::from(x) * f64::from(y)
            })
            .sum()
    }

    fn numbers(stream: u32, len: usize) -> Vec<f32> {
        let stream = Stream::new(5, Purpose::Test(stream));
        (0..len as u64).map(|i| stream.uniform(i) - 0.5).collect()
    }

    type Compiled = fn(Matrix, Matrix, bool, &mut MatrixMut, &mut [f32]);

    /// Every compiled form this machine can run, called directly: `select` is one for the process.
    fn forms() -> Vec<(&'static str, Compiled)> {
        let mut forms: Vec<(&'static str, Compiled)> = std::vec![("plain", gemm_plain)];
        #[cfg(target_arch = "x86_64")]
        {
            if Simd::Avx2.is_supported() {
                // SAFETY: just checked.
                forms.push(("avx2", |a, b, s, c, w| unsafe { gemm_avx2(a, b, s, c, w) }));
            }
            if Simd::Avx512.is_supported() {
                // SAFETY: just checked.
                forms.push(("avx512", |a, b, s, c, w| unsafe { gemm_avx512(a, b, s, c, w) }));
            }
        }
        forms
    }

    fn check(m: usize, n: usize, k: usize, transpose: (bool, bool), accumulate: bool) {
        let (a, b) = (numbers(1, m * k), numbers(2, k * n));
        let a = if transpose.0 { Matrix::new(&a, k, m).t() } else { Matrix::new(&a, m, k) };
        let b = if transpose.1 { Matrix::new(&b, n, k).t() } else { Matrix::new(&b, k, n) };
        let stride = n + 3;
        // One row more than C has.
        let before = numbers(3, (m + 1) * stride);
        for (name, form) in forms() {
            let mut c = before.clone();
            // Poison: nothing of the workspace may be read before it is written.
            let mut workspace = std::vec![f32::NAN; workspace_len(m, n, k)];
            form(a, b, accumulate, &mut MatrixMut::strided(&mut c, m, n, stride), &mut workspace);
            for i in 0..=m {
                for j in 0..stride {
                    let got = f64::from(c[i * stride + j]);
                    let old = f64::from(before[i * stride + j]);
                    let expected = match (i < m && j < n, accumulate) {
                        (false, _) => old,
                        (true, true) => old + naive(&a, &b, i, j),
                        (true, false) => naive(&a, &b, i, j),
                    };
                    // k terms of at most 1/4, each rounded to 2^-24 of a sum below k / 4.
                    let bound = 6e-8 * (1.0 + k as f64 * 0.25) * 2.0;
                    assert!(
                        (got - expected).abs() <= bound,
                        "{name} m {m} n {n} k {k} {transpose:?} at ({i}, {j}): {got}, {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_form_agrees_with_the_definition() {
        let sizes = [0, 1, 2, 5, 7, 8, 13, 16, 31, 33, 65];
        for (x, &m) in sizes.iter().enumerate() {
            for (y, &n) in sizes.iter().enumerate() {
                for (z, &k) in sizes.iter().enumerate() {
                    let bits = x + 3 * y + 5 * z;
                    check(m, n, k, (bits & 1 > 0, bits & 2 > 0), bits & 4 > 0);
                }
            }
        }
    }

    #[test]
    fn blocks_are_joined_in_every_dimension() {
        for transpose in [(false, false), (false, true), (true, false), (true, true)] {
            check(MC + 5, NC + 9, KC + 3, transpose, false);
            check(2 * MC + 1, 17, 2 * KC + 1, transpose, true);
        }
    }

    #[test]
    fn agrees_with_matrixmultiply() {
        let (m, n, k) = (130, 257, 515);
        let (a, b) = (numbers(4, m * k), numbers(5, k * n));
        let (mut expected, mut got) = (std::vec![0.0; m * n], std::vec![0.0; m * n]);
        // SAFETY: the three buffers hold row-major matrices of these sizes.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a.as_ptr(),
                k as isize,
                1,
                b.as_ptr(),
                n as isize,
                1,
                0.0,
                expected.as_mut_ptr(),
                n as isize,
                1,
            );
        }
        let mut workspace = std::vec![0.0; workspace_len(m, n, k)];
        let mut c = MatrixMut::new(&mut got, m, n);
        gemm(Matrix::new(&a, m, k), Matrix::new(&b, k, n), false, &mut c, &mut workspace);
        for (x, y) in got.iter().zip(&expected) {
            assert!((x - y).abs() < 2e-5, "{x} {y}");
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_place() {
        let (m, n, k) = (41, 37, 300);
        let (a, b) = (numbers(6, m * k), numbers(7, k * n));
        for (name, form) in forms() {
            let mut workspace = std::vec![0.0; workspace_len(m, n, k)];
            let mut whole = std::vec![0.0; m * n];
            let b = Matrix::new(&b, k, n);
            let mut c = MatrixMut::new(&mut whole, m, n);
            form(Matrix::new(&a, m, k), b, false, &mut c, &mut workspace);
            for i in 0..m {
                let mut row = std::vec![0.0; n];
                let mut c = MatrixMut::new(&mut row, 1, n);
                form(Matrix::new(&a[i * k..], 1, k), b, false, &mut c, &mut workspace);
                assert_eq!(row, whole[i * n..][..n], "{name} row {i}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "columns of A and rows of B")]
    fn shapes_must_fit() {
        let x = [0.0; 6];
        let mut c = [0.0; 4];
        let (a, b) = (Matrix::new(&x, 2, 3), Matrix::new(&x, 2, 2));
        gemm(a, b, false, &mut MatrixMut::new(&mut c, 2, 2), &mut []);
    }
}
