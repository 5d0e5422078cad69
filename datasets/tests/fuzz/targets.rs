//! What is fuzzed: every format of text, in memory; schemas; and whole runs of `prepare`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use umbra_datasets::prepare::fuzz::{Target, schema};
use umbra_datasets::prepare::{Fields, Format, PrepareOptions, prepare};
use umbra_datasets::{read_vocabulary, verify};

use crate::mutate::Dice;

/// Reads a text, and says whether it was any good.
pub(crate) type Read = Box<dyn FnMut(&[u8], &mut Dice) -> Result<bool, String>>;

/// Something to fuzz.
pub(crate) struct Fuzzed {
    pub(crate) good: Vec<Vec<u8>>,
    pub(crate) read: Read,
}

/// By what names they go.
pub(crate) const NAMES: [&str; 6] = ["criteo", "libfm", "csv", "schema", "parquet", "prepare"];

/// What is called `name`; files go to `folder`, which is its own.
pub(crate) fn named(name: &str, folder: &Path) -> Fuzzed {
    fs::create_dir_all(folder).unwrap();
    match name {
        "criteo" => {
            lines(folder, &[options(folder, Format::Criteo, &criteo(6), None)], &[criteo(6)])
        }
        "libfm" => {
            let fields = [Fields::Positional, Fields::Bag];
            let options = fields.map(|fields| PrepareOptions {
                fields: Some(fields),
                ..options(folder, Format::Libfm, &libfm(6), None)
            });
            lines(folder, &options, &[libfm(6)])
        }
        "csv" => {
            let options: Vec<_> =
                SCHEMAS.iter().map(|s| options(folder, Format::Csv, &csv(6), Some(s))).collect();
            lines(folder, &options, &[csv(6)])
        }
        "schema" => Fuzzed {
            good: SCHEMAS.iter().map(|text| text.as_bytes().to_vec()).collect(),
            read: Box::new(|text, dice| {
                let header = if dice.below(8) == 0 { text } else { HEADER.as_bytes() };
                Ok(schema(&String::from_utf8_lossy(text), header))
            }),
        },
        "parquet" => parquet(folder),
        _ => whole(folder),
    }
}

/// Lines in memory, under each of `all` in turn.
fn lines(folder: &Path, all: &[PrepareOptions], good: &[String]) -> Fuzzed {
    let open = |options| Target::new(options).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
    let mut targets: Vec<Target> = all.iter().map(open).collect();
    Fuzzed {
        good: good.iter().map(|text| text.clone().into_bytes()).collect(),
        read: Box::new(move |text, dice| {
            let target = dice.below(targets.len());
            targets[target].read(text, dice.below(16) == 0).map(|rows| rows > 0)
        }),
    }
}

/// Runs of `prepare` from file to file: packed or not, counted, stored or hashed, then verified.
fn whole(folder: &Path) -> Fuzzed {
    let folder = folder.to_owned();
    let kinds = [
        (Format::Criteo, criteo(6), None),
        (Format::Libfm, libfm(6), None),
        (Format::Csv, csv(6), Some(SCHEMAS[0])),
    ];
    // The first byte says what the rest is.
    let tagged = |(kind, (_, text, _)): (u8, &(_, String, _))| [&[kind], text.as_bytes()].concat();
    let good = (0..).zip(&kinds).map(tagged).collect();
    let trains: Vec<PathBuf> = kinds
        .iter()
        .map(|(format, text, schema)| {
            let options = options(&folder, *format, text, *schema);
            prepare(&options, &mut |_| ()).unwrap();
            options.output
        })
        .collect();
    let read = move |text: &[u8], dice: &mut Dice| {
        let (kind, text) = text.split_first().unwrap_or((&0, text));
        let kind = usize::from(*kind) % kinds.len();
        let (format, good, schema) = &kinds[kind];
        let mut options = options(&folder, *format, good, *schema);
        let input = folder.join("mutant");
        fs::write(&input, pack(text, dice)).unwrap();
        options.inputs =
            if dice.below(4) == 0 { vec![options.inputs.remove(0), input] } else { vec![input] };
        options.output = folder.join("out.h5");
        options.max_bad_rows = [0, 1, 1000][dice.below(3)];
        match dice.below(4) {
            0 => options.hash_size = Some(1 + dice.below(1000) as u32),
            1 => options.vocabulary_from = Some(trains[kind].clone()),
            _ => options.min_count = 1 + dice.below(2) as u32,
        }
        let prepared = prepare(&options, &mut |_| ());
        let summary = match prepared {
            Ok(summary) => summary,
            Err(error) => {
                let left = options.output.exists();
                let said = !error.to_string().is_empty();
                return if said && !left { Ok(false) } else { Err(format!("after {error}")) };
            }
        };
        let written = verify(&options.output).map_err(|error| error.to_string());
        let counted = options.hash_size.is_none() && options.vocabulary_from.is_none();
        let list = read_vocabulary(&options.output, 0).map_err(|error| error.to_string());
        fs::remove_file(&options.output).unwrap();
        let written = written?;
        if written.rows != summary.rows_written || list?.is_some() != counted {
            return Err(format!("{written:?} of {summary:?}"));
        }
        Ok(true)
    };
    Fuzzed { good, read: Box::new(read) }
}

