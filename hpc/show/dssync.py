"""Runs what dssync.sh measures and checks it against the bounds.

contraction  what random groups make of the distance between replicas, against (N - g) / (g (N - 1))
links        4 and 9 trainers on the test cluster: bsp, groups with gated workers, groups in the background; links on
             which bsp spends most of a step in its all-reduce, links with a long way, a slow node
loss         seconds to the test log loss of bsp on the first two of these links, four trainers
scale        16 to 1024 trainers in the simulator, two levels of switches, calibrated with the runs of `links`
synthetic, frappe   test AUC against bsp's after one pass over synthetic clicks and over Frappe on fast links
"""

import json
import os
import re
import subprocess
from statistics import mean, median

import curves
from runs import UMBRA, Runs, falling, mpirun, settings, speed
from show import Show, error_of_difference, phases

FULL = bool(os.environ.get("FULL"))
# Of `loss`, and of AUC: there single runs differ by more.
SEEDS = [1, 2, 3, 4, 5][:5 if FULL else 3]
QUALITY_SEEDS = {"synthetic": range(1, 13 if FULL else 7), "frappe": range(1, 25 if FULL else 13)}
JOB = "hpc/show/dssync.toml"
show, runs = Show("dssync", [*QUALITY_SEEDS["frappe"]]), Runs("dssync")

BSP = {"sync.method": "bsp"}
GRID = {"sync.method": "ds_sync", "sync.schedule": "grid"}
PAIRS = {"sync.method": "ds_sync", "sync.schedule": "ring"}
SHADOW = {"sync.method": "shadow_ds_sync", "sync.schedule": "grid"}
METHODS = {"bsp": BSP, "ds_sync, grid": GRID, "ds_sync, pairs": PAIRS, "shadow_ds_sync, grid": SHADOW}

COLUMNS = ["what", "method", "examples_per_second", "seconds_of_a_step", "over_bsp", "lowest", "highest", "dense_mb",
           "over_measured", "auc", "auc_over_bsp", "auc_spread", "loss", "loss_bsp", "auc_bsp"]


def row(**figures):
    show.row(**{column: figures.get(column) for column in COLUMNS})


# What the kernel holds of dense parameters stands before the rows of others; where the way is long it must hold much.
WINDOW = ["--mca", "btl_tcp_sndbuf", "65536", "--mca", "btl_tcp_rcvbuf", "65536"]
# What links look like: rate, latency one way in µs, quotas of nodes in percent of a core, settings of MPI; and steps
# of a run, by which its start no longer shows.
SERIES = {
    "rate": ("50mbit", 0, {}, WINDOW, 40),
    "way": ("1gbit", 5000, {}, [], 120),
    "slow node": ("50mbit", 0, {0: 10}, WINDOW, 40),
}


def data():
    """Training and test clicks."""
    return {"data.train": runs.synth("shadow_train", 8_000_000),
            "data.test": runs.synth("shadow_test", 100_000, 8_000_000)}


def contraction():
    """The test that measures it prints the largest deviation."""
    command = ["cargo", "test", "-q", "-p", "umbra-core", "random_groups_contract_as_derived", "--", "--nocapture"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"largest deviation of a contraction: ([0-9.e-]+)", printed)
    show.at_most("contraction_error_max", float(found[1]), 0.03)


def on_cluster(name, ranks, series, sets):
    """A run on the test cluster."""
    rate, latency, quotas, mca, _ = SERIES[series]
    # Frames as long as network cards take them from the kernel (segmentation offload).
    os.environ["UMBRA_CLUSTER_MTU"] = "60000"
    slow = [part for node, quota in quotas.items() for part in ("--slow", f"{node}={quota}%")]
    launch = ["hpc/cluster/run", "-n", str(ranks), "--rate", rate, "--latency-us", str(latency), *slow, "--", *mca]
    return runs.train(name.replace(", ", "-").replace(" ", "-"), JOB, {**data_of_speed(), **sets}, launch)


