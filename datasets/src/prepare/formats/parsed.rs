//! The rows of one block of text, before their keys have ids, and the loop that turns lines into
//! them.
//!
//! Shapes: `label` [n] or empty · `weight` [n] or empty · `group` [n] or empty · `dense` [n, D]
//! row-major · `keys` one column per field: [n], or where `bag_ends` of the field are [n] as well,
//! all values of its bags · `bag_weights` as `keys`, of fields whose keys have weights.
//!
//! Invariant: a malformed line leaves no trace in the columns.

use core::ops::Range;

use super::kept::KeptBlock;
use super::malformed::Malformed;
use super::parquet::{Parquet, Table};
use super::values::Scratch;
use crate::prepare::keys::key_column::Keys;
use crate::prepare::text::blocks::TextBlock;

/// What a line turned out to be.
pub(crate) enum Line {
    Row,
    /// Blank, or only a comment.
    Skipped,
}

/// One raw text format: knows how to read a line, and nothing of files or ids.
pub(crate) trait LineFormat: Send + Sync {
    /// Empty columns of this format's shape.
    fn columns(&self) -> Parsed;

    /// True if the first line of every file is a header.
    fn has_header(&self) -> bool {
        false
    }

    /// Sets mean and deviation of every number that was measured while rows were read.
    fn learn(&mut self, _moments: &[(f64, f64)]) {}

    /// Makes the z-scores of rows that were read before [`learn`](Self::learn).
    fn score(&self, _columns: &mut Parsed) {}

    /// Appends the row of `line` (without its line end) to the columns. After an error the columns
    /// may hold part of it.
    fn parse_line(&self, line: &[u8], columns: &mut Parsed) -> Result<Line, Malformed>;
}

/// A raw format: of lines, or of columns.
pub(crate) enum RowFormat {
    Lines(Box<dyn LineFormat>),
    Columns(Parquet),
}

/// Rows of one file, as they were read, or as they were kept after that.
pub(crate) enum Block {
    Text(TextBlock),
    Table(Table),
    Kept(KeptBlock),
}

impl RowFormat {
    /// Empty columns of this format's shape.
    pub(crate) fn columns(&self) -> Parsed {
        match self {
            Self::Lines(format) => format.columns(),
            Self::Columns(format) => format.columns(),
        }
    }

    /// Makes the z-scores of rows that were read before [`learn`](Self::learn).
    pub(crate) fn score(&self, columns: &mut Parsed) {
        match self {
            Self::Lines(format) => format.score(columns),
            Self::Columns(format) => format.schema().score(columns),
        }
    }

    /// Sets mean and deviation of every number that was measured while rows were read.
    pub(crate) fn learn(&mut self, moments: &[(f64, f64)]) {
        match self {
            Self::Lines(format) => format.learn(moments),
            Self::Columns(format) => format.learn(moments),
        }
    }

    /// What is wrong with a row of `block` that was found malformed.
    pub(crate) fn defect(&self, block: &Block, bad: &BadLine) -> String {
        let mut columns = self.columns();
        let again = match (self, block) {
            (Self::Lines(format), Block::Text(text)) => {
                format.parse_line(&text.bytes[bad.span.clone()], &mut columns).map(drop)
            }
            (Self::Columns(format), Block::Table(table)) => {
                format.parse_row(&format.texts(table), bad.span.start, &mut columns)
            }
            _ => Ok(()),
        };
        // Reading a row depends on nothing but the row.
        again.err().map_or_else(|| "malformed".into(), |malformed| malformed.to_string())
    }
}

impl Block {
    /// Which of the inputs.
    pub(crate) fn file(&self) -> usize {
        match self {
            Self::Text(text) => text.file,
            Self::Table(table) => table.file,
            Self::Kept(_) => 0,
        }
    }

    /// The buffer that it was read into, where there is one.
    pub(crate) fn into_buffer(self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.bytes),
            Self::Kept(kept) => Some(kept.bytes),
            Self::Table(_) => None,
        }
    }

    /// The first row of this block is the first of the file.
    pub(crate) fn starts_file(&self) -> bool {
        match self {
            Self::Text(text) => text.starts_file,
            Self::Table(table) => table.starts_file,
            Self::Kept(_) => false,
        }
    }
}

