//! `prepare` from outside: compressed and damaged inputs, refusals and their messages, vocabularies
//! shared by splits, schemas, and the real data sets where they are at hand (`real`).

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

mod fields;
mod inputs;
mod outputs;
mod real;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use tempfile::TempDir;
use umbra_datasets::prepare::{
    DenseTransform, Fields, Format, PrepareError, PrepareOptions, PrepareSummary, hash_key, prepare,
};
use umbra_datasets::{Dataset, read_vocabulary};

/// Shared by those who write datasets, exclusive to those who start a program: HDF5 opens its files
/// without close-on-exec, so a program started meanwhile would keep their locks alive.
static WRITERS: RwLock<()> = RwLock::new(());

fn run(options: &PrepareOptions) -> Result<PrepareSummary, PrepareError> {
    let _writing = WRITERS.read().unwrap_or_else(PoisonError::into_inner);
    prepare(options, &mut |_| ())
}

fn message(options: &PrepareOptions) -> String {
    let error = run(options).unwrap_err();
    error.to_string()
}

/// A folder of inputs and outputs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn options(&self, format: Format, input: &str, output: &str) -> PrepareOptions {
        PrepareOptions::new(format, vec![self.path(input)], self.path(output))
    }

    /// Names of all files, sorted.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn open(path: &Path) -> Dataset {
    Dataset::open(&[path.to_path_buf()]).unwrap()
}

fn column<T: hdf5::H5Type>(path: &Path, name: &str) -> Vec<T> {
    hdf5::File::open(path).unwrap().dataset(name).unwrap().read_raw().unwrap()
}

fn vocabulary(path: &Path, field: usize) -> Option<Vec<String>> {
    let (bytes, offsets) = read_vocabulary(path, field).unwrap()?;
    let text = |w: &[u64]| String::from_utf8(bytes[w[0] as usize..w[1] as usize].to_vec()).unwrap();
    Some(offsets.windows(2).map(text).collect())
}

