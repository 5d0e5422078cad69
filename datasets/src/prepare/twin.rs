//! The naive twin of `prepare`: one thread, whole lines, a map of strings. Tests compare the real
//! one to it on random text, over thread counts and block sizes.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::read_vocabulary;

/// One row as the twin reads it: label, dense features, keys of every field.
#[derive(Clone, Debug)]
struct Row {
    label: f32,
    dense: Vec<f32>,
    keys: Vec<Vec<String>>,
    /// Of the keys; 1 where none is said.
    weights: Vec<Vec<f32>>,
}

impl Row {
    /// Without weights.
    fn new(label: f32, dense: Vec<f32>, keys: Vec<Vec<String>>) -> Self {
        let weights = keys.iter().map(|keys| vec![1.0; keys.len()]).collect();
        Self { label, dense, keys, weights }
    }
}

/// What a dataset holds, as both sides must agree on.
#[derive(Debug, PartialEq)]
struct Content {
    label: Vec<f32>,
    dense: Vec<f32>,
    /// Ids of every row and field.
    ids: Vec<Vec<u32>>,
    /// Of all ids, or empty.
    weights: Vec<f32>,
    cardinality: Vec<u64>,
    vocabulary: Vec<Option<Vec<String>>>,
}

/// How all fields get their ids, but those of [`Case::twice`].
#[derive(Clone, Copy)]
struct IdRule<'a> {
    from: Origin<'a>,
    buckets: u64,
    salt: u64,
}

#[derive(Clone, Copy)]
enum Origin<'a> {
    Counted { min_count: u64, cap: usize },
    Stored(&'a [Option<Vec<String>>]),
    Hashed(u64),
}

/// Rows of the table of a field that is hashed twice.
const TWICE: u64 = 7;

fn encode(case: &Case, rows: &[Row], rule: IdRule<'_>) -> Content {
    let fields = case.rows[0].keys.len();
    let vocabulary: Vec<Option<Vec<String>>> = (0..fields)
        .map(|field| match rule.from {
            _ if case.twice == Some(field) => None,
            Origin::Hashed(_) => None,
            Origin::Stored(stored) => stored[field].clone(),
            Origin::Counted { min_count, cap } => {
                let mut counts: HashMap<String, u64> = HashMap::new();
                for key in rows.iter().flat_map(|row| &row.keys[field]) {
                    *counts.entry(key.clone()).or_default() += 1;
                }
                let mut kept: Vec<_> =
                    counts.into_iter().filter(|(_, count)| *count >= min_count).collect();
                kept.sort_by_key(|(key, count)| (u64::MAX - count, key.clone()));
                Some(kept.into_iter().map(|(key, _)| key).take(cap).collect())
            }
        })
        .collect();
    let hash = |key: &String, salt, size| (hash_key(key.as_bytes(), salt) % size) as u32;
    let ids_of = |field: usize, key: &String| match (&vocabulary[field], rule.from) {
        _ if case.twice == Some(field) => {
            vec![hash(key, rule.salt, TWICE), hash(key, rule.salt + 1, TWICE)]
        }
        (Some(list), _) => match list.iter().position(|kept| kept == key) {
            Some(at) => vec![at as u32 + rule.buckets as u32],
            None => vec![hash(key, rule.salt, rule.buckets)],
        },
        (None, Origin::Hashed(size)) => vec![hash(key, rule.salt, size)],
        (None, _) => unreachable!(),
    };
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in rows {
        for (field, keys) in row.keys.iter().enumerate() {
            ids.push(keys.iter().flat_map(|key| ids_of(field, key)).collect());
            for (key, weight) in keys.iter().zip(&row.weights[field]) {
                weights.extend(ids_of(field, key).iter().map(|_| *weight));
            }
        }
    }
    let weighted = case.schema.is_some_and(|schema| schema.contains("weight_separator"));
    let cardinality = vocabulary.iter().enumerate().map(|(field, list)| match (list, rule.from) {
        _ if case.twice == Some(field) => TWICE,
        (Some(list), _) => list.len() as u64 + rule.buckets,
        (None, Origin::Hashed(size)) => size,
        (None, _) => unreachable!(),
    });
    Content {
        label: rows.iter().map(|row| row.label).collect(),
        dense: rows.iter().flat_map(|row| row.dense.clone()).collect(),
        ids,
        weights: if weighted { weights } else { Vec::new() },
        cardinality: cardinality.collect(),
        // Only a counted vocabulary is stored.
        vocabulary: match rule.from {
            Origin::Counted { .. } => vocabulary,
            _ => vec![None; fields],
        },
    }
}

