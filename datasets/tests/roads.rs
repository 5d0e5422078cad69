//! The reader undoes filters and casts by itself; the same rows come through the HDF5 library's
//! own filters, for any shape, type, chunks and filters, and with any number of threads.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod common;

use std::path::Path;

use common::{RICH, Shape, drain, written};
use hdf5::{Extent, File, H5Type};
use proptest::prelude::*;
use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{BatchBuffer, Dataset, Pipeline, Reading, TrainOrder, verify};

/// How one dataset is stored.
#[derive(Clone, Copy, Debug)]
struct Storage {
    /// Rows and columns of a chunk; `None`: contiguous.
    chunk: Option<(usize, usize)>,
    filters: [bool; 3],
    /// Which of the types that its numbers may have.
    kind: usize,
}

fn storage() -> impl Strategy<Value = Storage> {
    let rows = prop_oneof![1usize..40, 64usize..1500, Just(1024), Just(9000)];
    let chunk = prop_oneof![4 => (rows, 1usize..6).prop_map(Some), 1 => Just(None)];
    (chunk, any::<[bool; 3]>(), 0usize..6).prop_map(|(chunk, filters, kind)| Storage {
        chunk,
        filters,
        kind,
    })
}

fn write<T: H5Type>(file: &File, name: &str, how: Storage, width: Option<usize>, values: &[T]) {
    let mut builder = file.new_dataset::<T>();
    if let Some((rows, columns)) = how.chunk {
        if how.filters[0] {
            builder = builder.shuffle();
        }
        if how.filters[1] {
            builder = builder.deflate(3);
        }
        if how.filters[2] {
            builder = builder.fletcher32();
        }
        builder = match width {
            None => builder.chunk((rows,)),
            Some(width) => builder.chunk((rows, columns.min(width))),
        };
    }
    let extent = |n| if how.chunk.is_some() { Extent::resizable(n) } else { Extent::fixed(n) };
    let dataset = match width {
        None => builder.shape((extent(values.len()),)).create(name),
        Some(width) => {
            builder.shape((extent(values.len() / width), Extent::fixed(width))).create(name)
        }
    };
    dataset.unwrap().write_raw(values).unwrap();
}

/// Writes `values`, small whole numbers, in the type that `how` says; ids have no fractions.
fn numbers(
    file: &File,
    name: &str,
    how: Storage,
    width: Option<usize>,
    values: &[i64],
    whole: bool,
) {
    macro_rules! as_type {
        ($type:ty) => {{
            let values: Vec<$type> = values.iter().map(|&v| v as $type).collect();
            write(file, name, how, width, &values)
        }};
    }
    match (how.kind, whole) {
        (0, true) => as_type!(u32),
        (1, true) => as_type!(u64),
        (0, false) => as_type!(f32),
        (1, false) => as_type!(f64),
        (2, _) => as_type!(i64),
        (3, _) => as_type!(i16),
        (4, _) => as_type!(i32),
        _ => as_type!(i8),
    }
}

#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    dense: usize,
    fields: usize,
    bags: bool,
    /// Of label, dense, ids, offsets, weight, group and weights of ids.
    storage: [Storage; 7],
    value_weights: bool,
    order: TrainOrder,
}

fn cases() -> impl Strategy<Value = Case> {
    let storages = core::array::from_fn::<_, 7, _>(|_| storage());
    let order = (any::<u64>(), 1usize..4, 1usize..6, 1usize..300, any::<bool>()).prop_map(
        |(seed, workers_total, lanes, batch_size, shuffle)| TrainOrder {
            seed,
            workers_total,
            lanes,
            batch_size,
            shuffle,
        },
    );
    (1usize..4000, 0usize..5, 1usize..5, any::<[bool; 2]>(), storages, order).prop_map(
        |(rows, dense, fields, [bags, value_weights], storage, order)| Case {
            rows,
            dense,
            fields,
            bags,
            storage,
            value_weights,
            order,
        },
    )
}

