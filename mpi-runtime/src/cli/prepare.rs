//! `umbra prepare`: raw text to an HDF5 dataset.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use umbra_datasets::prepare::{
    DenseTransform, Fields, Format, PrepareError, PrepareOptions, PrepareSummary, Progress, prepare,
};

use super::interrupt::Interrupt;
use super::table::Table;
use crate::error::Error;
use crate::record::progress::{bar, say};

/// Turn raw text (plain, gzip or zstd) or Parquet into an HDF5 dataset: streaming, in bounded memory. Prepare
/// the training file first, and the others with --vocabulary TRAIN.h5 so that ids mean the same.
#[derive(Args, Debug)]
pub(super) struct PrepareArguments {
    /// What the text is
    #[arg(long, value_enum)]
    format: FormatName,
    /// Files to read, in this order
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    input: Vec<PathBuf>,
    /// HDF5 file to write
    #[arg(long, value_name = "FILE.h5")]
    output: PathBuf,
    /// csv, parquet: which column is what
    #[arg(long, value_name = "S.toml")]
    schema: Option<PathBuf>,
    /// Use the ids of a dataset written before; ids it does not know become 0
    #[arg(long, value_name = "FROM.h5")]
    vocabulary: Option<PathBuf>,
    /// Malformed lines to leave out (and count) before giving up
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_bad_rows: u64,
    /// Keys seen fewer than T times in their field share id 0
    #[arg(long, default_value_t = 1, value_name = "T")]
    min_count: u32,
    /// Ids by hashing into H per field: one pass, no vocabulary
    #[arg(long, value_name = "H")]
    hash_size: Option<u32>,
    /// libfm: the n-th id belongs to field n, or all ids are one bag [default: positional]
    #[arg(long, value_enum)]
    fields: Option<FieldsName>,
    /// How numbers become dense features [default: log for criteo, none for csv]
    #[arg(long, value_enum)]
    dense_transform: Option<TransformName>,
    /// Replace an existing output
    #[arg(long)]
    overwrite: bool,
    /// Threads that parse [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    /// Tab separated: label, 13 integers, 26 hexadecimal ids
    Criteo,
    /// `label id:1 id:1 …`, also known as libsvm
    Libfm,
    /// Delimited text with a --schema
    Csv,
    /// Parquet with the same --schema, whose columns are names
    Parquet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FieldsName {
    /// The n-th id of a line belongs to field n
    Positional,
    /// All ids of a line are one bag in one field
    Bag,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransformName {
    /// ln(1 + max(x, 0))
    Log,
    /// The number itself
    None,
}

/// Runs the verb.
pub(super) fn run(arguments: PrepareArguments) -> Result<(), Error> {
    let interrupt = Interrupt::install()?;
    let mut options = options(arguments);
    options.stop = Arc::clone(&interrupt.stop);
    let progress = bar(0, "bytes");
    let mut pass = 0;
    let mut show = |now: Progress| {
        if now.pass != pass {
            pass = now.pass;
            progress.reset();
            progress.set_length(now.bytes_total);
        }
        progress.set_position(now.bytes_read);
        progress.set_message(format!("pass {}/{} {} rows", now.pass, now.passes, now.rows));
    };
    let prepared = prepare(&options, &mut show);
    progress.finish_and_clear();
    match prepared {
        Err(PrepareError::Interrupted) => Err(interrupt.error()),
        prepared => {
            print(&options, &prepared?);
            Ok(())
        }
    }
}

fn options(arguments: PrepareArguments) -> PrepareOptions {
    PrepareOptions {
        format: match arguments.format {
            FormatName::Criteo => Format::Criteo,
            FormatName::Libfm => Format::Libfm,
            FormatName::Csv => Format::Csv,
            FormatName::Parquet => Format::Parquet,
        },
        inputs: arguments.input,
        output: arguments.output,
        schema: arguments.schema,
        vocabulary_from: arguments.vocabulary,
        max_bad_rows: arguments.max_bad_rows,
        min_count: arguments.min_count,
        hash_size: arguments.hash_size,
        fields: arguments.fields.map(|fields| match fields {
            FieldsName::Positional => Fields::Positional,
            FieldsName::Bag => Fields::Bag,
        }),
        dense_transform: arguments.dense_transform.map(|transform| match transform {
            TransformName::Log => DenseTransform::Log,
            TransformName::None => DenseTransform::None,
        }),
        overwrite: arguments.overwrite,
        stop: Arc::default(),
        threads: arguments.threads,
    }
}

fn print(options: &PrepareOptions, summary: &PrepareSummary) {
    for bad in &summary.bad_rows {
        say(&format!("left out: {bad}"));
    }
    let rows = summary.rows_written;
    let mut table = Table::default();
    table.row("file", options.output.display());
    table.row("rows", rows);
    if summary.rows_bad > 0 {
        table.row("malformed rows left out", summary.rows_bad);
    }
    if summary.lines_skipped > 0 {
        table.row("blank and comment lines", summary.lines_skipped);
    }
    table.figure("mean label", (rows > 0).then(|| summary.label_sum / rows as f64));
    table.row("dense features", summary.dense_features);
    table.row("sparse fields", summary.fields.len());
    let megabytes = summary.input_bytes as f64 / 1e6;
    table.row(
        "read",
        format_args!(
            "{megabytes:.1} MB in {:.1} s, {:.0} rows/s",
            summary.seconds,
            rows as f64 / summary.seconds.max(1e-9)
        ),
    );
    for field in &summary.fields {
        let keys = field.keys.map_or_else(String::new, |keys| format!(", {keys} keys seen"));
        let rare = match field.keys_below_threshold {
            Some(rare @ 1..) => format!(", {rare} of them below --min-count"),
            _ => String::new(),
        };
        let unknown = match field.values_out_of_vocabulary {
            0 => String::new(),
            unknown => format!(", {unknown} of {} values unknown", field.values),
        };
        table.row(
            &format!("field {}", field.name),
            format_args!("cardinality {}{keys}{rare}{unknown}", field.cardinality),
        );
    }
    table.print();
}

impl From<PrepareError> for Error {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Options(_)
            | PrepareError::SchemaUnreadable { .. }
            | PrepareError::Schema { .. }
            | PrepareError::Output(_) => Self::Usage(error.to_string()),
            PrepareError::Threads { .. } => Self::Launch(error.to_string()),
            PrepareError::Dataset(error) => error.into(),
            _ => Self::Data(error.to_string()),
        }
    }
}
