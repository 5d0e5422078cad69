//! `umbra prepare`: raw text to an HDF5 dataset.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use umbra_datasets::prepare::{
    DenseTransform, Fields, Format, PrepareError, PrepareOptions, PrepareSummary, Progress, prepare,
};

use super::interrupt::Interrupt;
use super::table::Table;
use super::verbosity::Quiet;
use crate::error::Error;
use crate::record::progress::{bar, say};

/// Turn raw text (plain, gzip or zstd) or Parquet into an HDF5 dataset: streaming, in bounded
/// memory. Prepare the training file first, and the others with --vocabulary TRAIN.h5 so that ids
/// mean the same.
#[derive(Args, Debug)]
pub(super) struct PrepareArguments {
    /// What the text is
    #[arg(long, value_enum)]
    format: FormatName,
    /// What to read, in this order: files, folders (all files in it by name, but hidden ones),
    /// quoted patterns ('day_*.gz'; sorted by name), or - and other pipes
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    input: Vec<PathBuf>,
    /// HDF5 file to write
    #[arg(long, value_name = "FILE.h5")]
    output: PathBuf,
    /// csv, parquet: which column is what, and what is made of it: keys, bags, crosses, numbers
    /// (all settings stand in docs/formats.md, "Preparing data")
    #[arg(long, value_name = "S.toml")]
    schema: Option<PathBuf>,
    /// Use the ids (and means) of a dataset written before; keys it does not know become 0
    #[arg(long, value_name = "FROM.h5")]
    vocabulary: Option<PathBuf>,
    /// Malformed lines to leave out (and count) before giving up
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_bad_rows: u64,
    /// Keys seen fewer than T times in their field share id 0
    #[arg(long, default_value_t = 1, value_name = "T")]
    min_count: u32,
    /// Ids by hashing (XXH3-64) into H per field: no vocabulary
    #[arg(long, value_name = "H")]
    hash_size: Option<u32>,
    /// Of every field keep the N most frequent keys alone
    #[arg(long, value_name = "N")]
    cap: Option<u32>,
    /// Spread unknown keys over the ids below B by their hash; ids of keys begin at B [default: 1]
    #[arg(long, value_name = "B")]
    oov_buckets: Option<u32>,
    /// Seed of the hash (XXH3-64) of keys [default: 0]
    #[arg(long, value_name = "S")]
    salt: Option<u32>,
    /// All ids of --vocabulary stay; keys that it does not know get the next ones, and the output
    /// keeps the longer vocabulary
    #[arg(long, requires = "vocabulary")]
    grow: bool,
    /// criteo and libfm: lines begin without a label (rows to be predicted; a csv's schema has no
    /// label then)
    #[arg(long)]
    no_label: bool,
    /// libfm: the n-th id belongs to field n, or all ids are one bag [default: positional]
    #[arg(long, value_enum)]
    fields: Option<FieldsName>,
    /// How numbers become dense features [default: log for criteo, none for csv]
    #[arg(long, value_enum)]
    dense_transform: Option<TransformName>,
    /// Write files of N rows, OUT-00000.h5, OUT-00001.h5, … for --output OUT.h5; the first keeps
    /// the vocabulary
    #[arg(long, value_name = "N")]
    rows_per_file: Option<u64>,
    /// Replace an existing output
    #[arg(long)]
    overwrite: bool,
    /// Threads that parse [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    quiet: Quiet,
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
    /// csv: (x - mean) / standard deviation, both counted first
    Zscore,
}

/// Runs the verb.
pub(super) fn run(arguments: PrepareArguments) -> Result<(), Error> {
    arguments.quiet.set();
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
        cap: arguments.cap,
        oov_buckets: arguments.oov_buckets,
        salt: arguments.salt,
        grow: arguments.grow,
        no_label: arguments.no_label,
        fields: arguments.fields.map(|fields| match fields {
            FieldsName::Positional => Fields::Positional,
            FieldsName::Bag => Fields::Bag,
        }),
        dense_transform: arguments.dense_transform.map(|transform| match transform {
            TransformName::Log => DenseTransform::Log,
            TransformName::None => DenseTransform::None,
            TransformName::Zscore => DenseTransform::ZScore,
        }),
        rows_per_file: arguments.rows_per_file,
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
    if summary.rows_open > 0 {
        say(&format!(
            "{} of the lines left out end inside quotes: if values hold line breaks, what follows \
             them was read as rows of its own: take the line breaks out, or with stray quotes \
             set quote = false",
            summary.rows_open
        ));
    }
    if summary.lines_skipped > 0 {
        table.row("blank and comment lines", summary.lines_skipped);
    }
    table.figure("mean label", summary.label_sum.map(|sum| sum / rows.max(1) as f64));
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
        let rare = match field.keys_left_out {
            Some(rare @ 1..) => format!(", {rare} of them not kept (min_count, cap)"),
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
            error if error.is_usage() => Self::Usage(error.to_string()),
            PrepareError::Threads { .. } => Self::Launch(error.to_string()),
            PrepareError::Dataset(error) => error.into(),
            _ => Self::Data(error.to_string()),
        }
    }
}
