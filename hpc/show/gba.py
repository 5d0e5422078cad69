"""Runs what gba.sh measures and checks it against the bounds.

equivalence  one worker, four gradients of one version, against a synchronous step of the same four batches: the
             greatest difference of any parameter, row or optimizer state after one step, for three optimizers
sim          20 and 100 trainers in the simulator, one in twenty at a quarter of the speed and one at half
strained     four trainers on the test cluster, one with a quarter or a tenth of the others' core
still        a trainer that stands still for longer than batches wait: what is lost, and the others' rate meanwhile
switch       runs that change to gba, or to async_ps, after a third and back after two, against the run that does not
even         two trainers with a core each: what servers cost where nobody is slow, in turn with bsp
"""

import json
import os
import shutil
import signal
import subprocess
import time
from array import array
from pathlib import Path
from statistics import mean, median, stdev

from runs import UMBRA, Runs, mpirun, settings
from saved import tensors
from show import Show, phases, summary

JOB = "hpc/show/gba.toml"
ROWS, TEST_ROWS = 1_000_000, 50_000
METHODS = ["bsp", "bsp_ps", "hop_bs", "hop_bw", "async_ps", "gba", "shadow_easgd", "shadow_ds_sync"]
COLUMNS = ["what", "method", "examples_per_second", "over_bsp", "auc", "slow_share", "staleness_mean", "staleness_max",
           "lag_mean", "dropped", "dip", "dip_uncertainty", "deepest"]
os.environ["UMBRA_CLUSTER_MTU"] = "60000"
SEEDS = [1, 2, 3, 4, 5]
show, runs = Show("gba", SEEDS), Runs("gba")


def data():
    """Training and test clicks."""
    return {"data.train": runs.synth("gba_train", ROWS), "data.test": runs.synth("gba_test", TEST_ROWS, ROWS)}


def row(what, method, figures, bsp, slow=None):
    """A line of the table; the examples per second."""
    sync, rate = figures["sync"], figures["examples"] / figures["seconds"]
    steps = [trainer["steps"] for trainer in sync.get("trainers", [])]
    show.row(**dict.fromkeys(COLUMNS) | {column: value for column, value in zip(COLUMNS, [
        what, method, rate, rate / bsp if bsp else 1.0, figures.get("test", {}).get("auc"),
        steps[slow] / sum(steps) if slow is not None and steps and method != "bsp" else None,
        sync.get("token_staleness_mean"), sync.get("token_staleness_max"), sync.get("version_lag_mean"),
        sync.get("dropped")])})
    return rate


def equivalence():
    print("== equivalence", flush=True)
    # Adam, and Adagrad from an accumulator of 0, divide a first gradient by its own size, also one that is hardly
    # there: what rounding leaves of it moves by up to the rate. That is measured beside the others.
    worst = {"equivalence_error_max": 0.0, "equivalence_error_from_zero": 0.0}
    for dense, sparse, rate, accumulator, id in (
        ("sgd", "sgd", 0.05, None, "equivalence_error_max"),
        ("adagrad", "rowwise_adagrad", 0.02, 0.1, "equivalence_error_max"),
        ("adam", "adam", 0.001, None, "equivalence_error_max"),
        ("adagrad", "rowwise_adagrad", 0.02, 0.0, "equivalence_error_from_zero"),
    ):
        found = {}
        for name, sets in (
            ("bsp", {"sync.method": "bsp", "train.worker_threads": 4}),
            ("gba", {"sync.method": "gba", "train.worker_threads": 1, "sync.server.members": 4}),
        ):
            sets |= {"optim.dense.kind": dense, "optim.sparse.kind": sparse, "train.max_examples": 4 * 64}
            sets |= {"optim.dense.lr": rate, "optim.sparse.lr": rate}
            if accumulator is not None:
                sets |= {"optim.dense.initial_accumulator": accumulator, "optim.sparse.initial_accumulator": accumulator}
            runs.train(f"equal-{dense}-{name}", JOB, data() | sets, mpirun(1))
            found[name] = tensors(runs.out / f"equal-{dense}-{name}" / "checkpoints" / "last")[1]
        names = [name for name in found["bsp"] if name.startswith(("dense.", "rows."))]
        for name in names:
            one, other = (array("f", bytes(found[method][name])) for method in ("bsp", "gba"))
            worst[id] = max(worst[id], max((abs(a - b) for a, b in zip(one, other)), default=0.0))
    show.at_most("equivalence_error_max", worst["equivalence_error_max"], 1e-6)
    show.measured("equivalence_error_from_zero", worst["equivalence_error_from_zero"])


