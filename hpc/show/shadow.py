"""Runs what shadow.sh measures and checks it against the bounds.

cost      one trainer with a core to spare, and two on two cores: shadow methods over none, in turn
links     four trainers on the test cluster, links on which a full synchronization takes about ten steps
scaling   1 to 64 trainers in the simulator, calibrated with a short run
drivers   foreground averaging on 4 real ranks and in the simulator: figures that differ
synthetic, frappe   test log loss after one pass over synthetic clicks and over Frappe, 4 trainers x 2 workers

Speeds are of the training loop: the sum over trainers of what each learned from per second until its own last step
(summary.json: sync.trainers). Trainers do not wait for each other, so the slowest one's end is not the others' time.
"""

import json
import os
import subprocess
from statistics import mean, median

import curves
from runs import UMBRA, Runs, falling, mpirun, settings, speed
from show import Show, error_of_difference, phases, summary

FULL = bool(os.environ.get("FULL"))
SHADOW = ("shadow_easgd", "shadow_ma", "shadow_bmuf")
# The baseline of arXiv 2003.03477: each worker exchanges with the center by itself.
BY_WORKERS = "foreground_easgd by worker"
METHODS = (*SHADOW, "foreground_easgd", BY_WORKERS, "foreground_ma")
TRAINERS = (1, 2, 4, 8, 16, 32, 64)
# Of a link; with the batch of `links`, a full synchronization takes about ten steps.
MBIT = 12
# Of test log losses: those of shadow methods and of one trainer, and those of the others. On Frappe a run's log loss
# moves by a percent, and the mean of few would say nothing.
SEEDS = {"synthetic": (8, 8) if FULL else (5, 5), "frappe": (100, 20) if FULL else (40, 10)}
show, runs = Show("shadow", [*range(1, 1 + max(map(max, SEEDS.values())))]), Runs("shadow")

COLUMNS = ["what", "method", "examples_per_second", "over_none", "gap_mean", "gap_p99", "seconds_exposed",
           "processor_per_second", "center_per_second", "seconds_publish", "disagreement"]


def speed_row(what, name, figures, ratio):
    """One run: its speed, and what its synchronizing threads took beside it."""
    sync = figures["sync"]
    per_second = lambda key: sync[key] / figures["seconds"] if key in sync else None
    row = {"what": what, "method": name, "examples_per_second": speed(figures),
           "over_none": ratio, "processor_per_second": per_second("seconds_processor"),
           "center_per_second": per_second("seconds_processor_center")}
    show.row(**{column: row.get(column, sync.get(column)) for column in COLUMNS})
    return ratio


exposed = []


def method_sets(what):
    """Settings of a method, or of elastic averaging by each worker."""
    gate = {"sync.gate": "worker"} if what == BY_WORKERS else {}
    return {"sync.method": what.split()[0], **gate}


def expose(figures):
    """Share of the training loop for which a worker stood still for synchronization."""
    exposed.append(figures["sync"].get("seconds_exposed", 0.0) / figures["seconds"])


def cost():
    """Shadow methods over none where the machine has a core to spare, and where it has not."""
    print("== cost on one machine", flush=True)
    data = runs.synth("shadow_speed", 400_000)
    rounds = 9 if FULL else 5
    worst = {}
    for what, ranks, none, common, bound in (
        ("spare core", 1, "none", {"train.pin_workers": "true", "train.max_examples": 25_600}, 0.97),
        ("shared cores", 2, "independent", {"train.max_examples": 51_200}, 0.90),
    ):
        ratios = {method: [] for method in SHADOW}
        last = {}

        def run(method, name):
            sets = {"data.train": data, "sync.method": method, **common}
            last[method] = runs.train(f"{what.replace(' ', '-')}-{name}", "hpc/show/shadow.toml", sets, mpirun(ranks))
            return speed(last[method])

        before = run(none, f"{none}-first")
        for number in range(rounds):
            for method in SHADOW:
                fast = run(method, f"{method}-{number}")
                expose(last[method])
                # The machine's speed drifts: a run is held against those before and after it.
                after = run(none, f"{none}-after-{method}-{number}")
                ratios[method].append(fast / mean((before, after)))
                before = after
        speed_row(what, none, last[none], None)
        for method in SHADOW:
            print(f"   {method}: {', '.join(f'{ratio:.3f}' for ratio in ratios[method])} of {none}")
            speed_row(what, method, last[method], median(ratios[method]))
        worst[what] = (min(median(ratios[method]) for method in SHADOW), bound)
    for what, (value, bound) in worst.items():
        show.at_least(f"shadow_over_none_{what.replace(' ', '_')}", value, bound)


