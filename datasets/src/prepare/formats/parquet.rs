//! Parquet files: the schema of a csv, on columns that have names and types of their own.
//!
//! A row is read as a csv of the same values would be ([`parquet_text`](super::parquet_text) says
//! what their text is), so both give the same dataset. Columns of lists are bags.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use core::sync::atomic::AtomicU64;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};

use super::malformed::Malformed;
use super::parquet_file::{Batches, ParquetFile};
use super::parquet_text::{TextColumn, refusal};
use super::parsed::{Block, Parsed};
use super::schema_file::SchemaFile;
use super::table::{self, Row};
use crate::prepare::error::{PrepareError, SchemaError};
use crate::prepare::options::DenseTransform;

/// A schema whose columns have been found.
pub(crate) struct Parquet {
    schema: table::Table,
}

/// Rows of a file: the columns that the schema names, in the order of the file.
pub(crate) struct Table {
    /// Which of the inputs.
    pub(crate) file: usize,
    /// The first row is the first of the file.
    pub(crate) starts_file: bool,
    batch: RecordBatch,
}

impl Table {
    pub(crate) fn rows(&self) -> usize {
        self.batch.num_rows()
    }
}

impl Parquet {
    /// Looks up the columns of `schema` in the first input, and that the others have them too.
    ///
    /// # Errors
    /// A column that is missing or of a type that is not read, and every way an input can be no
    /// Parquet file. `schema_path` is for messages.
    pub(crate) fn new(
        schema: &SchemaFile,
        schema_path: &Path,
        inputs: &[PathBuf],
        dense_transform: Option<DenseTransform>,
    ) -> Result<Self, PrepareError> {
        let wrong = |error| PrepareError::Schema { path: schema_path.to_path_buf(), error };
        let ignored = Arc::new(AtomicU64::new(0));
        let first = ParquetFile::open(&inputs[0], &ignored)?;
        let names = first.schema().fields().iter().map(|field| field.name().clone()).collect();
        let mut schema = table::Table::new(schema, names, dense_transform).map_err(wrong)?;
        schema.set_lists(|name| first.schema().field_with_name(name).is_ok_and(is_list));
        let format = Self { schema };
        format.check_types(first.schema(), &inputs[0]).map_err(wrong)?;
        for input in &inputs[1..] {
            let file = ParquetFile::open(input, &ignored)?;
            format.check_types(file.schema(), input).map_err(wrong)?;
        }
        Ok(format)
    }

    /// The schema.
    pub(crate) fn schema(&self) -> &table::Table {
        &self.schema
    }

    /// Sets mean and deviation of every number that was measured while rows were read.
    pub(crate) fn learn(&mut self, moments: &[(f64, f64)]) {
        self.schema.learn(moments);
    }

    fn check_types(&self, file: &Schema, path: &Path) -> Result<(), SchemaError> {
        for (column, name) in self.schema.used() {
            let field = file.field_with_name(name).map_err(|_| SchemaError::NoColumnInFile {
                path: path.to_path_buf(),
                column: name.into(),
            })?;
            let list = self.schema.is_list(column);
            let cure = if is_list(field) && !list {
                Some("only a sparse field may be a list, and in all files or in none")
            } else if list && !is_list(field) {
                Some("it is a list in the first file: make it one in all files or in none")
            } else {
                refusal(field.data_type())
            };
            if let Some(cure) = cure {
                return Err(SchemaError::ColumnType {
                    path: path.to_path_buf(),
                    column: name.into(),
                    kind: field.data_type().to_string(),
                    cure,
                });
            }
        }
        Ok(())
    }

    /// Empty columns of the schema's shape.
    pub(crate) fn columns(&self) -> Parsed {
        self.schema.columns()
    }

    /// The texts of all columns that are used; by the number of the column.
    pub(crate) fn texts(&self, table: &Table) -> Vec<TextColumn> {
        let mut texts = Vec::new();
        texts.resize_with(self.schema.names().len(), TextColumn::default);
        for (column, name) in self.schema.used() {
            if let Some(array) = table.batch.column_by_name(name) {
                texts[column] = TextColumn::new(array);
            }
        }
        texts
    }

    /// Appends row number `row` to `columns`. After an error they may hold part of it.
    pub(crate) fn parse_row(
        &self,
        texts: &[TextColumn],
        row: usize,
        columns: &mut Parsed,
    ) -> Result<(), Malformed> {
        self.schema.push_row(&TableRow { texts, row }, columns)
    }

    /// The rows of all inputs in order, `rows_at_once` in a block.
    pub(crate) fn tables(
        &self,
        inputs: Vec<PathBuf>,
        rows_at_once: usize,
        bytes_read: Arc<AtomicU64>,
    ) -> Tables {
        Tables {
            inputs,
            columns: self.schema.used().map(|(_, name)| name.to_owned()).collect(),
            rows_at_once,
            bytes_read,
            file: 0,
            batches: None,
            failed: false,
        }
    }
}

fn is_list(field: &arrow_schema::Field) -> bool {
    matches!(field.data_type(), DataType::List(_))
}

/// A row of a table as the schema sees it.
struct TableRow<'a> {
    texts: &'a [TextColumn],
    row: usize,
}

impl Row for TableRow<'_> {
    fn at(&self, column: usize) -> &[u8] {
        self.texts[column].at(self.row)
    }

    fn items(&self, column: usize) -> Option<impl Iterator<Item = &[u8]> + Clone> {
        self.texts[column].items(self.row)
    }
}

/// The rows of all inputs in order; one file is open at a time. After an error the iterator ends.
pub(crate) struct Tables {
    inputs: Vec<PathBuf>,
    columns: Vec<String>,
    rows_at_once: usize,
    bytes_read: Arc<AtomicU64>,
    file: usize,
    batches: Option<Batches>,
    failed: bool,
}

impl Tables {
    /// The next rows, `None` after the last file.
    fn advance(&mut self) -> Result<Option<Block>, PrepareError> {
        while let Some(path) = self.inputs.get(self.file) {
            let starts_file = self.batches.is_none();
            let mut batches = match self.batches.take() {
                Some(batches) => batches,
                None => {
                    let file = ParquetFile::open(path, &self.bytes_read)?;
                    let place = |name: &String| file.schema().index_of(name);
                    let columns: Result<Vec<_>, _> = self.columns.iter().map(place).collect();
                    // Looked up before; only a file that is another by now has lost one.
                    let columns = columns.map_err(|error| PrepareError::Parquet {
                        path: path.clone(),
                        reason: error.to_string(),
                    })?;
                    file.batches(&columns, self.rows_at_once)?
                }
            };
            let Some(batch) = batches.next().transpose()? else {
                self.file += 1;
                continue;
            };
            self.batches = Some(batches);
            return Ok(Some(Block::Table(Table { file: self.file, starts_file, batch })));
        }
        Ok(None)
    }
}

impl Iterator for Tables {
    type Item = Result<Block, PrepareError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let block = self.advance();
        self.failed = block.is_err();
        block.transpose()
    }
}
