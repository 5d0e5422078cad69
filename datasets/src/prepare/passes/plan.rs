//! What a run will do, settled before any row is read: the format with its columns, their names,
//! and the recipe that the output keeps so that other splits can be encoded alike.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use core::sync::atomic::{AtomicBool, AtomicU64};

use serde::{Deserialize, Serialize};

use crate::output::{self, OutputError};
use crate::prepare::error::{OptionsError, PrepareError, SchemaError};
use crate::prepare::formats::criteo::{self, Criteo};
use crate::prepare::formats::csv::Csv;
use crate::prepare::formats::libfm::{self, Libfm};
use crate::prepare::formats::parquet::Parquet;
use crate::prepare::formats::parsed::{Block, LineFormat, RowFormat};
use crate::prepare::formats::schema_file::SchemaFile;
use crate::prepare::formats::transform::NumberTransform;
use crate::prepare::keys::vocabulary::Spelling;
use crate::prepare::options::{DenseTransform, Fields, Format, PrepareOptions};
use crate::prepare::text::blocks::Blocks;
use crate::prepare::text::input;

/// Everything the passes need to know.
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) recipe: Recipe,
    pub(crate) inputs: Vec<PathBuf>,
    /// With links resolved.
    pub(crate) output: PathBuf,
    pub(crate) input_bytes: u64,
    pub(crate) max_bad_rows: u64,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) block_bytes: usize,
}

/// A format with its columns found.
pub(crate) struct Layout {
    pub(crate) format: RowFormat,
    /// Reads labels and keys alone, where that is less work.
    pub(crate) key_format: Option<RowFormat>,
    pub(crate) dense_names: Vec<String>,
    pub(crate) sparse_names: Vec<String>,
    pub(crate) has_weight: bool,
    pub(crate) has_group: bool,
    pub(crate) is_bag: bool,
    /// Of number keys; `None` for text keys.
    pub(crate) spelling: Option<Spelling>,
    /// What a label of 1 means.
    label: String,
    /// `[D]`
    transforms: Vec<DenseTransform>,
    /// How the text of a key is made.
    keys: String,
}

/// How raw text became features; stored as TOML in the attribute `transform` of the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub(crate) format: String,
    /// What a label of 1 means.
    pub(crate) label: String,
    /// The transform of each dense feature. `[D]`
    pub(crate) dense: Vec<String>,
    /// How the text of a key is made.
    pub(crate) keys: String,
    /// How a key becomes an id.
    pub(crate) ids: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash_size: Option<u32>,
}

impl Plan {
    /// Checks the options, the output and the inputs, and looks at the first lines of the text.
    pub(crate) fn new(options: &PrepareOptions, block_bytes: usize) -> Result<Self, PrepareError> {
        check_options(options)?;
        let output = check_output(options)?;
        let mut input_bytes = 0;
        for path in &options.inputs {
            let bytes = input::disk_bytes(path)?;
            if bytes == 0 {
                return Err(PrepareError::EmptyInput { path: path.clone() });
            }
            input_bytes += bytes;
        }
        let layout = match options.format {
            Format::Criteo => Layout::criteo(options),
            Format::Libfm => Layout::libfm(options)?,
            Format::Csv => Layout::csv(options)?,
            Format::Parquet => Layout::parquet(options)?,
        };
        Ok(Self {
            recipe: Recipe::new(options, &layout),
            layout,
            inputs: options.inputs.clone(),
            output,
            input_bytes,
            max_bad_rows: options.max_bad_rows,
            stop: Arc::clone(&options.stop),
            block_bytes,
        })
    }
}

