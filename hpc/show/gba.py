"""Runs what gba.sh measures and checks it against the bounds.

equivalence  one worker, four gradients of one version, against a synchronous step of the same four batches: the
             greatest difference of any parameter, row or optimizer state after one step, for three optimizers
sim          20 and 100 trainers in the simulator, one in twenty at a quarter of the speed and one at half
strained     four trainers on the test cluster, one with a quarter or a tenth of the others' core
still        a trainer that stands still for longer than batches wait: what is lost, and the others' rate meanwhile
switch       runs that change to gba, or to async_ps, after a third and back after two, against the run that does not;
             AUC of gba with one of four trainers four times as slow as the others
tenth        the same with one ten times as slow
learned      pace and AUC with real gradients in the simulator, among the same stragglers
policy       a run that changes by itself, on the test cluster, while a trainer is slow for a third of it
days         three of them
day          the same in the simulator, with 20 and with 100 trainers
servers      two servers against one, where they are what trainers wait for
even         two trainers with a core each: what servers cost where nobody is slow, in turn with bsp
"""

import json
import math
import os
import shutil
import signal
import subprocess
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median, stdev

from runs import UMBRA, Runs, mpirun, settings
from saved import tensors
from show import Show, phases, summary

JOB = "hpc/show/gba.toml"
ROWS, TEST_ROWS = 1_000_000, 50_000
FRAPPE_ROWS, SYNTHETIC_ROWS = 202_027, 8_000_000
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
        cluster = cluster_file(f"cluster-{trainers}", trainers, "steps = 400")
        bsp = None
        for method in METHODS:
            name = f"sim-{trainers}-{method}"
            # Shadow methods with a core of their own, as published.
            figures = simulated(name, cluster, {"sync.method": method})
            rate = row(f"{trainers} trainers, simulated", method, figures, bsp, 3)
            bsp = bsp or rate
            if method == "gba":
                show.at_least(f"sim_strained_speedup_{trainers}", rate / bsp, 2.4)


def paired(id, gba, bsp):
    """Checks the AUC of gba at the end, or alone, against that of bsp of the same seed."""
    last = lambda found: found[-1] if isinstance(found, list) else found
    less = [last(own) - last(base) for own, base in zip(gba, bsp)]
    error = stdev(less) / len(less) ** 0.5
    show.at_most(id, abs(mean(less)), max(0.0005, 2 * error))
    show.measured(f"{id}_uncertainty", error)


def learned():
    print("== learned", flush=True)
    for trainers, batch, seeds in ((20, 128, SEEDS), (100, 64, SEEDS[:3])):
        cluster = cluster_file(f"learned-{trainers}", trainers, 'fidelity = "training"')
        rows = 8_000_000 // (trainers * batch) * trainers * batch
        sets = runs.files("synthetic") | {"train.batch_size": batch, "train.max_examples": rows}
        job = "hpc/show/shadow-synthetic.toml"

        def run(method, seed):
            name = f"learned-{trainers}-{method}-{seed}"
            return simulated(name, cluster, sets | {"sync.method": method, "seed": seed}, job)

        # A process each.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = {method: [pool.submit(run, method, seed) for seed in seeds] for method in ("bsp", "gba")}
        found = {method: [one.result() for one in each] for method, each in found.items()}
        bsp = None
        for method, each in found.items():
            rate = row(f"{trainers} trainers, simulated, 8 M clicks", method, each[0], bsp, 3)
            bsp = bsp or rate
        paces = [gba["examples"] / gba["seconds"] / (base["examples"] / base["seconds"])
                 for gba, base in zip(found["gba"], found["bsp"])]
        show.at_least(f"sim_learned_speedup_{trainers}", min(paces), 2.4)
        auc = {method: [one["test"]["auc"] for one in each] for method, each in found.items()}
        paired(f"sim_auc_difference_{trainers}", auc["gba"], auc["bsp"])


