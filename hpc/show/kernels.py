"""Reads what kernels.sh measured and checks it against the bounds.

Ratios are of neighbours in time, round by round; what counts is the median of the rounds. Shares of the
floor and ratios of workers and optimizers are of the time for which threads had a core, so that other
programs on the machine do not count; the reader and MPI are measured by the clock, since waiting is
what they may cost.
"""

import json
import sys
from pathlib import Path
from statistics import median

from show import Show, summary

out, runs, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
BATCHES = (128, 512, 2048)
RATES = {"gflops": "GFLOP/s", "gb_per_second": "GB/s", "mrows_per_second": "M rows/s"}
show = Show("kernels", [seed])
memory, reader = (json.loads((out / f"{name}.json").read_text()) for name in ("memory", "reader"))


def row(measurement, raw, unit, share=None, **where):
    """One measurement: median, spread and, in the file, every sample; share of the peak or of the floor."""
    columns = {"measurement": measurement, "batch": None, "optimizer": None, "workers": None, **where}
    spread = {"median": median(raw), "low": min(raw), "high": max(raw), "unit": unit, "share": share}
    # The table has the columns of the first row: samples are in the file alone.
    show.row(**columns, **spread, **({"samples": raw} if show.rows else {}))
    return median(raw)


def steps(report, batch, optimizer="sgd", workers=1, source="memory"):
    """The figure of one combination."""
    wanted = dict(batch=batch, optimizer=optimizer, workers=workers, source=source)
    found = [f for f in report["steps"] if all(f[key] == value for key, value in wanted.items())]
    if len(found) != 1:
        sys.exit(f"show: expected one figure of {wanted}, got {len(found)}")
    return found[0]


def ratio(above, below, key="cpu_samples"):
    return [x / y for x, y in zip(above[key], below[key])]


row("peak of a core", [figure["peak_gflops"] for figure in memory["steps"]], "GFLOP/s")
show.measured("peak_gflops", memory["peak_gflops"])

for kernel in memory["kernels"]:
    unit = next(unit for key, unit in RATES.items() if key in kernel)
    row(f"{kernel['kernel']} {kernel['shape']}", kernel["samples"], unit, kernel.get("share"))

for figure in memory["steps"] + reader["steps"]:
    where = {key: figure[key] for key in ("batch", "optimizer", "workers")}
    source = figure["source"] if figure in memory["steps"] else f"file, {figure['source']}"
    row(f"steps, {source}", figure["samples"], "examples/s", **where)
    share = figure["floor_share"]
    row(f"steps, {source}, by core time", figure["cpu_samples"], "examples/s", share, **where)

for batch, bound in zip(BATCHES, (0.80, 0.85, 0.85)):
    show.at_least(f"floor_share_{batch}", steps(memory, batch)["floor_share"], bound)

adagrad = {}
for batch in BATCHES:
    raw = ratio(steps(memory, batch, "rowwise_adagrad"), steps(memory, batch))
    adagrad[batch] = row("row-wise Adagrad over SGD", raw, "", batch=batch, workers=1)
show.at_least("adagrad_over_sgd", adagrad[128], 0.90)

for key, name in (("cpu_samples", "core time"), ("samples", "the clock")):
    scaling = []
    for batch in BATCHES:
        raw = ratio(steps(memory, batch, workers=2), steps(memory, batch), key)
        scaling.append(row(f"two workers over one, by {name}", raw, "", batch=batch, optimizer="sgd"))
    if key == "cpu_samples":
        show.at_least("two_workers_over_one", median(scaling), 1.9)
    else:
        show.measured("two_workers_over_one_by_clock", median(scaling))

reading = []
for batch in BATCHES:
    raw = ratio(steps(reader, batch, source="hdf5"), steps(reader, batch), "samples")
    reading.append(row("reader over memory", raw, "", batch=batch, optimizer="sgd", workers=1))
show.at_least("hdf5_over_memory", median(reading), 0.95)

speed = {}
for name in ("solo", "mpi"):
    figures = [summary(out / f"{name}-{round}") for round in range(1, runs + 1)]
    where = {"batch": figures[0]["batch_size"], "optimizer": "sgd", "workers": 1}
    speed[name] = [figure["examples_per_second"] for figure in figures]
    row(f"training, {name}", speed[name], "examples/s", **where)
    for wait in figures[0]["wait"]:
        raw = [figure["wait"][wait] / figure["seconds"] for figure in figures]
        row(f"training, {name}: {wait.removesuffix('_seconds')} wait", raw, "of the time", **where)
raw = [x / y for x, y in zip(speed["mpi"], speed["solo"])]
show.at_least("mpi_path_over_solo", row("MPI over solo", raw, ""), 0.85)

prepare = json.loads((out / "prepare.json").read_text())
raw = [prepare["text_mb"] / seconds for seconds in prepare["cpu_seconds"]]
row("prepare on one core, by core time", raw, "MB/s of text")
row("prepare on one core", [prepare["mb_per_second"]], "MB/s of text")
if "mb_per_second_2_cores" in prepare:
    row("prepare on two cores", [prepare["mb_per_second_2_cores"]], "MB/s of text")
row("prepare: memory at most", [prepare["peak_rss_mb"]], "MB")
show.at_least("prepare_mb_per_s", prepare["mb_per_cpu_second"], 150)
show.alone([json.loads(line)["others_cores"] for line in (out / "load.jsonl").read_text().splitlines()])
show.finish()