def sim():
    print("== sim", flush=True)
    for trainers in (20, 100):
        slow = "".join(f"[[straggler]]\ntrainer = {n}\nfactor = {4 if n % 20 == 3 else 2}\n"
                       for n in range(trainers) if n % 20 in (3, 11))
        cluster = runs.out / f"cluster-{trainers}.toml"
        servers = max(1, trainers // 5)
        cluster.write_text(
            f"trainers = {trainers}\nsync_ps = {servers}\nembedding_ps = {servers}\nsteps = 400\n"
            f"[link]\nbytes_per_s = 1.25e9\n[compute]\nexample_us = 25.0\nspread = 0.2\n{slow}")
        bsp = None
        for method in METHODS:
            name = f"sim-{trainers}-{method}"
            # Shadow methods with a core of their own, as published.
            sets = data() | {"run.dir": runs.out / name, "sync.method": method, "train.worker_threads": 1}
            sets["train.batch_size"] = 512
            command = [UMBRA, "simulate", "-c", JOB, "--cluster", cluster, *settings(sets)]
            runs.call(name, [str(part) for part in command])
            rate = row(f"{trainers} trainers, simulated", method, summary(runs.out / name), bsp, 3)
            bsp = bsp or rate
            if method == "gba":
                show.at_least(f"sim_strained_speedup_{trainers}", rate / bsp, 2.4)


def strained():
    print("== strained", flush=True)
    for what, quota, id, bound in (("a quarter", 9, "strained_speedup", 2.4), ("a tenth", 4, "strained_speedup_tenth", 2.4)):
        bsp, auc = None, {}
        for method in METHODS:
            layout = {"roles.layout": "separate", "roles.trainers": 4, "roles.embedding_ps": 1}
            centers = 1 if method.endswith(("_ps", "easgd", "gba")) or method.startswith("hop") else 0
            sets = data() | layout | {"sync.method": method, "train.batch_size": 2048, "train.max_examples": 245_760}
            sets |= {"roles.sync_ps": centers} if centers else {}
            # All trainers have so little of a core that servers never lack one, and the kernel's work per frame,
            # which processes pay from their quota here, is as little as with network cards that cut segments.
            slow = [part for node, share in enumerate([36, 36, 36, quota]) for part in ("--slow", f"{node}={share}%")]
            launch = ["hpc/cluster/run", "-n", str(5 + centers), "--rate", "10gbit", *slow, "--"]
            figures = runs.train(f"strained-{quota}-{method}", JOB, sets, launch)
            rate = row(f"one of four has {what} of a core", method, figures, bsp, 3)
            bsp, auc[method] = bsp or rate, figures["test"]["auc"]
            if method == "gba":
                show.at_least(id, rate / bsp, bound)
        show.measured(f"auc_gba_less_bsp_{quota}", auc["gba"] - auc["bsp"])


def still():
    print("== still", flush=True)
    name = "still"
    shutil.rmtree(runs.out / name, ignore_errors=True)
    # Rows and parameters are elsewhere: a rank that stands still answers nobody.
    sets = data() | {"sync.method": "gba", "sync.server.reissue_s": 1, "run.log_every_s": 0.5, "run.dir": runs.out / name,
                     "roles.layout": "separate", "roles.trainers": 3, "roles.embedding_ps": 1, "roles.sync_ps": 1}
    command = [*mpirun(5), "--oversubscribe", UMBRA, "train", "-c", JOB, *settings(sets)]
    log = (runs.out / "still.log").open("w")
    job = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
    metrics = runs.out / name / "metrics.jsonl"
    reports = lambda: [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    # Of rank 0's reports, before and while one of three stands still.
    rate = lambda lines: [line["examples_per_second"] for line in lines if "examples_per_second" in line]
    while len(rate(reports())) < 8:
        time.sleep(0.1)
    pids = [pid for pid in children(job.pid) if b"umbra" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]
    stopped = sorted(pids)[2]
    before = rate(reports())
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(8)
    during = rate(reports())[len(before):]
    os.kill(stopped, signal.SIGCONT)
    if job.wait() != 0:
        raise SystemExit(f"show: {name} failed; its log is {runs.out / 'still.log'}")
    figures = summary(runs.out / name)
    sync, steps = figures["sync"], figures["steps"]
    show.at_most("batches_lost", 3 * steps - sync["counted"] - sync.get("dropped", 0), 0)
    show.at_most("batches_counted_twice", sync["counted"] + sync.get("dropped", 0) - 3 * steps, 0)
    show.measured("batches_brought_in_vain", sync.get("twins", 0))
    # The others' share of the rate before is two thirds; the first report of each lasts into what is not meant.
    show.at_least("others_rate_while_one_stands_still", median(during[1:]) / (median(before[1:]) * 2 / 3), 0.8)


def children(pid):
    """Processes below one."""
    below = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            below += [int(stat.parent.name), *children(int(stat.parent.name))]
    return below


def switch():
    print("== switch", flush=True)
    for what, rows, workers_batch in (("frappe", 202_027, 8 * 16), ("synthetic", 8_000_000, 8 * 256)):
        data = runs.files(what)
        if data is None:
            continue
        every = rows // workers_batch // 12
        data["data.valid"] = data.pop("data.test")
        # Of every seed: AUC at twelve evaluations, four of each third.
        curves = {name: [] for name in ("bsp", "bsp gba bsp", "bsp async_ps bsp", "gba", "async_ps")}
        for seed in SEEDS:
            for name, found in curves.items():
                method, *to = name.split()[:2]
                sets = data | {"seed": seed, "sync.method": method, "train.eval_every": every}
                sets |= {"train.max_examples": 12 * every * workers_batch}
                if to:
                    sets |= {"sync.switch.to": to[0], "sync.switch.at": f"[{4 * every}, {8 * every}]"}
                run = f"switch-{what}-{name.replace(' ', '-')}-{seed}"
                runs.train(run, f"hpc/show/shadow-{what}.toml", sets, [*mpirun(4), "--oversubscribe"])
                lines = (runs.out / run / "metrics.jsonl").read_text().splitlines()
                valid = [line["valid"]["auc"] for line in map(json.loads, lines) if line.get("valid")]
                if len(valid) != 12:
                    raise SystemExit(f"show: {run} has {len(valid)} evaluations, not 12")
                found.append(valid)
        # A dip: how far below the unswitched run of the same seed, over the evaluations after the first change.
        for name, found in curves.items():
            dips = [mean(a - b for a, b in zip(base[4:], own[4:])) for base, own in zip(curves["bsp"], found)]
            deepest = [max(a - b for a, b in zip(base[4:], own[4:])) for base, own in zip(curves["bsp"], found)]
            error = stdev(dips) / len(dips) ** 0.5
            show.row(**dict.fromkeys(COLUMNS) | {
                "what": f"{what}, {len(SEEDS)} seeds", "method": name, "auc": mean(own[-1] for own in found),
                "dip": mean(dips), "dip_uncertainty": error, "deepest": mean(deepest)})
            if name == "bsp gba bsp":
                show.at_most(f"auc_dip_mean_{what}", mean(dips), max(0.0005, 2 * error))
                show.measured(f"auc_dip_uncertainty_{what}", error)
            elif name == "bsp async_ps bsp":
                show.measured(f"async_auc_dip_mean_{what}", mean(dips))
        over = [gba[-1] - other[-1] for gba, other in zip(curves["gba"], curves["async_ps"])]
        show.measured(f"gba_over_async_auc_{what}", mean(over))
        show.measured(f"gba_over_async_uncertainty_{what}", stdev(over) / len(over) ** 0.5)


def even():
    print("== even", flush=True)
    rates = {"bsp": [], "gba": []}
    for turn in range(5):
        for method in rates:
            sets = data() | {"sync.method": method, "train.batch_size": 512, "train.max_examples": 300_000}
            figures = runs.train(f"even-{method}-{turn}", JOB, sets, mpirun(2))
            rates[method].append(figures["examples"] / figures["seconds"])
    ratios = [gba / bsp for gba, bsp in zip(rates["gba"], rates["bsp"])]
    show.measured("gba_over_bsp_even", median(ratios))
    show.measured("gba_over_bsp_even_lowest", min(ratios))
    show.measured("gba_over_bsp_even_highest", max(ratios))


for phase in phases(equivalence, sim, strained, still, switch, even):
    phase()
show.finish()