impl Plan {
    /// The rows of all inputs in order. Bytes taken from disk are added to `bytes_read`.
    pub(crate) fn blocks(
        &self,
        bytes_read: Arc<AtomicU64>,
    ) -> Box<dyn Iterator<Item = Result<Block, PrepareError>> + Send> {
        let inputs = self.inputs.clone();
        match &self.layout.format {
            RowFormat::Lines(_) => {
                let blocks = Blocks::new(inputs, self.block_bytes, bytes_read);
                Box::new(blocks.map(|block| block.map(Block::Text)))
            }
            RowFormat::Columns(format) => {
                let rows = (self.block_bytes / BYTES_PER_ROW).max(1);
                Box::new(format.tables(inputs, rows, bytes_read))
            }
        }
    }
}

impl Layout {
    fn criteo(options: &PrepareOptions) -> Self {
        let transform = options.dense_transform.unwrap_or(DenseTransform::Log);
        let dense_names = criteo::dense_names();
        Self {
            format: lines(Criteo { transform: Some(NumberTransform::new(transform)) }),
            key_format: Some(lines(Criteo { transform: None })),
            transforms: vec![transform; dense_names.len()],
            dense_names,
            sparse_names: criteo::sparse_names(),
            has_weight: false,
            has_group: false,
            is_bag: false,
            spelling: Some(Spelling::Hex),
            label: "column 1".into(),
            keys: "eight lower-case hex digits; missing is the empty key".into(),
        }
    }

    fn libfm(options: &PrepareOptions) -> Result<Self, PrepareError> {
        let fields = options.fields.unwrap_or(Fields::Positional);
        let first_row = first_line(&options.inputs[0], libfm::holds_row)?;
        let format = Libfm::new(fields, &first_row);
        Ok(Self {
            dense_names: Vec::new(),
            sparse_names: format.sparse_names(),
            format: lines(format),
            key_format: None,
            has_weight: false,
            has_group: false,
            is_bag: fields == Fields::Bag,
            spelling: Some(Spelling::Decimal),
            label: "column 1 is 1".into(),
            transforms: Vec::new(),
            keys: format!("ids in decimal, {}", fields.name()),
        })
    }

    fn csv(options: &PrepareOptions) -> Result<Self, PrepareError> {
        let path = options.schema.as_ref().ok_or_else(|| schema_needed(options))?;
        let schema = SchemaFile::read(path)?;
        let wrong = |error| PrepareError::Schema { path: path.clone(), error };
        let read_header = |input: &Path| {
            if schema.header { first_line(input, |_| true) } else { Ok(Vec::new()) }
        };
        let names = schema.column_names(&read_header(&options.inputs[0])?);
        let format = Csv::new(&schema, names, options.dense_transform).map_err(wrong)?;
        for input in &options.inputs[1..] {
            let names = schema.column_names(&read_header(input)?);
            if names != format.names() {
                return Err(wrong(SchemaError::HeadersDiffer {
                    path: input.clone(),
                    expected: format.names().join(", "),
                    got: names.join(", "),
                }));
            }
        }
        let layout = of_schema(&schema, &format);
        Ok(layout(lines(format)))
    }

    fn parquet(options: &PrepareOptions) -> Result<Self, PrepareError> {
        let path = options.schema.as_ref().ok_or_else(|| schema_needed(options))?;
        let schema = SchemaFile::read_without_text(path)?;
        let format = Parquet::new(&schema, path, &options.inputs, options.dense_transform)?;
        let layout = of_schema(&schema, format.csv());
        Ok(layout(RowFormat::Columns(format)))
    }
}

/// All of a layout that follows from a schema, waiting for the format.
fn of_schema(schema: &SchemaFile, csv: &Csv) -> impl FnOnce(RowFormat) -> Layout + use<> {
    let dense_names = csv.dense_names();
    let sparse_names = csv.sparse_names();
    let (has_weight, has_group, is_bag) = (csv.has_weight(), csv.has_group(), csv.is_bag());
    let label = csv.label_rule();
    let transforms = csv.dense_transforms().collect();
    let keys = format!(
        "values of the columns, trim = {}; missing (empty or among {:?}) is the empty key",
        schema.trim, schema.missing
    );
    move |format| Layout {
        format,
        key_format: None,
        dense_names,
        sparse_names,
        has_weight,
        has_group,
        is_bag,
        spelling: None,
        label,
        transforms,
        keys,
    }
}

