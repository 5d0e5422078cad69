//! What a schema makes of columns: keys, bags, hashes, numbers, crosses.

use std::collections::HashSet;
use std::path::PathBuf;

use umbra_datasets::prepare::{Format, PrepareOptions, hash_key};

use crate::{Folder, column, message, open, run, vocabulary};

/// Prepares `text` with `schema`; the output.
fn prepared(folder: &Folder, schema: &str, text: &str) -> PathBuf {
    let options = csv(folder, schema, text, "out.h5");
    run(&options).unwrap();
    options.output
}

/// The options for a csv of `text` with `schema`.
pub(crate) fn csv(folder: &Folder, schema: &str, text: &str, output: &str) -> PrepareOptions {
    let schema = Some(folder.write(&format!("{output}.toml"), schema));
    let input = format!("{output}.csv");
    folder.write(&input, text);
    PrepareOptions { schema, overwrite: true, ..folder.options(Format::Csv, &input, output) }
}

/// The bags of every row and field.
fn bags(path: &std::path::Path) -> Vec<Vec<u32>> {
    let values: Vec<u32> = column(path, "sparse_values");
    let offsets: Vec<u64> = column(path, "sparse_offsets");
    offsets.windows(2).map(|w| values[w[0] as usize..w[1] as usize].to_vec()).collect()
}

fn hashed(key: &str, salt: u64, size: u64) -> u32 {
    (hash_key(key.as_bytes(), salt) % size) as u32
}

#[test]
fn every_field_has_settings_of_its_own() {
    let folder = Folder::new();
    let schema = "label = \"y\"\nsparse = [\"a\", { column = \"b\", min_count = 2 }, \
                  { column = \"c\", cap = 1, oov_buckets = 3, salt = 9 }, \
                  { column = \"d\", hash_size = 50, salt = 7 }]";
    let text = "y,a,b,c,d\n1,p,k,s,u\n0,q,k,s,\n0,q,l,t,v\n";
    let out = prepared(&folder, schema, text);
    let (t, d) = (hashed("t", 9, 3), |key| hashed(key, 7, 50));
    let expected = [2, 1, 3, d("u"), 1, 1, 3, d(""), 1, 0, t, d("v")];
    assert_eq!(column::<u32>(&out, "sparse"), expected);
    assert_eq!(open(&out).cardinality(), [3, 2, 4, 50]);
    assert_eq!(vocabulary(&out, 2).unwrap(), ["s"]);
    assert_eq!(vocabulary(&out, 3), None);

    // Another split gets the same ids, with unknown keys in their buckets, and the same recipe.
    let valid = PrepareOptions {
        vocabulary_from: Some(out.clone()),
        ..csv(&folder, schema, "y,a,b,c,d\n1,x,l,z,u\n", "valid.h5")
    };
    let summary = run(&valid).unwrap();
    let expected = [0, 0, hashed("z", 9, 3), d("u")];
    assert_eq!(column::<u32>(&valid.output, "sparse"), expected);
    let unknown: Vec<u64> = summary.fields.iter().map(|f| f.values_out_of_vocabulary).collect();
    assert_eq!(unknown, [1, 1, 1, 0]);
    assert_eq!(open(&valid.output).transform(), open(&out).transform());

    // A split that was made in another way is refused, with the difference.
    let other = schema.replace("salt = 7", "salt = 8");
    let text = "y,a,b,c,d\n1,x,l,z,u\n";
    let other =
        PrepareOptions { vocabulary_from: Some(out), ..csv(&folder, &other, text, "other.h5") };
    let got = message(&other);
    assert!(
        got.contains("sparse field d: expected hash_size = 50, salt = 8 as in this run, got"),
        "{got}"
    );
}

#[test]
fn two_hashes_are_a_bag_of_two() {
    let folder = Folder::new();
    let schema = "label = 1\nheader = false\ncolumns = 3\nsparse = [2, \
                  { column = 3, hash_size = 1000, hashes = 2, salt = 4 }]";
    let out = prepared(&folder, schema, "1,a,x\n0,b,\n0,b,x\n");
    let two = |key| vec![hashed(key, 4, 1000), hashed(key, 5, 1000)];
    assert_eq!(bags(&out), [vec![2], two("x"), vec![1], two(""), vec![1], two("x")]);
    assert_eq!(open(&out).cardinality(), [3, 1000]);
}

