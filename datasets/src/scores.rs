//! Scores of the rows of a dataset, in the forms that other programs read.
//!
//! csv and Parquet have a line or row for each row of the dataset: its number, from 0, over all
//! files in their order; its score, the probability of a click; its label and its group, where the
//! dataset has them. NumPy's format (`numpy.lib.format`, version 1.0) has the scores alone, in the
//! order of the rows, and so has text: one a line.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

/// What a file of scores looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoresFormat {
    /// A score a line.
    Text,
    /// `row,score`, then `label` and `group` where there are any; a header.
    Csv,
    /// A float32 array of the scores.
    Npy,
    /// The columns of the csv: u64, f32, f32, u64.
    Parquet,
}

impl ScoresFormat {
    /// The format that a file of this name is expected to have: text, unless the end of the name
    /// is another's.
    pub fn of(path: &Path) -> Self {
        let end = path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase);
        match end.as_deref() {
            Some("csv") => Self::Csv,
            Some("npy") => Self::Npy,
            Some("parquet" | "pq") => Self::Parquet,
            _ => Self::Text,
        }
    }
}

/// The rows of a dataset in their order, scored. `[n]` each
#[derive(Clone, Copy, Debug)]
pub struct ScoredRows<'a> {
    /// Probabilities.
    pub score: &'a [f32],
    /// Empty where the dataset has none.
    pub label: &'a [f32],
    /// Empty where the dataset has none.
    pub group: &'a [u64],
}

