"""Data that is damaged, foreign, new every day or plenty: what data.sh says.

Python's standard library only. $UMBRA names the program, $EXAMPLES the folder of the example programs;
target/show/data.json has what came out.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "data"))

import damage as damages
import fuzz as fuzzing
from called import EXAMPLES, OUT, SMALL_JOB, UMBRA, call, ids
from runs import settings
from show import Show, phases

SEEDS = [1]
show = Show("data", SEEDS)


def damage():
    """Single flipped bits and cut files: all are seen, harmless, or end with a message."""
    damages.measure(show)


def pairs():
    """Splits prepared apart, in pairs: those that do not belong together are refused, the others are not."""
    print("== pairs", flush=True)
    found = ids(call("pairs", EXAMPLES / "pairs", OUT / "pairs"))
    show.at_least("pairs_tried", found["pairs_tried"], 1000)
    show.measured("pairs_together", found["pairs_together"])
    show.at_most("pairs_wrong", found["pairs_wrong"], 0)


def fuzz():
    """Millions of texts, schemas and files that are almost right."""
    fuzzing.measure(show)


def prepare():
    """Rates of text to dataset, and memory at 1 GB of it."""
    print("== prepare", flush=True)
    rates = OUT / "rates.tsv"
    call("criteo-text", EXAMPLES / "criteo_text", 800_000, rates)
    said = call("csv-rates", EXAMPLES / "csv_rates", rates)
    print(said, end="", flush=True)
    rates.unlink()
    rates = {name: float(rest.split()[0]) for name, rest in (line.rsplit(": ", 1) for line in said.splitlines())}
    show.at_least("prepare_mb_per_s", rates["criteo text, with a vocabulary"], 150)
    show.measured("prepare_quoted_mb_per_s", rates["csv, a quoted value per line, with a vocabulary"])
    show.at_most("prepare_criteo_over_quoted", rates["criteo text over quoted csv, with a vocabulary"], 1.5)
    text, output = OUT / "gigabyte.tsv", OUT / "gigabyte.h5"
    call("criteo-gigabyte", EXAMPLES / "criteo_text", 4_100_000, text)
    command = [UMBRA, "prepare", "--format", "criteo", "--input", text, "--output", output, "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"show: prepare of 1 GB failed: {os.waitstatus_to_exitcode(status)}")
    show.measured("prepare_input_mb", text.stat().st_size / 1e6)
    show.measured("prepare_rss_mb", usage.ru_maxrss / 1e3)
    beside = call("peers-of-ours", EXAMPLES / "peers_of_ours", text)
    print(beside, end="", flush=True)
    of = {name: float(rest.split()[0]) for name, rest in (line.rsplit(": ", 1) for line in beside.splitlines())}
    show.measured("encoder_over_library", of["our deflate"] / max(of["libdeflate 1"], of["flate2 1"]))
    text.unlink()
    output.unlink()


def reader():
    """Rows that one core makes ready in a second."""
    print("== reader", flush=True)
    file = OUT / "reader.h5"
    said = call("reader", EXAMPLES / "reader_rate", file, 2_000_000)
    print(said, end="", flush=True)
    file.unlink()
    rates = {name: float(rest.split()[0]) * 1e6 for name, rest in
             (line.split(": ", 1) for line in said.splitlines() if " M rows/s" in line)}
    show.at_least("reader_rows_per_s", rates["reader"], 2e6)
    show.measured("reader_over_library", rates["reader"] / rates["HDF5's filters"])


def days():
    """Three days: a vocabulary that grows beside one that does not."""
    print("== days", flush=True)
    programs = {"DRIFTING_CLICKS": EXAMPLES / "drifting_clicks", "ROWS_IN_ORDER": EXAMPLES / "rows_in_order"}
    said = call("days", sys.executable, "-B", "hpc/show/data/days.py", environment=programs)
    print(said, end="", flush=True)
    found = ids(said)
    show.measured("progressive_auc_grow_over_fixed", found["progressive_auc_grow_over_fixed"])
    show.measured("progressive_auc_grow_minus_scratch", found["progressive_auc_grow_minus_scratch"])
    show.at_most("order_wrong", found["order_wrong"], 0)


def parquet():
    """The same rows as csv and as Parquet: the same bits; scores with their rows."""
    print("== parquet", flush=True)
    said = call("parquet", os.environ["UMBRA_PYTHON"], "-B", "hpc/show/data/parquet.py", OUT / "parquet")
    print(said, end="", flush=True)
    for id, value in ids(said).items():
        show.at_most(id, value, 0)


def files():
    """A job of a thousand files in a process that may hold 1024 open: how many it holds at most."""
    print("== files", flush=True)
    folder = OUT / "files"
    folder.mkdir(parents=True, exist_ok=True)
    first = folder / "0.h5"
    call("files-synth", UMBRA, "synth", "--preset", "small", "--rows", 300, "--output", first, "--overwrite")
    names = [first, *(folder / f"{number}.h5" for number in range(1, 1000))]
    for name in names[1:]:
        name.write_bytes(first.read_bytes())
    job = folder / "job.toml"
    job.write_text(f"[data]\ntrain = {[str(name) for name in names]}\n{SMALL_JOB}")
    sets = settings({"run.dir": folder / "run", "run.overwrite": "true", "data.lanes": 64,
                     "train.worker_threads": 2, "train.batch_size": 128})
    limited = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", UMBRA, "train", "-c", job, *sets]
    with (OUT / "files.log").open("w") as log:
        process = subprocess.Popen(limited, stdout=log, stderr=subprocess.STDOUT)
        most = 0
        while process.poll() is None:
            try:
                most = max(most, len(os.listdir(f"/proc/{process.pid}/fd")))
            except FileNotFoundError:
                pass
            time.sleep(0.002)
    if process.returncode != 0:
        sys.exit(f"show: a thousand files: exit code {process.returncode}; its log is {OUT / 'files.log'}")
    show.measured("files_open_max", most)


for phase in phases(damage, pairs, fuzz, prepare, reader, days, parquet, files):
    phase()
show.finish()
