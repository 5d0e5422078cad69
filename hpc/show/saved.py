"""Checkpoints on disk, as docs/formats.md describes them. Python's standard library only."""

import json
import math
import zlib
from array import array
from pathlib import Path


def tensors(checkpoint):
    """Manifest and tensors of a checkpoint: their bytes by name."""
    checkpoint = Path(checkpoint)
    manifest = json.loads((checkpoint / "manifest.json").read_text())["manifest"]
    size, found = {"F32": 4, "F64": 8, "U64": 8, "BF16": 2}, {}
    for file in manifest["files"]:
        data = memoryview((checkpoint / file["name"]).read_bytes())
        for tensor in file["tensors"]:
            end = tensor["offset"] + size[tensor["kind"]] * math.prod(tensor["shape"])
            found[tensor["name"]] = data[tensor["offset"]:end]
    return manifest, found


def records(checkpoint):
    """Manifest and f32 records of all rows, in the order of row numbers: row g is record g // P of rows.{g mod P}."""
    manifest, found = tensors(checkpoint)
    base = manifest.get("base")
    whole = tensors(Path(checkpoint) / ".." / f"step-{base['step']}")[1] if base else found
    length = 4 * (manifest["row_width"] + manifest["row_state_len"])
    parts = [bytearray(whole[f"rows.{part}"]) for part in range(manifest["partitions"])]
    for part in range(len(parts) if base else 0):
        index, changed = array("Q", bytes(found[f"rows.{part}.index"])), found[f"rows.{part}.changed"]
        for number, place in enumerate(index):
            parts[part][place * length:(place + 1) * length] = changed[number * length:(number + 1) * length]
    place = lambda row: row // len(parts) * length
    all_rows = range(sum(manifest["cardinality"]))
    return manifest, (parts[row % len(parts)][place(row):place(row) + length] for row in all_rows)


def digests(checkpoint):
    """CRC-32 of the dense tensors, and of all rows in their order."""
    dense, rows = 0, 0
    for name, values in tensors(checkpoint)[1].items():
        dense = zlib.crc32(values, dense) if name.startswith("dense.") else dense
    for record in records(checkpoint)[1]:
        rows = zlib.crc32(record, rows)
    return [dense, rows]
