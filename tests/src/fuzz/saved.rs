//! What a model is read from again: manifests, whole checkpoints, flat models.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use umbra_core::batch::{Batch, Jagged};
use umbra_core::flat::{Flat, Header, Memory};
use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling, Structure};
use umbra_mpi::checkpoint::{Checkpoint, CheckpointError, ExportFormat, Manifest};
use umbra_mpi::config::{Config, convert};

use super::mutate::Dice;
use super::targets::Fuzzed;

/// The line of a manifest of this JSON, with its checksum (docs/formats.md).
fn line(json: &str) -> String {
    let crc = crc32fast::hash(json.as_bytes());
    format!("{{\"crc32\":\"{crc:08x}\",\"manifest\":{json}}}\n")
}

/// The job of the checkpoints.
const JOB: &str = "[data]\ntrain = [\"a.h5\"]\n[model]\nkind = \"deepfm\"\nembedding_dim = 2\n\
    top = [3]\n[optim.dense]\nkind = \"sgd\"\nlr = 0.1\n[optim.sparse]\nkind = \"sgd\"\nlr = 0.1\n";
const CARDINALITY: [u64; 2] = [5, 4];
const PARTITIONS: u32 = 2;

/// A checkpoint of step 2: manifest, and the bytes of its file. All rows, or those that changed
/// since step 1.
fn saved(base: Option<(u64, u32)>) -> (Value, Vec<u8>) {
    let config = Config::parse(JOB, "job.toml".as_ref(), &[]).unwrap();
    let model = convert::model(&config.model, 3, CARDINALITY.len()).unwrap();
    let record = model.row_width() as u64;
    let mut tensors: Vec<(String, &str, Vec<u64>, Vec<u8>)> = vec![];
    let floats = |count: u64| (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
    for tensor in model.tensors() {
        let name = format!("dense.{}", tensor.name);
        let shape = vec![tensor.rows as u64, tensor.columns as u64];
        tensors.push((name, "F32", shape, floats(tensor.len() as u64)));
    }
    for partition in 0..PARTITIONS {
        let rows = (CARDINALITY.iter().sum::<u64>() + 1 - u64::from(partition)) / 2;
        if base.is_some() {
            let index = [1u64, 3].into_iter().flat_map(u64::to_le_bytes).collect();
            tensors.push((format!("rows.{partition}.index"), "U64", vec![2], index));
            let name = format!("rows.{partition}.changed");
            tensors.push((name, "F32", vec![2, record], floats(2 * record)));
        } else {
            let name = format!("rows.{partition}");
            tensors.push((name, "F32", vec![rows, record], floats(rows * record)));
        }
    }
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, kind, shape, bytes) in &tensors {
        let offsets = [at, at + bytes.len()];
        let entry = json!({ "dtype": kind, "shape": shape, "data_offsets": offsets });
        header.insert(name.clone(), entry);
        at += bytes.len();
    }
    let mut file = Value::Object(header).to_string().into_bytes();
    file.resize(file.len().next_multiple_of(8), b' ');
    let mut file = [&(file.len() as u64).to_le_bytes(), &file[..]].concat();
    let mut entries = vec![];
    for (name, kind, shape, bytes) in &tensors {
        let (offset, crc) = (file.len(), crc32fast::hash(bytes));
        entries.push(json!({
            "name": name, "kind": kind, "shape": shape, "offset": offset, "crc32": crc
        }));
        file.extend(bytes);
    }
    let first = entries[0]["offset"].as_u64().unwrap() as usize;
    let mut manifest = json!({
        "version": 2, "git": "0123abc", "simd": "plain", "config": config.to_toml().unwrap(),
        "method": "bsp", "steps": 2, "updates": 2, "trainers": 1, "workers": 2,
        "batch_size": 128, "lanes": 2, "data_fingerprint": "absent", "vocabulary": [7, 9],
        "transform": "label = \"x\"\n", "dense_features": 3, "sparse_names": ["a", "b"],
        "cardinality": CARDINALITY, "partitions": PARTITIONS, "row_width": record,
        "row_state_len": 0,
        "files": [{
            "name": FILE, "bytes": file.len(), "header_crc32": crc32fast::hash(&file[..first]),
            "tensors": entries
        }],
    });
    if let Some((step, crc)) = base {
        manifest["base"] = json!({ "step": step, "crc32": crc });
    }
    // What a job is by default need not be said.
    manifest["config"] = JOB.into();
    (manifest, file)
}

const FILE: &str = "rank-00000.safetensors";

