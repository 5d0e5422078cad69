"""Runs what speed.sh measures and checks it against the bounds.

steps  the share of the arithmetic's floor that a step of the Criteo-Kaggle DLRM reaches, and what a second worker adds
parts  that share if products went as fast as they do one by one on near memory, and all else of a step took no more than reading
       and writing its rows: no step of these kernels can reach more
norm   what batch norm and dropout of .2 cost that step together
rows   the share of the floor of rows that steps of models reach whose time goes into rows, and that of one which took no more than
       both floors, that of its rows and that of its arithmetic
ranks  a light model on two ranks that hold the rows together, over one rank with two workers; the same through messages
sent   what ranks of two nodes send each other for rows over the least possible: a number, values and a gradient of every distinct row that
       is elsewhere; and bags that are pooled where their rows are, tables dealt and whole
bf16   steps whose products are of bf16s over the same in f32, and that ratio of their parts alone: products one by one, rows at their floor
strips  a model whose time goes into rows of 64, its tables whole and cut into strips, in turn
inlined  that no vector instruction of a kernel is a function of its own: a closure in a kernel has not the features of the function
       around it, and where the compiler leaves it outside each of its instructions becomes a call
peers  the f32 and the bf16 step over PyTorch's fastest, of the same accuracy class (peers.py)
row_peers  the row-bound models over TorchRec and nn.EmbeddingBag (row_peers.py)
half_rows  steps of row-bound models whose rows are bf16s over the same in f32
auc    what all those learn: Frappe by its published recipe and synthetic clicks, five seeds, each in f32, with products of bf16s and
       with rows of bf16s

Shares are of the time for which threads had a core, ratios are of neighbours in time, and what counts is their median.

Python's standard library only.
"""

import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import mean, median, stdev

from load import Load
from runs import UMBRA, Runs, mpirun, settings, speed
from show import Show, phases

BATCHES = (128, 512, 2048)
ROUNDS = int(os.environ.get("ROUNDS", "5"))
# Of cores that multiply and add about 120 and about 240 GFLOP/s.
FLOOR_SHARES = {120: (0.88, 0.90, 0.90), 240: (0.85, 0.85, 0.85)}
SHAPES, OPTIMIZERS = ("rows64", "rows128", "bags10", "bags50"), ("sgd", "rowwise_adagrad")
SEEDS = [1, 2, 3, 4, 5]
show, runs, loads = Show("speed", SEEDS), Runs("speed"), []


