//! The rows of one block of text, before their keys have ids, and the loop that turns lines into them.
//!
//! Shapes: `label` [n] · `weight` [n] or empty · `group` [n] or empty · `dense` [n, D] row-major ·
//! `keys` one column per field, [n] each, or for a bag one column of all values with `bag_ends` [n].
//! Invariant: a malformed line leaves no trace in the columns.

use core::ops::Range;

use super::blocks::Block;
use super::malformed::Malformed;

/// What a line turned out to be.
pub(super) enum Line {
    Row,
    /// Blank, or only a comment.
    Skipped,
}

/// One raw text format: knows how to read a line, and nothing of files or ids.
pub(super) trait LineFormat: Send + Sync {
    /// Empty columns of this format's shape.
    fn columns(&self) -> Parsed;

    /// True if the first line of every file is a header.
    fn has_header(&self) -> bool {
        false
    }

    /// Appends the row of `line` (without its line end) to the columns. After an error the columns
    /// may hold part of it.
    fn parse_line(&self, line: &[u8], columns: &mut Parsed) -> Result<Line, Malformed>;
}

/// The keys of one field in row order, as they stand in the text.
#[derive(Debug, PartialEq)]
pub(super) enum Keys {
    /// Keys below 2^32, or [`MISSING`].
    Number(Vec<u64>),
    /// Any text; empty is missing.
    Text(TextKeys),
}

/// The missing key among number keys.
pub(super) const MISSING: u64 = 1 << 32;

/// Texts one after the other: key i is `bytes[ends[i - 1]..ends[i]]`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TextKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TextKeys {
    pub(super) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// The keys number `range`.
    pub(super) fn iter(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let mut start = range.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends[range].iter().map(move |&end| {
            let key = &self.bytes[start..end];
            start = end;
            key
        })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

impl Keys {
    pub(super) fn push_number(&mut self, key: u64) {
        if let Self::Number(keys) = self {
            keys.push(key);
        }
    }

    pub(super) fn push_text(&mut self, key: &[u8]) {
        if let Self::Text(keys) = self {
            keys.push(key);
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Number(keys) => keys.len(),
            Self::Text(keys) => keys.len(),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Self::Number(keys) => keys.truncate(len),
            Self::Text(keys) => keys.truncate(len),
        }
    }
}

/// A malformed line of a block.
#[derive(Debug, PartialEq)]
pub(super) struct BadLine {
    /// From 0, within the block.
    pub(super) line: u64,
    /// Where it stands in the block, without its line end. Its defect is found again when it is to
    /// be shown.
    pub(super) span: Range<usize>,
}

/// Columns of the rows of one block. Reused from block to block.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) label: Vec<f32>,
    pub(super) weight: Vec<f32>,
    pub(super) group: Vec<u64>,
    pub(super) dense: Vec<f32>,
    pub(super) keys: Vec<Keys>,
    /// Number of values of rows 0..=i; `None` when every field has one value per row.
    pub(super) bag_ends: Option<Vec<usize>>,
    /// D.
    pub(super) dense_features: usize,
    /// Rows complete so far, n.
    pub(super) rows: usize,
    /// Lines of the block.
    pub(super) lines: u64,
    pub(super) skipped: u64,
    pub(super) bad: Vec<BadLine>,
    /// Lent to the format while it reads a line.
    pub(super) scratch: Scratch,
}

/// Buffers of a format that has to find all values of a line before it can use them.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Values without their quotes.
    pub(super) text: Vec<u8>,
    /// Where each value ends: in the line, or in `text`.
    pub(super) ends: Vec<usize>,
}

impl Parsed {
    /// Replaces the contents with the rows of `block`.
    pub(super) fn parse(&mut self, format: &dyn LineFormat, block: &Block) {
        self.clear();
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
            Err(_) => {
                self.truncate_to_rows();
                self.bad.push(BadLine { line: self.lines, span });
            }
        }
    }

    fn truncate_to_rows(&mut self) {
        let rows = self.rows;
        self.label.truncate(rows);
        self.weight.truncate(rows);
        self.group.truncate(rows);
        self.dense.truncate(rows * self.dense_features);
        let values = match &mut self.bag_ends {
            Some(ends) => {
                ends.truncate(rows);
                ends.last().copied().unwrap_or(0)
            }
            None => rows,
        };
        for keys in &mut self.keys {
            keys.truncate(values);
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows = 0;
        self.lines = 0;
        self.skipped = 0;
        self.bad.clear();
        self.truncate_to_rows();
    }
}