/// Runs of `prepare` on Parquet, in one pass.
fn parquet(folder: &Path) -> Fuzzed {
    let kinds = [(Compression::UNCOMPRESSED, false), (Compression::SNAPPY, true)];
    let good = kinds.map(|(compression, dictionary)| parquet_file(compression, dictionary));
    let folder = folder.to_owned();
    let mut options = options(&folder, Format::Parquet, "", Some(PARQUET_SCHEMA));
    options.hash_size = Some(100);
    let read = move |file: &[u8], dice: &mut Dice| {
        fs::write(&options.inputs[0], file).unwrap();
        options.max_bad_rows = [0, 1000][dice.below(2)];
        let summary = match prepare(&options, &mut |_| ()) {
            Ok(summary) => summary,
            Err(error) => {
                let left = options.output.exists();
                // A column that lost its name is missed by the schema.
                let says = [&options.inputs[0], &folder.join("schema.toml")];
                let said = error.to_string();
                let named = says.iter().any(|path| said.contains(&path.display().to_string()));
                return if named && !left { Ok(false) } else { Err(format!("after {error}")) };
            }
        };
        let written = verify(&options.output).map_err(|error| error.to_string());
        fs::remove_file(&options.output).unwrap();
        let rows = written?.rows;
        if rows == summary.rows_written { Ok(true) } else { Err(format!("{rows} of {summary:?}")) }
    };
    Fuzzed { good: good.to_vec(), read: Box::new(read) }
}