fn read(path: &Path) -> Content {
    let file = hdf5::File::open(path).unwrap();
    let cardinality: Vec<u64> = file.attr("cardinality").unwrap().read_raw().unwrap();
    let floats = |name: &str| file.dataset(name).map_or(Vec::new(), |d| d.read_raw().unwrap());
    let ids = match file.dataset("sparse") {
        Ok(sparse) => sparse.read_raw::<u32>().unwrap().iter().map(|&id| vec![id]).collect(),
        Err(_) => {
            let values: Vec<u32> = file.dataset("sparse_values").unwrap().read_raw().unwrap();
            let offsets: Vec<u64> = file.dataset("sparse_offsets").unwrap().read_raw().unwrap();
            offsets.windows(2).map(|w| values[w[0] as usize..w[1] as usize].to_vec()).collect()
        }
    };
    let weights = floats("sparse_weights");
    drop(file.clone());
    let vocabulary = (0..cardinality.len())
        .map(|field| {
            let (bytes, offsets) = read_vocabulary(path, field).unwrap()?;
            let text = |w: &[u64]| String::from_utf8(bytes[w[0] as usize..w[1] as usize].to_vec());
            Some(offsets.windows(2).map(|w| text(w).unwrap()).collect())
        })
        .collect();
    Content {
        label: floats("label"),
        dense: floats("dense"),
        ids,
        weights,
        cardinality,
        vocabulary,
    }
}

/// Random rows, spelt in one of the formats.
#[derive(Clone, Debug)]
struct Case {
    format: Format,
    fields: Option<Fields>,
    schema: Option<&'static str>,
    header: Option<&'static str>,
    lines: Vec<String>,
    rows: Vec<Row>,
    /// The field that the schema has hashed twice.
    twice: Option<usize>,
}

fn criteo_row() -> impl Strategy<Value = (String, Row)> {
    let integer = prop_oneof![
        3 => (0i64..6).prop_map(|x| x.to_string()),
        1 => (-3i64..100_000_000_000).prop_map(|x| x.to_string()),
        1 => Just(String::new()),
    ];
    let id = prop_oneof![
        5 => (0u32..12).prop_map(|x| format!("{:08x}", x.wrapping_mul(0x1f35_91a7))),
        1 => any::<u32>().prop_map(|x| format!("{x:08x}")),
        2 => Just(String::new()),
    ];
    (any::<bool>(), proptest::collection::vec(integer, 13), proptest::collection::vec(id, 26))
        .prop_map(|(label, integers, ids)| {
            let label = u8::from(label);
            let line = format!("{label}\t{}\t{}", integers.join("\t"), ids.join("\t"));
            let dense = |text: &String| {
                let x: f64 = text.parse().unwrap_or(0.0);
                x.max(0.0).ln_1p() as f32
            };
            let dense = integers.iter().map(dense).collect();
            let keys = ids.into_iter().map(|id| vec![id]).collect();
            let row = Row::new(f32::from(label), dense, keys);
            (line, row)
        })
}