/// The text of a manifest, with a checksum that is right.
pub(super) fn manifest() -> Fuzzed {
    let owned = |mut manifest: Value| {
        manifest["owners"] = json!([1, 0]);
        manifest
    };
    let cut = |mut manifest: Value| {
        manifest["strips"] = json!({ "of_field": [2, 1], "first_order": 0 });
        manifest
    };
    let good = [saved(None).0, saved(Some((1, 7))).0, owned(saved(None).0), cut(saved(None).0)];
    let good = good.map(|manifest| manifest.to_string().into_bytes()).to_vec();
    Fuzzed::new(good, |case, dice| {
        let text = String::from_utf8_lossy(case);
        let sealed = if dice.below(8) == 0 { text.into_owned() } else { line(&text) };
        let manifest = match Manifest::parse(&sealed, "manifest.json".as_ref()) {
            Ok((manifest, _)) => manifest,
            Err(error) => return refused(&error),
        };
        let _ = (manifest.global_batch(), manifest.tensors().len());
        if let Some(numbers) = manifest.numbers()
            && numbers.len() as u64
                != manifest.strip_counts().iter().map(|it| u64::from(*it)).sum::<u64>()
        {
            return Err(format!("numbers of {} tables", numbers.len()));
        }
        for tensor in manifest.files.iter().flat_map(|file| &file.tensors) {
            let _ = (tensor.bytes(), tensor.values());
        }
        Ok(true)
    })
}

/// An error says something, and where.
fn refused(error: &CheckpointError) -> Result<bool, String> {
    let said = error.to_string();
    if said.contains('/') || said.contains("manifest.json") {
        Ok(false)
    } else {
        Err(format!("a message without a place: {said}"))
    }
}

/// A manifest, a zero, and the bytes of its file: opened, verified and exported. Beside it is the
/// checkpoint of step 1 with all rows, which it may name as its base.
pub(super) fn checkpoint(folder: &Path) -> Fuzzed {
    let of = |step: u64| folder.join("checkpoints").join(format!("step-{step}"));
    for step in [1, 2] {
        fs::create_dir_all(of(step)).unwrap();
    }
    let (mut all, file) = saved(None);
    (all["steps"], all["updates"]) = (json!(1), json!(1));
    let all = all.to_string();
    fs::write(of(1).join(FILE), file).unwrap();
    fs::write(of(1).join("manifest.json"), line(&all)).unwrap();
    let base = Some((1, crc32fast::hash(all.as_bytes())));
    let good = [saved(None), saved(base)]
        .map(|(manifest, file)| [manifest.to_string().as_bytes(), &[0], &file].concat());
    let (dir, output) = (of(2), folder.join("model"));
    Fuzzed::new(good.to_vec(), move |case, dice| {
        let end = case.iter().position(|byte| *byte == 0).unwrap_or(case.len());
        let (json, file) = (&case[..end], case.get(end + 1..).unwrap_or_default());
        let json = String::from_utf8_lossy(json);
        let json = if dice.below(4) > 0 { summed(&json, file) } else { json.into_owned() };
        fs::write(dir.join(FILE), file).unwrap();
        fs::write(dir.join("manifest.json"), line(&json)).unwrap();
        match read(&dir, &output) {
            Ok(()) => Ok(true),
            Err(Wrong::Refused(error)) => refused(&error),
            Err(Wrong::Taken(what)) => Err(what),
        }
    })
}

/// The manifest with the sums and length of its file as it is: what else it says is read further.
fn summed(json: &str, file: &[u8]) -> String {
    let Ok(mut manifest) = serde_json::from_str::<Value>(json) else { return json.into() };
    if let Some(entry) = manifest.pointer_mut("/files/0").filter(|entry| entry.is_object()) {
        entry["bytes"] = file.len().into();
        let mut first = file.len();
        if let Some(tensors) = entry.get_mut("tensors").and_then(Value::as_array_mut) {
            let mut ends: Vec<usize> =
                tensors.iter().filter_map(|it| Some(it["offset"].as_u64()? as usize)).collect();
            first = ends.first().copied().unwrap_or(first);
            ends.push(file.len());
            for (tensor, ends) in tensors.iter_mut().zip(ends.windows(2)) {
                if let (Some(bytes), true) = (file.get(ends[0]..ends[1]), tensor.is_object()) {
                    tensor["crc32"] = crc32fast::hash(bytes).into();
                }
            }
        }
        let header = file.get(..first).unwrap_or_default();
        entry["header_crc32"] = crc32fast::hash(header).into();
    }
    manifest.to_string()
}

enum Wrong {
    Refused(CheckpointError),
    /// It was taken for what it is not.
    Taken(String),
}

impl From<CheckpointError> for Wrong {
    fn from(error: CheckpointError) -> Self {
        Self::Refused(error)
    }
}