/// A malformed line of a block.
#[derive(Debug, PartialEq)]
pub(crate) struct BadLine {
    /// From 0, within the block.
    pub(crate) line: u64,
    /// Where it stands in the block: its text without its line end, or its row. Its defect is
    /// found again when it is to be shown.
    pub(crate) span: Range<usize>,
    /// What follows may be the rest of its last value.
    pub(crate) ends_in_quotes: bool,
}

/// Columns of the rows of one block. Reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) label: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) group: Vec<u64>,
    pub(crate) dense: Vec<f32>,
    pub(crate) keys: Vec<Keys>,
    /// Of each field the number of values of rows 0..=i; `None` for one value per row. `[S]`
    pub(crate) bag_ends: Vec<Option<Vec<usize>>>,
    /// Of each field the weights of its values; `None` where they have none. `[S]`, or `[0]` of a
    /// format without any
    pub(crate) bag_weights: Vec<Option<Vec<f32>>>,
    /// Numbers whose mean and deviation are wanted, NaN where they are missing. `[n]` each
    pub(crate) measured: Vec<Vec<f64>>,
    /// D.
    pub(crate) dense_features: usize,
    /// Rows complete so far, n.
    pub(crate) rows: usize,
    /// Lines of the block.
    pub(crate) lines: u64,
    pub(crate) skipped: u64,
    pub(crate) bad: Vec<BadLine>,
    /// Lent to the format while it reads a line.
    pub(crate) scratch: Scratch,
}

impl Parsed {
    /// Replaces the contents with the rows of `block`.
    pub(crate) fn parse(&mut self, format: &RowFormat, block: &Block) {
        self.clear();
        match (format, block) {
            (RowFormat::Lines(format), Block::Text(text)) => self.lines(format.as_ref(), text),
            (RowFormat::Columns(format), Block::Table(table)) => self.table(format, table),
            (format, Block::Kept(kept)) => {
                kept.restore(self);
                format.score(self);
            }
            // A format reads the blocks that it has made.
            _ => {}
        }
    }

    fn table(&mut self, format: &Parquet, table: &Table) {
        let texts = format.texts(table);
        for row in 0..table.rows() {
            if format.parse_row(&texts, row, self).is_ok() {
                self.rows += 1;
            } else {
                self.truncate_to_rows();
                let (line, span) = (row as u64, row..row + 1);
                self.bad.push(BadLine { line, span, ends_in_quotes: false });
            }
        }
        self.lines = table.rows() as u64;
    }

    fn lines(&mut self, format: &dyn LineFormat, block: &TextBlock) {
        let bytes = &block.bytes;
        let mut start = 0;
        while start < bytes.len() {
            let end = memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |at| start + at);
            let text_end = end - usize::from(end > start && bytes[end - 1] == b'\r');
            let is_header = self.lines == 0 && block.starts_file && format.has_header();
            if !is_header {
                self.line(format, bytes, start..text_end);
            }
            self.lines += 1;
            start = end + 1;
        }
    }

    fn line(&mut self, format: &dyn LineFormat, bytes: &[u8], span: Range<usize>) {
        match format.parse_line(&bytes[span.clone()], self) {
            Ok(Line::Row) => self.rows += 1,
            Ok(Line::Skipped) => self.skipped += 1,
            Err(malformed) => {
                self.truncate_to_rows();
                let ends_in_quotes = malformed == Malformed::OpenQuote;
                self.bad.push(BadLine { line: self.lines, span, ends_in_quotes });
            }
        }
    }

    /// Keys of a field.
    pub(crate) fn values(&self, field: usize) -> usize {
        match &self.bag_ends[field] {
            Some(ends) => ends.last().copied().unwrap_or(0),
            None => self.rows,
        }
    }

    fn truncate_to_rows(&mut self) {
        let rows = self.rows;
        self.label.truncate(rows);
        self.weight.truncate(rows);
        self.group.truncate(rows);
        self.dense.truncate(rows * self.dense_features);
        self.measured.iter_mut().for_each(|numbers| numbers.truncate(rows));
        self.bag_ends.iter_mut().flatten().for_each(|ends| ends.truncate(rows));
        for field in 0..self.keys.len() {
            let values = self.values(field);
            self.keys[field].truncate(values);
            let weights = self.bag_weights.get_mut(field).and_then(Option::as_mut);
            weights.into_iter().for_each(|weights| weights.truncate(values));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.lines = 0;
        self.skipped = 0;
        self.bad.clear();
        self.truncate_to_rows();
    }
}
