//! The values of one line of delimited text (RFC 4180, but that a value holds no line break).
//!
//! Quotes are those of the csv crate's automaton, the twin in the tests: a value that begins with a
//! quote goes on to the next single one, `""` inside stands for one, and what follows the closing
//! quote up to the delimiter belongs to the value; elsewhere a quote is a character.

use super::malformed::Malformed;
use super::marks::Marks;
use super::table::Row;

/// Buffers for [`Values`].
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Values whose quotes had to be taken out, one after the other.
    text: Vec<u8>,
    /// Where each value begins and ends: in the line, or beyond its length in `text`.
    spans: Vec<(usize, usize)>,
}

/// The values of one line.
pub(crate) struct Values<'a> {
    line: &'a [u8],
    text: &'a [u8],
    spans: &'a [(usize, usize)],
}

impl<'a> Values<'a> {
    pub(crate) fn split(
        delimiter: u8,
        quote: bool,
        line: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> Result<Self, Malformed> {
        let Scratch { text, spans } = scratch;
        text.clear();
        spans.clear();
        let other = if quote { b'"' } else { delimiter };
        let mut marks = Marks::new(line, [delimiter, other]);
        let mut start = 0;
        loop {
            let end = if quote && line.get(start) == Some(&b'"') {
                quoted_value(delimiter, line, start, &mut marks, text, spans)?
            } else {
                let end = marks.find(|&at| line[at] == delimiter).unwrap_or(line.len());
                spans.push((start, end));
                end
            };
            if end == line.len() {
                break;
            }
            start = end + 1;
        }
        Ok(Self { line, text, spans })
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }
}

impl Row for Values<'_> {
    /// The column must be below [`len`](Values::len).
    #[inline(always)]
    fn at(&self, column: usize) -> &[u8] {
        let (start, end) = self.spans[column];
        match start.checked_sub(self.line.len() + 1) {
            None => &self.line[start..end],
            Some(start) => &self.text[start..end - self.line.len() - 1],
        }
    }

    fn items(&self, _column: usize) -> Option<impl Iterator<Item = &[u8]> + Clone> {
        None::<core::iter::Empty<&[u8]>>
    }
}

/// Reads the value that begins with a quote at `start`, the next of `marks`. Returns where it ends;
/// the delimiter there, if it is not the end of the line, is no longer among the marks.
fn quoted_value(
    delimiter: u8,
    line: &[u8],
    start: usize,
    marks: &mut Marks<'_>,
    text: &mut Vec<u8>,
    spans: &mut Vec<(usize, usize)>,
) -> Result<usize, Malformed> {
    marks.next();
    let next_quote =
        |marks: &mut Marks<'_>| marks.find(|&at| line[at] == b'"').ok_or(Malformed::OpenQuote);
    let inside = start + 1;
    let close = next_quote(marks)?;
    if line.get(close + 1).is_none_or(|next| *next == delimiter) {
        marks.next();
        spans.push((inside, close));
        return Ok(close + 1);
    }
    // A quote inside, or text behind the closing one: the value is put together.
    let own = text.len();
    let mut quote = close;
    text.extend_from_slice(&line[inside..quote]);
    while line.get(quote + 1) == Some(&b'"') {
        marks.next();
        let after = quote + 2;
        quote = next_quote(marks)?;
        text.push(b'"');
        text.extend_from_slice(&line[after..quote]);
    }
    let end = marks.find(|&at| line[at] == delimiter).unwrap_or(line.len());
    text.extend_from_slice(&line[quote + 1..end]);
    let beyond = line.len() + 1;
    spans.push((beyond + own, beyond + text.len()));
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use csv_core::ReadRecordResult;
    use proptest::prelude::*;

    /// The values by the automaton of the csv crate, or `None` where a quote is open at the end.
    fn twin(delimiter: u8, line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut reader = csv_core::ReaderBuilder::new()
            .delimiter(delimiter)
            .terminator(csv_core::Terminator::Any(b'\n'))
            .build();
        // Values without their quotes are no longer than the line, nor are they more than its
        // bytes.
        let (mut text, mut ends) = (vec![0; line.len() + 1], vec![0; line.len() + 2]);
        let (_, _, written, values) = reader.read_record(line, &mut text, &mut ends);
        let (result, _, _, last) =
            reader.read_record(b"\n", &mut text[written..], &mut ends[values..]);
        // The line end closes the record, unless it stands inside quotes.
        let is_whole = result == ReadRecordResult::Record;
        let mut start = 0;
        let values = ends[..values + last].iter().map(|&end| {
            let value = text[start..end].to_vec();
            start = end;
            value
        });
        is_whole.then(|| values.collect())
    }

    fn split(delimiter: u8, line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut scratch = Scratch::default();
        let values = Values::split(delimiter, true, line, &mut scratch).ok()?;
        Some((0..values.len()).map(|column| values.at(column).to_vec()).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn values_are_those_of_the_automaton(line in "[a\",;é \r]{1,14}", semicolon: bool) {
            let delimiter = if semicolon { b';' } else { b',' };
            prop_assert_eq!(split(delimiter, line.as_bytes()), twin(delimiter, line.as_bytes()));
        }
    }
}
