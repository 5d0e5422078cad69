"""What saving costs: training that waits, the rate of writing beside the disk's own, the time of a start.

Python's standard library only. $UMBRA names the program, $HDF5_RATE the one that writes with HDF5. `measure` is for
other shows; called by itself, it checks and writes target/show/stall.json. $ROUNDS: pairs of runs (3).
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median

from runs import DATA, UMBRA, Runs, mpirun, settings
from show import Show

JOB = "hpc/show/kernels.toml"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
RANKS = 2
# Ten saves would take ten minutes; two lie within each of these runs.
TRAIN_S = 150
EVERY = "60 s"
STALL_MAX = 0.02
# 33.8 million rows of 8 values: 1.08 GB.
MODEL = {"model.embedding_dim": 8, "model.bottom": "[512, 256, 64, 8]", "sync.method": "bsp", "train.batch_size": 256}
ROWS = 262_144
# Pairs of a save and of what the disk can do.
DISK_ROUNDS = 7


def table():
    """Synthetic clicks with the tables of Criteo's Kaggle data."""
    path = DATA / "kernels.h5"
    if not path.exists():
        subprocess.run([UMBRA, "synth", "--preset", "criteo-kaggle", "--rows", str(ROWS), "--output", path], check=True)
    return str(path.resolve())


def written_by_dd(folder, length):
    """Seconds that the disk takes for so many bytes: `dd` with fsync, of memory that is no file."""
    path = folder / "dd"
    blocks = -(-length // (1 << 20))
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={blocks}", "conv=fsync"]
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    took = time.monotonic() - began
    path.unlink()
    return took


def written_by_hdf5(folder, length):
    """Seconds that HDF5 takes for so many bytes in one dataset, to the disk."""
    path = folder / "rows.h5"
    done = subprocess.run([os.environ["HDF5_RATE"], path, str(length)], check=True, capture_output=True, text=True)
    path.unlink()
    return float(done.stdout)


def forget_files():
    """What is read from now on comes from the disk. False where one may not ask for that."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return False
    return True


def read_by_cat(folder):
    """Seconds for reading the files of a folder."""
    began = time.monotonic()
    subprocess.run(["cat", *folder.rglob("*.safetensors")], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def changes(show, train, lasting, out):
    """The same with checkpoints of the rows that changed: their bytes, and what it takes to see which have."""
    saving = train("changes", {**lasting, "checkpoint.every": json.dumps(EVERY), "checkpoint.keep": 9,
                               "checkpoint.full_every": 9})
    saves = saving["checkpoint"]
    checkpoints = sorted((out / "changes" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in checkpoints]
    print(f"   {saves['count']} saves of {sizes} bytes: {saves['seconds_exposed']:.2f} s of waiting, "
          f"{saves['seconds_background']:.1f} s of writing", flush=True)
    show.measured("changes_bytes_over_all", sizes[-1] / sizes[0])
    show.at_most("changes_stall_share", saves["seconds_exposed"] / saving["seconds"], STALL_MAX)
    shutil.rmtree(out / "changes")


def measure(show, runs):
    print("== stalls", flush=True)
    out = runs.out.resolve()
    job = {**MODEL, "data.train": table()}
    train = lambda name, sets: runs.train(name, JOB, {**job, **sets}, mpirun(RANKS))
    # One save at the end: its rate, and that of a start from it.
    saves, reads = [], []
    for number in range(DISK_ROUNDS):
        shutil.rmtree(out / "save", ignore_errors=True)
        short = {"train.max_examples": 2048, "checkpoint.save": "last"}
        figures = train("save", short)["checkpoint"]
        took, length = figures["seconds_exposed"], figures["bytes"]
        disk = written_by_dd(out, length)
        saves.append((length / took, length / disk, length / written_by_hdf5(out, length)))
        if number < 3 and forget_files():
            cat = read_by_cat(out / "save" / "checkpoints")
            forget_files()
            again = {**short, "train.max_examples": 4096, "run.overwrite": "false", "checkpoint.save": "none",
                     "checkpoint.resume": str(out / "save" / "checkpoints" / "last"), "run.dir": str(out / "again")}
            shutil.rmtree(out / "again", ignore_errors=True)
            runs.call("again", [*mpirun(RANKS), UMBRA, "train", "-c", str(Path(JOB).resolve()),
                                *settings({**job, **again})])
            took = json.loads((out / "again" / "summary.json").read_text())["resume_seconds"]
            reads.append((took, cat))
    for save, disk, hdf5 in saves:
        show.row(what="save, dd and HDF5, MB/s", one=save / 1e6, other=disk / 1e6, hdf5=hdf5 / 1e6)
    for took, cat in reads:
        show.row(what="start and cat, s", one=took, other=cat)
    show.measured("save_bytes", length)
    show.measured("write_rate_over_disk", median(save / disk for save, disk, _ in saves))
    show.measured("hdf5_rate_over_disk", median(hdf5 / disk for _, disk, hdf5 in saves))
    if reads:
        show.measured("resume_seconds_over_reading", median(took / cat for took, cat in reads))
    shutil.rmtree(out / "save")
    speed = train("speed", {"train.max_examples": ROWS, "checkpoint.save": "none"})["examples_per_second"]
    examples = int(speed * TRAIN_S)
    lasting = {"train.epochs": -(-examples // ROWS), "checkpoint.save": "none"}
    shares, slowdowns = [], []
    for number in range(ROUNDS):
        without = train("without", lasting)
        saving = train("saving", {**lasting, "checkpoint.every": json.dumps(EVERY), "checkpoint.keep": 1})
        saves = saving["checkpoint"]
        shares.append(saves["seconds_exposed"] / saving["seconds"])
        slowdowns.append(1 - saving["examples_per_second"] / without["examples_per_second"])
        print(f"   {saves['count']} saves in {saving['seconds']:.0f} s: {saves['seconds_exposed']:.2f} s of waiting, "
              f"{saves['seconds_background']:.1f} s of writing", flush=True)
        show.row(what="examples/s with and without", one=saving["examples_per_second"],
                 other=without["examples_per_second"])
    shutil.rmtree(out / "saving")
    changes(show, train, lasting, out)
    show.at_most("save_stall_share", median(shares), STALL_MAX)
    # Writing takes processor time as well, which trainers on all cores notice.
    show.measured("save_slowdown", median(slowdowns))


if __name__ == "__main__":
    show = Show("stall", [1])
    measure(show, Runs("stall"))
    show.finish()
