"""Jobs whose ranks are killed: the phases `kills`, `free` and `restart` of cpr.py.

Python's standard library only. $KILLS says how many kills of `kills` (30), $RESTARTS of `restart` (10), $PAIRS how many pairs
of runs `free` compares for each method (15).

Every job is supervised by `umbra launch` and has a deadline; one that misses it is lost. A kill that comes when the run is done
hits nobody: it is drawn again, and so is one for which no process was left.
"""

import glob
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median, stdev

from runs import UMBRA, mpirun, settings, speed

KILLS, RESTARTS, PAIRS = (int(os.environ.get(name, count)) for name, count in (("KILLS", 30), ("RESTARTS", 10), ("PAIRS", 15)))
# Of a supervised job, with all its starts.
LONGEST_S = 90
# How often a kill is drawn until it hits a run under way.
DRAWS = 4
# A rank that is killed so long before the summary is written, and not missed, was not needed any more. Any earlier, and its loss
# should have been noticed: the kill counts, and not as one that was gone on from.
DONE_S = 0.5
# The least of a run of `free`; passes over the data until its speed is known.
FREE_S, FREE_EPOCHS = 4, 2
TRAIN_ROWS, TEST_ROWS = 600_000, 100_000
# Steps between two checkpoints of `kills`.
EVERY = 200
ULFM = ["hpc/mpirun-ulfm", "-n"]
LAYOUTS = ("collocated", "separate")
TRAINERS, OWNERS = 3, 2

JOB = """[model]
kind = "dlrm"
embedding_dim = 16
bottom = [64, 16]
top = [64, 32]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[train]
batch_size = 128
worker_threads = 1
[run]
tensorboard = false
log_every_s = 0.2
watchdog_s = 30
"""


def job_of(runs):
    """The file of the job, and its data as settings."""
    path = runs.out / "losses.toml"
    path.write_text(JOB)
    data = {"data.train": runs.synth("losses_train", TRAIN_ROWS), "data.test": runs.synth("losses_test", TEST_ROWS, TRAIN_ROWS)}
    return str(path.resolve()), data


def ranks_of(folder):
    """Process ids of a run's ranks that are alive, by rank: their environment has the rank, their command the folder."""
    pids = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # Ended meanwhile, or another user's.
            continue
        if words[0] != UMBRA.encode() or f"run.dir={folder}".encode() not in words:
            continue
        for variable in variables:
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                pids[int(variable.split(b"=")[1])] = int(process.name)
    return pids


