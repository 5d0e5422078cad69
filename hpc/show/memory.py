#!/usr/bin/env python3
"""Resident memory of ranks, predicted by `umbra train --dry-run` and measured, on 4 models × 3 layouts.

    UMBRA=target/release/umbra hpc/show/memory.py

Prints a row for each and `plan_memory_error_max`: the greatest |predicted - measured| / measured, where both are of the
rank that has most. Measured is `memory.rss_bytes_max` of summary.json, the greatest resident set of any rank. Rows
decide in two of the models, dense layers and activations in the other two. About 3 GB of memory at most.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

UMBRA = str(Path(os.environ["UMBRA"]).resolve())
DENSE = "[optim.dense]\nkind = \"adagrad\"\nlr = 0.01\n"
JOBS = {
    # 26 tables, 34 million rows.
    "dlrm, large tables": ("kaggle", f"""[model]
kind = "dlrm"
embedding_dim = 4
bottom = [128, 4]
top = [256, 128]
{DENSE}[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
"""),
    "deepfm, large tables": ("kaggle", f"""[model]
kind = "deepfm"
embedding_dim = 2
top = [256, 128]
{DENSE}[optim.sparse]
kind = "sgd"
lr = 0.05
"""),
    "dcn_v2, wide layers": ("small", f"""[model]
kind = "dcn_v2"
embedding_dim = 32
cross_layers = 3
top = [2048, 2048, 512]
{DENSE}[optim.sparse]
kind = "adagrad"
lr = 0.05
"""),
    "wide_deep, large batches": ("small", f"""[model]
kind = "wide_deep"
embedding_dim = 64
top = [1024, 512]
{DENSE}[optim.sparse]
kind = "adagrad"
lr = 0.05
[train]
batch_size = 4096
"""),
}
LAYOUTS = {
    "1 rank × 2 workers": (1, {"train.worker_threads": 2}),
    "2 ranks collocated": (2, {"train.worker_threads": 1}),
    "2 trainers, 1 embedding PS": (3, {"train.worker_threads": 1, "roles.layout": "separate", "roles.trainers": 2,
                                       "roles.embedding_ps": 1}),
}
# Not among the figures that the error is of, unless METHODS=1: other methods of two ranks.
METHODS = ("shadow_ma", "shadow_easgd")
LIMIT_S = 600


def call(folder, ranks, *arguments):
    launch = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 1 else []
    done = subprocess.run([*launch, UMBRA, *arguments], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
                          env={**os.environ, "UMBRA_ALLOW_OVERSUBSCRIBE": "1"})
    if done.returncode:
        sys.exit(f"memory.py: {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def main():
    layouts = dict(LAYOUTS)
    if os.environ.get("METHODS"):
        layouts |= {f"2 ranks, {method}": (2, {"train.worker_threads": 1, "sync.method": method}) for method in METHODS}
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for data, preset, rows in (("kaggle", "criteo-kaggle", 60_000), ("small", "small", 100_000)):
            call(folder, 1, "synth", "--preset", preset, "--rows", str(rows), "--output", f"{data}.h5")
        for job, (data, text) in JOBS.items():
            (folder / "job.toml").write_text(f'[data]\ntrain = "{data}.h5"\n{text}')
            for layout, (ranks, sets) in layouts.items():
                sets = {**sets, "run.dir": "run", "run.overwrite": "true", "train.max_examples": 30_000}
                arguments = ["train", "-c", "job.toml", *(part for key, value in sets.items()
                                                          for part in ("--set", f"{key}={value}"))]
                planned = json.loads(call(folder, ranks, *arguments, "--dry-run", "--json"))
                predicted = max(rank["memory_bytes"] for rank in planned["ranks"])
                call(folder, ranks, *arguments)
                measured = json.loads((folder / "run/summary.json").read_text())["memory"]["rss_bytes_max"]
                error = (predicted - measured) / measured
                worst = max(worst, abs(error))
                print(f"{job:26} {layout:28} predicted {predicted / 2**20:7.1f} MiB, measured {measured / 2**20:7.1f} "
                      f"MiB: {100 * error:+.1f} %", flush=True)
    print(f"plan_memory_error_max {worst:.4f}")


if __name__ == "__main__":
    main()
