//! Delimited text (RFC 4180, one record per line) whose columns a schema describes.
//!
//! A line is read alone: so an unclosed quote costs that line and nothing else, and blocks of lines
//! can be read in parallel. The price is that a value cannot hold a line break.

use super::malformed::Malformed;
use super::parsed::{Line, LineFormat, Parsed};
use super::schema_file::{Columns, SchemaFile};
use super::table::{Row, Table, unique_names};
use super::values::{Scratch, Values};

/// A table as delimited text.
pub(crate) struct Csv {
    delimiter: u8,
    quote: bool,
    header: bool,
    table: Table,
}

impl Csv {
    pub(crate) fn new(schema: &SchemaFile, table: Table) -> Self {
        Self { delimiter: schema.delimiter(), quote: schema.quote, header: schema.header, table }
    }

    fn parse_values(
        &self,
        line: &[u8],
        columns: &mut Parsed,
        scratch: &mut Scratch,
    ) -> Result<(), Malformed> {
        let values = Values::split(self.delimiter, self.quote, line, scratch)?;
        let expected = self.table.names().len();
        if values.len() != expected {
            return Err(Malformed::Columns { expected, got: values.len(), hint: "" });
        }
        self.table.push_row(&values, columns)
    }
}

impl LineFormat for Csv {
    fn columns(&self) -> Parsed {
        self.table.columns()
    }

    fn has_header(&self) -> bool {
        self.header
    }

    fn learn(&mut self, moments: &[(f64, f64)]) {
        self.table.learn(moments);
    }

    fn score(&self, columns: &mut Parsed) {
        self.table.score(columns);
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

impl SchemaFile {
    /// Names of all columns: listed, numbered, or those of the line `header`. A header with an open
    /// quote gives one odd name, which the lookup of the schema's columns then shows.
    pub(crate) fn column_names(&self, header: &[u8]) -> Vec<String> {
        let utf8 = |name: &[u8]| String::from_utf8_lossy(name.trim_ascii()).into_owned();
        let names = match &self.columns {
            Some(Columns::Names(names)) => names.clone(),
            Some(Columns::Count(count)) => (1..=*count).map(|i| format!("column{i}")).collect(),
            None => {
                let mut scratch = Scratch::default();
                match Values::split(self.delimiter(), self.quote, header, &mut scratch) {
                    Ok(values) => (0..values.len()).map(|at| utf8(values.at(at))).collect(),
                    Err(_) => vec![utf8(header)],
                }
            }
        };
        unique_names(names)
    }
}