def below(pid):
    """A process and all its descendants."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += below(int(child))
    except OSError:
        pass
    return found


class Supervised:
    """A job under `umbra launch`, in a folder of its own; leaves no process behind."""

    def __init__(self, runs, name, launch, job, sets):
        self.name, self.folder = name, (runs.out / name).resolve()
        self.path = runs.out / f"{name}.log"
        # What an earlier run left would be gone on from.
        shutil.rmtree(self.folder, ignore_errors=True)
        command = [UMBRA, "launch", "--", *launch, UMBRA, "train", "-c", job,
                   *settings({"run.dir": str(self.folder)} | sets)]
        self.until = time.monotonic() + LONGEST_S
        with self.path.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # All are found before the first ends: children of one that has ended are nobody's. A job that has ended may have left
        # ranks too.
        rest = below(self.process.pid) if self.process.poll() is None else []
        for pid in {*rest, *ranks_of(self.folder).values()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def under_way(self):
        return self.process.poll() is None and time.monotonic() < self.until

    def wait_for(self, there):
        """Polls until `there` holds; whether it did before the job's end."""
        while self.under_way():
            if there():
                return True
            time.sleep(0.005)
        return False

    def trains(self):
        """It has written the first line of its metrics."""
        metrics = self.folder / "metrics.jsonl"
        return metrics.exists() and metrics.stat().st_size > 0

    def has_saved(self):
        """It has a checkpoint to go back to."""
        return (self.folder / "checkpoints" / "last").exists()

    def kill(self, rank):
        """Kills a rank. Returns when, in seconds since 1970; `None` if it is no longer there."""
        pid = ranks_of(self.folder).get(rank)
        if pid is None:
            return None
        killed = time.time()
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return killed

    def end(self):
        """Its exit code; `None` past the deadline."""
        try:
            return self.process.wait(max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def starts(self):
        return 1 + self.path.read_text(errors="replace").count("umbra: starting again after exit code")

    def summary(self):
        try:
            return json.loads((self.folder / "summary.json").read_text())
        except (OSError, ValueError):
            return {}

    def summary_unix(self):
        """When its summary was written, in seconds since 1970."""
        return (self.folder / "summary.json").stat().st_mtime


def whole(job, since):
    """A run that nobody kills: its summary, and how long it takes from when `since` holds."""
    with job:
        if not job.wait_for(lambda: since(job)):
            sys.exit(f"show: {job.name} ended before it trained, or hangs; its log is {job.path}")
        began = time.monotonic()
        code = job.end()
        length = time.monotonic() - began
    if code != 0 or job.summary().get("status") != "done" or job.starts() != 1:
        sys.exit(f"show: {job.name}, in which nobody is killed, ended with {code}; its log is {job.path}")
    return job.summary(), length


class Fate:
    """What became of a job, a rank of which was killed at this time."""

    def __init__(self, job, code, killed):
        self.summary, self.starts, self.code, self.log = job.summary(), job.starts(), code, job.path
        self.losses = self.summary.get("recovery", {}).get("losses", [])
        ended = code == 0 and self.summary.get("status") == "done"
        # Nobody was there to be killed, or nobody has missed who was, and the run was done.
        missed = not ended or self.starts > 1 or bool(self.losses)
        self.late = not missed and (killed is None or killed > job.summary_unix() - DONE_S)
        self.lost = not ended
        self.went_on = ended and self.starts == 1 and bool(self.losses)
        next_step = self.losses[-1].get("next_step_unix") if self.losses else None
        # None of a rank that was lost when no step was left.
        self.seconds = next_step - killed if killed and next_step else None

    def what(self):
        if self.lost:
            how = "hangs" if self.code is None else f"exit code {self.code}"
            return f"lost ({how}, {self.starts} starts, its log is {self.log})"
        if self.starts > 1:
            return "started again" if self.starts == 2 else f"started again, {self.starts - 1} times"
        return "went on" if self.went_on else f"went on without a word of it, its log is {self.log}"

    def auc(self):
        return self.summary["test"]["auc"]


def struck(new_job, victim, since, moments, lose=lambda: None):
    """Kills a rank of a job at the first of the random moments, seconds after `since` holds, that is not too late.

    `lose` is called right after the kill. Returns the job's fate, `None` when all moments were too late, and how many were.
    """
    for late, moment in enumerate(moments):
        with new_job() as job:
            killed = None
            if job.wait_for(lambda: since(job)):
                time.sleep(moment)
                killed = job.kill(victim)
                if killed:
                    lose()
            fate = Fate(job, job.end(), killed)
        if not fate.late:
            return fate, late
    return None, len(moments)


def percentile(values, share):
    """The least value that so large a share of the values do not exceed; no number of none."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else math.nan


def middle(values):
    return median(values) if values else math.nan


def average(values):
    """The mean, and its standard error; no number of too few."""
    values = list(values)
    return (mean(values) if values else math.nan, stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan)


def seconds_of(fate):
    return "-" if fate.seconds is None else f"{fate.seconds:.3f} s"


def placed(method, layout):
    """How many ranks a layout has, and its settings."""
    if layout == "collocated":
        return 4, {}
    center = int(method in ("shadow_easgd", "gba"))
    roles = {"roles.layout": "separate", "roles.trainers": TRAINERS, "roles.embedding_ps": OWNERS}
    return TRAINERS + OWNERS + center, roles | ({"roles.sync_ps": 1} if center else {})


# --- kills: gone on inside the job ---------------------------------------------------------------------------------------------

def kills(show, runs):
    print("== kills", flush=True)
    job, data = job_of(runs)
    methods = ("bsp", "shadow_ma", "shadow_easgd", "ds_sync", "gba")
    found, late = [], 0
    for kill in range(KILLS):
        turn, method = kill // len(methods), methods[kill % len(methods)]
        layout = LAYOUTS[turn % 2]
        ranks, roles = placed(method, layout)
        # Of every method and layout by turns; where every rank is both, any is either.
        who = ("trainer", "owner")[(turn // 2 + kill % len(methods)) % 2]
        chance = random.Random(kill + 1)
        first, count = (0, 4) if layout == "collocated" else (0, TRAINERS) if who == "trainer" else (TRAINERS, OWNERS)
        victim = first + chance.randrange(count)
        name = f"kills-{kill + 1}-{method}-{layout}"
        sets = data | roles | {"sync.method": method, "seed": kill + 1, "train.epochs": 3, "checkpoint.every": f'"{EVERY} steps"'}

        def new_job(end=""):
            return Supervised(runs, name + end, [*ULFM, str(ranks)], job, sets)

        base, length = whole(new_job("-whole"), Supervised.trains)
        moments = [chance.uniform(0, length) for _ in range(DRAWS)]
        fate, missed = struck(new_job, victim, Supervised.trains, moments)
        late += missed
        if fate is None:
            print(f"   {method} {layout}, {who} {victim}: {missed} kills came when the run was done", flush=True)
            continue
        found.append(fate)
        fate.steps, saves = base["steps"], base["checkpoint"]
        fate.since = EVERY / 2 + saves["seconds_background"] / saves["count"] * base["steps"] / base["seconds"]
        # Of all rows, on owners that have equally many.
        fate.share = 1 / 4 if layout == "collocated" else 1 / OWNERS if who == "owner" else 0
        fate.auc_loss = None if fate.lost else base["test"]["auc"] - fate.auc()
        step = f"step {fate.losses[-1]['step']}" if fate.losses else "no step known"
        print(f"   {method} {layout}, {who} {victim}, {moments[missed]:.2f} of {length:.2f} s: {fate.what()}, {step}, "
              f"{seconds_of(fate)}", flush=True)
    inside = [fate for fate in found if fate.went_on]
    show.at_least("kills_tried", len(found), 30)
    show.measured("kills_late", late)
    show.at_least("kills_survived_share", len(inside) / len(found) if found else math.nan, 0.95)
    show.at_most("kills_lost_share", sum(fate.lost for fate in found) / len(found) if found else math.nan, 0)
    seconds = [fate.seconds for fate in inside if fate.seconds is not None]
    show.at_most("seconds_to_next_step_median", middle(seconds), 1)
    show.measured("seconds_to_next_step_p99", percentile(seconds, 0.99))
    show.measured("kills_pls_mean", average(fate.summary["recovery"]["pls"] for fate in inside)[0])
    # Checkpoints at even steps, kills at any: of the rows that were lost, half of what lies between two is to be expected, and
    # what is trained while one is written.
    lost = sum(fate.summary["recovery"]["pls"] for fate in inside)
    due = sum(fate.share * fate.since / fate.steps for fate in inside)
    show.measured("kills_pls_over_expected", lost / due if due else math.nan)
    less, error = average(fate.auc_loss for fate in found if fate.auc_loss is not None)
    show.measured("kills_auc_loss_mean", less)
    show.measured("kills_auc_loss_uncertainty", error)


# --- free: what it costs when nothing fails ------------------------------------------------------------------------------------

def free(show, runs):
    print("== free", flush=True)
    job, data = job_of(runs)

    def once(method, tolerant, epochs):
        launch = ["env", f"UMBRA_FT={int(tolerant)}", *ULFM, "2"]
        sets = {"data.train": data["data.train"], "sync.method": method, "seed": 1, "train.epochs": epochs,
                "checkpoint.save": "none"}
        name = f"free-{method}-{'with' if tolerant else 'without'}"
        return whole(Supervised(runs, name, launch, job, sets), Supervised.trains)[0]

    def epochs_for(figures):
        # A quarter more than is asked for: speeds differ from run to run.
        return math.ceil(1.25 * FREE_S * figures["examples_per_second"] / TRAIN_ROWS)

    logs, error = [], 0
    for method in ("bsp", "shadow_ma"):
        # How fast this machine is, and the file in its memory.
        first = once(method, True, FREE_EPOCHS)
        epochs, ratios = epochs_for(first), []
        while len(ratios) < PAIRS:
            # In turn, forwards and backwards.
            order = (True, False) if len(ratios) % 2 == 0 else (False, True)
            pair = {tolerant: once(method, tolerant, epochs) for tolerant in order}
            shortest = min(pair.values(), key=lambda figures: figures["seconds"])
            if shortest["seconds"] < FREE_S:
                epochs = max(epochs + 1, epochs_for(shortest))
                continue
            ratios.append(speed(pair[True]) / speed(pair[False]))
            print(f"   {method}: {speed(pair[True]):.0f} examples per second with it, {speed(pair[False]):.0f} without: "
                  f"{ratios[-1]:.4f}", flush=True)
        show.at_least(f"free_pairs_{method}", len(ratios), 15)
        show.measured(f"failure_free_cost_share_{method}", 1 - median(ratios))
        logs.append(math.log(median(ratios)))
        error = math.hypot(error, average(map(math.log, ratios))[1] / 2)
    show.at_most("failure_free_cost_share", 1 - math.exp(mean(logs)), max(0.01, 2 * error))
    show.measured("failure_free_cost_uncertainty", error)


# --- restart: the job ends, and is started again where it was ------------------------------------------------------------------

def restart(show, runs):
    print("== restart", flush=True)
    job, data = job_of(runs)
    methods, ranks = ("bsp", "shadow_ma", "gba"), 4
    found, late, lengths = [], 0, {}
    for kill in range(RESTARTS):
        method = methods[kill % len(methods)]
        chance = random.Random(1000 + kill)
        victim = chance.randrange(ranks)
        name = f"restart-{kill + 1}-{method}"
        local = runs.out.resolve() / "local" / name
        sets = data | {"sync.method": method, "seed": kill + 1, "train.epochs": 3, "checkpoint.every": '"400 steps"',
                       "checkpoint.local_dir": str(local), "checkpoint.local_every": '"100 steps"'}

        def new_job(end=""):
            shutil.rmtree(local, ignore_errors=True)
            return Supervised(runs, name + end, mpirun(ranks), job, sets)

        def lose_node():
            for folder in glob.glob(f"{glob.escape(str(local))}/*/rank-{victim}"):
                shutil.rmtree(folder)

        if method not in lengths:
            lengths[method] = whole(new_job("-whole"), Supervised.has_saved)[1]
        # Before the first shared checkpoint there is nothing that lost rows could be read from.
        moments = [chance.uniform(0, lengths[method]) for _ in range(DRAWS)]
        fate, missed = struck(new_job, victim, Supervised.has_saved, moments, lose_node)
        shutil.rmtree(local, ignore_errors=True)
        late += missed
        if fate is None:
            print(f"   {method}, rank {victim}: {missed} kills came when the run was done", flush=True)
            continue
        found.append(fate)
        fate.over = None
        what = "from the shared checkpoint alone"
        if fate.losses:
            loss = fate.losses[-1]
            fate.over = loss["bytes_read"] / (fate.summary["memory"]["embedding_bytes"] / ranks)
            what = (f"rows of step {loss['from_step']} at step {loss['step']}, {fate.over:.3f} of a rank's rows read again, "
                    f"in {loss['seconds']:.3f} s")
        print(f"   {method}, rank {victim}, {moments[missed]:.2f} of {lengths[method]:.2f} s: {fate.what()}, {what}, "
              f"{seconds_of(fate)} after the kill", flush=True)
    images = [fate for fate in found if fate.over is not None]
    show.at_least("restart_kills_tried", len(found), 10)
    show.measured("restart_kills_late", late)
    show.at_most("restart_lost_share", sum(fate.lost for fate in found) / len(found) if found else math.nan, 0)
    # No image was newer than the shared checkpoint: all ranks go on from that, and nothing is newer anywhere.
    show.measured("restart_from_shared_share", 1 - len(images) / len(found) if found else math.nan)
    show.at_most("restart_read_over_share", max((fate.over for fate in images), default=math.nan), 1.1)
    show.measured("restart_seconds_median", middle([fate.seconds for fate in images if fate.seconds is not None]))
    show.measured("restart_pls_mean", average(fate.losses[-1]["pls"] for fate in images)[0])
