//! A format with its columns found: what the first lines of the text and the schema tell.

use std::collections::BTreeMap;

use crate::prepare::error::{OptionsError, PrepareError, SchemaError};
use crate::prepare::formats::criteo::{self, Criteo};
use crate::prepare::formats::csv::Csv;
use crate::prepare::formats::features::{FieldRecipe, NumberRecipe};
use crate::prepare::formats::libfm::{self, Libfm};
use crate::prepare::formats::parquet::Parquet;
use crate::prepare::formats::parsed::{LineFormat, RowFormat};
use crate::prepare::formats::schema_file::SchemaFile;
use crate::prepare::formats::table::Table;
use crate::prepare::formats::transform::NumberTransform;
use crate::prepare::keys::spelling::Spelling;
use crate::prepare::options::{DenseTransform, Fields, PrepareOptions};
use crate::prepare::text::blocks::Blocks;
use crate::prepare::text::source::Source;

/// What the passes and the output need to know of the rows.
pub(crate) struct Layout {
    pub(crate) format: RowFormat,
    /// `[D]`
    pub(crate) dense_names: Vec<String>,
    /// `[S]`
    pub(crate) sparse_names: Vec<String>,
    pub(crate) has_label: bool,
    pub(crate) has_weight: bool,
    pub(crate) has_group: bool,
    /// Ids have weights in their bags.
    pub(crate) has_value_weights: bool,
    /// Some field may have more or less than one id in a row.
    pub(crate) is_bag: bool,
    /// Of number keys; `None` for text keys.
    pub(crate) spelling: Option<Spelling>,
    /// Dense features whose mean and deviation are to be counted, in order.
    pub(crate) measured: Vec<String>,
    /// What a label of 1 means.
    pub(super) label: Option<String>,
    /// `[D]`
    pub(super) transforms: Vec<String>,
    pub(super) numbers: BTreeMap<String, NumberRecipe>,
    pub(super) fields: BTreeMap<String, FieldRecipe>,
    /// How the text of a key is made.
    pub(super) keys: String,
}

impl Layout {
    pub(super) fn criteo(options: &PrepareOptions) -> Self {
        let transform = options.dense_transform.unwrap_or(DenseTransform::Log);
        let transformed = NumberTransform::new(transform, NumberRecipe::default());
        let dense_names = criteo::dense_names();
        let has_label = !options.no_label;
        Self {
            format: lines(Criteo { transform: transformed, has_label }),
            transforms: vec![transform.name().into(); dense_names.len()],
            dense_names,
            sparse_names: criteo::sparse_names(),
            has_label,
            has_weight: false,
            measured: Vec::new(),
            numbers: BTreeMap::new(),
            fields: BTreeMap::new(),
            has_group: false,
            has_value_weights: false,
            is_bag: false,
            spelling: Some(Spelling::Hex),
            label: has_label.then(|| "column 1".into()),
            keys: "eight lower-case hex digits; missing is the empty key".into(),
        }
    }

    pub(super) fn libfm(options: &PrepareOptions, inputs: &[Source]) -> Result<Self, PrepareError> {
        let fields = options.fields.unwrap_or(Fields::Positional);
        let first_row = first_line(&inputs[0], libfm::holds_row)?;
        let has_label = !options.no_label;
        let format = Libfm::new(fields, has_label, &first_row);
        if format.sparse_names().is_empty() && !first_row.is_empty() {
            return Err(PrepareError::NoFeatures { path: inputs[0].path.clone() });
        }
        Ok(Self {
            dense_names: Vec::new(),
            sparse_names: format.sparse_names(),
            format: lines(format),
            has_label,
            has_weight: false,
            measured: Vec::new(),
            numbers: BTreeMap::new(),
            fields: BTreeMap::new(),
            has_group: false,
            has_value_weights: false,
            is_bag: fields == Fields::Bag,
            spelling: Some(Spelling::Decimal),
            label: has_label.then(|| "column 1 is 1".into()),
            transforms: Vec::new(),
            keys: format!("ids in decimal, {}", fields.name()),
        })
    }