fn libfm_row(
    ids: impl Into<proptest::collection::SizeRange>,
    is_bag: bool,
) -> impl Strategy<Value = (String, Row)> {
    let id = prop_oneof![4 => 0u32..30, 1 => any::<u32>()];
    (any::<bool>(), proptest::collection::vec(id, ids), "( |  |\t| # note 7:1)").prop_map(
        move |(label, ids, end)| {
            let features: Vec<String> = ids.iter().map(|id| format!("{id}:1")).collect();
            let spelt = if label { "+1" } else { "-1" };
            let line = format!("{spelt} {}{end}", features.join(" "));
            let keys: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let keys =
                if is_bag { vec![keys] } else { keys.into_iter().map(|key| vec![key]).collect() };
            let row = Row::new(f32::from(u8::from(label)), Vec::new(), keys);
            (line, row)
        },
    )
}

const CSV_SCHEMA: &str = r#"
delimiter = ";"
trim = true
missing = ["?"]
label = 2
label_at_least = 4
dense = ["price"]
sparse = ["item", "user", { column = "tags", separator = "|", max_length = 2, keep = "last" }]
cross = [{ columns = ["user", "item"], hash_size = 7, hashes = 2 }]
"#;

/// The same, but that tags have weights.
const WEIGHTED_SCHEMA: &str = r#"
delimiter = ";"
trim = true
missing = ["?"]
label = 2
label_at_least = 4
dense = ["price"]
sparse = [
  "item",
  "user",
  { column = "tags", separator = "|", weight_separator = "::", max_length = 2, keep = "last" },
]
cross = [{ columns = ["user", "item"], hash_size = 7, hashes = 2 }]
"#;

const CSV_HEADER: &str = "user;score;price;item;tags";

/// The text of an item's weight and what it is, without one the text of a key alone.
fn item_weight() -> impl Strategy<Value = (Option<&'static str>, f32)> {
    let said = [("0", 0.0), ("0.25", 0.25), (" 3 ", 3.0), ("1e-3", 1e-3), ("", 1.0), ("?", 1.0)];
    let said = said.map(|(text, weight)| (Some(text), weight));
    proptest::sample::select([&said[..], &[(None, 1.0); 3]].concat())
}

fn csv_row(weighted: bool) -> impl Strategy<Value = (String, Row)> {
    (
        "[a-cé;]{0,2}",
        1u8..6,
        prop_oneof![Just(None), (-9i32..9).prop_map(Some)],
        "[xy \"?]{0,3}",
        proptest::collection::vec(("[u-x?;]{0,1}", item_weight()), 0..5),
    )
        .prop_map(move |(user, score, price, item, tags)| {
            let quoted = |text: &str| {
                if text.contains([';', '"']) {
                    format!("\"{}\"", text.replace('"', "\"\""))
                } else {
                    format!(" {text} ")
                }
            };
            let price_text = price.map_or("?".into(), |price| format!("{price}.5"));
            let (user_text, item_text) = (quoted(&user), quoted(&item));
            let tag_text = |(tag, (weight, _)): &(String, (Option<&str>, f32))| match weight {
                Some(weight) if weighted => format!("{tag}::{weight}"),
                _ => tag.clone(),
            };
            let tags_text = quoted(&tags.iter().map(tag_text).collect::<Vec<_>>().join("|"));
            let line = format!("{user_text};{score}; {price_text};{item_text};{tags_text}");
            let clean = |text: &str| match text.trim() {
                "?" => String::new(),
                text => text.to_string(),
            };
            let dense = price_text.parse().unwrap_or(0.0);
            let (user, item) = (clean(&user), clean(&item));
            let tags = tags.iter().map(|(tag, (_, weight))| (clean(tag), *weight));
            let tags: Vec<(String, f32)> = tags.filter(|(tag, _)| !tag.is_empty()).collect();
            let cross = format!("{user}\u{1f}{item}");
            let last = tags[tags.len().saturating_sub(2)..].iter().cloned();
            let (last, weights): (Vec<String>, Vec<f32>) = last.unzip();
            let keys = vec![vec![item], vec![user], last, vec![cross]];
            let mut row = Row::new(f32::from(u8::from(score >= 4)), vec![dense], keys);
            if weighted {
                row.weights[2] = weights;
            }
            (line, row)
        })
}

