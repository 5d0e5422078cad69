//! The bits that bulk-synchronous training makes stay what they were (`golden/bsp_weights.txt`),
//! on any number of ranks.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use umbra_core::kernel::Simd;
use umbra_tests::{Folder, LIMIT, SavedModel, program, start};

const ROWS: &str = "20000";
const GLOBAL_BATCH: usize = 256;
const JOB: &str = r#"
seed = 7
[data]
train = "train.h5"
[model]
kind = "dlrm"
embedding_dim = 8
bottom = [32, 8]
top = [32, 16]
batch_norm = true
dropout = 0.1
[optim.dense]
kind = "adam"
lr = 1e-3
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[train]
epochs = 1
worker_threads = 1
[sync]
method = "bsp"
[checkpoint]
save = "last"
[run]
tensorboard = false
watchdog_s = 120
"#;

/// CRC-32 of IEEE 802.3, bit by bit.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 }
        })
    })
}

/// The digests for an instruction set, dense and rows.
fn golden(simd: &str) -> [u32; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/bsp_weights.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let digests = text.lines().find_map(|line| line.strip_prefix(simd)?.strip_prefix(' '));
    let digests = digests.unwrap().split(' ').map(|hex| u32::from_str_radix(hex, 16).unwrap());
    digests.collect::<Vec<u32>>().try_into().unwrap()
}

/// Trains on 1, 2 and 4 ranks with an instruction set.
fn keeps_its_bits(simd: &str) {
    for (ranks, got) in digests(simd, GLOBAL_BATCH, &[]) {
        assert_eq!(got, golden(simd), "{simd} on {ranks} ranks: {got:08x?}");
    }
}

/// Digests of what is trained on 1, 2 and 4 ranks, dense and rows.
fn digests(simd: &str, global_batch: usize, more: &[&str]) -> [(usize, [u32; 2]); 3] {
    let folder = Folder::new();
    let synth =
        ["synth", "--output", "train.h5", "--rows", ROWS, "--preset", "small", "--seed", "1"];
    drop(folder.umbra(1, &synth).fine());
    folder.write("job.toml", JOB);
    [1, 2, 4].map(|ranks| {
        let (run, batch) = (format!("run-{ranks}"), global_batch / ranks);
        let batch = format!("train.batch_size={batch}");
        let sets = Folder::sets(&run, &[&[&*batch], more].concat());
        let arguments: Vec<&str> = ["train", "-c", "job.toml"]
            .into_iter()
            .chain(sets.iter().map(String::as_str))
            .collect();
        let job =
            start(folder.root(), ranks, &program("umbra"), &arguments, &[("UMBRA_SIMD", simd)]);
        drop(job.wait(LIMIT).fine());
        let SavedModel { dense, rows } =
            SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")));
        (ranks, [crc32(dense.into_iter()), crc32(rows.into_iter().flatten())])
    })
}

#[test]
fn bsp_keeps_its_bits() {
    // The check value of the polynomial.
    assert_eq!(crc32(b"123456789".iter().copied()), 0xCBF4_3926);
    keeps_its_bits("plain");
}

#[test]
fn bsp_keeps_its_bits_on_avx2() {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| processor.split_whitespace().any(|word| word == flag);
    if has("avx2") && has("fma") {
        keeps_its_bits("avx2");
    }
}

/// Slices of enough examples, and layers wide enough, that f32s are multiplied as sums of bf16s
/// where the machine does so.
#[test]
fn bsp_of_thirds_has_the_same_bits_on_any_number_of_ranks() {
    if !Simd::Amx.is_supported() {
        return;
    }
    let wide = ["model.bottom=[64,32,8]", "model.top=[64,48]", "model.batch_norm=false"];
    let [one, two, four] = digests("amx", 1024, &wide).map(|(_, got)| got);
    assert_eq!((two, four), (one, one));
    let [whole, ..] = digests("avx512", 1024, &wide).map(|(_, got)| got);
    assert_ne!(whole, one, "products of thirds have bits of their own");
}