def data_of_speed():
    return {"data.train": runs.synth("shadow_speed", 400_000)}


measured = {}


def links():
    """Examples per second of every method over bsp's, in turn."""
    print("== links", flush=True)
    rounds = 5 if FULL else 3
    best = {"ds_sync": 0.0, "shadow_ds_sync": 0.0}
    for ranks in (4, 9):
        subprocess.run(["hpc/cluster/up.sh", str(ranks)], check=True, stdout=subprocess.DEVNULL)
        for series, (*_, steps) in SERIES.items():
            ratios, last = {method: [] for method in METHODS}, {}
            for number in range(rounds):
                for method, sets in METHODS.items():
                    sets = {**sets, "train.max_examples": steps * 64 * ranks}
                    last[method] = on_cluster(f"{series}-{ranks}-{method}-{number}", ranks, series, sets)
                for method, figures in last.items():
                    ratios[method].append(speed(figures) / speed(last["bsp"]))
            for method, figures in last.items():
                ratio = median(ratios[method])
                measured[series, ranks, method] = speed(figures)
                step = 64 * ranks / speed(figures)
                row(what=f"{series} x {ranks}", method=method, examples_per_second=speed(figures),
                         seconds_of_a_step=step, over_bsp=ratio, lowest=min(ratios[method]),
                         highest=max(ratios[method]), dense_mb=figures["wire"]["dense_bytes"] / 1e6)
                name = method.split(",")[0]
                if name in best:
                    best[name] = max(best[name], ratio)
        subprocess.run(["hpc/cluster/down.sh", "--quiet"], check=True)
    show.at_least("speedup_over_bsp_max", best["ds_sync"], 1.94)
    show.measured("speedup_over_bsp_max_in_background", best["shadow_ds_sync"])


# Steps of bsp, and the lengths that other methods are run at, in shares of that, until one does as well.
LOSS_STEPS = {"rate": 100, "way": 500}
LOSS_SHARES = {"ds_sync, pairs": (0.8, 1.0, 1.25, 2.0), "shadow_ds_sync, grid": (1.0, 1.5, 2.0, 4.0)}


def loss():
    """Seconds of bsp over those of the shortest run that ends with a test log loss as low."""
    print("== time to the same loss", flush=True)
    subprocess.run(["hpc/cluster/up.sh", "4"], check=True, stdout=subprocess.DEVNULL)
    best = {}
    for series, bsp_steps in LOSS_STEPS.items():
        steps, ratios = bsp_steps * (3 if FULL else 1), {}
        for seed in SEEDS:
            def ended(method, share):
                sets = {**METHODS[method], **more_of(method), **data(), "seed": seed,
                        "train.max_examples": int(steps * share) * 64 * 4}
                return on_cluster(f"loss-{series}-{method}-{share}-{seed}", 4, series, sets)
            bsp = ended("bsp", 1.0)
            target = bsp["test"]["logloss"]
            for method, shares in LOSS_SHARES.items():
                for share in shares:
                    figures = ended(method, share)
                    reached = figures["test"]["logloss"] <= target
                    if reached:
                        break
                # A run that never does as well gains nothing.
                ratio = bsp["seconds"] / figures["seconds"] if reached else 0.0
                ratios.setdefault(method, []).append(ratio)
                row(what=f"equal loss, {series}, seed {seed}, {share} of the steps", method=method, over_bsp=ratio,
                    seconds_of_a_step=figures["seconds"] / (steps * share), loss=figures["test"]["logloss"],
                    loss_bsp=target, auc=figures["test"]["auc"], auc_bsp=bsp["test"]["auc"])
        for method, values in ratios.items():
            name = method.split(",")[0]
            best[name] = max(best.get(name, 0.0), median(values))
            print(f"   {series}: {method} {median(values):.2f} ({min(values):.2f} to {max(values):.2f})", flush=True)
    subprocess.run(["hpc/cluster/down.sh", "--quiet"], check=True)
    show.at_least("speedup_over_bsp_at_equal_loss", best["ds_sync"], 1.94)
    show.measured("speedup_over_bsp_at_equal_loss_in_background", best["shadow_ds_sync"])


