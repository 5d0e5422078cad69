//! Our deflate encoder beside the libraries that could stand in its place, on text in Criteo's
//! format (`criteo_text` writes some).
//!
//!     cargo run --release -p umbra-datasets --example peers_of_ours -- FILE.tsv
//!
//! The chunks of the dataset that `prepare` makes of the text, shuffled as HDF5 has them, each
//! encoder in turn. One thread.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::Write;
use std::path::{Path, PathBuf};

use umbra_datasets::bench;
use umbra_datasets::prepare::{Format, PrepareOptions, prepare};

const CHUNK_ROWS: usize = 1024;

fn main() {
    let path = PathBuf::from(std::env::args_os().nth(1).expect("expected FILE.tsv"));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.h5");
    let mut options = PrepareOptions::new(Format::Criteo, vec![path.clone()], output.clone());
    options.threads = Some(1);
    let started = processor_seconds();
    let summary = prepare(&options, &mut |_| ()).unwrap();
    let seconds = processor_seconds() - started;
    let megabytes = summary.input_bytes as f64 / 1e6;
    println!("prepare: {seconds:.2} s, {:.0} MB/s", megabytes / seconds);
    encoders(&output);
}

/// The median of three times, and what `work` returns.
fn median<T>(mut work: impl FnMut() -> T) -> (f64, T) {
    let mut timed = || {
        let started = processor_seconds();
        let result = work();
        (processor_seconds() - started, result)
    };
    let mut runs = [timed(), timed(), timed()];
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [_, middle, _] = runs;
    middle
}

/// Of all threads of this process so far.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The four byte planes of 32-bit words, one after the other.
fn shuffled(words: &[u32]) -> Vec<u8> {
    (0..4).flat_map(|k| words.iter().map(move |word| word.to_le_bytes()[k])).collect()
}

fn encoders(dataset: &Path) {
    let file = hdf5::File::open(dataset).unwrap();
    let sparse: Vec<u32> = file.dataset("sparse").unwrap().read_raw().unwrap();
    let dense: Vec<f32> = file.dataset("dense").unwrap().read_raw().unwrap();
    let dense: Vec<u32> = dense.into_iter().map(f32::to_bits).collect();
    let chunks: Vec<(Vec<u8>, usize)> = sparse
        .chunks(26 * CHUNK_ROWS)
        .chain(dense.chunks(13 * CHUNK_ROWS))
        .map(|words| (shuffled(words), words.len()))
        .collect();
    let bytes: usize = chunks.iter().map(|(chunk, _)| chunk.len()).sum();
    let report = |name: &str, (seconds, packed): (f64, usize)| {
        let (rate, ratio) = (bytes as f64 / 1e6 / seconds, packed as f64 / bytes as f64);
        println!("{name}: {rate:.0} MB/s, ratio {ratio:.3}");
    };
    let mut ours = bench::Encoder::default();
    let mut stream = Vec::new();
    report(
        "our deflate",
        median(|| {
            let pack = |(chunk, elements): &(Vec<u8>, usize)| {
                stream.clear();
                bench::deflate(&mut ours, chunk, *elements, &mut stream);
                stream.len()
            };
            chunks.iter().map(pack).sum()
        }),
    );
    let level = libdeflater::CompressionLvl::new(1).unwrap();
    let mut fast = libdeflater::Compressor::new(level);
    report(
        "libdeflate 1",
        median(|| {
            let pack = |(chunk, _): &(Vec<u8>, usize)| {
                stream.resize(fast.zlib_compress_bound(chunk.len()), 0);
                fast.zlib_compress(chunk, &mut stream).unwrap()
            };
            chunks.iter().map(pack).sum()
        }),
    );
    report(
        "flate2 1",
        median(|| {
            let pack = |(chunk, _): &(Vec<u8>, usize)| {
                let mut encoder =
                    flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(chunk).unwrap();
                encoder.finish().unwrap().len()
            };
            chunks.iter().map(pack).sum()
        }),
    );
}