impl Recipe {
    fn new(options: &PrepareOptions, layout: &Layout) -> Self {
        let hashed = options.hash_size.is_some();
        Self {
            format: options.format.recipe_name().into(),
            label: layout.label.clone(),
            dense: layout.transforms.iter().map(|transform| transform.name().into()).collect(),
            keys: layout.keys.clone(),
            ids: if hashed { HASHED_IDS } else { VOCABULARY_IDS }.into(),
            min_count: (!hashed).then_some(options.min_count),
            hash_size: options.hash_size,
        }
    }

    /// The recipe as TOML.
    pub(crate) fn to_text(&self) -> String {
        // Strings, numbers and a list of strings always have a TOML form.
        toml::to_string(self).unwrap_or_default()
    }

    /// The first part in which two recipes differ that must not: its name, and both values.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let dense = |recipe: &Self| recipe.dense.join(", ");
        [
            ("format", self.format.clone(), other.format.clone()),
            ("label", self.label.clone(), other.label.clone()),
            ("transform of dense features", dense(self), dense(other)),
            ("keys", self.keys.clone(), other.keys.clone()),
        ]
        .into_iter()
        .find(|(_, ours, theirs)| ours != theirs)
    }
}

fn lines(format: impl LineFormat + 'static) -> RowFormat {
    RowFormat::Lines(Box::new(format))
}

fn schema_needed(options: &PrepareOptions) -> OptionsError {
    OptionsError::SchemaNeeded { format: options.format.name() }
}

fn check_options(options: &PrepareOptions) -> Result<(), OptionsError> {
    let format = options.format.name();
    if options.inputs.is_empty() {
        return Err(OptionsError::NoInput);
    }
    if options.schema.is_some() && !options.format.has_schema() {
        return Err(OptionsError::SchemaUnused { format });
    }
    if options.fields.is_some() && options.format != Format::Libfm {
        return Err(OptionsError::FieldsUnused { format });
    }
    if options.dense_transform.is_some() && options.format == Format::Libfm {
        return Err(OptionsError::TransformUnused);
    }
    if options.min_count == 0 {
        return Err(OptionsError::MinCount);
    }
    if options.hash_size == Some(0) {
        return Err(OptionsError::HashSize);
    }
    if options.hash_size.is_some() && options.vocabulary_from.is_some() {
        return Err(OptionsError::TwoSourcesOfIds);
    }
    if options.min_count > 1 && options.hash_size.is_some() {
        return Err(OptionsError::MinCountUnused { other: "--hash-size" });
    }
    if options.min_count > 1 && options.vocabulary_from.is_some() {
        return Err(OptionsError::MinCountUnused { other: "--vocabulary" });
    }
    if options.threads == Some(0) {
        return Err(OptionsError::Threads);
    }
    Ok(())
}

/// The output can be written, and harms nothing that is there. Where it goes.
fn check_output(options: &PrepareOptions) -> Result<PathBuf, OutputError> {
    let read = options.inputs.iter().chain(&options.vocabulary_from).chain(&options.schema);
    output::check(&options.output, read.map(PathBuf::as_path), options.overwrite)
}

/// The first line of `path` that is wanted; empty when there is none.
fn first_line(path: &Path, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, PrepareError> {
    let ignored = Arc::new(AtomicU64::new(0));
    for block in Blocks::new(vec![path.to_path_buf()], HEAD_BYTES, ignored) {
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

/// Blocks of columns have as many rows as so long ones would fill: 8192 of those of 4 MiB.
const BYTES_PER_ROW: usize = 512;

const VOCABULARY_IDS: &str =
    "key number i of /vocabulary/<field> (from 0) has id i + 1; every other key has id 0";
const HASHED_IDS: &str = "FNV-1a 64 of the key, finalised as in SplitMix64, modulo hash_size";
