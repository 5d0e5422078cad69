"""The phase `storage` of cpr.py: what saving an eighth of the rows takes on a file system, against a checkpoint of all.

Python's standard library only.
"""

import random
import shutil

from runs import DATA, UMBRA

# Eight tables of as many rows, all large: 17 values and an accumulator each, .6 GB together.
TABLES, ROWS = 8, 1_000_000
EXAMPLES = 1_000_000
# Between two checkpoints; an eighth of it lies between two row saves.
INTERVAL_S = 36
# Steps until the speed is known.
FIRST_STEPS = 1000
BATCH = 512

JOB = """[model]
kind = "deepfm"
embedding_dim = 16
top = [32]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[sync]
method = "none"
[train]
batch_size = 512
worker_threads = 1
[checkpoint]
save = "none"
keep = 1
[run]
tensorboard = false
overwrite = true
"""


def evenly(runs):
    """Clicks whose ids are spread evenly over large tables, so that most rows are trained between two saves."""
    path = DATA / f"even-{EXAMPLES}.h5"
    if not path.exists():
        text, chance = runs.out / "even.libsvm", random.Random(1)
        with text.open("w") as out:
            for _ in range(EXAMPLES):
                ids = " ".join(f"{chance.randrange(1 << 30)}:1" for _ in range(TABLES))
                out.write(f"{chance.randrange(2)} {ids}\n")
        runs.call("prepare-even", [UMBRA, "prepare", "--format", "libfm", "--input", str(text), "--output", str(path),
                                   "--hash-size", str(ROWS)])
        text.unlink()
    return str(path.resolve())


def storage(show, runs):
    print("== storage", flush=True)
    job = runs.out / "storage.toml"
    job.write_text(JOB)
    data = {"data.train": evenly(runs)}
    speed = runs.train("storage-speed", job, data | {"train.max_examples": FIRST_STEPS * BATCH}, [])["examples_per_second"]
    # Whole eighths, so that a row save never is due with a checkpoint.
    eighth = int(speed / BATCH * INTERVAL_S / 8)
    steps = 16 * eighth + eighth // 2
    for name in ("mfu", "ssu", "scar"):
        sets = {"train.epochs": -(-steps * BATCH // EXAMPLES), "checkpoint.every": 8 * eighth,
                "recovery.priority": name, "recovery.priority_tables": TABLES}
        found = runs.train(f"storage-{name}", job, data | sets, [])
        shutil.rmtree(runs.out / f"storage-{name}")
        saves = found["checkpoint"]
        rows = saves["row_saves"]
        whole, part = (each["seconds_background"] / each["count"] for each in (saves, rows))
        sizes = saves["bytes"] / saves["count"], rows["bytes"] / rows["count"]
        show.row(what=f"{name}: a checkpoint and a row save, s and bytes", way=name, one=whole, other=part, bytes=sizes[0],
                 other_bytes=sizes[1], saves=saves["count"], row_saves=rows["count"])
        show.measured(f"{name}_storage_seconds_over_full", part / whole)
        show.measured(f"{name}_storage_bytes_over_full", sizes[1] / sizes[0])
        show.measured(f"{name}_storage_waiting_share", saves["seconds_exposed"] / found["seconds"])