/// As `umbra eval` and `umbra export` read a checkpoint.
fn read(dir: &Path, output: &Path) -> Result<(), Wrong> {
    let checkpoint = Checkpoint::open_here(dir)?;
    let verified = checkpoint.verify();
    checkpoint.numbers()?;
    checkpoint.export(ExportFormat::Safetensors, output)?;
    let manifest = &checkpoint.manifest;
    let Ok(config) = Config::parse(&manifest.config, "manifest.json".as_ref(), &[]) else {
        return verified.map(drop).map_err(Wrong::Refused);
    };
    let (dense_features, fields) = (manifest.dense_features, manifest.cardinality.len());
    let config = convert::model_config(&config.model, dense_features, fields);
    let written = checkpoint.export(ExportFormat::Flat(&config), output)?;
    let bytes = fs::read(output).map_err(|error| Wrong::Taken(error.to_string()))?;
    if written != bytes.len() as u64 {
        return Err(Wrong::Taken(format!("{written} bytes said, {} written", bytes.len())));
    }
    Flat::parse(&bytes).map_err(|error| Wrong::Taken(format!("what was exported: {error}")))?;
    Ok(())
}

const PLAIN: ModelConfig<'static> = ModelConfig {
    kind: ModelKind::Dlrm,
    dense_features: 3,
    fields: 2,
    embedding_dim: 2,
    pooling: Pooling::Sum,
    bottom: &[3, 2],
    top: &[4],
    cross: Cross::NONE,
    batch_norm: false,
    batch_norm_momentum: 0.1,
    dropout: 0.0,
};

/// Bytes with the length and the checksum that they have.
fn sealed(bytes: &mut [u8]) {
    let length = bytes.len() as u64;
    if let Some(place) = bytes.get_mut(16..24) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    if let Some((all, last)) = bytes.split_last_chunk_mut::<8>() {
        *last = u64::from(crc32fast::hash(all)).to_le_bytes();
    }
}

fn flat_bytes(config: &ModelConfig<'_>) -> Vec<u8> {
    let cardinality = (3u64..).step_by(4).take(config.fields);
    let rows: u64 = cardinality.clone().sum();
    let header = Header::new(config, cardinality).unwrap();
    let model: &Model = header.model();
    let floats = |count: usize| (0..count).flat_map(|i| (0.01 * i as f32).to_le_bytes());
    let mut bytes: Vec<u8> = header.words().flat_map(u64::to_le_bytes).collect();
    bytes.extend(floats(model.replica_len()));
    bytes.resize(header.rows_at() as usize, 0);
    bytes.extend(floats(rows as usize * model.row_width()));
    bytes.resize(header.file_len() as usize, 0);
    sealed(&mut bytes);
    bytes
}

/// A flat model whose length and checksum are right, mostly; one that is taken scores.
pub(super) fn flat() -> Fuzzed {
    let cross = Cross { layers: 2, rank: 2, structure: Structure::Stacked };
    let good = [
        PLAIN,
        ModelConfig { batch_norm: true, dropout: 0.25, pooling: Pooling::Mean, ..PLAIN },
        ModelConfig { kind: ModelKind::DcnV2, cross, ..PLAIN },
        ModelConfig { kind: ModelKind::DeepFm, ..PLAIN },
        ModelConfig { kind: ModelKind::Lr, fields: 3, ..PLAIN },
        ModelConfig { kind: ModelKind::WideDeep, dense_features: 0, ..PLAIN },
    ];
    Fuzzed::new(good.iter().map(flat_bytes).collect(), |case, dice| {
        let mut bytes = case.to_vec();
        if dice.below(8) > 0 {
            bytes.resize(bytes.len() / 8 * 8, 0);
            sealed(&mut bytes);
        }
        match Flat::parse(&bytes) {
            Ok(flat) => scores(&flat, dice).map(|()| true),
            Err(error) if error.to_string().is_empty() => Err("no message".into()),
            Err(_) => Ok(false),
        }
    })
}

/// Scores a few examples whose ids may not be there.
fn scores(flat: &Flat<'_>, dice: &mut Dice) -> Result<(), String> {
    let (n, fields) = (1 + dice.below(3), flat.model().fields());
    let bags = n * fields;
    let offsets: Vec<u32> = (0..=bags as u32).collect();
    let values: Vec<u32> = (0..bags)
        .map(|_| if dice.below(30) == 0 { u32::MAX } else { dice.below(3) as u32 })
        .collect();
    let dense = vec![0.5; n * flat.model().dense_features()];
    let (label, row) = (vec![0.0; n], vec![0; n]);
    let mut single = vec![0.0; flat.single_len(n, bags)];
    let mut double = vec![0.0; flat.model().workspace_f64_len()];
    let mut slot = vec![0; bags];
    let memory = Memory { single: &mut single, double: &mut double, slot: &mut slot };
    let mut scorer = flat.scorer(memory).map_err(|error| error.to_string())?;
    let batch = Batch {
        dense: &dense,
        bags: Jagged { values: &values, weights: &[], offsets: &offsets },
        label: &label,
        weight: &[],
        row: &row,
    };
    let mut logits = vec![0.0; n];
    // An id may not be there.
    let _ = scorer.score(&batch, &mut logits);
    Ok(())
}