#[test]
fn a_field_without_a_key_is_a_field_of_empty_bags() {
    let folder = Folder::new();
    for rule in ["hash_size = 9, hashes = 2", "hash_size = 9", "min_count = 1"] {
        let schema = format!(
            "label = 1\nheader = false\ncolumns = 3\nsparse = [{{ column = 2, hash_size = 9 }}, \
             {{ column = 3, separator = '|', {rule} }}]"
        );
        let out = prepared(&folder, &schema, "1,a,\n0,b,\n");
        let key = |key| vec![hashed(key, 0, 9)];
        assert_eq!(bags(&out), [key("a"), vec![], key("b"), vec![]], "{rule}");
    }
}

#[test]
fn bags_are_split_cleaned_and_cut() {
    let folder = Folder::new();
    let text = "y,g,s\n1,a|b||a,1::2::3\n0,,\n0, ? | c ,7\n1,b|a|c|d,4::5\n";
    let of = |keep: &str| {
        let schema = format!(
            "label = \"y\"\ntrim = true\nmissing = [\"?\"]\nsparse = [\
             {{ column = \"g\", separator = \"|\", max_length = 3, keep = \"{keep}\" }}, \
             {{ column = \"s\", separator = \"::\" }}]"
        );
        let out = prepared(&folder, &schema, text);
        let bags = bags(&out);
        let keys = vocabulary(&out, 0).unwrap();
        assert_eq!(vocabulary(&out, 1).unwrap(), ["1", "2", "3", "4", "5", "7"]);
        let items = |bag: &Vec<u32>| -> String {
            bag.iter().map(|id| keys[*id as usize - 1].as_str()).collect()
        };
        let lengths: Vec<usize> = bags.iter().skip(1).step_by(2).map(Vec::len).collect();
        assert_eq!(lengths, [3, 0, 1, 2]);
        bags.iter().step_by(2).map(items).collect::<Vec<_>>()
    };
    assert_eq!(of("first"), ["aba", "", "c", "bac"]);
    assert_eq!(of("last"), ["aba", "", "c", "acd"]);
}

/// The last separator of an item counts, what is missing weighs 1, other fields weigh 1.
#[test]
fn keys_of_a_bag_have_weights() {
    let folder = Folder::new();
    let text = "y,a,g\n1,p,x:0.5|y\n0,q,http://x:2|y: | ?:3|y:?\n0,p,\n1,p,y:0|x:1e-3|z:4|x\n";
    let of = |more: &str, threads| {
        let schema = format!(
            "label = \"y\"\ntrim = true\nmissing = [\"?\"]\nsparse = [\"a\", \
             {{ column = \"g\", separator = \"|\", weight_separator = \":\"{more} }}]"
        );
        let options =
            PrepareOptions { threads: Some(threads), ..csv(&folder, &schema, text, "out.h5") };
        run(&options).unwrap();
        let (out, keys) = (options.output.clone(), vocabulary(&options.output, 1).unwrap());
        assert!(open(&out).has_value_weights());
        assert!(open(&out).transform().contains("weight_separator = \":\""));
        let weights: Vec<f32> = column(&out, "sparse_weights");
        let mut weights = weights.into_iter();
        let of_bag = |(number, bag): (usize, Vec<u32>)| -> String {
            let items = bag.iter().map(|id| {
                let key = if number % 2 == 0 { "." } else { &keys[*id as usize - 1] };
                format!("{key}={} ", weights.next().unwrap())
            });
            items.collect()
        };
        let bags: Vec<String> = bags(&out).into_iter().enumerate().map(of_bag).collect();
        assert_eq!(weights.next(), None);
        assert!(bags.iter().step_by(2).all(|bag| bag == ".=1 "), "{bags:?}");
        bags.into_iter().skip(1).step_by(2).collect::<Vec<_>>()
    };
    for threads in [1, 2] {
        let all = ["x=0.5 y=1 ", "http://x=2 y=1 y=1 ", "", "y=0 x=0.001 z=4 x=1 "];
        assert_eq!(of("", threads), all);
        let last = ["x=0.5 y=1 ", "y=1 y=1 ", "", "z=4 x=1 "];
        assert_eq!(of(", max_length = 2, keep = \"last\"", threads), last);
        // Both ids of a key have its weight.
        let schema = "label = 'y'\nsparse = [{ column = 'g', separator = '|', hash_size = 9, \
                      hashes = 2, weight_separator = ':' }]";
        let out = prepared(&folder, schema, "y,g\n1,a:2|b\n0,c:0.5\n");
        assert_eq!(column::<f32>(&out, "sparse_weights"), [2.0, 2.0, 1.0, 1.0, 0.5, 0.5]);
    }
}

