//! Writes so many bytes of f32 to an HDF5 file, a megabyte at a time and without filters, brings
//! them to the disk, and prints the seconds: what a checkpoint in HDF5 would take.
//!
//! `hdf5_rate FILE BYTES`
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::PathBuf;
use std::time::Instant;

use hdf5::File;

const BLOCK: usize = 1 << 18;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(arguments.next().unwrap());
    let bytes: usize = arguments.next().unwrap().to_str().unwrap().parse().unwrap();
    let blocks = bytes.div_ceil(4 * BLOCK);
    let values = vec![1.0f32; BLOCK];
    let begun = Instant::now();
    let file = File::create(&path).unwrap();
    let dataset = file.new_dataset::<f32>().shape(blocks * BLOCK).create("rows").unwrap();
    for block in 0..blocks {
        dataset.write_slice(&values, block * BLOCK..(block + 1) * BLOCK).unwrap();
    }
    file.flush().unwrap();
    drop((dataset, file));
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    println!("{}", begun.elapsed().as_secs_f64());
}