/// Twenty rows of text with gaps, numbers and lists, in two row groups.
fn parquet_file(compression: Compression, dictionary: bool) -> Vec<u8> {
    let rows = 0..20u32;
    let label: Float32Array = rows.clone().map(|row| Some((row % 2) as f32)).collect();
    let price: Int64Array = rows.clone().map(|row| (row % 3 > 0).then_some(row.into())).collect();
    let item: StringArray =
        rows.clone().map(|row| (row % 5 > 0).then(|| format!("item {}", row % 7))).collect();
    let mut tags = ListBuilder::new(StringBuilder::new());
    for row in rows {
        (0..row % 3).for_each(|tag| tags.values().append_value(format!("tag{tag}")));
        tags.append(row % 4 > 0);
    }
    let columns: [(&str, ArrayRef); 4] = [
        ("label", Arc::new(label)),
        ("price", Arc::new(price)),
        ("item", Arc::new(item)),
        ("tags", Arc::new(tags.finish())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(dictionary)
        .set_max_row_group_row_count(Some(12))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

const PARQUET_SCHEMA: &str =
    "label = \"label\"\ndense = [\"price\"]\nsparse = [\"item\", \"tags\"]\n";

/// The text as it is, or packed, and then sometimes damaged.
fn pack(text: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut packed = match dice.below(8) {
        0 => {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
        1 => zstd::encode_all(text, 1).unwrap(),
        _ => return text.to_vec(),
    };
    if dice.below(2) == 0 && !packed.is_empty() {
        let at = dice.below(packed.len());
        packed[at] ^= 1 << dice.below(8);
    }
    packed
}

fn options(folder: &Path, format: Format, text: &str, schema: Option<&str>) -> PrepareOptions {
    let input = folder.join(format.name());
    fs::write(&input, text).unwrap();
    let output = folder.join(format!("{}.h5", format.name()));
    let mut options = PrepareOptions::new(format, vec![input], output);
    options.schema = schema.map(|text| {
        let path = folder.join("schema.toml");
        fs::write(&path, text).unwrap();
        path
    });
    options.threads = Some(1);
    options.overwrite = true;
    options
}

fn criteo(rows: usize) -> String {
    (0..rows)
        .map(|row| {
            let mut line = (row % 2).to_string();
            for column in 0..13 {
                line.push('\t');
                if (row + column) % 5 > 0 {
                    line.push_str(&(row * column * 317).to_string());
                }
            }
            for column in 0..26 {
                line.push('\t');
                if (row + column) % 7 > 0 {
                    line.push_str(&format!("{:08x}", (row % 3 + 1) * (column + 1) * 0x0123_4567));
                }
            }
            line + "\n"
        })
        .collect()
}

fn libfm(rows: usize) -> String {
    let row = |row: usize| format!("{} {}:1 {}:1 {}:1\n", row % 2, row, 100 + row % 3, 4_000_000);
    (0..rows).map(row).collect()
}

/// Columns of all schemas but the last.
const HEADER: &str = "user,day,clicked,price,age,item,shop,importance";

fn csv(rows: usize) -> String {
    let row = |row: usize| {
        format!(
            "u{row},{},{},{}.5,{},\"it,em \"\"{row}\"\"\",s{},{row}\n",
            row % 2,
            row % 2,
            row * 3,
            row + 18,
            row % 3
        )
    };
    format!("{HEADER}\n{}", (0..rows).map(row).collect::<String>())
}

/// Every key of a schema is in one of them.
const SCHEMAS: [&str; 6] = [
    "label = \"clicked\"\ndense = [{ column = \"price\", transform = \"log\" }, \"age\"]\n\
     sparse = [\"item\", \"shop\"]\nweight = \"importance\"\ngroup = [\"user\", \"day\"]\n\
     missing = [\"NA\", \"?\"]\n",
    "delimiter = \",\"\nquote = true\ntrim = true\nheader = false\ncolumns = 8\nlabel = 3\n\
     label_positive = [\"1\"]\nlabel_negative = [\"0\", \"clicked\"]\ndense = [5]\n\
     sparse = [6, 7]\n",
    "quote = false\nlabel = \"age\"\nlabel_at_least = 20.5\nsparse = [\"user\"]\n\
     dense_transform = \"log\"\ndense = [\"price\"]\ngroup = [\"shop\"]\n",
    "header = false\ncolumns = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"]\n\
     label = \"c\"\nlabel_positive = [\"1\"]\nsparse = [\"a\", \"f\"]\n",
    "dense = [{ column = \"price\", transform = \"zscore\", clip = [0, 1e5], fill = 1.5,\n\
     missing_flag = true }]\nsparse = [{ column = \"item\", separator = \" \", max_length = 2,\n\
     keep = \"last\", weight_separator = \":\" }, { column = \"age\", buckets = [18, 30, 50] }]\n\
     cross = [[\"user\", \"shop\"]]\n",
    "label = \"clicked\"\n\
     sparse = [{ column = \"user\", min_count = 2, cap = 3, oov_buckets = 10 },\n\
     { column = \"shop\", hash_size = 64, hashes = 2, salt = 7 }]\n\
     cross = [{ columns = [\"user\", \"day\"], hash_size = 100 }]\n",
];
