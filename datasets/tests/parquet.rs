//! Parquet in: the same rows from csv and from Parquet make the same dataset; types and files that
//! are not read are refused by name; damaged files end with a message.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder, StringDictionaryBuilder};
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array,
    Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray, UInt8Array,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;
use umbra_datasets::prepare::{Format, PrepareError, PrepareOptions, PrepareSummary, prepare};
use umbra_datasets::{Dataset, read_vocabulary};

const SCHEMA: &str = r#"
label = "click"
dense = ["price", { column = "count", transform = "log" }, "share"]
sparse = ["site", "device", "hour", "rating", "mobile"]
weight = "weight"
group = ["user"]
missing = ["?"]
"#;

/// Some rows with everything that a column can be: the batch, and the same as a csv.
fn rows(first: usize, rows: usize) -> (RecordBatch, String) {
    let mut columns: Vec<(&str, ArrayRef)> = Vec::new();
    let all = || first..first + rows;
    let some = |i: usize, every: usize| i % every != 3;
    let click: BooleanArray = all().map(|i| Some(i % 3 == 0)).collect();
    let price: Float64Array = all().map(|i| some(i, 7).then(|| i as f64 / 8.0 - 3.1)).collect();
    let count: Int32Array = all().map(|i| some(i, 5).then_some(i as i32 - 4)).collect();
    let share: Float32Array = all().map(|i| some(i, 9).then_some(0.1 * i as f32)).collect();
    let site: LargeStringArray =
        all().map(|i| some(i, 11).then(|| format!("s,\"{}é", i * i % 23))).collect();
    let mut device = StringDictionaryBuilder::<Int8Type>::new();
    all().for_each(|i| device.append_option(some(i, 6).then(|| ["?", "tv", ""][i % 3])));
    let device = device.finish();
    let hour: UInt8Array = all().map(|i| some(i, 8).then_some((i % 24) as u8)).collect();
    let rating: Float32Array =
        all().map(|i| some(i, 10).then(|| [0.5, 3.0, 1e-7, 2e20][i % 4])).collect();
    let mobile: BooleanArray = all().map(|i| some(i, 4).then_some(i % 2 == 0)).collect();
    let weight: Float32Array = all().map(|i| Some(1.0 + (i % 5) as f32 * 0.3)).collect();
    let user: Int64Array = all().map(|i| some(i, 12).then_some(i as i64 * 7 - (1 << 40))).collect();
    let text = |value: Option<String>| match value {
        Some(text) if text.contains(['"', ',']) => format!("\"{}\"", text.replace('"', "\"\"")),
        other => other.unwrap_or_default(),
    };
    let truth = |x: bool| if x { "True" } else { "False" }.to_owned();
    let mut csv =
        String::from("click,price,count,share,site,device,hour,rating,mobile,weight,user,unused\n");
    let devices = device.downcast_dict::<StringArray>().unwrap();
    for at in 0..rows {
        macro_rules! get {
            ($array:expr) => {
                $array.is_valid(at).then(|| $array.value(at))
            };
        }
        let rating = get!(rating).map(|x| match x {
            1e-7 => "1e-07".to_owned(),
            2e20 => "2e+20".to_owned(),
            x => format!("{x:?}"),
        });
        let device = device.is_valid(at).then(|| {
            let key = device.keys().value(at) as usize;
            devices.values().value(key).to_owned()
        });
        let values = [
            get!(click).map(truth),
            get!(price).map(|x| format!("{x:?}")),
            get!(count).map(|x| x.to_string()),
            get!(share).map(|x| format!("{x:?}")),
            get!(site).map(ToOwned::to_owned),
            device,
            get!(hour).map(|x| x.to_string()),
            rating,
            get!(mobile).map(truth),
            get!(weight).map(|x| format!("{x:?}")),
            get!(user).map(|x| x.to_string()),
            None,
        ];
        csv += &(values.map(text).join(",") + "\n");
    }
    let unused: Decimal128Array = (0..rows).map(|i| Some(i as i128)).collect();
    columns.push(("click", Arc::new(click)));
    columns.push(("price", Arc::new(price)));
    columns.push(("count", Arc::new(count)));
    columns.push(("unused", Arc::new(unused)));
    columns.push(("share", Arc::new(share)));
    columns.push(("site", Arc::new(site)));
    columns.push(("device", Arc::new(device)));
    columns.push(("hour", Arc::new(hour)));
    columns.push(("rating", Arc::new(rating)));
    columns.push(("mobile", Arc::new(mobile)));
    columns.push(("weight", Arc::new(weight)));
    columns.push(("user", Arc::new(user)));
    (
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
            .unwrap(),
        csv,
    )
}