def bench(*arguments, whole=False):
    """The figures of `umbra bench`, with those of parts if it is `whole`, and what others used of the machine meanwhile."""
    load = Load()
    steps_only = [] if whole else ["--steps-only"]
    done = subprocess.run([UMBRA, "bench", *steps_only, "--json", "-", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          check=True)
    loads.append(load.cores())
    return json.loads(done.stdout)


def steps():
    print("== steps", flush=True)
    report = bench("--optimizer", "sgd", "--workers", "1,2", "--seconds", str(2 * ROUNDS), "--samples", str(ROUNDS))
    peak = report["peak_gflops"]
    show.measured("peak_gflops", peak)
    found = {(figure["batch"], figure["workers"]): figure for figure in report["steps"]}
    for (batch, workers), figure in found.items():
        show.row(what="Criteo-Kaggle DLRM", batch=batch, workers=workers, examples_per_s=figure["examples_per_second"],
                 floor_share=figure["floor_share"], rows_share=figure["row_floor_share"])
    bounds = FLOOR_SHARES[min(FLOOR_SHARES, key=lambda known: abs(known - peak))]
    for batch, bound in zip(BATCHES, bounds):
        show.at_least(f"floor_share_{batch}", found[batch, 1]["floor_share"], bound)
    scaling = [median(two / one for two, one in zip(found[batch, 2]["cpu_samples"], found[batch, 1]["cpu_samples"])) for batch in BATCHES]
    show.at_least("two_over_one", median(scaling), 1.95)


# Layers, inputs and outputs, and the width of the 27 vectors that interact. The first layer passes no gradient on.
MODELS = {
    "criteo-kaggle": ([(13, 512), (512, 256), (256, 64), (64, 16), (367, 512), (512, 256), (256, 1)], 16),
    "mlperf": ([(13, 512), (512, 256), (256, 128), (479, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)], 128),
}
PAIRS = 27 * 26 // 2


def one_by_one(report, model, batch, precision="f32"):
    """FLOP of an example, and the seconds they take product by product on near memory."""
    layers, width = MODELS[model]
    suffix = " bf16" if precision == "bf16" else ""
    rates = {(figure["kernel"], figure["shape"]): figure for figure in report["kernels"]}
    # Examples of a tile.
    n = max(n for n in (64, 128, 256) if n <= batch and ("dot", f"{n}x27x{width}{suffix}") in rates)
    flop = took = 0
    for number, (inputs, outputs) in enumerate(layers):
        for name in ["forward", "weight_gradient"] + ["data_gradient"] * (number > 0):
            own = 2 * inputs * outputs
            flop, took = flop + own, took + own / rates[name, f"{n}x{outputs}x{inputs}{suffix}"]["gflops"] / 1e9
        for name in ("transpose", "round"):
            figure = rates.get((name, f"{outputs}x{inputs}{suffix}"))
            if figure:
                took += 8 * inputs * outputs / figure["gb_per_second"] / 1e9 / batch
    for name, own in (("dot", 2 * PAIRS * width), ("dot_backward", 4 * PAIRS * width)):
        flop, took = flop + own, took + own / rates[name, f"{n}x27x{width}{suffix}"]["gflops"] / 1e9
    return flop, took


def parts():
    print("== parts", flush=True)
    report = bench("--optimizer", "sgd", "--workers", "1", "--batch", "128,2048", "--seconds", str(2 * ROUNDS), "--samples", str(ROUNDS),
                   whole=True)
    shares = {}
    for batch, step in ((figure["batch"], figure) for figure in report["steps"]):
        flop, took = one_by_one(report, "criteo-kaggle", batch)
        floors = flop / report["peak_gflops"] / 1e9
        rows = step["row_floor_share"] / step["examples_per_cpu_second"]
        shares[batch] = floors / (took + rows)
        show.row(what="parts of the Criteo-Kaggle DLRM", batch=batch, floor_us=1e6 * floors, products_us=1e6 * took, rows_us=1e6 * rows,
                 share_at_most=shares[batch], floor_share=step["floor_share"])
    for batch, share in shares.items():
        show.measured(f"floor_share_limit_{batch}", share)


JOB = """[data]
train = "%s"
[model]
kind = "dlrm"
embedding_dim = %s
bottom = %s
top = %s
%s
[optim.dense]
kind = "sgd"
lr = 0.01
[optim.sparse]
kind = "sgd"
lr = 0.01
"""
KAGGLE, ROWS = ("16", "[512, 256, 64, 16]", "[512, 256]"), ("64", "[64]", "[16]")
WAYS = {"plain": "", "norm": "batch_norm = true", "dropout": "dropout = 0.2", "both": "batch_norm = true\ndropout = 0.2"}


def norm():
    print("== norm", flush=True)
    data = runs.out / "shape.h5"
    # The shape of the data is all that is taken of it.
    runs.call("synth", [UMBRA, "synth", "--preset", "criteo-kaggle", "--rows", "1000", "--output", str(data), "--overwrite"])
    rates = {(way, batch): [] for way in WAYS for batch in BATCHES}
    for _ in range(ROUNDS):
        for way, keys in WAYS.items():
            job = runs.out / f"{way}.toml"
            job.write_text(JOB % (data.resolve(), *KAGGLE, keys))
            for figure in bench("-c", str(job), "--workers", "1", "--seconds", "1", "--samples", "3")["steps"]:
                rates[way, figure["batch"]].append(figure["examples_per_cpu_second"])
    costs = {}
    for (way, batch), own in rates.items():
        costs[way, batch] = median(1 - with_it / without for with_it, without in zip(own, rates["plain", batch]))
        show.row(what=f"step, {way}", batch=batch, examples_per_cpu_s=median(own), cost=costs[way, batch])
    show.at_most("norm_dropout_cost", median(costs["both", batch] for batch in BATCHES), 0.08)


def rows():
    print("== rows", flush=True)
    # What a machine puts under tables of gigabytes differs from process to process, and stays as it is: in each round every model has
    # one of its own.
    found = {}
    for _ in range(min(ROUNDS, 3)):
        for shape in SHAPES:
            for optimizer in OPTIMIZERS:
                # One optimizer at a time: tables of 13 GB.
                report = bench("--shape", shape, "--optimizer", optimizer, "--workers", "1,2", "--batch", "2048", "--seconds", "1.5",
                               "--samples", "3")
                for figure in report["steps"]:
                    found.setdefault((shape, optimizer, figure["workers"]), []).append(figure)
    least, limits = [], []
    for (shape, optimizer, workers), figures in found.items():
        shares = [figure["row_floor_share"] for figure in figures]
        least.append(median(shares))
        # Both floors, one after the other, and nothing else.
        limits.append(median(figure["row_floor_share"] / (figure["row_floor_share"] + figure["floor_share"]) for figure in figures))
        show.row(what=shape, optimizer=optimizer, workers=workers, examples_per_s=median(f["examples_per_second"] for f in figures),
                 rows_share=least[-1], low=min(shares), high=max(shares), floor_share=median(f["floor_share"] for f in figures),
                 share_at_most=limits[-1])
    show.at_least("row_floor_share_min", min(least), 0.6)
    show.measured("row_floor_share_limit_min", min(limits))


def bf16():
    print("== bf16", flush=True)
    for shape, name, bound in (("criteo-kaggle", "kaggle", 1.5), ("mlperf", "mlperf", 1.8)):
        report = bench("--shape", shape, "--optimizer", "sgd", "--precision", "f32,bf16", "--workers", "1", "--seconds", str(2 * ROUNDS),
                       "--samples", str(ROUNDS), whole=True)
        found = {(figure["batch"], figure["optimizer"]): figure for figure in report["steps"]}
        over, limits = {}, {}
        for batch in BATCHES:
            f32, half = found[batch, "sgd"], found[batch, "sgd bf16"]
            over[batch] = median(b / a for a, b in zip(f32["cpu_samples"], half["cpu_samples"]))
            rows = f32["row_floor_share"] / f32["examples_per_cpu_second"]
            both = [one_by_one(report, shape, batch, precision)[1] + rows for precision in ("f32", "bf16")]
            limits[batch] = both[0] / both[1]
            show.row(what=f"{shape}, bf16", batch=batch, examples_per_s=half["examples_per_second"], in_f32=f32["examples_per_second"],
                     over_f32=over[batch], f32_floor_share=f32["floor_share"], parts_over_f32=limits[batch])
        show.at_least(f"bf16_over_f32_{name}", median(over.values()), bound)
        show.measured(f"bf16_over_f32_{name}_of_parts", median(limits.values()))
    if "peak_bf16_over_f32" in report:
        show.measured("peak_bf16_over_f32", report["peak_bf16_over_f32"])


def half_rows():
    print("== half_rows", flush=True)
    for shape in ("rows64", "rows128"):
        for optimizer in OPTIMIZERS:
            report = bench("--shape", shape, "--optimizer", optimizer, "--rows", "f32,bf16", "--workers", "1", "--batch", "2048",
                           "--seconds", str(ROUNDS), "--samples", str(ROUNDS))
            f32, half = report["steps"]
            over = median(b / a for a, b in zip(f32["cpu_samples"], half["cpu_samples"]))
            show.row(what=f"{shape}, bf16 rows", optimizer=optimizer, examples_per_s=half["examples_per_second"],
                     in_f32=f32["examples_per_second"], over_f32=over)


COLUMNS = (64, 32, 16, 8)


def strips():
    print("== strips", flush=True)
    data, job = runs.out / "strips.h5", runs.out / "strips.toml"
    runs.call("synth", [UMBRA, "synth", "--preset", "criteo-kaggle", "--rows", "600000", "--output", str(data), "--overwrite"])
    job.write_text(JOB % (data.resolve(), *ROWS, ""))
    own = {"train.batch_size": 2048, "train.worker_threads": 1, "checkpoint.save": "none", "run.tensorboard": "false"}
    rates = {columns: [] for columns in COLUMNS}
    for number in range(ROUNDS):
        for columns, found in rates.items():
            found.append(speed(runs.train(f"strips-{columns}-{number}", job, {"embedding.columns": columns, **own}, [])))
    for columns, found in rates.items():
        show.row(what="rows of 64 in strips", columns=columns, examples_per_s=median(found),
                 over_whole=median(cut / whole for cut, whole in zip(found, rates[64])))


def ranks():
    print("== ranks", flush=True)
    files = runs.frappe_files()
    if files is None:
        return
    sets = {"data.train": files["train"], "train.batch_size": 256, "train.epochs": 8}
    rates, bytes_sent = {"one": [], "two": [], "messages": []}, {}
    for number in range(ROUNDS):
        load = Load()
        for name, more, launch in (
            ("one", {"train.worker_threads": 2, "sync.method": "none"}, []),
            ("two", {"train.worker_threads": 1, "sync.method": "shadow_ma"}, mpirun(2)),
            # As ranks of two nodes do it.
            ("messages", {"train.worker_threads": 1, "sync.method": "shadow_ma", "embedding.shared_memory": "false"}, mpirun(2)),
        ):
            run = runs.train(f"ranks-{name}-{number}", "hpc/show/shadow-frappe.toml", sets | more, launch)
            rates[name].append(speed(run))
            # One rank has no wire.
            bytes_sent[name] = run.get("wire", {}).get("embedding_bytes", 0) / run["examples"]
        loads.append(load.cores())
    over = {name: [a / b for a, b in zip(own, rates["one"])] for name, own in rates.items()}
    for name in ("two", "messages"):
        show.row(what="Frappe's DeepFM, 64-64-32", ranks=name, two_workers=median(rates["one"]), two_ranks=median(rates[name]),
                 low=min(over[name]), high=max(over[name]), bytes_per_example=bytes_sent[name])
    show.measured("through_messages", median(over["messages"]))
    show.at_least("collocated_over_threads", median(over["two"]), 0.9)


def planned(job, sets, ranks):
    """Bytes that all ranks send each other for rows in a step, expected."""
    done = subprocess.run([UMBRA, "train", "-c", job, "--dry-run", "--json", "--ranks", str(ranks), *settings(sets)], capture_output=True,
                          text=True, check=True)
    return sum(rank["embedding"]["bytes_sent"] for rank in json.loads(done.stdout)["ranks"])


BAGS = """[data]
train = "%s"
[model]
kind = "dlrm"
embedding_dim = 64
bottom = [64, 64]
top = [64]
[optim.dense]
kind = "sgd"
lr = 0.01
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.01
[train]
batch_size = 256
worker_threads = 1
[embedding]
partitions = 1
pool_at = "ps"
[checkpoint]
save = "none"
"""


def bags(ids):
    """A file of eight bags of so many ids each."""
    path, random = runs.out / f"bags{ids}.h5", Random(1)
    columns = [f"f{field}" for field in range(8)]
    with (runs.out / "bags.csv").open("w") as out:
        out.write(",".join(["click", "hour", *columns]) + "\n")
        for _ in range(8192):
            own = ["|".join(str(random.randrange(100_000)) for _ in range(ids)) for _ in columns]
            out.write(",".join([str(random.randrange(2)), str(random.randrange(24)), *own]) + "\n")
    fields = ", ".join(f'{{ column = "{column}", separator = "|" }}' for column in columns)
    (runs.out / "bags.toml").write_text(f'label = "click"\ndense = ["hour"]\nsparse = [{fields}]\n')
    runs.call("prepare-bags", [UMBRA, "prepare", "--format", "csv", "--schema", str(runs.out / "bags.toml"), "--input",
                               str(runs.out / "bags.csv"), "--output", str(path), "--overwrite"])
    return path


def sent():
    print("== sent", flush=True)
    files = runs.frappe_files()
    if files is not None:
        job = "hpc/show/shadow-frappe.toml"
        sets = {"data.train": files["train"], "train.batch_size": 256, "train.worker_threads": 1, "sync.method": "shadow_ma"}
        width = tomllib.loads(Path(job).read_text())["model"]["embedding_dim"] + 1
        whole, half = (planned(job, sets | {"embedding.precision": precision}, 2) for precision in ("f32", "bf16"))
        # Answers differ by that much a row, and by nothing else.
        rows = (whole - half) / (4 * width - 4 * ((width + 1) // 2))
        show.row(what="Frappe's DeepFM, 2 ranks", rows_per_example=rows / 512, bytes_per_example=whole / 512,
                 least=rows * (4 + 8 * width) / 512, bytes_per_example_bf16=half / 512)
        show.at_most("bytes_over_least", whole / (rows * (4 + 8 * width)), 1.1)
    for ids in (10, 50):
        path, job = bags(ids), runs.out / f"bags{ids}-job.toml"
        job.write_text(BAGS % path.resolve())
        for ranks in (2, 4, 8):
            kinds = {"distinct rows": {"embedding.pool_at": "trainer"}, "vectors, dealt": {}, "vectors, whole": {"embedding.placement": "tables"}}
            bytes_of = {name: planned(job, sets, ranks) / (256 * ranks) for name, sets in kinds.items()}
            show.row(what=f"8 bags of {ids}, {ranks} ranks", **{f"bytes_per_example {name}": value for name, value in bytes_of.items()})
        if ids == 50:
            show.measured("whole_over_dealt_8_ranks", bytes_of["vectors, whole"] / bytes_of["vectors, dealt"])


def inlined():
    print("== inlined", flush=True)
    names = subprocess.run(["nm", "-C", UMBRA], capture_output=True, text=True, check=True).stdout.splitlines()
    sets = [f"core_arch::x86::{name}" for name in ("avx::", "avx2::", "avx512", "fma::")]
    show.at_least("kernels_found", sum("umbra_core::kernel::" in name for name in names), 1)
    show.at_most("instructions_outside", sum(any(of in name for of in sets) for name in names), 0)


def beside_peers(phase, name):
    """What hpc/show/peers.sh found: value by id."""
    done = subprocess.run(["hpc/show/peers.sh"], env=os.environ | {"PHASES": phase, "UMBRA_BENCH": f"{UMBRA} bench"})
    # 1: a bound of that program's own does not hold.
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    return {check["id"]: check["value"] for check in json.loads(Path(f"target/show/{name}.json").read_text())["checks"]}


def row_peers():
    print("== row_peers", flush=True)
    found = beside_peers("rows", "row_peers")
    show.at_least("ratio_torchrec_rows_min", found["ratio_torchrec_rows_min"], 2)
    show.at_least("ratio_embeddingbag_rows_min", found["ratio_embeddingbag_rows_min"], 3)


def peers():
    print("== peers", flush=True)
    found = beside_peers("speed", "peers")
    least = lambda name: min(found[f"{name}_{batch}"] for batch in BATCHES)
    show.at_least("torch_sgemm_share_of_peak", found["sgemm_share_torch"], 0.9)
    show.at_least("ratio_torch_f32_1t_min", least("ratio_best_1t"), 1.3)
    show.at_least("ratio_torch_f32_2t_min", least("ratio_best_2t"), 1.4)
    show.at_least("ratio_torch_bf16_min", least("ratio_compile_step_bf16_1t"), 1.2)


CLICKS = 2_000_000


def auc():
    print("== auc", flush=True)
    frappe = runs.frappe_files()
    clicks = {"data.train": runs.synth("shadow_train", CLICKS), "data.test": runs.synth("shadow_test", 400_000, 8_000_000)}
    own = {"train.worker_threads": 1, "model.top": "[512, 256, 128]"}
    tasks = {"clicks": ("hpc/show/shadow-synthetic.toml", clicks | own)}
    if frappe is not None:
        tasks["frappe"] = ("hpc/jobs/frappe.toml", {f"data.{split}": path for split, path in frappe.items()})

    ways = {"f32": ({}, []), "bf16": ({"train.precision": "bf16"}, []), "bf16_rows": ({"embedding.precision": "bf16"}, [])}
    pairs = [("bf16", "f32", "bf16"), ("bf16_rows", "f32", "bf16_rows")]
    if "amx_bf16" in Path("/proc/cpuinfo").read_text():
        # Where f32s are multiplied as sums of three bf16s: against f32s as they are.
        ways["avx512"] = ({}, ["env", "UMBRA_SIMD=avx512"])
        pairs.append(("f32", "avx512", "thirds"))

    def train(job):
        task, seed, way = job
        (path, sets), (own, launch) = tasks[task], ways[way]
        return runs.train(f"{task}-{way}-{seed}", path, {"seed": seed, **own, **sets}, launch)["test"]

    jobs = [(task, seed, way) for task in tasks for seed in SEEDS for way in ways]
    # Every run has one worker thread.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        figures = dict(zip(jobs, pool.map(train, jobs)))
    for task, (way, base, name) in [(task, pair) for task in tasks for pair in pairs]:
        of = lambda figure: [figures[task, seed, way][figure] - figures[task, seed, base][figure] for seed in SEEDS]
        more, losses = of("auc"), of("logloss")
        error = stdev(more) / len(more) ** 0.5
        show.row(what=f"{task}, {way} - {base}", auc=mean(more), auc_error=error, logloss=mean(losses),
                 logloss_error=stdev(losses) / len(losses) ** 0.5, auc_base=mean(figures[task, seed, base]["auc"] for seed in SEEDS))
        show.at_most(f"auc_difference_{name}_{task}", abs(mean(more)), max(0.0003, 2 * error))


for phase in phases(steps, parts, norm, rows, ranks, sent, bf16, inlined, auc, more=[half_rows, strips, peers, row_peers]):
    phase()
if loads:
    show.alone(loads)
show.finish()
