//! The keys of one field, as they stand in the text, before they have ids.

use core::ops::Range;

/// The keys of one field in row order, as they stand in the text.
#[derive(Debug, PartialEq)]
pub(crate) enum Keys {
    /// Keys below 2^32, or [`MISSING`].
    Number(Vec<u64>),
    /// Any text; empty is missing.
    Text(TextKeys),
}

/// The missing key among number keys.
pub(crate) const MISSING: u64 = 1 << 32;

/// Texts one after the other: key i is `bytes[ends[i - 1]..ends[i]]`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TextKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TextKeys {
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// One key of several texts with `separator` between them.
    pub(crate) fn push_joined<'a>(
        &mut self,
        texts: impl Iterator<Item = &'a [u8]>,
        separator: [u8; 1],
    ) {
        for (number, text) in texts.enumerate() {
            if number > 0 {
                self.bytes.extend_from_slice(&separator);
            }
            self.bytes.extend_from_slice(text);
        }
        self.ends.push(self.bytes.len());
    }

    /// The keys number `range`.
    pub(crate) fn iter(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> + Clone {
        let mut start = range.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends[range].iter().map(move |&end| {
            let key = &self.bytes[start..end];
            start = end;
            key
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

impl Keys {
    pub(crate) fn push_number(&mut self, key: u64) {
        if let Self::Number(keys) = self {
            keys.push(key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Number(keys) => keys.len(),
            Self::Text(keys) => keys.len(),
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            Self::Number(keys) => keys.truncate(len),
            Self::Text(keys) => keys.truncate(len),
        }
    }
}