fn write(path: &Path, batch: &RecordBatch, compression: Compression, rows_per_group: usize) {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(rows_per_group))
        .set_data_page_size_limit(300)
        .set_write_batch_size(16)
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self, format: Format, schema: &str, inputs: &[&str], out: &str) -> PrepareOptions {
        let path = self.path("schema.toml");
        fs::write(&path, schema).unwrap();
        let inputs = inputs.iter().map(|name| self.path(name)).collect();
        let options = PrepareOptions::new(format, inputs, self.path(out));
        PrepareOptions { schema: Some(path), overwrite: true, ..options }
    }

    fn run(
        &self,
        format: Format,
        schema: &str,
        inputs: &[&str],
        out: &str,
    ) -> Result<PrepareSummary, PrepareError> {
        prepare(&self.options(format, schema, inputs, out), &mut |_| ())
    }

    /// What a column of this type makes of a schema that has it in a sparse field.
    fn refusal(&self, array: ArrayRef) -> String {
        let click: Int64Array = (0..array.len()).map(|_| Some(1)).collect();
        let columns: [(&str, ArrayRef); 2] = [("click", Arc::new(click)), ("x", array)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        write(&self.path("x.parquet"), &batch, Compression::UNCOMPRESSED, 1000);
        let schema = "label = 'click'\nsparse = ['x']";
        self.run(Format::Parquet, schema, &["x.parquet"], "x.h5").unwrap_err().to_string()
    }
}

fn fingerprint(path: &Path) -> String {
    Dataset::open(&[path.to_path_buf()]).unwrap().fingerprint().to_owned()
}

fn same(a: &Path, b: &Path) {
    let [first, second] = [a, b].map(|path| Dataset::open(&[path.to_path_buf()]).unwrap());
    assert_eq!(first.fingerprint(), second.fingerprint());
    assert_eq!(first.cardinality(), second.cardinality());
    assert_eq!(first.transform(), second.transform());
    for field in 0..first.cardinality().len() {
        assert_eq!(read_vocabulary(a, field).unwrap(), read_vocabulary(b, field).unwrap());
    }
}

#[test]
fn the_same_rows_from_csv_and_parquet_are_the_same_dataset() {
    let folder = Folder::new();
    let (batch, csv) = rows(0, 500);
    fs::write(folder.path("a.csv"), csv).unwrap();
    let summary = folder.run(Format::Csv, SCHEMA, &["a.csv"], "csv.h5").unwrap();
    assert_eq!(summary.rows_written, 500);
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(GzipLevel::default());
    for (rows_per_group, compression) in [
        (1000, Compression::UNCOMPRESSED),
        (1000, Compression::SNAPPY),
        (37, zstd),
        (100, gzip),
        (100, Compression::LZ4_RAW),
    ] {
        write(&folder.path("a.parquet"), &batch, compression, rows_per_group);
        let got = folder.run(Format::Parquet, SCHEMA, &["a.parquet"], "parquet.h5").unwrap();
        assert_eq!(got.label_sum, summary.label_sum);
        same(&folder.path("csv.h5"), &folder.path("parquet.h5"));
    }
    // In two files, one of them without rows beside, and with the ids of the csv.
    write(&folder.path("b.parquet"), &batch.slice(0, 123), zstd, 50);
    write(&folder.path("c.parquet"), &batch.slice(123, 0), zstd, 50);
    write(&folder.path("d.parquet"), &batch.slice(123, 377), zstd, 50);
    let inputs = ["b.parquet", "c.parquet", "d.parquet"];
    folder.run(Format::Parquet, SCHEMA, &inputs, "parquet.h5").unwrap();
    same(&folder.path("csv.h5"), &folder.path("parquet.h5"));
    let options = PrepareOptions {
        vocabulary_from: Some(folder.path("csv.h5")),
        ..folder.options(Format::Parquet, SCHEMA, &inputs, "ids.h5")
    };
    let summary = prepare(&options, &mut |_| ()).unwrap();
    assert!(summary.fields.iter().all(|field| field.values_out_of_vocabulary == 0));
    assert_eq!(fingerprint(&folder.path("ids.h5")), fingerprint(&folder.path("csv.h5")));
}