fn case() -> impl Strategy<Value = Case> {
    let case = |format, fields, schema: Option<_>| {
        move |rows: Vec<(String, Row)>| {
            let (lines, rows) = rows.into_iter().unzip();
            let header = schema.is_some().then_some(CSV_HEADER);
            let twice = header.map(|_| 3);
            Case { format, fields, schema, header, lines, rows, twice }
        }
    };
    let rows = 1..60;
    use proptest::collection::vec;
    prop_oneof![
        vec(criteo_row(), rows.clone()).prop_map(case(Format::Criteo, None, None)),
        vec(libfm_row(3, false), rows.clone()).prop_map(case(Format::Libfm, None, None)),
        vec(libfm_row(0..6, true), rows.clone()).prop_map(case(
            Format::Libfm,
            Some(Fields::Bag),
            None
        )),
        vec(csv_row(false), rows.clone()).prop_map(case(Format::Csv, None, Some(CSV_SCHEMA))),
        vec(csv_row(true), rows).prop_map(case(Format::Csv, None, Some(WEIGHTED_SCHEMA))),
    ]
}

/// The lines below the header, if there is one.
fn text(case: &Case, lines: &[String], end: &str) -> String {
    let header = case.header.map_or(String::new(), |header| format!("{header}{end}"));
    header + &lines.join(end)
}

/// The lines, cut into two files where there are enough of them; line ends of both kinds.
fn write_inputs(folder: &TempDir, case: &Case) -> Vec<PathBuf> {
    let (first, second) = case.lines.split_at(case.lines.len().div_ceil(3));
    let mut paths = Vec::new();
    for (name, lines, end) in [("a.txt", first, "\r\n"), ("b.txt", second, "\n")] {
        if !lines.is_empty() {
            let path = folder.path().join(name);
            // The last line has no end.
            fs::write(&path, text(case, lines, end)).unwrap();
            paths.push(path);
        }
    }
    paths
}

fn options(folder: &TempDir, case: &Case, inputs: Vec<PathBuf>, output: &str) -> PrepareOptions {
    let schema = case.schema.map(|text| {
        let path = folder.path().join("schema.toml");
        fs::write(&path, text).unwrap();
        path
    });
    let output = folder.path().join(output);
    PrepareOptions {
        fields: case.fields,
        schema,
        ..PrepareOptions::new(case.format, inputs, output)
    }
}

