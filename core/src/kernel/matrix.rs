//! Views of matrices: a slice, a shape and strides, checked once when they are made.

/// A matrix to read: element (i, j) is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major and dense. `data` is `[rows, columns]`.
    ///
    /// # Panics
    /// When `data` is too short.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns, 1)
    }

    /// Any strides.
    ///
    /// # Panics
    /// When an element would lie outside `data`.
    #[must_use]
    pub fn strided(
        data: &'a [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
        column_stride: usize,
    ) -> Self {
        let needed = extent(rows, columns, row_stride, column_stride);
        assert!(data.len() >= needed, "matrix needs {needed} elements, got {}", data.len());
        Self { data, rows, columns, row_stride, column_stride }
    }

    /// The transposed view of the same data.
    #[must_use]
    pub const fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// A matrix to write, its rows contiguous: element (i, j) is `data[i * row_stride + j]`.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// Row-major and dense. `data` is `[rows, columns]`.
    ///
    /// # Panics
    /// When `data` is too short.
    #[must_use]
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows `row_stride` apart.
    ///
    /// # Panics
    /// When `data` is too short or rows overlap.
    #[must_use]
    pub fn strided(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let needed = extent(rows, columns, row_stride, 1);
        assert!(data.len() >= needed, "matrix needs {needed} elements, got {}", data.len());
        assert!(rows <= 1 || row_stride >= columns, "rows {row_stride} apart overlap");
        Self { data, rows, columns, row_stride }
    }
}

/// One past the last element, 0 for an empty matrix.
fn extent(rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> usize {
    if rows == 0 || columns == 0 {
        0
    } else {
        (rows - 1) * row_stride + (columns - 1) * column_stride + 1
    }
}
