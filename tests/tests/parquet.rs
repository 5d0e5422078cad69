//! Parquet all the way: prepared and trained like a csv of the same rows, to the same bits; scores
//! come out as text, csv, NumPy array and Parquet, on any number of ranks.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::fs::File;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use umbra_tests::{Folder, Job, SavedModel};

const ROWS: usize = 2500;
const SCHEMA: &str =
    "label = 'click'\ndense = ['price']\nsparse = ['site', 'user']\ngroup = ['user']";

/// Clicks that depend on the site; every tenth price and site is missing.
fn batch() -> RecordBatch {
    let click = Int64Array::from_iter_values((0..ROWS).map(|i| i64::from(i * 7 % 30 < 8)));
    let price: Float64Array = (0..ROWS).map(|i| (i % 10 != 3).then(|| i as f64 / 700.0)).collect();
    let site: StringArray =
        (0..ROWS).map(|i| (i % 10 != 7).then(|| format!("site \"{}\"", i % 30))).collect();
    let user = Int64Array::from_iter_values((0..ROWS).map(|i| (i * i % 97) as i64 - 40));
    let columns: [(&str, ArrayRef); 4] = [
        ("click", Arc::new(click)),
        ("price", Arc::new(price)),
        ("site", Arc::new(site)),
        ("user", Arc::new(user)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn csv(batch: &RecordBatch) -> String {
    let mut text = String::from("click,price,site,user\n");
    let (click, user) = (batch.column(0), batch.column(3));
    for row in 0..batch.num_rows() {
        let price = batch.column(1).as_primitive::<Float64Type>();
        let price = price.is_valid(row).then(|| format!("{:?}", price.value(row)));
        let site = batch.column(2).as_string::<i32>();
        let site =
            site.is_valid(row).then(|| format!("\"{}\"", site.value(row).replace('"', "\"\"")));
        text += &format!(
            "{},{},{},{}\n",
            click.as_primitive::<Int64Type>().value(row),
            price.unwrap_or_default(),
            site.unwrap_or_default(),
            user.as_primitive::<Int64Type>().value(row),
        );
    }
    text
}

#[test]
fn parquet_in_and_out() {
    let folder = Folder::new();
    let batch = batch();
    let file = File::create(folder.path("rows.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    folder.write("rows.csv", csv(&batch));
    folder.write("schema.toml", SCHEMA);
    folder.write("job.toml", Job::DLRM.text().replace("test = \"test.h5\"\n", ""));
    for format in ["csv", "parquet"] {
        let (input, output) = (format!("rows.{format}"), format!("{format}.h5"));
        let prepare = ["prepare", "--format", format, "--schema", "schema.toml"];
        let files = ["--input", &input, "--output", &output];
        let ended = folder.umbra(1, &[&prepare[..], &files[..]].concat()).fine();
        assert_eq!(ended.figure("rows"), ROWS as f64);
        let data = format!("data.train={output}");
        folder.train(1, "job.toml", format, &[&data, "sync.method=bsp"]);
    }
    let model = |run: &str| SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")));
    assert!(model("csv") == model("parquet"), "other bits");

    for (ranks, output) in [(1, "1.txt"), (2, "2.csv"), (2, "2.npy"), (4, "4.parquet")] {
        let (checkpoint, data) = ("csv/checkpoints/last", "parquet.h5");
        let predict = ["predict", "--checkpoint", checkpoint, "--data", data, "--output", output];
        drop(folder.umbra(ranks, &predict).fine());
    }
    let scores: Vec<f32> = folder.text("1.txt").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(scores.len(), ROWS);

    let array = folder.read("2.npy");
    let (values, _) = array[128..].as_chunks::<4>();
    let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert!(values == scores, "the array has other scores");

    let file = File::open(folder.path("4.parquet")).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().with_batch_size(ROWS);
    let read = reader.build().unwrap().next().unwrap().unwrap();
    let column = |name| read.column_by_name(name).unwrap();
    assert!(column("score").as_primitive::<Float32Type>().values()[..] == scores[..]);
    assert!(column("row").as_primitive::<UInt64Type>().values().iter().copied().eq(0..ROWS as u64));
    let labels: Vec<f32> = column("label").as_primitive::<Float32Type>().values().to_vec();
    let clicks = batch.column(0).as_primitive::<Int64Type>().values();
    assert!(labels.iter().zip(clicks).all(|(label, click)| *label == *click as f32));
    // Groups are hashes of the users: as many, and equal where they are.
    let groups = column("group").as_primitive::<UInt64Type>().values();
    let users = batch.column(3).as_primitive::<Int64Type>().values();
    let pairs: std::collections::HashSet<_> = groups.iter().zip(users).collect();
    let distinct = |of: &dyn Fn(usize) -> u64| {
        (0..ROWS).map(of).collect::<std::collections::HashSet<_>>().len()
    };
    assert_eq!(pairs.len(), distinct(&|row| groups[row]));
    assert_eq!(pairs.len(), distinct(&|row| users[row] as u64));

    let lines: Vec<String> = folder.text("2.csv").lines().map(ToOwned::to_owned).collect();
    assert_eq!(lines[0], "row,score,label,group");
    for row in 0..ROWS {
        let expected = format!("{row},{},{},{}", scores[row], labels[row], groups[row]);
        assert_eq!(lines[row + 1], expected);
    }
    assert_eq!(lines.len(), ROWS + 1);
}

/// Exit code 3 and one line, whatever the environment asks of panics.
#[test]
fn a_damaged_file_is_one_line_and_bad_data() {
    let folder = Folder::new();
    folder.write("schema.toml", SCHEMA);
    let batch = batch();
    let file = File::create(folder.path("whole.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let whole = folder.read("whole.parquet");
    let cut = [&whole[..whole.len() / 2], &whole[whole.len() - 900..]].concat();
    for bytes in [&whole[..whole.len() / 2], &cut, b"PAR1PAR1PAR1"] {
        folder.write("rows.parquet", bytes);
        let prepare = ["prepare", "--format", "parquet", "--schema", "schema.toml"];
        let files = ["--input", "rows.parquet", "--output", "rows.h5"];
        let ended = folder.umbra(1, &[&prepare[..], &files[..]].concat());
        let message = ended.stderr.trim_end();
        assert_eq!(ended.code, 3, "{message}");
        assert!(message.starts_with("umbra: rows.parquet: damaged Parquet file: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
