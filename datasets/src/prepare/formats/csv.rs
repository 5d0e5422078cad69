//! Delimited text (RFC 4180, one record per line) whose columns a schema describes.
//!
//! A line without a quote is split at its delimiters. A line with one goes through the automaton of
//! the csv crate, alone: so an unclosed quote costs that line and nothing else, and blocks of lines
//! can be read in parallel. The price is that a value cannot hold a line break.
//!
//! Missing values: an empty value, or one of the schema's. A missing number is 0 before its
//! transform, a missing category is the key `""`, a missing label or weight is malformed.

use std::cell::RefCell;

use csv_core::ReadRecordResult;

use super::malformed::{Malformed, Quoted};
use super::parsed::{Line, LineFormat, Parsed, Scratch};
use super::schema_file::{Column, Columns, Dense, SchemaFile};
use super::transform::{MISSING_NUMBER, NumberTransform};
use crate::prepare::error::SchemaError;
use crate::prepare::keys::hash::hash_key;
use crate::prepare::keys::key_column::{Keys, TextKeys};
use crate::prepare::options::DenseTransform;

/// A schema whose columns have been found.
pub(crate) struct Csv {
    delimiter: u8,
    quote: bool,
    trim: bool,
    header: bool,
    missing: Vec<Vec<u8>>,
    /// Names of all columns of the text.
    names: Vec<String>,
    label: usize,
    label_rule: LabelRule,
    dense: Vec<(usize, NumberTransform)>,
    sparse: Vec<usize>,
    weight: Option<usize>,
    group: Vec<usize>,
    /// Columns that one of the above names. `[names]`
    used: Vec<bool>,
    /// Columns that hold lists, which lines never do. `[names]`
    lists: Vec<bool>,
}

/// The values of one row, by the number of their column.
pub(crate) trait Row {
    /// The text of a value.
    fn at(&self, column: usize) -> &[u8];

    /// The items of a list; `None` of a column without lists.
    fn items(&self, column: usize) -> Option<impl Iterator<Item = &[u8]>>;
}

/// How a value becomes a label.
enum LabelRule {
    /// Listed values are 1; others 0, or malformed when the zeros are listed too.
    OneOf { positive: Vec<String>, negative: Option<Vec<String>> },
    /// Numbers from this on are 1.
    AtLeast(f64),
    /// The number itself, from 0 to 1.
    Number,
}