impl ScoredRows<'_> {
    /// Writes all rows to `out`, which is flushed.
    ///
    /// # Errors
    /// The system's, when `out` does not take them.
    pub fn write<W: Write + Send>(&self, format: ScoresFormat, mut out: W) -> io::Result<()> {
        match format {
            ScoresFormat::Text => {
                for score in self.score {
                    writeln!(out, "{score}")?;
                }
            }
            ScoresFormat::Csv => self.write_csv(&mut out)?,
            ScoresFormat::Npy => {
                out.write_all(&npy_header(self.score.len()))?;
                for score in self.score {
                    out.write_all(&score.to_le_bytes())?;
                }
            }
            ScoresFormat::Parquet => self.write_parquet(&mut out)?,
        }
        out.flush()
    }

    fn write_csv(&self, out: &mut impl Write) -> io::Result<()> {
        let label = if self.label.is_empty() { "" } else { ",label" };
        let group = if self.group.is_empty() { "" } else { ",group" };
        writeln!(out, "row,score{label}{group}")?;
        for (row, score) in self.score.iter().enumerate() {
            write!(out, "{row},{score}")?;
            if let Some(label) = self.label.get(row) {
                write!(out, ",{label}")?;
            }
            if let Some(group) = self.group.get(row) {
                write!(out, ",{group}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_parquet<W: Write + Send>(&self, out: &mut W) -> io::Result<()> {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        // Of no rows: it says what the columns are.
        let schema = self.batch(0, 0)?.schema();
        let mut writer = ArrowWriter::try_new(out, schema, Some(properties))?;
        for start in (0..self.score.len()).step_by(ROWS_AT_ONCE) {
            writer.write(&self.batch(start, self.score.len().min(start + ROWS_AT_ONCE))?)?;
        }
        writer.close()?;
        Ok(())
    }

    /// Rows number `start` to `end` as columns.
    fn batch(&self, start: usize, end: usize) -> io::Result<RecordBatch> {
        let mut columns: Vec<(&str, ArrayRef)> = vec![
            ("row", Arc::new(UInt64Array::from_iter_values(start as u64..end as u64))),
            ("score", Arc::new(Float32Array::from(self.score[start..end].to_vec()))),
        ];
        if !self.label.is_empty() {
            columns.push(("label", Arc::new(Float32Array::from(self.label[start..end].to_vec()))));
        }
        if !self.group.is_empty() {
            columns.push(("group", Arc::new(UInt64Array::from(self.group[start..end].to_vec()))));
        }
        RecordBatch::try_from_iter(columns).map_err(io::Error::other)
    }
}

/// The head of an array of `len` little-endian f32: 64 bytes or a multiple.
fn npy_header(len: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({len},), }}");
    while !(NPY_MAGIC.len() + 2 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    // Some eighty bytes.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [NPY_MAGIC, &length.to_le_bytes(), text.as_bytes()].concat()
}

/// The format's name, and its version 1.0.
const NPY_MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

const ROWS_AT_ONCE: usize = 1 << 16;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, UInt64Type};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
    use proptest::prelude::*;

    use super::*;

    fn written(rows: ScoredRows<'_>, format: ScoresFormat) -> Vec<u8> {
        let mut out = Vec::new();
        rows.write(format, &mut out).unwrap();
        out
    }

    #[test]
    fn a_name_says_the_format() {
        for (name, expected) in [
            ("scores.txt", ScoresFormat::Text),
            ("scores", ScoresFormat::Text),
            ("a.csv/scores.CSV", ScoresFormat::Csv),
            ("scores.npy", ScoresFormat::Npy),
            ("scores.parquet", ScoresFormat::Parquet),
        ] {
            assert_eq!(ScoresFormat::of(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn columns_are_those_that_there_are() {
        let (score, label, group) = ([0.25, 1e-9], [1.0, 0.5], [7, u64::MAX]);
        let text = |label, group, format| {
            let rows = ScoredRows { score: &score, label, group };
            String::from_utf8(written(rows, format)).unwrap()
        };
        let (csv, plain) = (ScoresFormat::Csv, ScoresFormat::Text);
        let all = "row,score,label,group\n0,0.25,1,7\n1,0.000000001,0.5,18446744073709551615\n";
        assert_eq!(text(&label, &group, csv), all);
        assert_eq!(text(&[], &[], csv), "row,score\n0,0.25\n1,0.000000001\n");
        assert_eq!(text(&label, &group, plain), "0.25\n0.000000001\n");
    }

    /// The head is what NumPy 2 writes for an array of two.
    #[test]
    fn the_array_is_numpys() {
        let rows = ScoredRows { score: &[0.25, 0.5], label: &[], group: &[] };
        let got = written(rows, ScoresFormat::Npy);
        let head =
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        assert!(got.starts_with(head), "{}", got.escape_ascii());
        assert_eq!(got[127], b'\n');
        assert_eq!(got[128..], [0, 0, 0x80, 0x3e, 0, 0, 0, 0x3f]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn parquet_reads_back(rows in 1usize..200_000, has_label: bool, has_group: bool) {
            let score: Vec<f32> = (0..rows).map(|row| 1.0 / (row + 2) as f32).collect();
            let label = if has_label { score.iter().map(|s| 1.0 - s).collect() } else { vec![] };
            let group = if has_group { (0..rows as u64).rev().collect() } else { vec![] };
            let scored = ScoredRows { score: &score, label: &label, group: &group };
            let bytes = written(scored, ScoresFormat::Parquet);
            let reader =
                ParquetRecordBatchReader::try_new(bytes::Bytes::from(bytes), 1000).unwrap();
            let mut row = 0;
            for batch in reader {
                let batch = batch.unwrap();
                let columns = 2 + usize::from(has_label) + usize::from(has_group);
                prop_assert_eq!(batch.num_columns(), columns);
                let range = row..row + batch.num_rows();
                let column = |name| batch.column_by_name(name).unwrap();
                let words = |name| column(name).as_primitive::<UInt64Type>().values().to_vec();
                let floats = |name| column(name).as_primitive::<Float32Type>().values().to_vec();
                let rows: Vec<u64> = range.clone().map(|row| row as u64).collect();
                prop_assert_eq!(words("row"), rows);
                prop_assert_eq!(floats("score"), &score[range.clone()]);
                if has_label {
                    prop_assert_eq!(floats("label"), &label[range.clone()]);
                }
                if has_group {
                    prop_assert_eq!(words("group"), &group[range.clone()]);
                }
                row = range.end;
            }
            prop_assert_eq!(row, rows);
        }
    }
}