/// Lines of Criteo with ids that grow slowly rarer.
fn criteo_lines(rows: u32) -> String {
    let mut text = String::new();
    for row in 0..rows {
        text.push_str(if row % 4 == 0 { "1" } else { "0" });
        for i in 0..13 {
            text.push_str(&format!("\t{}", (row * (i + 1)) % 97));
        }
        for field in 0..26u32 {
            text.push_str(&format!("\t{:08x}", (row % (field + 2)).wrapping_mul(0x9e37_79b9)));
        }
        text.push('\n');
    }
    text
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_inputs_give_the_same_dataset() {
    let folder = Folder::new();
    let text = criteo_lines(5000);
    let (first, second) = text.split_at(text.find("\n1").unwrap() + 1);
    folder.write("plain", &text);
    folder.write("one.gz", gzip(text.as_bytes()));
    // Several members in one file, as `cat a.gz b.gz` and bgzip give; the name says nothing.
    folder.write("members", [gzip(first.as_bytes()), gzip(second.as_bytes())].concat());
    folder.write("one.zst", zstd::encode_all(text.as_bytes(), 1).unwrap());
    let frames = [first, second].map(|part| zstd::encode_all(part.as_bytes(), 1).unwrap());
    folder.write("frames", frames.concat());
    let mut fingerprints = Vec::new();
    for input in ["plain", "one.gz", "members", "one.zst", "frames"] {
        let output = format!("{input}.h5");
        let summary = run(&folder.options(Format::Criteo, input, &output)).unwrap();
        assert_eq!((summary.rows_written, summary.label_sum), (5000, Some(1250.0)), "{input}");
        let dataset = open(&folder.path(&output));
        fingerprints.push(dataset.fingerprint().to_string());
    }
    assert!(fingerprints.iter().all(|one| *one == fingerprints[0]), "{fingerprints:?}");
}

#[test]
fn damaged_and_missing_inputs_are_refused() {
    let folder = Folder::new();
    let text = criteo_lines(3000);
    let (gz, zst) = (gzip(text.as_bytes()), zstd::encode_all(text.as_bytes(), 1).unwrap());
    folder.write("cut.gz", &gz[..gz.len() / 2]);
    folder.write("cut_at_the_end.gz", &gz[..gz.len() - 4]);
    folder.write("cut.zst", &zst[..zst.len() / 2]);
    let mut damaged = gz.clone();
    damaged[gz.len() / 2] ^= 0xff;
    folder.write("damaged.gz", damaged);
    folder.write("empty", "");
    folder.write("empty.gz", gzip(b""));
    folder.write("blank", "\n\n");
    folder.write("text.xz", b"\xfd7zXZ\0");
    folder.write("no_line_end", vec![b'1'; 40 << 20]);
    fs::create_dir(folder.path("folder")).unwrap();
    let before = folder.names();
    for (input, expected) in [
        ("cut.gz", "cut.gz: cannot read the input: "),
        ("cut.gz", "the compressed file is cut short"),
        ("cut_at_the_end.gz", "the compressed file is cut short"),
        ("cut.zst", "the compressed file is cut short"),
        ("damaged.gz", "damaged.gz: cannot read the input: "),
        ("empty", "empty: the input is empty"),
        ("empty.gz", "empty.gz: the input is empty"),
        ("blank", "blank: no rows: 0 malformed lines, 2 blank or comment"),
        ("text.xz", "xz is not read (plain text, gzip and zstd are): unpack it first with `xz -dk"),
        ("no_line_end", "a line is longer than 16777216 bytes"),
        ("folder", "folder: no file there that could be read as input"),
        ("absent", "absent: cannot read the input: No such file or directory"),
    ] {
        for hash_size in [None, Some(8)] {
            let options =
                PrepareOptions { hash_size, ..folder.options(Format::Criteo, input, "out.h5") };
            let got = message(&options);
            assert!(got.contains(expected), "{input}: {got}");
            assert_eq!(folder.names(), before, "{input} left a file behind");
        }
    }
}

#[test]
fn outputs_are_guarded() {
    let folder = Folder::new();
    folder.write("in", criteo_lines(50));
    let options = folder.options(Format::Criteo, "in", "out.h5");
    run(&options).unwrap();
    let bytes = fs::read(&options.output).unwrap();
    let got = run(&options).unwrap_err();
    assert!(got.is_usage() && got.to_string().contains("replace it with --overwrite"), "{got}");

    // A run that fails leaves the old output alone.
    folder.write("bad", "x\n");
    let bad = PrepareOptions { overwrite: true, ..folder.options(Format::Criteo, "bad", "out.h5") };
    assert!(!run(&bad).unwrap_err().is_usage());
    assert_eq!(fs::read(&options.output).unwrap(), bytes);
    folder.write("in", criteo_lines(60));
    run(&PrepareOptions { overwrite: true, ..options.clone() }).unwrap();
    assert_eq!(open(&options.output).rows(), 60);

    let got = message(&folder.options(Format::Criteo, "in", "absent/out.h5"));
    assert!(got.contains("absent does not exist: create it first"), "{got}");
    let same = PrepareOptions { overwrite: true, ..folder.options(Format::Criteo, "in", "in") };
    assert!(message(&same).contains("the output is one of the files to read"));
    assert_eq!(folder.names(), ["bad", "in", "out.h5"]);
}

#[test]
fn malformed_rows_are_named_by_file_and_line() {
    let folder = Folder::new();
    let good = criteo_lines(3);
    let first = folder.write("first", &good);
    let second = folder.write("second", format!("{good}1\t2\n\n{good}0,1\n"));
    let options = PrepareOptions {
        inputs: vec![first, second.clone()],
        ..folder.options(Format::Criteo, "first", "out.h5")
    };
    let got = message(&options);
    let expected = format!(
        "{}:4: expected 40 columns, got 2\nno malformed row is allowed: mend the line, or let \
         more of them be left out with --max-bad-rows N",
        second.display()
    );
    assert_eq!(got, expected);
    let got = message(&PrepareOptions { max_bad_rows: 1, ..options.clone() });
    assert!(got.contains("second:9: expected 40 columns, got 1"), "{got}");

    let summary = run(&PrepareOptions { max_bad_rows: 2, ..options }).unwrap();
    assert_eq!((summary.rows_read, summary.rows_written), (11, 9));
    assert_eq!((summary.rows_bad, summary.lines_skipped), (2, 1));
    assert_eq!(summary.bad_rows.len(), 2);
}

#[test]
fn splits_share_a_vocabulary() {
    let folder = Folder::new();
    folder.write("train", "1 7:1 10:1\n0 7:1 9:1\n0 8:1 9:1\n");
    folder.write("valid", "1 9:1 7:1\n1 7:1 10:1\n");
    let train = folder.options(Format::Libfm, "train", "train.h5");
    run(&train).unwrap();
    assert_eq!(vocabulary(&train.output, 0), Some(vec!["7".into(), "8".into()]));
    assert_eq!(vocabulary(&train.output, 1), Some(vec!["9".into(), "10".into()]));
    assert_eq!(column::<u32>(&train.output, "sparse"), [1, 2, 1, 1, 2, 1]);

    let from = |from: &PrepareOptions, options: PrepareOptions| PrepareOptions {
        vocabulary_from: Some(from.output.clone()),
        ..options
    };
    let valid = from(&train, folder.options(Format::Libfm, "valid", "valid.h5"));
    let summary = run(&valid).unwrap();
    assert_eq!(column::<u32>(&valid.output, "sparse"), [0, 0, 1, 2]);
    assert_eq!(summary.fields.iter().map(|f| f.cardinality).collect::<Vec<_>>(), [3, 3]);
    let unknown = summary.fields.iter().map(|field| field.values_out_of_vocabulary);
    assert_eq!(unknown.collect::<Vec<_>>(), [1, 1]);
    let [train_data, valid_data] = [&train, &valid].map(|options| open(&options.output));
    train_data.check_compatible(&valid_data).unwrap();

    // What does not fit is refused, with a cure.
    folder.write("wide", "1 1:1 2:1 3:1\n");
    folder.write("criteo", criteo_lines(4));
    let criteo = folder.options(Format::Criteo, "criteo", "criteo.h5");
    run(&criteo).unwrap();
    let hashed = PrepareOptions {
        hash_size: Some(5),
        ..folder.options(Format::Libfm, "train", "hashed.h5")
    };
    run(&hashed).unwrap();
    let refused = |from_options: &PrepareOptions, options: PrepareOptions| {
        message(&from(from_options, PrepareOptions { output: folder.path("no.h5"), ..options }))
    };
    // Hashed ids need no vocabulary, but may be asked for by another split.
    let alike = from(&hashed, folder.options(Format::Libfm, "valid", "alike.h5"));
    run(&alike).unwrap();
    assert_eq!(open(&alike.output).transform(), open(&hashed.output).transform());
    let bag = PrepareOptions { fields: Some(Fields::Bag), ..valid.clone() };
    let raw = PrepareOptions { dense_transform: Some(DenseTransform::None), ..criteo.clone() };
    let wide = PrepareOptions { inputs: vec![folder.path("wide")], ..valid.clone() };
    for (got, expected) in [
        (refused(&valid, valid.clone()), "it was itself encoded with --vocabulary"),
        (refused(&criteo, valid.clone()), "format: expected libfm as in this run, got criteo"),
        (refused(&train, bag), "keys: expected ids in decimal, bag as in this run, got"),
        (refused(&criteo, raw), "transform of dense features: expected none, none"),
        (refused(&train, wide), "sparse fields: expected F1, F2, F3 as in this run, got F1, F2"),
    ] {
        assert!(got.contains(expected), "{got}");
    }
    let mut not_hdf5 = valid.clone();
    not_hdf5.output = folder.path("no.h5");
    not_hdf5.vocabulary_from = Some(folder.path("train"));
    assert!(message(&not_hdf5).contains("not an HDF5 file"));
    assert!(!folder.path("no.h5").exists());
}

#[test]
fn hashed_ids_are_the_documented_hash() {
    let folder = Folder::new();
    folder.write("in", criteo_lines(40).replace("\t00000000\n", "\t\n"));
    let options =
        PrepareOptions { hash_size: Some(1000), ..folder.options(Format::Criteo, "in", "out.h5") };
    let summary = run(&options).unwrap();
    assert!(summary.fields.iter().all(|f| (f.cardinality, f.keys) == (1000, None)));
    let ids = column::<u32>(&options.output, "sparse");
    let text = fs::read_to_string(folder.path("in")).unwrap();
    for (line, ids) in text.lines().zip(ids.chunks(26)) {
        for (key, &id) in line.split('\t').skip(14).zip(ids) {
            assert_eq!(u64::from(id), hash_key(key.as_bytes(), 0) % 1000, "{key}");
        }
    }
    assert_eq!(vocabulary(&options.output, 0), None);
}

#[test]
fn contradicting_options_are_refused() {
    let folder = Folder::new();
    folder.write("in", criteo_lines(2));
    let options = folder.options(Format::Criteo, "in", "out.h5");
    let some = || Some(folder.path("x"));
    let libfm = PrepareOptions { format: Format::Libfm, ..options.clone() };
    for (options, expected) in [
        (PrepareOptions { inputs: vec![], ..options.clone() }, "--input"),
        (PrepareOptions { schema: some(), ..options.clone() }, "--schema is for --format csv"),
        (PrepareOptions { format: Format::Csv, ..options.clone() }, "needs --schema"),
        (PrepareOptions { fields: Some(Fields::Bag), ..options.clone() }, "--fields is for"),
        (PrepareOptions { min_count: 0, ..options.clone() }, "--min-count: expected at least 1"),
        (
            PrepareOptions { hash_size: Some(0), ..options.clone() },
            "--hash-size: expected at least",
        ),
        (PrepareOptions { threads: Some(0), ..options.clone() }, "--threads"),
        (
            PrepareOptions { hash_size: Some(9), min_count: 2, ..options.clone() },
            "remove --hash-size, or --min-count",
        ),
        (
            PrepareOptions { vocabulary_from: some(), min_count: 2, ..options.clone() },
            "remove --vocabulary, or --min-count",
        ),
        (
            PrepareOptions { vocabulary_from: some(), hash_size: Some(9), ..options.clone() },
            "exclude each other",
        ),
        (
            PrepareOptions { dense_transform: Some(DenseTransform::Log), ..libfm },
            "libfm has no dense features",
        ),
    ] {
        let error = run(&options).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn progress_ends_at_the_total() {
    let folder = Folder::new();
    folder.write("in", criteo_lines(70_000));
    let mut seen = Vec::new();
    let options = folder.options(Format::Criteo, "in", "out.h5");
    let writing = WRITERS.read().unwrap_or_else(PoisonError::into_inner);
    prepare(&options, &mut |progress| seen.push(progress)).unwrap();
    drop(writing);
    // The text; a label, 13 numbers and the numbers of 26 keys of every row.
    let bytes = [fs::metadata(folder.path("in")).unwrap().len(), 70_000 * 4 * (1 + 13 + 26)];
    for (pass, bytes) in [1, 2].into_iter().zip(bytes) {
        let of_pass: Vec<_> = seen.iter().filter(|p| p.pass == pass).collect();
        assert!(of_pass.len() > 1, "{seen:?}");
        assert!(of_pass.is_sorted_by_key(|p| (p.bytes_read, p.rows)));
        let last = of_pass.last().unwrap();
        assert_eq!(
            (last.bytes_read, last.bytes_total, last.rows, last.passes),
            (bytes, bytes, 70_000, 2)
        );
    }
}

const SHOP: &str = r#"
label = "clicked"
dense = [{ column = "price", transform = "log" }, "age"]
sparse = ["item", "shop"]
weight = "importance"
group = ["user", "day"]
missing = ["NA"]
"#;

#[test]
fn csv_columns_are_found_by_header() {
    let folder = Folder::new();
    let schema = folder.write("schema.toml", SHOP);
    let header = "user,day,clicked,price,age,item,shop,importance,unused\n";
    folder.write(
        "in",
        format!(
            "\u{feff}{header}u1,1,1,1.0,-3,\"a, \"\"b\"\"\",NA,2.5,x\r\n\
             u2,1,0,-5,NA,c,s1,0,\nu1,1,0.25,,7.5,c,s1,1,\"y\"\n"
        ),
    );
    let options =
        PrepareOptions { schema: Some(schema), ..folder.options(Format::Csv, "in", "out.h5") };
    let summary = run(&options).unwrap();
    assert_eq!((summary.rows_written, summary.lines_skipped), (3, 0));
    let output = &options.output;
    assert_eq!(column::<f32>(output, "label"), [1.0, 0.0, 0.25]);
    assert_eq!(column::<f32>(output, "weight"), [2.5, 0.0, 1.0]);
    assert_eq!(column::<f32>(output, "dense"), [core::f32::consts::LN_2, -3.0, 0.0, 0.0, 0.0, 7.5]);
    assert_eq!(column::<u32>(output, "sparse"), [2, 2, 1, 1, 1, 1]);
    assert_eq!(vocabulary(output, 0).unwrap(), ["c", "a, \"b\""]);
    assert_eq!(vocabulary(output, 1).unwrap(), ["s1", ""]);
    let group = |user: &str| hash_key(format!("{user}\u{1f}1").as_bytes(), 0);
    assert_eq!(column::<u64>(output, "group"), [group("u1"), group("u2"), group("u1")]);
    let dataset = open(output);
    assert_eq!(dataset.dense_names(), ["price", "age"]);
    assert_eq!(dataset.sparse_names(), ["item", "shop"]);
    assert!(dataset.transform().contains("dense = [\"log\", \"none\"]"), "{}", dataset.transform());

    let row = "u1,1,1,1,1,a,b,1,x";
    for (bad, expected) in [
        ("u1,1,1,1,1,a,b,1", "in:2: expected 9 columns, got 8"),
        ("u1,1,2,1,1,a,b,1,x", "in:2: label: expected a number from 0 to 1, got `2`"),
        ("u1,1,NA,1,1,a,b,1,x", "label: expected a number from 0 to 1, got nothing"),
        (
            "u1,1,1,cheap,1,a,b,1,x",
            "column price: expected a finite number or a missing value, got",
        ),
        ("u1,1,1,1,inf,a,b,1,x", "column age: expected a finite number"),
        ("u1,1,1,1,1e39,a,b,1,x", "column age: expected a finite number"),
        ("u1,1,1,1,1,a,b,-1,x", "column importance: expected a weight of at least 0, got `-1`"),
        ("u1,1,1,1,1,a,b,,x", "column importance: expected a weight of at least 0, got nothing"),
        ("u1,1,1,1,1,\"a,b,1,x", "in:2: a quoted value is not closed on its line"),
    ] {
        folder.write("in", format!("{header}{bad}\n{row}\n"));
        let got = message(&PrepareOptions { overwrite: true, ..options.clone() });
        assert!(got.contains(expected), "{bad}: {got}");
        // The line costs itself alone.
        let lenient = PrepareOptions { overwrite: true, max_bad_rows: 1, ..options.clone() };
        assert_eq!(run(&lenient).unwrap().rows_written, 1, "{bad}");
    }

    let other = folder.write("other", format!("{}{row}\n", header.replace("day", "date")));
    let both = PrepareOptions {
        inputs: vec![folder.path("in"), other.clone()],
        overwrite: true,
        ..options.clone()
    };
    let got = message(&both);
    assert!(got.contains("differs from that of the first file: expected user, day,"), "{got}");
    let got = message(&PrepareOptions { inputs: vec![other], overwrite: true, ..options });
    assert!(
        got.contains("schema.toml: group: no column `day`; the columns are user, date,"),
        "{got}"
    );
}

#[test]
fn schemas_that_misuse_columns_are_refused() {
    let folder = Folder::new();
    folder.write("in", "a,b,a\n1,2,3\n");
    for (schema, expected) in [
        ("label = 'a'\nsparse = [2]", "no column `a`; the columns are a.1, b, a.3"),
        (
            "columns = 3\nheader = false\nlabel = 1\nsparse = [1]",
            "used as the label and as a sparse",
        ),
        (
            "columns = 3\nheader = false\nlabel = 1\ndense = [3, 3]",
            "a dense feature and as a dense",
        ),
        ("columns = 3\nheader = false\nlabel = 1\nsparse = [4]", "sparse: no column 4"),
        ("columns = 3\nheader = false\nlabel = 0\nsparse = [2]", "label: no column 0"),
        (
            "columns = 3\nheader = false\nlabel = 1\nsparse = [2]\ndens = [3]",
            "unknown field `dens`",
        ),
    ] {
        let schema = Some(folder.write("schema.toml", schema));
        let options = PrepareOptions { schema, ..folder.options(Format::Csv, "in", "out.h5") };
        let error = run(&options).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
}