impl Csv {
    /// Looks up the columns of `schema` among `names`, which are all there are; `dense_transform`
    /// overrides the schema's default.
    pub(crate) fn new(
        schema: &SchemaFile,
        names: Vec<String>,
        dense_transform: Option<DenseTransform>,
    ) -> Result<Self, SchemaError> {
        let used = RefCell::new(vec![false; names.len()]);
        let find = |key: &'static str, column: &Column| {
            let found = match column {
                Column::Name(name) => names.iter().position(|known| known == name),
                Column::Number(number) => number.checked_sub(1).filter(|at| *at < names.len()),
            };
            let found = found.ok_or_else(|| SchemaError::NoColumn {
                key,
                column: column.to_string(),
                known: names.join(", "),
            })?;
            used.borrow_mut()[found] = true;
            Ok(found)
        };
        let find_all = |key, columns: &[Column]| {
            columns.iter().map(|column| find(key, column)).collect::<Result<Vec<_>, _>>()
        };
        let default = dense_transform.or(schema.dense_transform).unwrap_or(DenseTransform::None);
        let mut dense = Vec::new();
        for feature in &schema.dense {
            let (column, transform) = match feature {
                Dense::Plain(column) => (column, default),
                Dense::Own(own) => (&own.column, own.transform),
            };
            dense.push((find("dense", column)?, NumberTransform::new(transform)));
        }
        let csv = Self {
            delimiter: schema.delimiter(),
            quote: schema.quote,
            trim: schema.trim,
            header: schema.header,
            missing: schema.missing.iter().map(|marker| marker.clone().into_bytes()).collect(),
            label: find("label", &schema.label)?,
            label_rule: LabelRule::new(schema),
            dense,
            sparse: find_all("sparse", &schema.sparse)?,
            weight: schema.weight.as_ref().map(|column| find("weight", column)).transpose()?,
            group: find_all("group", &schema.group)?,
            used: used.into_inner(),
            lists: vec![false; names.len()],
            names,
        };
        csv.check_uses()?;
        Ok(csv)
    }

    /// No two columns share a name, and none has two uses, but that a group may also be a feature.
    fn check_uses(&self) -> Result<(), SchemaError> {
        for (at, name) in self.names.iter().enumerate() {
            if self.names[..at].contains(name) {
                return Err(SchemaError::SameName { name: name.clone() });
            }
        }
        let mut uses = vec![None; self.names.len()];
        let dense = self.dense.iter().map(|(column, _)| (*column, "a dense feature"));
        let sparse = self.sparse.iter().map(|column| (*column, "a sparse field"));
        let label = [(self.label, "the label")].into_iter();
        for (column, second) in label.chain(dense).chain(sparse) {
            if let Some(first) = uses[column].replace(second) {
                let name = self.names[column].clone();
                return Err(SchemaError::UsedTwice { name, first, second });
            }
        }
        Ok(())
    }

    /// All column names of a header line.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Numbers and names of the columns that are read.
    pub(crate) fn used(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.names.iter().map(String::as_str).enumerate();
        all.filter(|(column, _)| self.used[*column])
    }

    /// Sparse fields among the columns that hold lists are bags from now on.
    pub(crate) fn set_lists(&mut self, holds_lists: impl Fn(&str) -> bool) {
        for &column in &self.sparse {
            let is_group = self.group.contains(&column) || self.weight == Some(column);
            self.lists[column] = !is_group && holds_lists(&self.names[column]);
        }
    }

    /// True of a column whose lists are bags.
    pub(crate) fn is_list(&self, column: usize) -> bool {
        self.lists[column]
    }

    /// True if a row can have any number of keys in a field.
    pub(crate) fn is_bag(&self) -> bool {
        self.lists.contains(&true)
    }

    /// Empty columns of this schema's shape.
    pub(crate) fn empty_columns(&self) -> Parsed {
        let ends = |column: &usize| self.lists[*column].then(Vec::new);
        Parsed {
            dense_features: self.dense.len(),
            keys: self.sparse.iter().map(|_| Keys::Text(TextKeys::default())).collect(),
            bag_ends: self.sparse.iter().map(ends).collect(),
            ..Parsed::default()
        }
    }

    pub(crate) fn dense_names(&self) -> Vec<String> {
        self.dense.iter().map(|(column, _)| self.names[*column].clone()).collect()
    }

    pub(crate) fn sparse_names(&self) -> Vec<String> {
        self.sparse.iter().map(|column| self.names[*column].clone()).collect()
    }

    /// The transform of each dense feature.
    pub(crate) fn dense_transforms(&self) -> impl Iterator<Item = DenseTransform> {
        self.dense.iter().map(|(_, transform)| transform.kind())
    }

    pub(crate) fn has_weight(&self) -> bool {
        self.weight.is_some()
    }

    pub(crate) fn has_group(&self) -> bool {
        !self.group.is_empty()
    }

    /// The label's column and rule, for people.
    pub(crate) fn label_rule(&self) -> String {
        let name = &self.names[self.label];
        match &self.label_rule {
            LabelRule::OneOf { positive, .. } => format!("{name} is one of {positive:?}"),
            LabelRule::AtLeast(bound) => format!("{name} is at least {bound}"),
            LabelRule::Number => name.clone(),
        }
    }

    fn parse_values(
        &self,
        line: &[u8],
        columns: &mut Parsed,
        scratch: &mut Scratch,
    ) -> Result<(), Malformed> {
        let values = Values::split(self.delimiter, self.quote, line, scratch)?;
        let got = values.ends.len();
        if got != self.names.len() {
            return Err(Malformed::Columns { expected: self.names.len(), got, hint: "" });
        }
        self.parse_row(&values, columns)
    }

    /// Appends a row whose values are apart. After an error the columns may hold part of it.
    pub(crate) fn parse_row(
        &self,
        values: &impl Row,
        columns: &mut Parsed,
    ) -> Result<(), Malformed> {
        let value = |column: usize| self.clean(values.at(column));
        columns.label.push(self.label_rule.label(value(self.label))?);
        if let Some(column) = self.weight {
            columns.weight.push(self.weight(column, value(column))?);
        }
        for (column, transform) in &self.dense {
            let text = value(*column);
            let feature = if text.is_empty() {
                MISSING_NUMBER
            } else {
                let feature = number(text).map(|x| transform.float(x)).filter(|x| x.is_finite());
                feature.ok_or_else(|| Malformed::Number {
                    name: self.names[*column].clone(),
                    or_missing: " or a missing value",
                    got: Quoted::new(text),
                })?
            };
            columns.dense.push(feature);
        }
        let fields = columns.keys.iter_mut().zip(&mut columns.bag_ends);
        for ((keys, ends), column) in fields.zip(&self.sparse) {
            match (ends, values.items(*column)) {
                (Some(ends), Some(items)) => {
                    items.for_each(|item| keys.push_text(self.clean(item)));
                    ends.push(keys.len());
                }
                _ => keys.push_text(value(*column)),
            }
        }
        match self.group[..] {
            [] => {}
            [column] => columns.group.push(hash_key(value(column))),
            _ => {
                let texts: Vec<&[u8]> = self.group.iter().map(|column| value(*column)).collect();
                columns.group.push(hash_key(&texts.join(&GROUP_SEPARATOR[..])));
            }
        }
        Ok(())
    }

    /// The value without blanks where they are trimmed; empty where it is missing.
    fn clean<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let text = if self.trim { text.trim_ascii() } else { text };
        if self.missing.iter().any(|marker| marker == text) { b"" } else { text }
    }

    fn weight(&self, column: usize, text: &[u8]) -> Result<f32, Malformed> {
        #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
        let weight = number(text).map(|x| x as f32);
        weight.filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(|| Malformed::Weight {
            name: self.names[column].clone(),
            got: Quoted::new(text),
        })
    }
}