def links():
    """Four trainers, a store of rows and a center on nodes of their own, links at 12 Mbit/s."""
    print("== slow links", flush=True)
    data = runs.synth("shadow_speed", 400_000)
    # A node's trainer gets less than its share of the machine's cores, so that what the machine spends on
    # playing the network is not taken from training.
    quota = [part for node in range(4) for part in ("--slow", f"{node}=36%")]
    window = ["--mca", "btl_tcp_sndbuf", "65536", "--mca", "btl_tcp_rcvbuf", "65536"]
    common = {
        "data.train": data, "model.top": "[1536, 768, 384]", "train.batch_size": 2048,
        "embedding.prefetch": 8, "roles.layout": "separate", "roles.trainers": 4, "roles.embedding_ps": 1,
    }
    # Frames as long as network cards take them from the kernel (segmentation offload): with short ones the kernel's work
    # per frame, paid from the node's quota, is what would be measured.
    os.environ["UMBRA_CLUSTER_MTU"] = "60000"
    subprocess.run(["hpc/cluster/up.sh", "6", f"{MBIT}mbit", "0"], check=True, stdout=subprocess.DEVNULL)

    def run(method, steps, name, every=None):
        ranks = 6 if method.endswith("easgd") else 5
        sets = {**common, "sync.method": method, "train.max_examples": 4 * common["train.batch_size"] * steps}
        if every:
            sets["sync.every"] = every
        elif method in SHADOW:
            # A part of a message is on its way for longer, and every look is taken from a third of a core.
            sets["sync.poll_us"] = 20_000
        # A node is a part of one core: on two, its threads could lose some of its quota to each other.
        launch = ["hpc/cluster/run", "-n", str(ranks), "--rate", f"{MBIT}mbit", "--pin", *quota, "--", *window]
        return runs.train(f"links-{method}-{name}", "hpc/show/shadow.toml", sets, launch)

    steps, rounds = (120, 5) if FULL else (40, 3)
    bases, ratios, last = [], {method: [] for method in SHADOW}, {}
    for number in range(rounds):
        bases.append(speed(run("independent", steps, f"round-{number}")))
        for method in SHADOW:
            last[method] = run(method, steps, f"round-{number}")
            expose(last[method])
            ratios[method].append(speed(last[method]))
    last["independent"] = run("independent", steps, f"round-{rounds}")
    bases.append(speed(last["independent"]))
    speed_row("links", "independent", last["independent"], None)
    for method in SHADOW:
        # The machine's speed drifts: a round is held against the runs before and after it.
        ratios[method] = [fast / mean(bases[at:at + 2]) for at, fast in enumerate(ratios[method])]
        print(f"   {method}: {', '.join(f'{ratio:.3f}' for ratio in ratios[method])} of independent")
        speed_row("links", method, last[method], median(ratios[method]))
    # Replicas over the slowest link in a round: a center's link carries one of every trainer, and sends as many beside;
    # all-reduce sends 2 (n - 1)/n of one.
    replicas, slowest = {"foreground_easgd": 4, "foreground_ma": 2 * 3 / 4}, []
    step = 4 * common["train.batch_size"] / median(bases)
    for method in replicas:
        for every, length in ((5, 20), (1, 6)):
            figures = run(method, length, f"every-{every}", every)
            ratio = speed_row("links", f"{method} k={every}", figures, speed(figures) / median(bases))
            sending = replicas[method] * 8 * figures["memory"]["dense_bytes"] / (1e6 * MBIT)
            arithmetic = every * step / (every * step + sending)
            print(f"   {method} k={every}: {ratio:.3f} of independent; by its bytes {arithmetic:.3f}")
            slowest += [ratio] if every == 1 else []
    show.at_least("shadow_over_none_min", min(map(median, ratios.values())), 0.95)
    show.measured("foreground_k1_over_none_max", max(slowest))
    subprocess.run(["hpc/cluster/down.sh", "--quiet"], check=True)


