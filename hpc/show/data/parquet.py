"""Parquet in and scores out: frames that pandas writes as csv and as Parquet train to the same bits; scores line up.

    UMBRA=target/release/umbra python hpc/show/data/parquet.py [FOLDER]

Needs pandas and pyarrow. Prints `id value` lines; all are numbers of what is wrong, so 0 is right. $ROWS: rows of a
frame (100000). FOLDER (target/show/data/parquet) keeps files and logs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

UMBRA = os.environ.get("UMBRA", "target/release/umbra")
ROWS = int(os.environ.get("ROWS", "100000"))
JOB = """
seed = 7
[model]
kind = "dlrm"
embedding_dim = 8
bottom = [16, 8]
top = [24, 12]
[optim.dense]
kind = "adam"
lr = 1e-3
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[train]
batch_size = 256
worker_threads = 1
[sync]
method = "bsp"
[run]
tensorboard = false
"""
# The ways in which Parquet is commonly written: row groups, compression, pages, dictionaries.
WRITTEN = {
    "pandas": {},
    "zstd": {"compression": "zstd", "row_group_size": 7000, "use_dictionary": False},
    "gzip": {"compression": "gzip", "row_group_size": 30000, "data_page_version": "2.0"},
    "lz4": {"compression": "lz4", "data_page_size": 4096},
    "none": {"compression": "none", "row_group_size": 1000},
}


def criteo(random):
    """The columns of Criteo's logs: whole numbers and hexadecimal ids, both with gaps."""
    frame = {"label": (random.random(ROWS) < 0.25).astype("i8")}
    for i in range(1, 14):
        numbers = pd.array(random.geometric(0.05, ROWS) - 2, dtype="Int64")
        numbers[random.random(ROWS) < 0.1] = pd.NA
        frame[f"I{i}"] = numbers
    for i in range(1, 27):
        ids = random.zipf(1.3, ROWS) % (10 ** (1 + i % 5)) * 2654435761 % 2**32
        ids = np.array([f"{x:08x}" for x in ids], dtype=object)
        ids[random.random(ROWS) < 0.05] = None
        frame[f"C{i}"] = ids
    schema = {"label": "label", "dense": [f"I{i}" for i in range(1, 14)], "dense_transform": "log",
              "sparse": [f"C{i}" for i in range(1, 27)]}
    return pd.DataFrame(frame), schema


def mixed(random):
    """Categoricals, nulls, numbers and truth values as keys, text with commas and quotes, weights and groups."""
    gaps = lambda values, share: pd.Series(values).mask(random.random(ROWS) < share)
    frame = pd.DataFrame({
        "clicked": random.random(ROWS) < 0.3,
        "price": gaps(random.lognormal(size=ROWS), 0.1),
        "share": gaps(random.random(ROWS).astype("f4"), 0.05),
        "small": random.integers(-128, 128, ROWS).astype("i1"),
        "site": gaps(pd.Categorical.from_codes(random.integers(0, 300, ROWS),
                                               [f'site "{i}", é' for i in range(300)]), 0.1),
        "device": pd.Categorical(random.choice(["tv", "phone", "tablet"], ROWS)),
        "rating": gaps(random.choice([0.5, 3.0, 1e-7, 1e16, 1 / 3], ROWS), 0.2),
        "rating4": gaps(random.choice(np.array([0.1, 2.5, 1e-7], "f4"), ROWS), 0.2),
        "mobile": pd.array(random.random(ROWS) < 0.5, dtype="boolean"),
        "user": random.integers(-2**40, 2**40, ROWS) // 2**30 * 2**30,
        "hour": random.integers(0, 24, ROWS).astype("u1"),
        "weight": random.choice([0.5, 1.0, 2.0], ROWS),
        "not used": pd.Timestamp("2024-01-01"),
    })
    schema = {"label": "clicked", "dense": ["price", "share", "small"], "weight": "weight", "group": ["user", "device"],
              "sparse": ["site", "device", "rating", "rating4", "mobile", "hour", "user"]}
    return frame, schema