impl LineFormat for Csv {
    fn columns(&self) -> Parsed {
        self.empty_columns()
    }

    fn has_header(&self) -> bool {
        self.header
    }

    fn parse_line(&self, line: &[u8], columns: &mut Parsed) -> Result<Line, Malformed> {
        if line.trim_ascii().is_empty() {
            return Ok(Line::Skipped);
        }
        let mut scratch = core::mem::take(&mut columns.scratch);
        let result = self.parse_values(line, columns, &mut scratch);
        columns.scratch = scratch;
        result.map(|()| Line::Row)
    }
}

impl LabelRule {
    fn new(schema: &SchemaFile) -> Self {
        match (&schema.label_positive, schema.label_at_least) {
            (Some(positive), _) => {
                Self::OneOf { positive: positive.clone(), negative: schema.label_negative.clone() }
            }
            (None, Some(bound)) => Self::AtLeast(bound),
            (None, None) => Self::Number,
        }
    }

    fn label(&self, text: &[u8]) -> Result<f32, Malformed> {
        let among = |list: &[String]| list.iter().any(|one| one.as_bytes() == text);
        let label = match self {
            Self::OneOf { positive, .. } if among(positive) => Some(1.0),
            Self::OneOf { negative: Some(negative), .. } => among(negative).then_some(0.0),
            Self::OneOf { negative: None, .. } => (!text.is_empty()).then_some(0.0),
            Self::AtLeast(bound) => number(text).map(|x| f32::from(u8::from(x >= *bound))),
            #[expect(clippy::cast_possible_truncation, reason = "labels are f32")]
            Self::Number => number(text).filter(|x| (0.0..=1.0).contains(x)).map(|x| x as f32),
        };
        label.ok_or_else(|| Malformed::Label { expected: self.expected(), got: Quoted::new(text) })
    }