def scaling():
    """Efficiency from 1 to 64 trainers with one center, nodes of 10 Gbit/s, steps as long as one core takes here."""
    print("== scaling in the simulator", flush=True)
    sets = {"data.train": runs.synth("shadow_speed", 400_000), "sync.method": "none", "train.max_examples": 12_800}
    step = runs.train("calibration", "hpc/show/shadow.toml", sets, mpirun(1))
    cluster = runs.out / "cluster.toml"
    cluster.write_text(f"""trainers = 1
embedding_ps = 8
sync_ps = 1
steps = {4000 if FULL else 1000}
[link]
bytes_per_s = 1.25e9
[compute]
example_us = {1e6 / speed(step)}
""")
    data, found, gaps = runs.synth("shadow_speed", 400_000), {}, {}
    for method in METHODS:
        name = f"scaling-{method.replace(' ', '-')}"
        path = runs.out / f"{name}.json"
        sets = {"data.train": data, **method_sets(method), "train.worker_threads": 4}
        if method.startswith("foreground"):
            sets["sync.every"] = 5
        runs.call(name, [
            UMBRA, "simulate", "-c", "hpc/show/shadow.toml", "--cluster", str(cluster),
            "--trainers", ",".join(map(str, TRAINERS)), "--json", str(path), *settings(sets),
        ])
        for row in json.loads(path.read_text())["rows"]:
            figures = row["summary"]
            trainers = figures["roles"]["trainers"]
            found[method, trainers] = row["efficiency"]
            gaps[method, trainers] = figures["sync"]["gap_mean"]
            show.row(what="simulated", method=f"{method} x {trainers}", over_none=row["efficiency"],
                     examples_per_second=figures["examples_per_second"], gap_mean=gaps[method, trainers])
    curves.draw(runs.out / "scaling.svg", [
        curves.Panel("examples/s per trainer, over one trainer's", {method: [
            (trainers, found[method, trainers]) for trainers in TRAINERS] for method in METHODS}, top=1.05),
        curves.Panel("sync gap: steps of a trainer between rounds", {method: [
            (trainers, gaps[method, trainers]) for trainers in TRAINERS] for method in METHODS}, log=True),
    ], "trainers (one center, nodes of 10 Gbit/s)")
    show.at_least("sim_efficiency_64", min(found[method, 64] for method in SHADOW), 0.95)
    show.measured("sim_foreground_efficiency_64", found["foreground_easgd", 64])


def drivers():
    """Gated averaging on 4 ranks and in the simulator. Rows, which ranks race for, stand still."""
    print("== one protocol, two drivers", flush=True)
    data, test = runs.synth("shadow_small", 20_000), runs.synth("shadow_small_test", 4_000, 20_000)
    sets = {"data.train": data, "data.test": test, "sync.method": "foreground_ma", "sync.every": 5,
            "optim.sparse.lr": "1e-30", "model.top": "[64, 32]", "checkpoint.save": "none"}
    real = runs.train("drivers-real", "hpc/show/shadow.toml", sets, mpirun(4))
    cluster = runs.out / "drivers.toml"
    cluster.write_text("""fidelity = "training"
trainers = 4
[link]
bytes_per_s = 1.25e9
[compute]
example_us = 20.0
""")
    sets |= {"run.dir": str(runs.out / "drivers-virtual"), "run.overwrite": "true"}
    simulate = [UMBRA, "simulate", "-c", "hpc/show/shadow.toml", "--cluster", str(cluster)]
    runs.call("drivers-virtual", [*simulate, *settings(sets)])
    virtual = summary(runs.out / "drivers-virtual")
    pairs = [(real[key].get(figure), virtual[key].get(figure)) for key in ("test", "test_replica")
             for figure in real[key]]
    pairs += [(real["sync"][key], virtual["sync"][key]) for key in ("rounds", "gap_mean", "gap_p99")]
    show.at_most("drivers_differ_floats", sum(a != b for a, b in pairs), 0)


worst, behind = [], []


def synthetic():
    quality("synthetic")


def frappe():
    quality("frappe")