def lists(random):
    """Bags of texts and of numbers, some empty, some missing."""
    def bags(item):
        made = [[item(x) for x in random.integers(0, 50, size)] for size in random.integers(0, 6, ROWS)]
        return [None if random.random() < 0.05 else bag for bag in made]
    frame = pd.DataFrame({"click": random.integers(0, 2, ROWS), "price": random.random(ROWS),
                          "tags": bags(lambda x: f"tag {x}"), "seen": bags(int), "hour": random.integers(0, 24, ROWS)})
    return frame, {"label": "click", "dense": ["price"], "sparse": ["tags", "hour", "seen"]}


def call(folder, *command):
    """Runs the program in the folder; stdout."""
    done = subprocess.run([str(Path(UMBRA).resolve()), *map(str, command)], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"parquet: umbra {' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def prepare(folder, kind, name):
    call(folder, "prepare", "--format", kind, "--schema", "schema.toml", "--input", f"{name}.{kind}",
         "--output", f"{name}.h5", "--overwrite")


def train(folder, name):
    """The bits of the model that one epoch makes."""
    run = ["--set", f"run.dir={name}", "--set", "run.overwrite=true", "--set", f"data.train={name}.h5"]
    call(folder, "train", "-c", "job.toml", *run)
    return b"".join(path.read_bytes() for path in sorted((folder / name).glob("checkpoints/last/*.safetensors")))


def rows_wrong(folder, frame, label, data, model):
    """Rows of the scores, as other programs read them, that are not those of the frame, or differ by format."""
    read = {}
    for kind in ("parquet", "csv", "npy", "txt"):
        output = f"scores.{kind}"
        call(folder, "predict", "--checkpoint", f"{model}/checkpoints/last", "--data", data, "--output", output,
             "--overwrite")
        read[kind] = folder / output
    parquet, csv = pd.read_parquet(read["parquet"]), pd.read_csv(read["csv"], dtype=parquet_types(read["parquet"]))
    array, text = np.load(read["npy"]), np.loadtxt(read["txt"], dtype="f4")
    if not len(parquet) == len(csv) == len(array) == len(text) == len(frame):
        return len(frame)
    same = (parquet["row"] == np.arange(len(frame))) & (parquet["label"] == frame[label].to_numpy("f4"))
    same &= (parquet == csv).all(axis=1) & (parquet["score"] == array) & (array == text)
    if "group" in parquet:
        # Hashes of the same values: joined by row, each group has one value, and each value one group.
        pairs = pd.DataFrame({"group": parquet["group"], "key": frame["user"].astype(str) + frame["device"].astype(str)})
        same &= len(pairs.drop_duplicates()) == pairs["group"].nunique() == pairs["key"].nunique()
    return int((~same).sum())


def parquet_types(path):
    return {name: dtype.name for name, dtype in pd.read_parquet(path).dtypes.items()}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "target/show/data/parquet")
    bits, wrong = 0, 0
    for make in (criteo, mixed, lists):
        folder = out / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        frame, schema = make(np.random.default_rng(1))
        (folder / "schema.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in schema.items()))
        (folder / "job.toml").write_text(JOB)
        models = {}
        for name, how in WRITTEN.items():
            frame.to_parquet(folder / f"{name}.parquet", index=False, **how)
            prepare(folder, "parquet", name)
            models[name] = train(folder, name)
        if make is not lists:
            frame.to_csv(folder / "text.csv", index=False)
            prepare(folder, "csv", "text")
            models["text"] = train(folder, "text")
        bits += sum(model != models["pandas"] for model in models.values())
        wrong += rows_wrong(folder, frame, schema["label"], "zstd.h5", "pandas")
    print("parquet_bits_differ", bits)
    print("scores_rows_wrong", wrong)


main()
