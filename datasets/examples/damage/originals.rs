//! The files to be damaged, and where their regions lie.
//!
//! Ours are of every kind that umbra writes. The foreign ones are as h5py writes them by default:
//! library version "earliest", strings of variable length, no checksum but in chunks that ask for
//! one.

use core::ops::Range;
use std::fs;
use std::path::{Path, PathBuf};

use hdf5::types::VarLenUnicode;
use hdf5::{File, Group, H5Type};
use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{DatasetInfo, RowBlock, Writer};

/// Bytes of a file that have one purpose.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) name: String,
    /// Where its bytes are.
    pub(crate) parts: Vec<Range<usize>>,
}

/// Shape of one of ours.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    rows: usize,
    bags: bool,
    label: bool,
    weight_and_group: bool,
    key_lists: bool,
    /// Bytes of the attribute `transform`.
    transform: usize,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "one-hot",
        rows: 2500,
        bags: false,
        label: true,
        weight_and_group: false,
        key_lists: false,
        transform: 200,
    },
    Kind {
        name: "bags",
        rows: 2500,
        bags: true,
        label: true,
        weight_and_group: true,
        key_lists: true,
        transform: 200,
    },
    Kind {
        name: "unlabelled",
        rows: 2500,
        bags: false,
        label: false,
        weight_and_group: false,
        key_lists: true,
        transform: 200,
    },
    // Attributes of more than 64 kB lie in a heap of their own.
    Kind {
        name: "large-attribute",
        rows: 600,
        bags: false,
        label: true,
        weight_and_group: false,
        key_lists: false,
        transform: 70_000,
    },
];

const CARDINALITY: [u64; 2] = [7, 1000];
const DENSE: usize = 3;
const SALT: u64 = 1;

/// Columns of all rows; every value is a function of its row.
#[derive(Default)]
struct Columns {
    label: Vec<f32>,
    weight: Vec<f32>,
    dense: Vec<f32>,
    values: Vec<u32>,
    value_weights: Vec<f32>,
    offsets: Vec<u32>,
    group: Vec<u64>,
}

impl Columns {
    fn new(kind: Kind) -> Self {
        let stream = Stream::new(SALT, Purpose::Test(1));
        let mut counter = 0;
        let mut below = |bound: u64| {
            counter += 1;
            stream.below(counter, bound)
        };
        let mut columns = Self { offsets: vec![0], ..Self::default() };
        for _ in 0..kind.rows {
            if kind.label {
                columns.label.push(below(5) as f32 / 4.0);
            }
            if kind.weight_and_group {
                columns.weight.push(below(9) as f32 / 2.0);
                columns.group.push(below(50));
            }
            columns.dense.extend((0..DENSE).map(|_| below(1000) as f32 - 500.0));
            for cardinality in CARDINALITY {
                let length = if kind.bags { below(4) } else { 1 };
                columns.values.extend((0..length).map(|_| below(cardinality) as u32));
                columns.offsets.push(columns.values.len() as u32);
            }
        }
        if kind.bags && kind.weight_and_group {
            let weights = columns.values.iter().map(|_| below(9) as f32 / 4.0);
            columns.value_weights = weights.collect();
        }
        columns
    }
}

/// Writes a file of every kind of ours to `folder`.
pub(crate) fn ours(folder: &Path) -> Vec<PathBuf> {
    KINDS.iter().map(|&kind| one_of_ours(folder, kind)).collect()
}

fn one_of_ours(folder: &Path, kind: Kind) -> PathBuf {
    let path = folder.join(format!("{}.h5", kind.name));
    let names = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}-{i}")).collect();
    let transform = "kind = \"test\"\n# ".chars().chain(core::iter::repeat_n('x', kind.transform));
    let info = DatasetInfo {
        dense_names: names("count", DENSE),
        sparse_names: names("id", CARDINALITY.len()),
        cardinality: CARDINALITY.to_vec(),
        transform: transform.collect(),
        one_hot: !kind.bags,
        has_label: kind.label,
        has_weight: kind.weight_and_group,
        has_group: kind.weight_and_group,
        has_value_weights: kind.bags && kind.weight_and_group,
    };
    let columns = Columns::new(kind);
    let mut writer = Writer::create(&path, info).unwrap();
    writer
        .append(&RowBlock {
            rows: kind.rows,
            label: &columns.label,
            weight: &columns.weight,
            dense: &columns.dense,
            values: &columns.values,
            value_weights: &columns.value_weights,
            offsets: if kind.bags { &columns.offsets } else { &[] },
            group: &columns.group,
        })
        .unwrap();
    if kind.key_lists {
        for (field, cardinality) in CARDINALITY.into_iter().enumerate() {
            let keys: Vec<String> = (1..cardinality).map(|id| format!("key{id}")).collect();
            let mut offsets = vec![0];
            offsets.extend(keys.iter().scan(0, |end, key| {
                *end += key.len() as u64;
                Some(*end)
            }));
            writer.write_vocabulary(field, keys.concat().as_bytes(), &offsets).unwrap();
        }
    }
    writer.finish().unwrap();
    path
}

/// Writes files as h5py does without being told otherwise: contiguous, and in chunks.
pub(crate) fn foreign(folder: &Path) -> Vec<PathBuf> {
    let kinds = [("h5py-contiguous", false, KINDS[0]), ("h5py-gzip", true, KINDS[1])];
    kinds.map(|(name, chunked, kind)| one_foreign(folder, name, chunked, kind)).to_vec()
}