fn make(path: &Path, case: &Case) {
    let file = File::create(path).unwrap();
    let stream = Stream::new(3, Purpose::Test(2));
    let mut counter = 0;
    let mut below = |bound: u64| {
        counter += 1;
        stream.below(counter, bound) as i64
    };
    file.new_attr::<u64>().create("umbra_version").unwrap().write_scalar(&1u64).unwrap();
    file.new_attr_builder().with_data(&vec![100u64; case.fields]).create("cardinality").unwrap();
    let [label, dense, ids, offsets, weight, group, value_weights] = case.storage;
    let mut some = |n: usize, bound| (0..n).map(|_| below(bound)).collect::<Vec<_>>();
    let labels = some(case.rows, 2);
    if label.kind == 5 {
        let clicked: Vec<bool> = labels.iter().map(|&l| l == 1).collect();
        write(&file, "label", label, None, &clicked);
    } else {
        numbers(&file, "label", label, None, &labels, false);
    }
    if case.dense > 0 {
        let values = some(case.rows * case.dense, 100);
        numbers(&file, "dense", dense, Some(case.dense), &values, false);
    }
    if case.bags {
        let mut bounds = vec![0];
        for length in some(case.rows * case.fields, 3) {
            bounds.push(bounds[bounds.len() - 1] + length);
        }
        let values = some(bounds[bounds.len() - 1].max(1) as usize, 100);
        *bounds.last_mut().unwrap() = values.len() as i64;
        numbers(&file, "sparse_values", ids, None, &values, true);
        if case.value_weights {
            let weights = some(values.len(), 50);
            numbers(&file, "sparse_weights", value_weights, None, &weights, false);
        }
        // All of them have to fit.
        let kind = [0, 1, 2, 4][offsets.kind % 4];
        numbers(&file, "sparse_offsets", Storage { kind, ..offsets }, None, &bounds, true);
    } else {
        numbers(&file, "sparse", ids, Some(case.fields), &some(case.rows * case.fields, 100), true);
    }
    numbers(&file, "weight", weight, None, &some(case.rows, 50), false);
    numbers(&file, "group", group, None, &some(case.rows, 50), true);
}

fn read(dataset: &Dataset, order: &TrainOrder, reading: Reading) -> Vec<Vec<BatchBuffer>> {
    let workers = 0..order.workers_total;
    let (pipeline, mut batches) = Pipeline::train(dataset, order, workers, 0..2, reading).unwrap();
    let all = drain(&mut batches);
    pipeline.join();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn all_roads_and_any_number_of_threads_give_the_same_batches(case in cases()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.h5");
        make(&path, &case);
        let dataset = Dataset::open(&[path]).unwrap();
        let plain = Reading { through_library: true, ..Reading::from(2) };
        let expected = read(&dataset, &case.order, plain);
        let rows: usize = expected.iter().flatten().map(BatchBuffer::len).sum();
        prop_assert_eq!(rows, 2 * case.rows);
        for threads in [1, 3] {
            let reading = Reading { threads, ..Reading::from(2) };
            prop_assert!(read(&dataset, &case.order, reading) == expected, "{} threads", threads);
        }
    }
}

/// Ours as well, whole files of it, with an error in the middle that all threads meet.
#[test]
fn threads_stop_at_a_damaged_chunk_and_leave_nothing_behind() {
    let (folder, path, table) = written(Shape { rows: 30_000, ..RICH });
    let order = TrainOrder { seed: 1, workers_total: 1, lanes: 4, batch_size: 100, shuffle: true };
    let dataset = Dataset::open(core::slice::from_ref(&path)).unwrap();
    let threads = Reading { threads: 4, ..Reading::from(2) };
    for batch in read(&dataset, &order, threads).iter().flatten() {
        table.check(Shape { rows: 30_000, ..RICH }, batch);
    }
    let at = {
        let file = File::open(&path).unwrap();
        let chunk = file.dataset("dense").unwrap().chunk_info(9).unwrap();
        (chunk.addr + chunk.size / 2) as usize
    };
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 4;
    let damaged = folder.path().join("damaged.h5");
    std::fs::write(&damaged, bytes).unwrap();
    let dataset = Dataset::open(&[damaged]).unwrap();
    let (pipeline, mut batches) = Pipeline::train(&dataset, &order, 0..1, 0..9, threads).unwrap();
    let error = loop {
        match batches[0].next(&mut || ()) {
            Ok(batch) => assert!(batch.is_some(), "the damage was not seen"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("damaged.h5: cannot read dataset `dense` rows 9216..10240"), "{error}");
    assert!(error.contains("Fletcher32"), "{error}");
    pipeline.join();
}

/// A chunk of many pieces, shared by all lanes.
#[test]
fn a_chunk_that_holds_everything_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let how = Storage { chunk: Some((100_000, 5)), filters: [true; 3], kind: 0 };
    let order = TrainOrder { seed: 1, workers_total: 1, lanes: 8, batch_size: 512, shuffle: true };
    let case = Case {
        rows: 100_000,
        dense: 3,
        fields: 5,
        bags: false,
        storage: [how; 7],
        value_weights: false,
        order,
    };
    make(&path, &case);
    verify(&path).unwrap();
    let dataset = Dataset::open(&[path]).unwrap();
    let plain = Reading { through_library: true, ..Reading::from(2) };
    let expected = read(&dataset, &order, plain);
    assert!(read(&dataset, &order, 2.into()) == expected);
    assert!(read(&dataset, &order, Reading { threads: 2, ..2.into() }) == expected);
}
