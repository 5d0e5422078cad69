"""Three days of clicks whose world moves on: a vocabulary that grows, beside one that does not and a model made anew.

Python's standard library only. $UMBRA, $DRIFTING_CLICKS and $ROWS_IN_ORDER name the programs. Prints a table, then
`id value` lines. $SEEDS: seeds, 1 2 3 4 5 without; $ROWS: rows of a day.

For days 2 and 3 the figure is the AUC of progressive validation: each click is scored before it is learnt from, in one pass
in the order of time. (a) `grow`: yesterday's model goes on in tables that have grown. (b) `scratch`: a new model is trained
on all days before, one pass, and then goes on with the day. (c) `fixed`: as (a), with the vocabulary of the first day.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

UMBRA = os.environ["UMBRA"]
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "1 2 3 4 5").split()]
ROWS = int(os.environ.get("ROWS", "200000"))
DAYS = (1, 2, 3)
OUT = Path("target/show/days")
SCHEMA = 'label = "click"\nsparse = ["user", "item", "place"]\ndense = ["hour"]\n'
JOB = """
[data]
train = "day1.h5"
shuffle = false
[model]
kind = "deepfm"
embedding_dim = 8
top = [32, 16]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "adagrad"
lr = 0.05
[train]
batch_size = 128
worker_threads = 1
progressive = true
[run]
tensorboard = false
"""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"days: {' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def prepare(folder, text, output, *more):
    run(UMBRA, "prepare", "--format", "csv", "--schema", folder / "schema.toml", "--input", text, "--output", output,
        "--overwrite", *more)


def train(folder, name, files, before=None):
    """Trains one pass over files in their order; its progressive figures."""
    to = folder / "runs" / name
    sets = {"data.train": json.dumps([str(file) for file in files]), "run.dir": to, "run.overwrite": "true"}
    if before:
        sets["checkpoint.warm_start"] = folder / "runs" / before
    run(UMBRA, "train", "-c", folder / "job.toml", *(part for item in sets.items() for part in ("--set", "%s=%s" % item)))
    summary = json.loads((to / "summary.json").read_text())
    figures = summary["progressive"]
    if figures["examples"] != ROWS * len(files) or figures["from_step"] != 0:
        sys.exit(f"days: {name}: {figures['examples']} examples in one pass over {len(files)} days of {ROWS}")
    return figures


def data(folder, seed):
    """Texts of all days; each with its own grown vocabulary, with later ones, and with that of the first day."""
    for day in DAYS:
        run(os.environ["DRIFTING_CLICKS"], seed, day, ROWS, folder / f"day{day}.csv")
    prepare(folder, folder / "day1.csv", folder / "day1.h5")
    for day in DAYS[1:]:
        text = folder / f"day{day}.csv"
        prepare(folder, text, folder / f"day{day}.h5", "--vocabulary", folder / f"day{day - 1}.h5", "--grow")
        prepare(folder, text, folder / f"day{day}-fixed.h5", "--vocabulary", folder / "day1.h5")
        for earlier in range(1, day):
            prepare(folder, folder / f"day{earlier}.csv", folder / f"day{earlier}-as-{day}.h5",
                    "--vocabulary", folder / f"day{day}.h5")


def one(seed):
    """AUC by (arm, day), and rows that were not in their order."""
    folder = OUT / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "job.toml").write_text(f"seed = {seed}\n{JOB}")
    data(folder, seed)
    wrong = int(run(os.environ["ROWS_IN_ORDER"], *(folder / f"day{day}.h5" for day in DAYS[:1])))
    train(folder, "day1", [folder / "day1.h5"])
    auc, before = {}, {"grow": "day1", "fixed": "day1"}
    for day in DAYS[1:]:
        wrong += int(run(os.environ["ROWS_IN_ORDER"], folder / f"day{day}.h5"))
        for arm, end in (("grow", ""), ("fixed", "-fixed")):
            name = f"{arm}{day}"
            auc[arm, day] = train(folder, name, [folder / f"day{day}{end}.h5"], before[arm])["auc"]
            before[arm] = name
        train(folder, f"scratch{day}-before", [folder / f"day{earlier}-as-{day}.h5" for earlier in range(1, day)])
        auc["scratch", day] = train(folder, f"scratch{day}", [folder / f"day{day}.h5"], f"scratch{day}-before")["auc"]
    shutil.rmtree(folder)
    return auc, wrong


def main():
    found, wrong = {}, 0
    for seed in SEEDS:
        auc, out_of_order = one(seed)
        wrong += out_of_order
        for key, value in auc.items():
            found.setdefault(key, []).append(value)
    error = lambda values: stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    print(f"{'day':>4} {'arm':>8} {'AUC':>9} {'grow - arm':>11} {'error':>9}")
    for (arm, day), values in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        paired = [grow - other for grow, other in zip(found["grow", day], values)]
        print(f"{day:4} {arm:>8} {mean(values):9.5f} {mean(paired):11.5f} {error(paired):9.5f}")
    # A seed is one sample: its days share a world.
    of = lambda arm: [mean(days) for days in zip(*(found[arm, day] for day in DAYS[1:]))]
    print(f"progressive_auc_grow_over_fixed {mean(g / f for g, f in zip(of('grow'), of('fixed'))):.6f}")
    differences = [grow - scratch for grow, scratch in zip(of("grow"), of("scratch"))]
    print(f"progressive_auc_grow_minus_scratch {mean(differences):.6f}")
    print(f"progressive_auc_grow_minus_scratch_error {error(differences):.6f}")
    print(f"order_wrong {wrong}")


main()