def cluster_file(name, trainers, first_line):
    """A cluster of 10 Gbit/s, one trainer in twenty at a quarter of the speed and one at half."""
    slow = "".join(f"[[straggler]]\ntrainer = {n}\nfactor = {4 if n % 20 == 3 else 2}\n"
                   for n in range(trainers) if n % 20 in (3, 11))
    path, servers = runs.out / f"{name}.toml", max(1, trainers // 5)
    path.write_text(
        f"{first_line}\ntrainers = {trainers}\nsync_ps = {servers}\nembedding_ps = {servers}\n"
        f"[link]\nbytes_per_s = 1.25e9\n[compute]\nexample_us = 25.0\nspread = 0.2\n{slow}")
    return path


def strained():
    print("== strained", flush=True)
    for what, quota, id, batch in (("a quarter", 9, "strained_speedup", 2048), ("a tenth", 4, "strained_speedup_tenth", 1024)):
        bsp, auc = None, {}
        for method in METHODS:
            layout = {"roles.layout": "separate", "roles.trainers": 4, "roles.embedding_ps": 1}
            centers = 1 if method.endswith(("_ps", "easgd", "gba")) or method.startswith("hop") else 0
            sets = data() | layout | {"sync.method": method, "train.batch_size": batch, "train.max_examples": 120 * batch}
            sets |= {"roles.sync_ps": centers} if centers else {}
            # All trainers have so little of a core that servers never lack one, and the kernel's work per frame,
            # which processes pay from their quota here, is as little as with network cards that cut segments.
            slow = [part for node, share in enumerate([36, 36, 36, quota]) for part in ("--slow", f"{node}={share}%")]
            launch = ["hpc/cluster/run", "-n", str(5 + centers), "--per-node", "1", "--rate", "10gbit", *slow, "--"]
            figures = runs.train(f"strained-{quota}-{method}", JOB, sets, launch)
            rate = row(f"one of four has {what} of a core", method, figures, bsp, 3)
            bsp, auc[method] = bsp or rate, figures["test"]["auc"]
            if method == "gba":
                show.at_least(id, rate / bsp, 2.4)
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
    reports = lambda: [json.loads(line) for line in metrics.read_text().split("\n")[:-1]] if metrics.exists() else []
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
    for what, rows in (("frappe", FRAPPE_ROWS), ("synthetic", SYNTHETIC_ROWS)):
        # Of every seed: AUC at twelve evaluations, four of each third.
        curves = {name: [] for name in ("bsp", "bsp gba bsp", "bsp async_ps bsp", "gba", "async_ps")}
        if what == "synthetic":
            curves["gba, 4 times"] = []
        if runs.files(what) is None:
            continue
        for seed in SEEDS:
            for name, found in curves.items():
                found.append(curve(what, rows, name, seed))
        # A dip: how far below the unswitched run of the same seed, over the evaluations after the first change.
        for name, found in curves.items():
            dips = [mean(a - b for a, b in zip(base[4:], own[4:])) for base, own in zip(curves["bsp"], found)]
            deepest = [max(a - b for a, b in zip(base[4:], own[4:])) for base, own in zip(curves["bsp"], found)]
            error = stdev(dips) / len(dips) ** 0.5
            show.row(**dict.fromkeys(COLUMNS) | {
                "what": f"{what}, {len(SEEDS)} seeds", "method": name, "auc": mean(own[-1] for own in found),
                "dip": mean(dips), "dip_uncertainty": error, "deepest": mean(deepest)})
            end = "" if what == "synthetic" else f"_{what}"
            if name == "bsp gba bsp":
                show.at_most(f"auc_dip_mean{end}", mean(dips), max(0.0005, 2 * error))
                show.measured(f"auc_dip_uncertainty{end}", error)
            elif name == "bsp async_ps bsp":
                show.measured(f"async_auc_dip_mean{end}", mean(dips))
        if what == "synthetic":
            paired("auc_difference_strained", curves["gba, 4 times"], curves["bsp"])
        over = [gba[-1] - other[-1] for gba, other in zip(curves["gba"], curves["async_ps"])]
        show.measured(f"gba_over_async_auc{end}", mean(over))
        show.measured(f"gba_over_async_uncertainty{end}", stdev(over) / len(over) ** 0.5)


def tenth():
    print("== tenth", flush=True)
    found = {name: [curve("synthetic", SYNTHETIC_ROWS, name, seed) for seed in SEEDS] for name in ("bsp", "gba, 10 times")}
    paired("auc_difference_strained_tenth", found["gba, 10 times"], found["bsp"])


def curve(what, rows, name, seed):
    """AUC at twelve evaluations of a run on four ranks.

    Its name is its methods, the second for the middle third, and how many times as long the last trainer takes.
    """
    global_batch = {"frappe": 8 * 16, "synthetic": 8 * 256}[what]
    data, every = runs.files(what), rows // global_batch // 12
    data["data.valid"] = data.pop("data.test")
    method, *slow = name.split(", ")
    method, *to = method.split()[:2]
    sets = data | {"seed": seed, "sync.method": method, "train.eval_every": every}
    sets |= {"train.max_examples": 12 * every * global_batch}
    if to:
        sets |= {"sync.switch.to": to[0], "sync.switch.at": f"[{4 * every}, {8 * every}]"}
    if slow:
        sets |= {"recovery.inject.slow_trainer": 3, "recovery.inject.slow_factor": slow[0].split()[0]}
    run = f"switch-{what}-{name.replace(',', '').replace(' ', '-')}-{seed}"
    runs.train(run, f"hpc/show/shadow-{what}.toml", sets, [*mpirun(4), "--oversubscribe"])
    lines = (runs.out / run / "metrics.jsonl").read_text().splitlines()
    valid = [line["valid"]["auc"] for line in map(json.loads, lines) if line.get("valid")]
    if len(valid) != 12:
        raise SystemExit(f"show: {run} has {len(valid)} evaluations, not 12")
    return valid


def policy(days=1):
    print("== policy", flush=True)
    # A day of three thirds on the test cluster: the last trainer gets a quarter of its processor time in the second. The
    # server has so little of a core that gba is the faster way then, and only then. The machine's own pace differs from
    # minute to minute: short days of either method alone come before and after every day, and count by their mean.
    third, short, batch, window = 900, 300, 512, 10

    def run(name, method, third, sets, server):
        sets = data() | {"sync.method": method, "train.batch_size": batch, "train.epochs": 10, "run.log_every_s": 0.2} | sets
        sets |= {"roles.layout": "separate", "roles.trainers": 4, "roles.embedding_ps": 1}
        sets |= {"train.max_examples": 3 * third * 4 * batch, "checkpoint.save": "none"}
        sets |= {"roles.sync_ps": 1} if server else {}
        slow = {node: 36 for node in range(4)} | ({5: server} if server else {})
        slow = [part for node, quota in slow.items() for part in ("--slow", f"{node}={quota}%")]
        launch = ["hpc/cluster/run", "-n", str(6 if server else 5), "--per-node", "1", "--rate", "10gbit", *slow, "--"]
        figures, curve = in_flight(f"policy-{name}", sets, launch, [(third, "9%"), (2 * third, "36%")])
        row("test cluster, slow in the second third", name, figures, None)
        steps = [between(curve, part * third, (part + 1) * third) / third for part in range(3)]
        print(f"   {name}: milliseconds a step in the thirds {[round(1e3 * one, 1) for one in steps]}", flush=True)
        return steps, figures["sync"].get("switches", [])

    def alone(turn):
        return [run(f"{method}-{turn}", method, short, {}, server)[0] for method, server in (("bsp", 0), ("gba", 9))]

    choice = {"sync.switch.to": "gba", "sync.switch.policy": "stragglers", "sync.switch.window": window}
    over, before = [], alone(0)
    for turn in range(1, days + 1):
        own, switches = run(f"by-itself-{turn}", "bsp", third, choice, 9)
        after = alone(turn)
        bsp, gba = ([mean(pair) for pair in zip(*both)] for both in zip(before, after))
        over.append(sum(map(min, bsp, gba)) / sum(own))
        print(f"   day {turn}: {over[-1]:.3f} of the better method of each third", flush=True)
        judge("policy" if days == 1 else f"policy_{turn}", switches, third, window,
              ["bsp" if one < two else "gba" for one, two in zip(bsp, gba)])
        before = after
    end = "" if days == 1 else "_days"
    show.at_least(f"policy_over_best{end}", median(over), 0.95)
    if days > 1:
        show.measured("policy_over_best_lowest", min(over))
        show.measured("policy_over_best_highest", max(over))


def days():
    policy(3)


def day():
    print("== day", flush=True)
    # The same in the simulator, on days of three thirds: one trainer in twenty is slow in the second. There are as few
    # servers as make synchronous steps the faster ones while nobody is.
    third, window = 10_000, 50
    for trainers, factor in ((20, 4), (100, 4), (20, 10)):
        cluster, servers = runs.out / f"day-{trainers}-{factor}.toml", max(1, trainers // 25)
        slow = "".join(f"[[straggler]]\ntrainer = {n}\nfactor = {factor}\nfrom_step = {third}\nto_step = {2 * third}\n"
                       for n in range(3, trainers, 20))
        cluster.write_text(
            f"trainers = {trainers}\nsync_ps = {servers}\nembedding_ps = {trainers // 5}\nsteps = {3 * third}\n"
            f"[link]\nbytes_per_s = 1.25e9\n[compute]\nexample_us = 25.0\nspread = 0.05\n{slow}")
        # The thirds of one method alone: with nobody slow, and all of them slow all the time.
        seconds = {}
        for method in ("bsp", "gba"):
            for part, text in (("calm", ""), ("slow", slow.replace(f"from_step = {third}\nto_step = {2 * third}\n", ""))):
                alone = runs.out / f"day-{trainers}-{factor}-{part}.toml"
                whole = cluster.read_text()
                alone.write_text(whole[:whole.index("[[straggler]]")].replace(f"steps = {3 * third}", f"steps = {third}") + text)
                seconds[method, part] = simulated(f"day-{trainers}-{factor}-{method}-{part}", alone,
                                                  {"sync.method": method})["seconds"]
        best = 2 * min(seconds["bsp", "calm"], seconds["gba", "calm"]) + min(seconds["bsp", "slow"], seconds["gba", "slow"])
        figures = simulated(f"day-{trainers}-{factor}", cluster, {
            "sync.method": "bsp", "sync.switch.to": "gba", "sync.switch.policy": "stragglers",
            "sync.switch.window": window})
        name = f"{trainers}_{factor}"
        show.at_least(f"sim_policy_over_best_{name}", best / figures["seconds"], 0.95)
        faster = {part: min(("bsp", "gba"), key=lambda method: seconds[method, part]) for part in ("calm", "slow")}
        judge(f"sim_policy_{name}", figures["sync"].get("switches", []), third, window,
              [faster["calm"], faster["slow"], faster["calm"]])


def judge(name, switches, third, window, best):
    """Checks the changes of a run that began with bsp against the method that is the better one in each third.

    Beside the trial of the other method, there and, where that is the slower one, back, changes are flaps that lead to no
    better method; what a change takes counts from the third's beginning.
    """
    steps = [(switch["step"], switch["method"]) for switch in switches]
    print(f"   {name}: best {best}, changes {steps}", flush=True)
    trial = 1 if best[0] == "gba" else 2
    wanted = [part for part in (1, 2) if best[part] != best[part - 1]]
    show.at_most(f"{name}_flaps", abs(len(steps) - trial - len(wanted)), 0)
    for part, (step, method) in zip(wanted, steps[trial:]):
        right = method == best[part]
        show.at_most(f"{name}_steps_to_{method}", step - part * third if right else math.inf, 6 * window)


def simulated(name, cluster, sets, job=JOB):
    """The summary of a job on a cluster that is not there, with batches of 512 unless told otherwise."""
    sets = data() | {"run.dir": runs.out / name, "train.worker_threads": 1, "train.batch_size": 512} | sets
    command = [UMBRA, "simulate", "-c", job, "--cluster", cluster, *settings(sets)]
    runs.call(name, [str(part) for part in command])
    return summary(runs.out / name)


def in_flight(name, sets, launch, changes):
    """The summary of a run, and its steps by seconds; the last trainer's quota changes as steps come."""
    folder = runs.out / name
    shutil.rmtree(folder, ignore_errors=True)
    sets = {"run.dir": folder.resolve()} | sets
    log = (runs.out / f"{name}.log").open("w")
    began = time.monotonic()
    command = [*launch, UMBRA, "train", "-c", str(Path(JOB).resolve()), *settings(sets)]
    job = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
    metrics = folder / "metrics.jsonl"
    while job.poll() is None:
        # The last line may be half written.
        lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
        if changes and lines and json.loads(lines[-1])["step"] >= changes[0][0]:
            subprocess.run(["hpc/cluster/slow", "3", changes.pop(0)[1]], check=True, stdout=log, stderr=log)
        time.sleep(0.1)
    if job.returncode != 0:
        raise SystemExit(f"show: {name} failed; its log is {runs.out / name}.log")
    print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)
    return summary(folder), [(line["step"], line["seconds"]) for line in map(json.loads, metrics.read_text().splitlines())]


def between(curve, first, last):
    """Seconds from one step to another."""
    def at(step):
        before = (0, 0.0)
        for point in curve:
            if point[0] >= step:
                share = (step - before[0]) / max(1, point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]

    return at(last) - at(first)


def servers():
    print("== servers", flush=True)
    # Servers that get a tenth of a core each are what three trainers wait for: 1.3 million parameters, small batches.
    rates = {1: [], 2: []}
    for turn in range(3):
        for count in rates:
            sets = data() | {"sync.method": "gba", "train.batch_size": 64, "train.max_examples": 64 * 3 * 100 * count}
            sets |= {"roles.layout": "separate", "roles.trainers": 3, "roles.embedding_ps": 1, "roles.sync_ps": count}
            sets |= {"checkpoint.save": "none", "model.top": "[1024, 768]"}
            slow = [part for server in range(count) for part in ("--slow", f"{4 + server}=10%")]
            launch = ["hpc/cluster/run", "-n", str(4 + count), "--per-node", "1", "--rate", "10gbit", *slow, "--"]
            figures = runs.train(f"servers-{count}-{turn}", JOB, sets, launch)
            rates[count].append(row(f"servers with a tenth of a core: {count}", "gba", figures, None))
    ratios = [two / one for one, two in zip(*rates.values())]
    show.at_least("two_servers_over_one", median(ratios), 1.8)
    show.measured("two_servers_over_one_lowest", min(ratios))


def even():
    print("== even", flush=True)
    rates, shares = {"bsp": [], "gba": []}, []
    for turn in range(5):
        for method in rates:
            sets = data() | {"sync.method": method, "train.batch_size": 512, "train.max_examples": 300_000}
            figures = runs.train(f"even-{method}-{turn}", JOB, sets, mpirun(2))
            rates[method].append(figures["examples"] / figures["seconds"])
            if method == "gba":
                # Of the server, the dispatcher and what tells rows of its words.
                shares.append(figures["sync"]["seconds_processor_center"] / figures["seconds"])
    show.measured("server_share_of_a_core", median(shares))
    ratios = [gba / bsp for gba, bsp in zip(rates["gba"], rates["bsp"])]
    show.measured("gba_over_bsp_even", median(ratios))
    show.measured("gba_over_bsp_even_lowest", min(ratios))
    show.measured("gba_over_bsp_even_highest", max(ratios))


for phase in phases(equivalence, sim, strained, still, switch, policy, day, even, more=(learned, tenth, servers, days)):
    phase()
show.finish()