    pub(super) fn csv(options: &PrepareOptions, inputs: &[Source]) -> Result<Self, PrepareError> {
        let path = options.schema.as_ref().ok_or_else(|| schema_needed(options))?;
        let schema = SchemaFile::read(path)?;
        let wrong = |error| PrepareError::Schema { path: path.clone(), error };
        let read_header = |input: &Source| {
            if schema.header { first_line(input, |_| true) } else { Ok(Vec::new()) }
        };
        let names = schema.column_names(&read_header(&inputs[0])?);
        let table = Table::new(&schema, names, options.dense_transform).map_err(wrong)?;
        for input in &inputs[1..] {
            let names = schema.column_names(&read_header(input)?);
            if names != table.names() {
                return Err(wrong(SchemaError::HeadersDiffer {
                    path: input.path.clone(),
                    expected: table.names().join(", "),
                    got: names.join(", "),
                }));
            }
        }
        let format = lines(Csv::new(&schema, table.clone()));
        Ok(Self::table(&schema, &table, format))
    }

    pub(super) fn parquet(
        options: &PrepareOptions,
        inputs: &[Source],
    ) -> Result<Self, PrepareError> {
        let path = options.schema.as_ref().ok_or_else(|| schema_needed(options))?;
        let schema = SchemaFile::read_without_text(path)?;
        if let Some(pipe) = inputs.iter().find(|input| input.is_pipe()) {
            return Err(PrepareError::ParquetPipe { path: pipe.path.clone() });
        }
        let format = Parquet::new(&schema, path, &options.inputs, options.dense_transform)?;
        let table = format.schema().clone();
        Ok(Self::table(&schema, &table, RowFormat::Columns(format)))
    }

    /// Of rows that a schema describes, whatever they stand in.
    fn table(schema: &SchemaFile, table: &Table, format: RowFormat) -> Self {
        let mut transforms = Vec::new();
        let mut numbers = BTreeMap::new();
        let mut measured = Vec::new();
        for (name, transform) in table.numbers() {
            transforms.push(transform.kind().name().to_owned());
            if transform.recipe().missing_flag {
                transforms.push("1 where missing".into());
            }
            if transform.kind() == DenseTransform::ZScore {
                measured.push(name.to_owned());
            }
            if *transform.recipe() != NumberRecipe::default() {
                numbers.insert(name.to_owned(), *transform.recipe());
            }
        }
        let fields: BTreeMap<_, _> = table
            .fields()
            .filter(|(_, recipe)| **recipe != FieldRecipe::default())
            .map(|(name, recipe)| (name.to_owned(), recipe.clone()))
            .collect();
        let keys = format!(
            "values of the columns, trim = {}; missing (empty or among {:?}) is the empty key",
            schema.trim, schema.missing
        );
        Self {
            dense_names: table.dense_names(),
            sparse_names: table.sparse_names(),
            has_label: table.label().is_some(),
            has_weight: table.has_weight(),
            has_group: table.has_group(),
            has_value_weights: table.has_value_weights(),
            is_bag: table.has_bags(),
            spelling: None,
            measured,
            label: table.label(),
            transforms,
            numbers,
            fields,
            keys,
            format,
        }
    }
}

fn lines(format: impl LineFormat + 'static) -> RowFormat {
    RowFormat::Lines(Box::new(format))
}

fn schema_needed(options: &PrepareOptions) -> OptionsError {
    OptionsError::SchemaNeeded { format: options.format.name() }
}

/// The first line of `source` that is wanted; empty when there is none.
fn first_line(source: &Source, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, PrepareError> {
    for block in Blocks::look_at(source, HEAD_BYTES) {
        for line in block?.bytes.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if wanted(line) {
                return Ok(line.to_vec());
            }
        }
    }
    Ok(Vec::new())
}

/// Read at once when only the first line is wanted.
const HEAD_BYTES: usize = 64 * 1024;