def more_of(method):
    """Rounds in the background leave whole what workers do meanwhile."""
    return {"sync.intake": "delta", "sync.alpha": 1} if method.startswith("shadow") else {}


def scale():
    """Steps per second in the simulator: 16 trainers to a leaf switch, whose uplink has a quarter of their rates."""
    print("== at scale, in the simulator", flush=True)
    sets = {**data_of_speed(), **{"sync.method": "none", "train.max_examples": 12_800}}
    step = runs.train("calibration", "hpc/show/shadow.toml", sets, mpirun(1))
    trainers = (16, 64, 256, 1024)
    methods = {
        "bsp, ring": ("ring", BSP), "bsp, tree": ("tree", BSP), "bsp, direct": ("direct", BSP),
        "ds_sync, leaves": ("direct", {"sync.method": "ds_sync", "sync.schedule": "nodes"}),
        "ds_sync, hypercube": ("direct", {"sync.method": "ds_sync", "sync.schedule": "hypercube"}),
        "ds_sync, random pairs": ("direct", {"sync.method": "ds_sync", "sync.schedule": "random"}),
        "shadow_ds_sync, leaves": ("direct", {"sync.method": "shadow_ds_sync", "sync.schedule": "nodes"}),
    }
    found = {}
    for method, (collective, sets) in methods.items():
        cluster = runs.out / "cluster.toml"
        cluster.write_text(f"""trainers = 16
steps = 100
collective = "{collective}"
[leaves]
nodes = 16
uplink_bytes_per_s = 5e9
[link]
bytes_per_s = 1.25e9
[compute]
example_us = {1e6 / speed(step)}
""")
        path = runs.out / f"{method.replace(', ', '-').replace(' ', '-')}.json"
        sets = {**data_of_speed(), **sets, "train.worker_threads": 1}
        simulate = [UMBRA, "simulate", "-c", "hpc/show/shadow.toml", "--cluster", str(cluster), "--trainers",
                    ",".join(map(str, trainers)), "--json", str(path)]
        runs.call(f"scale-{path.stem}", [*simulate, *settings(sets)])
        for figures in json.loads(path.read_text())["rows"]:
            found[method, figures["trainers"]] = figures["summary"]["examples_per_second"]
    for (method, count), rate in found.items():
        bsp = max(found["bsp, ring", count], found["bsp, tree", count], found["bsp, direct", count])
        row(what=f"simulated x {count}", method=method, examples_per_second=rate, over_bsp=rate / bsp,
                 seconds_of_a_step=128 * count / rate)
    curves.draw(runs.out / "scale.svg", [curves.Panel("examples/s per trainer, over one's alone", {
        method: [(count, found[method, count] / count / speed(step)) for count in trainers] for method in methods
    }, top=1.05)], "trainers, 16 to a leaf switch, nodes of 10 Gbit/s, uplinks of 40")
    bsp = max(found["bsp, ring", 256], found["bsp, tree", 256], found["bsp, direct", 256])
    best = max(rate for (method, count), rate in found.items() if count == 256 and method.startswith("ds_sync"))
    show.measured("sim_speedup_256", best / bsp)
    calibrated()


