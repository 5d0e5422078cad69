//! The bits that bulk-synchronous training makes stay what they were (`golden/bsp_weights.txt`),
//! on any number of ranks.
#![allow(clippy::unwrap_used)]

use std::path::Path;

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
    let folder = Folder::new();
    let synth =
        ["synth", "--output", "train.h5", "--rows", ROWS, "--preset", "small", "--seed", "1"];
    drop(folder.umbra(1, &synth).fine());
    folder.write("job.toml", JOB);
    for ranks in [1, 2, 4] {
        let (run, batch) = (format!("run-{ranks}"), GLOBAL_BATCH / ranks);
        let sets = Folder::sets(&run, &[&format!("train.batch_size={batch}")]);
        let arguments: Vec<&str> = ["train", "-c", "job.toml"]
            .into_iter()
            .chain(sets.iter().map(String::as_str))
            .collect();
        let job =
            start(folder.root(), ranks, &program("umbra"), &arguments, &[("UMBRA_SIMD", simd)]);
        drop(job.wait(LIMIT).fine());
        let SavedModel { dense, rows } =
            SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")));
        let got = [crc32(dense.into_iter()), crc32(rows.into_iter().flatten())];
        assert_eq!(got, golden(simd), "{simd} on {ranks} ranks: {got:08x?}");
    }
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