def quality(data):
    """Log loss after one pass: shadow methods, their foreground counterparts, one trainer, no synchronization."""
    print(f"== quality, {data}", flush=True)
    files = runs.files(data)
    if files is None:
        return
    losses = {}
    for what in ("one trainer", "one trainer, 8 workers", "independent", *SHADOW,
                 *(name.replace("shadow", "foreground") for name in SHADOW), BY_WORKERS):
        for seed in range(1, 1 + SEEDS[data][what not in ("one trainer", *SHADOW)]):
            name = f"quality-{data}-{what.replace(', ', '-').replace(' ', '-')}-{seed}"
            sets, trainers = recipe(data, what)
            run = runs.train(name, f"hpc/show/shadow-{data}.toml", {**files, **sets, "seed": seed}, mpirun(trainers))
            losses.setdefault(what, []).append(run["test"]["logloss"])
    one = mean(losses["one trainer"])
    for what, values in losses.items():
        relative = mean(values) / one - 1
        show.row(what=f"log loss, {data}", method=what, over_none=1 + relative, logloss_mean=mean(values),
                 logloss_min=min(values), logloss_max=max(values), runs=len(values))
        print(f"   {data:10} {what:22} {mean(values):.5f} ({min(values):.5f} to {max(values):.5f}), "
              f"{100 * relative:+.3f} % of one trainer's")
    worst.append(max(mean(losses[method]) / one - 1 for method in SHADOW))
    show.measured(f"logloss_relative_difference_{data}", worst[-1])
    show.measured(f"logloss_of_8_workers_{data}", mean(losses["one trainer, 8 workers"]) / one - 1)
    uncertainty = max(error_of_difference(losses["one trainer"], losses[method]) for method in SHADOW)
    show.measured(f"logloss_uncertainty_{data}", uncertainty / one)
    for method, gated in [*((name, name.replace("shadow", "foreground")) for name in SHADOW), (SHADOW[0], BY_WORKERS)]:
        gated = losses[gated]
        behind.append((mean(losses[method]) - mean(gated) - (max(gated) - min(gated))) / one)


def recipe(data, what):
    """Settings of a run of `quality` and its trainers."""
    alone = what.startswith("one trainer")
    trainers, workers = (1, 8 if what.endswith("8 workers") else 2) if alone else (4, 2)
    rows, batch, dense, sparse, falls, accumulator = QUALITY[data]["one" if alone else "four"]
    # Whole batches only: a worker's last, of a few examples, would be a step as long as the others and much noisier.
    steps = rows // (batch * 8) * 8 // (trainers * workers)
    sets = {**method_sets("none" if alone else what), "train.worker_threads": workers, "train.batch_size": batch,
            "train.max_examples": steps * trainers * workers * batch,
            "optim.dense.lr": dense, "optim.sparse.lr": sparse, "optim.sparse.initial_accumulator": accumulator,
            **falling(steps, falls)}
    if what.startswith("foreground"):
        sets["sync.every"] = 5
    if what in ("shadow_ma", "shadow_bmuf"):
        sets |= {"sync.intake": "delta", "sync.alpha": 1}
    if what == "shadow_easgd":
        sets["sync.pair"] = "same"
    return sets, trainers


# Rows, batch, dense rate, row rate, share of the steps at whose end both have fallen to 0, what Adagrad starts from for
# rows: the best of those tried (docs/synchronization.md). Four trainers have a quarter of the batch, and so as many
# examples in flight (ELP) as one; squared gradients of rows are 16 times as large then, and what they add to is larger.
QUALITY = {
    "synthetic": {"one": (8_000_000, 256, 0.02, 0.03, 0.5, 0), "four": (8_000_000, 64, 0.04, 0.04, 0.5, 0)},
    "frappe": {"one": (202_027, 16, 0.05, 0.2, 0.1, 3e-5), "four": (202_027, 4, 0.12, 0.2, 0.2, 1e-3)},
}


for phase in phases(cost, links, scaling, drivers, synthetic, frappe):
    phase()
if exposed:
    show.at_most("exposed_share_max", max(exposed), 0.01)
if worst:
    show.at_most("shadow_behind_foreground_beyond_seeds", max(behind), 0.0)
    show.at_most("logloss_relative_difference_max", max(worst), 0.001)
show.finish()