proptest! {
    // Every case writes several HDF5 files.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_parallel_encoder_is_the_naive_one(
        case in case(),
        block_bytes in 1usize..3000,
        threads in 1usize..5,
        min_count in 1u32..4,
        hash_size in 1u32..50,
        cap in prop_oneof![Just(None), (1u32..6).prop_map(Some)],
        buckets in 1u32..4,
        salt in 0u32..3,
    ) {
        let folder = TempDir::new().unwrap();
        let inputs = write_inputs(&folder, &case);
        let mut passes_seen = 0;
        let mut progress = |p: Progress| passes_seen = passes_seen.max(p.pass);
        let counted = Origin::Counted {
            min_count: u64::from(min_count),
            cap: cap.map_or(usize::MAX, |cap| cap as usize),
        };
        let rule = |from| IdRule { from, buckets: u64::from(buckets), salt: u64::from(salt) };

        let train = PrepareOptions {
            min_count,
            cap,
            oov_buckets: Some(buckets),
            salt: Some(salt),
            threads: Some(threads),
            ..options(&folder, &case, inputs.clone(), "train.h5")
        };
        let summary = prepare_blocks(&train, block_bytes, &mut progress).unwrap();
        let expected = encode(&case, &case.rows, rule(counted));
        prop_assert_eq!(&read(&train.output), &expected);
        prop_assert_eq!(passes_seen, 2);

        prop_assert_eq!(summary.rows_written as usize, case.rows.len());
        prop_assert_eq!(summary.rows_read, summary.rows_written);
        for (field, summary) in summary.fields.iter().enumerate() {
            let all: Vec<&String> = case.rows.iter().flat_map(|row| &row.keys[field]).collect();
            let distinct: std::collections::HashSet<_> = all.iter().collect();
            prop_assert_eq!(summary.values, all.len() as u64);
            let Some(list) = &expected.vocabulary[field] else {
                prop_assert_eq!((summary.keys, summary.values_out_of_vocabulary), (None, 0));
                continue;
            };
            prop_assert_eq!(summary.keys, Some(distinct.len() as u64));
            prop_assert_eq!(summary.keys_left_out, Some((distinct.len() - list.len()) as u64));
            let unknown = all.iter().filter(|key| !list.contains(key)).count();
            prop_assert_eq!(summary.values_out_of_vocabulary, unknown as u64);
        }

        // Part of the lines, encoded with the ids of all.
        let some = case.rows.len().div_ceil(2);
        let path = folder.path().join("some.txt");
        fs::write(&path, text(&case, &case.lines[..some], "\n")).unwrap();
        let valid = PrepareOptions {
            vocabulary_from: Some(train.output.clone()),
            threads: Some(threads),
            ..options(&folder, &case, vec![path], "valid.h5")
        };
        prepare_blocks(&valid, block_bytes, &mut |_| ()).unwrap();
        let stored = rule(Origin::Stored(&expected.vocabulary));
        prop_assert_eq!(read(&valid.output), encode(&case, &case.rows[..some], stored));

        let hashed = PrepareOptions {
            hash_size: Some(hash_size),
            salt: Some(salt),
            threads: Some(threads),
            ..options(&folder, &case, inputs, "hashed.h5")
        };
        prepare_blocks(&hashed, block_bytes, &mut |_| ()).unwrap();
        let by_hash = rule(Origin::Hashed(u64::from(hash_size)));
        prop_assert_eq!(read(&hashed.output), encode(&case, &case.rows, by_hash));
    }

    /// Malformed lines are found, counted and named whatever the blocks.
    #[test]
    fn bad_lines_are_counted_and_named(
        case in case(),
        bad in proptest::collection::btree_set(0usize..70, 0..20),
        block_bytes in 1usize..3000,
        threads in 1usize..5,
    ) {
        let mut lines = case.lines.clone();
        let mut numbers = Vec::new();
        for at in bad.into_iter().filter(|at| *at > 0) {
            if at < lines.len() {
                lines.insert(at, "2".into());
                numbers.push((at + 1 + usize::from(case.header.is_some())) as u64);
            }
        }
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, text(&case, &lines, "\n")).unwrap();
        let all = PrepareOptions {
            max_bad_rows: numbers.len() as u64,
            threads: Some(threads),
            ..options(&folder, &case, vec![path.clone()], "out.h5")
        };
        let summary = prepare_blocks(&all, block_bytes, &mut |_| ()).unwrap();
        let shown: Vec<u64> = summary.bad_rows.iter().map(|row| row.line).collect();
        prop_assert_eq!(&shown, &numbers[..numbers.len().min(BAD_ROWS_SHOWN)]);
        prop_assert_eq!(summary.rows_bad, numbers.len() as u64);
        prop_assert_eq!(summary.rows_read, lines.len() as u64);
        let counted = Origin::Counted { min_count: 1, cap: usize::MAX };
        let expected = encode(&case, &case.rows, IdRule { from: counted, buckets: 1, salt: 0 });
        prop_assert_eq!(read(&all.output), expected);

        if let Some(last) = numbers.last() {
            let fewer = PrepareOptions {
                max_bad_rows: all.max_bad_rows - 1,
                output: folder.path().join("none.h5"),
                ..all
            };
            let error = prepare_blocks(&fewer, block_bytes, &mut |_| ()).unwrap_err();
            let PrepareError::BadRows { row, .. } = error else { panic!("{error}") };
            prop_assert_eq!((row.file, row.line), (path, *last));
            prop_assert!(!fewer.output.exists());
        }
    }
}