def calibrated():
    """The simulator's word for two runs of `links`, when they were made: rate of a link, time of a step."""
    for ranks in (4, 9):
        if ("rate", ranks, "bsp") not in measured:
            return
        for method in ("bsp", "ds_sync, grid", "ds_sync, pairs"):
            cluster = runs.out / "calibrated.toml"
            # Ranks share the machine's cores.
            sets = {**data_of_speed(), "sync.method": "none", "train.max_examples": 64 * 200}
            alone = speed(runs.train("calibration-small", JOB, sets, mpirun(1)))
            busy = max(1.0, ranks / os.cpu_count())
            cluster.write_text(f"""trainers = {ranks}
steps = 30
[link]
bytes_per_s = 6.25e6
latency_us = 100
[compute]
example_us = {1e6 / alone * busy}
""")
            path = runs.out / "calibrated.json"
            sets = {**data_of_speed(), **METHODS[method], "train.worker_threads": 1}
            runs.call("calibrated", [UMBRA, "simulate", "-c", JOB, "--cluster", str(cluster), "--trainers", str(ranks),
                                     "--json", str(path), *settings(sets)])
            rate = json.loads(path.read_text())["rows"][0]["summary"]["examples_per_second"]
            row(what=f"simulated, as rate x {ranks}", method=method, examples_per_second=rate,
                     seconds_of_a_step=64 * ranks / rate, over_measured=rate / measured["rate", ranks, method])


# Rows of a pass, whole batches of four trainers with a worker each; share of the steps at whose end rates have fallen to 0.
PASS = {"synthetic": (8_000_000, 0.5), "frappe": (201_984, 0.2)}
# Batch, dense rate, row rate and what Adagrad starts from for rows, each the best of a few (docs/synchronization.md).
RATES = {
    "synthetic": dict.fromkeys(METHODS, (128, 0.04, 0.04, 0)),
    "frappe": {"bsp": (16, 0.04, 0.2, 7.5e-6), "ds_sync, grid": (4, 0.06, 0.2, 1.6e-3),
               "ds_sync, pairs": (4, 0.06, 0.2, 1.6e-3), "shadow_ds_sync, grid": (4, 0.06, 0.2, 1.6e-3)},
}
# Four trainers on two cores: with a thread's default share of one, a round would come every 9 short steps.
ROUNDS_OFTEN = {"frappe": {"shadow_ds_sync, grid": {"sync.core_share": 0.3}}}
apart = []


def synthetic():
    quality("synthetic")


def frappe():
    quality("frappe")


def quality(name):
    """AUC after one pass on fast links."""
    print(f"== quality, {name}", flush=True)
    files = runs.files(name)
    if files is None:
        return
    found = {}
    for method, sets in METHODS.items():
        (rows, falls), (batch, dense, sparse, accumulator) = PASS[name], RATES[name][method]
        sets = {**files, **falling(rows // (batch * 4), falls), **sets, **more_of(method), "train.worker_threads": 1,
                "train.batch_size": batch, "train.max_examples": rows, "optim.dense.lr": dense,
                "optim.sparse.lr": sparse, "optim.sparse.initial_accumulator": accumulator,
                **ROUNDS_OFTEN.get(name, {}).get(method, {})}
        for seed in QUALITY_SEEDS[name]:
            run = f"quality-{name}-{method.replace(', ', '-')}-{seed}"
            figures = runs.train(run, f"hpc/show/shadow-{name}.toml", {**sets, "seed": seed}, mpirun(4))
            found.setdefault(method, []).append(figures["test"])
    found_aucs = {method: [test["auc"] for test in tests] for method, tests in found.items()}
    others = [aucs for method, aucs in found_aucs.items() if method != "bsp"]
    show.measured(f"auc_uncertainty_{name}", max(error_of_difference(found_aucs["bsp"], aucs) for aucs in others))
    for method, tests in found.items():
        aucs = found_aucs[method]
        over_bsp = mean(aucs) - mean(found_aucs["bsp"])
        row(what=f"quality, {name}", method=method, auc=mean(aucs), auc_over_bsp=over_bsp,
            auc_spread=max(aucs) - min(aucs), loss=mean(test["logloss"] for test in tests))
        apart.append(abs(over_bsp))
        print(f"   {name:9} {method:21} {mean(aucs):.5f}, {over_bsp:+.5f} of bsp's, "
              f"spread {max(aucs) - min(aucs):.5f}")


for phase in phases(contraction, links, loss, scale, synthetic, frappe):
    phase()
if apart:
    show.at_most("auc_difference_max", max(apart), 0.0005)
show.finish()