fn one_foreign(folder: &Path, name: &str, chunked: bool, kind: Kind) -> PathBuf {
    let path = folder.join(format!("{name}.h5"));
    let columns = Columns::new(Kind { rows: 600, ..kind });
    let file = File::create(&path).unwrap();
    file.new_attr::<i64>().create("umbra_version").unwrap().write_scalar(&1i64).unwrap();
    file.new_attr_builder()
        .with_data(&CARDINALITY.map(|c| c as i64))
        .create("cardinality")
        .unwrap();
    for (name, prefix, n) in [("dense_names", "count", DENSE), ("sparse_names", "id", 2)] {
        let names: Vec<VarLenUnicode> =
            (0..n).map(|i| format!("{prefix}-{i}").parse().unwrap()).collect();
        file.new_attr_builder().with_data(&names).create(name).unwrap();
    }
    let text: VarLenUnicode = "kind = \"test\"\n".parse().unwrap();
    file.new_attr::<VarLenUnicode>().create("transform").unwrap().write_scalar(&text).unwrap();
    let to = Table { file: &file, chunked };
    to.write("label", &columns.label, None);
    to.write("dense", &columns.dense, Some(DENSE));
    if kind.bags {
        let offsets: Vec<u64> = columns.offsets.iter().map(|&offset| offset.into()).collect();
        to.write("weight", &columns.weight, None);
        to.write("group", &columns.group, None);
        to.write("sparse_values", &columns.values, None);
        to.write("sparse_offsets", &offsets, None);
    } else {
        to.write("sparse", &columns.values, Some(CARDINALITY.len()));
    }
    path
}

struct Table<'a> {
    file: &'a File,
    chunked: bool,
}

impl Table<'_> {
    fn write<T: H5Type>(&self, name: &str, values: &[T], width: Option<usize>) {
        let builder = self.file.new_dataset::<T>();
        let builder = if self.chunked { builder.deflate(4) } else { builder };
        let rows = values.len() / width.unwrap_or(1);
        let chunk = 200.min(rows);
        let dataset = match (width, self.chunked) {
            (None, false) => builder.shape((rows,)).create(name),
            (None, true) => builder.shape((rows,)).chunk((chunk,)).create(name),
            (Some(width), false) => builder.shape((rows, width)).create(name),
            (Some(width), true) => builder.shape((rows, width)).chunk((chunk, width)).create(name),
        };
        dataset.unwrap().write_raw(values).unwrap();
    }
}

/// The regions of a file: rows of every column, and the library's own structures by their
/// signatures (HDF5 file format specification, III).
pub(crate) fn regions(path: &Path) -> Vec<Region> {
    let bytes = fs::read(path).unwrap();
    let mut of_rows: Vec<(usize, usize, String)> = Vec::new();
    find_rows(&File::open(path).unwrap(), "", &mut of_rows);
    of_rows.sort();
    of_rows.push((bytes.len(), bytes.len(), String::new()));
    let mut regions: Vec<Region> = Vec::new();
    let mut add = |name: String, part: Range<usize>| {
        if part.is_empty() {
            return;
        }
        match regions.iter_mut().find(|region| region.name == name) {
            Some(region) => region.parts.push(part),
            None => regions.push(Region { name, parts: vec![part] }),
        }
    };
    let mut from = 0;
    for (at, end, name) in of_rows {
        let mut start = from;
        let mut structure = "other";
        for place in from..at {
            let found = SIGNATURES.iter().find(|(s, _)| bytes[place..at].starts_with(s.as_bytes()));
            let found = if place == 0 { Some(&("", "superblock")) } else { found };
            if let Some((_, next)) = found {
                add(structure.into(), start..place);
                (start, structure) = (place, next);
            }
        }
        add(structure.into(), start..at);
        add(format!("rows of {name}"), at..end);
        from = end;
    }
    regions
}

/// Places of the rows of all datasets below `group`.
fn find_rows(group: &Group, prefix: &str, found: &mut Vec<(usize, usize, String)>) {
    for name in group.member_names().unwrap() {
        let full = format!("{prefix}{name}");
        let Ok(dataset) = group.dataset(&name) else {
            find_rows(&group.group(&name).unwrap(), &format!("{full}/"), found);
            continue;
        };
        match (dataset.num_chunks().filter(|_| dataset.is_chunked()), dataset.offset()) {
            (Some(chunks), _) => found.extend((0..chunks).map(|number| {
                let chunk = dataset.chunk_info(number).unwrap();
                (chunk.addr as usize, (chunk.addr + chunk.size) as usize, full.clone())
            })),
            (None, Some(at)) => {
                let size = dataset.size() * dataset.dtype().unwrap().size();
                found.push((at as usize, at as usize + size, full));
            }
            (None, None) => {}
        }
    }
}

const SIGNATURES: [(&str, &str); 16] = [
    ("OHDR", "object headers"),
    ("OCHK", "object headers"),
    ("FRHP", "fractal heaps"),
    ("FHDB", "fractal heaps"),
    ("FHIB", "fractal heaps"),
    ("BTHD", "B-trees"),
    ("BTIN", "B-trees"),
    ("BTLF", "B-trees"),
    ("TREE", "B-trees"),
    ("EAHD", "chunk indices"),
    ("EAIB", "chunk indices"),
    ("EASB", "chunk indices"),
    ("EADB", "chunk indices"),
    ("GCOL", "global heap"),
    ("HEAP", "local heaps"),
    ("SNOD", "symbol tables"),
];