/// Whatever is too many: a row is malformed or not by what stands in it.
#[test]
fn a_malformed_weight_is_a_malformed_row() {
    let folder = Folder::new();
    let schema = "label = 'y'\nsparse = [{ column = 'g', separator = '|', max_length = 1, \
                  weight_separator = ':' }]";
    for (item, got) in [("a:x", "x"), ("a:-1", "-1"), ("a:inf", "inf"), ("b|a:1:nan", "nan")] {
        let text = format!("y,g\n1,a\n0,{item}\n");
        let got_message = message(&csv(&folder, schema, &text, "out.h5"));
        let expected = format!("column g: expected a weight of at least 0, got `{got}`");
        assert!(got_message.contains(&expected), "{got_message}");
        let options = PrepareOptions { max_bad_rows: 1, ..csv(&folder, schema, &text, "out.h5") };
        assert_eq!(run(&options).unwrap().rows_written, 1);
    }
}

#[test]
fn crosses_are_the_texts_of_both_columns() {
    let folder = Folder::new();
    let schema = "label = \"y\"\nsparse = [\"a\"]\ncross = [[\"a\", \"b\"], \
                  { columns = [\"b\", \"c\"], hash_size = 99 }]";
    let out = prepared(&folder, schema, "y,a,b,c\n1,p,q,r\n0,p,q,s\n0,pq,,s\n");
    assert_eq!(open(&out).sparse_names(), ["a", "a_x_b", "b_x_c"]);
    assert_eq!(vocabulary(&out, 1).unwrap(), ["p\u{1f}q", "pq\u{1f}"]);
    let ids: Vec<u32> = column(&out, "sparse");
    let c = |key| hashed(key, 0, 99);
    let expected = [1, 1, c("q\u{1f}r"), 1, 1, c("q\u{1f}s"), 2, 2, c("\u{1f}s")];
    assert_eq!(ids, expected);
}

#[test]
fn numbers_are_scored_clipped_filled_flagged_and_bucketed() {
    let folder = Folder::new();
    let schema = "label = \"y\"\ndense = [\
                  { column = \"a\", transform = \"zscore\", clip = [0, 10] }, \
                  { column = \"b\", fill = 1.5, missing_flag = true }, \
                  { column = \"c\", transform = \"log\", clip = [0, 1], missing_flag = true }]\n\
                  sparse = [{ column = \"a\", buckets = [0, 5, 5.5] }]";
    let text = "y,a,b,c\n1,2,3,\n0,,,9\n0,4,-1,-7\n1,600,2,1\n";
    let out = prepared(&folder, schema, text);
    let dataset = open(&out);
    assert_eq!(dataset.dense_names(), ["a", "b", "b.missing", "c", "c.missing"]);
    let (mean, deviation) = (16.0 / 3.0, (104.0f64 / 9.0).sqrt());
    let z = |x: f64| ((x - mean) / deviation) as f32;
    let ln2 = core::f32::consts::LN_2;
    let expected = [
        [z(2.0), 3.0, 0.0, 0.0, 1.0],
        [0.0, 1.5, 1.0, ln2, 0.0],
        [z(4.0), -1.0, 0.0, 0.0, 0.0],
        [z(10.0), 2.0, 0.0, ln2, 0.0],
    ];
    let dense: Vec<f32> = column(&out, "dense");
    for (got, expected) in dense.iter().zip(expected.as_flattened()) {
        assert!((got - expected).abs() < 1e-6, "{dense:?}");
    }
    assert_eq!(vocabulary(&out, 0).unwrap(), ["1", "", "3"]);

    // Another split uses the mean and deviation of the first.
    let valid = PrepareOptions {
        vocabulary_from: Some(out.clone()),
        ..csv(&folder, schema, "y,a,b,c\n1,7,3,1\n", "valid.h5")
    };
    run(&valid).unwrap();
    assert!((column::<f32>(&valid.output, "dense")[0] - z(7.0)).abs() < 1e-6);
    assert_eq!(open(&valid.output).transform(), dataset.transform());
    let other = schema.replace("fill = 1.5", "fill = 2");
    let other = PrepareOptions {
        vocabulary_from: Some(out),
        ..csv(&folder, &other, "y,a,b,c\n1,7,3,1\n", "other.h5")
    };
    let got = message(&other);
    assert!(got.contains("dense feature b: expected fill = 2.0, missing_flag = true as"), "{got}");
}