#[test]
fn lists_are_bags() {
    let folder = Folder::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("a"), Some("b"), None]);
    tags.append_null();
    tags.append_value([Some("b"); 0]);
    tags.append_value([Some("b")]);
    let ids = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(-7), Some(10)]),
        Some(vec![Some(10)]),
        None,
        Some(vec![]),
    ]);
    let columns: [(&str, ArrayRef); 4] = [
        ("y", Arc::new(Float64Array::from(vec![0.0, 1.0, 1.0, 0.5]))),
        ("tags", Arc::new(tags.finish())),
        ("ids", Arc::new(ids)),
        ("site", Arc::new(StringArray::from(vec!["x", "x", "y", "x"]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write(&folder.path("a.parquet"), &batch, Compression::SNAPPY, 3);
    let schema = "label = 'y'\nsparse = ['ids', 'site', 'tags']";
    let summary = folder.run(Format::Parquet, schema, &["a.parquet"], "a.h5").unwrap();
    let values: Vec<u64> = summary.fields.iter().map(|field| field.values).collect();
    assert_eq!(values, [3, 4, 3]);
    let file = hdf5::File::open(folder.path("a.h5")).unwrap();
    let offsets: Vec<u64> = file.dataset("sparse_offsets").unwrap().read_raw().unwrap();
    assert_eq!(offsets, [0, 2, 3, 5, 6, 7, 7, 7, 8, 8, 8, 9, 10]);
    let ids: Vec<u32> = file.dataset("sparse_values").unwrap().read_raw().unwrap();
    // ids: 10 twice, -7 once; site: x, y; tags: b twice, a once; a missing item is left out.
    assert_eq!(ids, [2, 1, 1, 2, 1, 1, 1, 2, 1, 1]);
    drop(file);
    let wrong = folder.run(Format::Parquet, "label = 'y'\ndense = ['ids']", &["a.parquet"], "b.h5");
    let message = wrong.unwrap_err().to_string();
    assert!(message.contains("only a sparse field may be a list"), "{message}");
}

#[test]
fn items_of_a_list_have_weights_as_those_of_a_text() {
    let folder = Folder::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("a:0.5"), Some("b"), None]);
    tags.append_null();
    tags.append_value([Some("b:2")]);
    let columns: [(&str, ArrayRef); 2] = [
        ("y", Arc::new(Float64Array::from(vec![0.0, 1.0, 1.0]))),
        ("tags", Arc::new(tags.finish())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write(&folder.path("a.parquet"), &batch, Compression::SNAPPY, 2);
    fs::write(folder.path("a.csv"), "y,tags\n0.0,a:0.5|b|\n1.0,\n1.0,b:2\n").unwrap();
    let schema = "label = 'y'\nsparse = [{ column = 'tags', separator = '|', \
                  weight_separator = ':' }]";
    folder.run(Format::Parquet, schema, &["a.parquet"], "a.h5").unwrap();
    folder.run(Format::Csv, schema, &["a.csv"], "csv.h5").unwrap();
    assert_eq!(fingerprint(&folder.path("a.h5")), fingerprint(&folder.path("csv.h5")));
    let file = hdf5::File::open(folder.path("a.h5")).unwrap();
    let weights: Vec<f32> = file.dataset("sparse_weights").unwrap().read_raw().unwrap();
    assert_eq!(weights, [0.5, 1.0, 2.0]);
}

#[test]
fn bad_values_are_malformed_rows_with_their_number() {
    let folder = Folder::new();
    let price: Float64Array =
        (0..100).map(|i| Some(if i == 71 { f64::INFINITY } else { 1.0 })).collect();
    let y: Int64Array = (0..100).map(|i| (i != 20).then_some(i % 2)).collect();
    let columns: [(&str, ArrayRef); 2] = [("price", Arc::new(price)), ("y", Arc::new(y))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write(&folder.path("a.parquet"), &batch, Compression::SNAPPY, 30);
    let schema = "label = 'y'\ndense = ['price']";
    let error = folder.run(Format::Parquet, schema, &["a.parquet"], "a.h5").unwrap_err();
    assert!(!error.is_usage());
    let message = error.to_string();
    assert!(
        message.contains("a.parquet:21: label: expected a number from 0 to 1, got nothing"),
        "{message}"
    );
    let options = PrepareOptions {
        max_bad_rows: 2,
        ..folder.options(Format::Parquet, schema, &["a.parquet"], "a.h5")
    };
    let summary = prepare(&options, &mut |_| ()).unwrap();
    assert_eq!((summary.rows_read, summary.rows_written, summary.rows_bad), (100, 98, 2));
    let lines: Vec<u64> = summary.bad_rows.iter().map(|bad| bad.line).collect();
    assert_eq!(lines, [21, 72]);
    let reason = &summary.bad_rows[1].reason;
    assert!(
        reason.contains("column price: expected a finite number") && reason.contains("`inf`"),
        "{reason}"
    );
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    let folder = Folder::new();
    let decimal: Decimal128Array = [Some(1), Some(2)].into_iter().collect();
    let message = folder.refusal(Arc::new(decimal));
    assert!(message.contains("column `x` of") && message.contains("Decimal128"), "{message}");
    assert!(message.contains("cast it to a float"), "{message}");
    let halves = arrow_array::Float16Array::from_iter_values([Default::default()]);
    let message = folder.refusal(Arc::new(halves));
    assert!(message.contains("Float16 is not read: cast it to float32"), "{message}");

    let (batch, _) = rows(0, 20);
    let path = folder.path("a.parquet");
    write(&path, &batch, Compression::SNAPPY, 10);
    for (schema, expected) in [
        ("label = 'click'\nsparse = ['site']\ndelimiter = ';'", "delimiter: is about text"),
        ("label = 'click'\nsparse = ['site']\nheader = true", "header: is about text"),
        ("label = 'click'\nsparse = ['sites']", "no column `sites`; the columns are click, price"),
        ("label = 'click'\nsparse = ['unused']", "Decimal128(38, 10) is not read"),
    ] {
        let error = folder.run(Format::Parquet, schema, &["a.parquet"], "a.h5").unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
    let no_schema = PrepareOptions {
        schema: None,
        ..folder.options(Format::Parquet, SCHEMA, &["a.parquet"], "a.h5")
    };
    let error = prepare(&no_schema, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("--format parquet needs --schema"), "{error}");

    fs::write(folder.path("b.parquet"), "click,site\n1,2\n").unwrap();
    let error = folder.run(Format::Parquet, SCHEMA, &["b.parquet"], "a.h5").unwrap_err();
    assert!(error.to_string().contains("not a Parquet file"), "{error}");
    let other = batch.project(&[0, 1, 2, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    write(&folder.path("b.parquet"), &other, Compression::SNAPPY, 10);
    let inputs = ["a.parquet", "b.parquet"];
    let error = folder.run(Format::Parquet, SCHEMA, &inputs, "a.h5").unwrap_err().to_string();
    assert!(error.contains("no column `user` in") && error.contains("b.parquet"), "{error}");
    assert!(!folder.path("a.h5").exists());
}

/// A generator of Numerical Recipes: which bytes are damaged must not change from run to run.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Damages copies of small files and prepares them; every one must end, with rows or a message.
fn damage(cases: u64, seed: u64) -> [u64; 2] {
    let folder = Folder::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    (0..60).for_each(|i| tags.append_value((0..i % 4).map(|j| Some(format!("t{}", i * j % 7)))));
    let (batch, _) = rows(0, 60);
    let mut columns: Vec<(String, ArrayRef)> = batch
        .schema()
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, array)| (field.name().clone(), Arc::clone(array)))
        .collect();
    columns.push(("tags".into(), Arc::new(tags.finish())));
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let schema = SCHEMA.replace("\"site\"", "\"tags\", \"site\"");
    let mut originals = Vec::new();
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(GzipLevel::default());
    for (compression, rows_per_group) in [
        (Compression::UNCOMPRESSED, 100),
        (Compression::SNAPPY, 25),
        (zstd, 25),
        (gzip, 100),
        (Compression::LZ4_RAW, 100),
    ] {
        write(&folder.path("a.parquet"), &batch, compression, rows_per_group);
        originals.push(fs::read(folder.path("a.parquet")).unwrap());
    }
    let options = PrepareOptions {
        hash_size: Some(100),
        max_bad_rows: 1000,
        threads: Some(1),
        ..folder.options(Format::Parquet, &schema, &["a.parquet"], "a.h5")
    };
    let mut state = seed;
    let mut ends = [0; 2];
    for case in 0..cases {
        let mut bytes = originals[case as usize % originals.len()].clone();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as u64;
        for _ in 0..1 + random(&mut state) % 3 {
            // Half of the damage goes to the footer, which is most of what can be misread.
            let from = if random(&mut state).is_multiple_of(2) {
                bytes.len() as u64 - 8 - footer
            } else {
                0
            };
            let from = from.min(bytes.len() as u64 - 1);
            let at = (from + random(&mut state) % (bytes.len() as u64 - from)) as usize;
            match random(&mut state) % 6 {
                0 => bytes[at] = random(&mut state) as u8,
                1 => bytes[at] = [0, 0x7f, 0x80, 0xff][random(&mut state) as usize % 4],
                2 => bytes[at] ^= 1 << (random(&mut state) % 8),
                3 => drop(bytes.remove(at)),
                4 => bytes.insert(at, random(&mut state) as u8),
                _ => bytes[at..].iter_mut().take(8).for_each(|byte| *byte |= 0x80),
            }
        }
        fs::write(folder.path("a.parquet"), &bytes).unwrap();
        match prepare(&options, &mut |_| ()) {
            Ok(_) => ends[0] += 1,
            Err(error) => {
                ends[1] += 1;
                let message = error.to_string();
                assert!(
                    message.contains("a.parquet") || message.contains("schema.toml"),
                    "{message}"
                );
            }
        }
    }
    ends
}

#[test]
fn damaged_files_end_with_a_message() {
    let [read, refused] = damage(300, 1);
    assert!(refused > 100, "{read} read, {refused} refused");
}