    fn expected(&self) -> String {
        match self {
            Self::OneOf { positive, negative: Some(negative) } => {
                format!("one of {positive:?} or {negative:?}")
            }
            Self::OneOf { negative: None, .. } => "a value".into(),
            Self::AtLeast(_) => "a number".into(),
            Self::Number => "a number from 0 to 1".into(),
        }
    }
}

/// The values of one line.
struct Values<'a> {
    text: &'a [u8],
    ends: &'a [usize],
    /// Bytes between a value and the next: 1 in a line, 0 once quotes are taken off.
    gap: usize,
}

impl<'a> Values<'a> {
    fn split(
        delimiter: u8,
        quote: bool,
        line: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> Result<Self, Malformed> {
        let Scratch { text, ends } = scratch;
        if quote && memchr::memchr(b'"', line).is_some() {
            unquote(delimiter, line, text, ends)?;
            return Ok(Self { text, ends, gap: 0 });
        }
        ends.clear();
        ends.extend(memchr::memchr_iter(delimiter, line));
        ends.push(line.len());
        Ok(Self { text: line, ends, gap: 1 })
    }
}

impl Row for Values<'_> {
    fn at(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] + self.gap };
        &self.text[start..self.ends[column]]
    }

    fn items(&self, _column: usize) -> Option<impl Iterator<Item = &[u8]>> {
        None::<core::iter::Empty<&[u8]>>
    }
}

/// Splits a line that has quotes into `text` and `ends`.
fn unquote(
    delimiter: u8,
    line: &[u8],
    text: &mut Vec<u8>,
    ends: &mut Vec<usize>,
) -> Result<(), Malformed> {
    let mut reader = csv_core::ReaderBuilder::new()
        .delimiter(delimiter)
        .terminator(csv_core::Terminator::Any(b'\n'))
        .build();
    // Values without their quotes are no longer than the line, nor are they more than its bytes.
    text.resize(line.len() + 1, 0);
    ends.resize(line.len() + 2, 0);
    let (_, _, written, values) = reader.read_record(line, text, ends);
    let (result, _, written_last, values_last) =
        reader.read_record(b"\n", &mut text[written..], &mut ends[values..]);
    text.truncate(written + written_last);
    ends.truncate(values + values_last);
    // The line end closes the record, unless it stands inside quotes.
    if result == ReadRecordResult::Record { Ok(()) } else { Err(Malformed::OpenQuote) }
}

/// A finite number; a truth value, as Python writes it, is 1 or 0.
fn number(text: &[u8]) -> Option<f64> {
    match text {
        b"True" => return Some(1.0),
        b"False" => return Some(0.0),
        _ => {}
    }
    core::str::from_utf8(text).ok()?.parse::<f64>().ok().filter(|x| x.is_finite())
}

impl SchemaFile {
    /// Names of all columns: listed, numbered, or those of the line `header`. A header with an open
    /// quote gives one odd name, which the lookup of the schema's columns then shows.
    pub(crate) fn column_names(&self, header: &[u8]) -> Vec<String> {
        let utf8 = |name: &[u8]| String::from_utf8_lossy(name.trim_ascii()).into_owned();
        match &self.columns {
            Some(Columns::Names(names)) => names.clone(),
            Some(Columns::Count(count)) => (1..=*count).map(|i| format!("column{i}")).collect(),
            None => {
                let mut scratch = Scratch::default();
                match Values::split(self.delimiter(), self.quote, header, &mut scratch) {
                    Ok(values) => (0..values.ends.len()).map(|at| utf8(values.at(at))).collect(),
                    Err(_) => vec![utf8(header)],
                }
            }
        }
    }
}

/// Between the values of a group of several columns: the ASCII unit separator.
const GROUP_SEPARATOR: [u8; 1] = [0x1f];