/// Moments are those of the text, whatever blocks and threads: hashed fields and a score.
#[test]
fn a_score_needs_two_passes_even_with_hashed_ids() {
    let folder = Folder::new();
    let schema = "label = \"y\"\ndense = [\"x\"]\ndense_transform = \"zscore\"\nsparse = [\"a\"]";
    let text: String = (0..90_000).map(|i| format!("{},{}.25,k{}\n", i % 2, i, i % 9)).collect();
    let mut seen = HashSet::new();
    for threads in 1..=3 {
        let options = PrepareOptions {
            threads: Some(threads),
            hash_size: Some(100),
            ..csv(&folder, schema, &format!("y,x,a\n{text}"), "out.h5")
        };
        run(&options).unwrap();
        let dataset = open(&options.output);
        seen.insert((dataset.transform().to_owned(), dataset.fingerprint().to_owned()));
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    let recipe = seen.into_iter().next().unwrap().0;
    assert!(recipe.contains("mean = 44999.75"), "{recipe}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let folder = Folder::new();
    let text = "y,a,b\n1,2,3\n";
    for (lists, expected) in [
        ("sparse = [{ column = 'a', hash_size = 5, min_count = 2 }]", "a: min_count: expected no"),
        ("sparse = [{ column = 'a', hashes = 2 }]", "a: hashes: expected hash_size beside it"),
        ("sparse = [{ column = 'a', hash_size = 9, hashes = 3 }]", "hashes: expected 1 or 2"),
        ("sparse = [{ column = 'a', cap = 0 }]", "sparse: a: cap: expected at least 1, got 0"),
        ("sparse = [{ column = 'a', max_length = 3 }]", "max_length: expected separator beside it"),
        ("sparse = [{ column = 'a', separator = '' }]", "separator: expected some text, got none"),
        ("sparse = [{ column = 'a', separator = '|', keep = 'last' }]", "expected max_length"),
        ("sparse = [{ column = 'a', separator = '|', keep = 'mid' }]", "keep = \"first\" or"),
        ("sparse = [{ column = 'a', weight_separator = ':' }]", "expected separator beside it"),
        (
            "sparse = [{ column = 'a', separator = '|', weight_separator = '' }]",
            "weight_separator: expected some text, got none",
        ),
        (
            "sparse = [{ column = 'a', separator = '|', weight_separator = '||' }]",
            "weight_separator: expected no separator in it",
        ),
        ("sparse = [{ column = 'a', buckets = [3, 1] }]", "each above the one before"),
        ("dense = [{ column = 'a', clip = [3, 1] }]", "dense: a: clip: expected [LOW, HIGH]"),
        ("dense = [{ column = 'a', clip = [1] }]", "clip = [LOW, HIGH], fill = NUMBER"),
        ("dense = ['a']\nsparse = ['a']", "used as a dense feature and as a sparse field"),
        ("sparse = ['a']\nweight = 'y'", "used as the label and as the weight"),
        ("cross = [['a', 'y']]", "used as the label and as a part of a cross"),
        ("cross = [['a']]", "cross: expected two columns or more"),
        ("cross = [['a', 'b'], ['a', 'b']]", "two features are called `a_x_b`"),
    ] {
        let schema = format!("label = 'y'\n{lists}");
        let error = run(&csv(&folder, &schema, text, "out.h5")).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{lists}: {error}");
    }
    let schema = "label = 'y'\nsparse = [2]";
    let error = run(&csv(&folder, schema, "y,a\0b\n1,2\n", "out.h5")).unwrap_err();
    assert!(error.to_string().contains("column `a\\0b` has a NUL in it"), "{error}");
}

/// A column is then known by its name and number.
#[test]
fn columns_that_share_a_name_are_told_apart_by_number() {
    let folder = Folder::new();
    let schema = "label = 'y'\nsparse = [2, 'b.3']";
    let out = prepared(&folder, schema, "y,b,b\n1,p,q\n");
    assert_eq!(open(&out).sparse_names(), ["b.2", "b.3"]);
}
