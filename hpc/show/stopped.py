"""One trainer of several stands still for some seconds, again and again: what the others do meanwhile.

Python's standard library only. $UMBRA names the program; $STOPS how often a trainer is stopped (10). Called by
itself, it checks and writes target/show/stopped.json; `measure` is for other shows.

Every case is one run on this machine, which is asked to stop at its end. Its trace says what each trainer did when:
the stopped trainer's own gaps are the times in which it stood still, so nothing here has to be on time. Compared are
the rates of the other trainers in those times and in the seconds before.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from runs import Runs, mpirun, settings
from show import Show

STOPS = int(os.environ.get("STOPS", "10"))
STOPPED_S = 4.0
BETWEEN_S = 4.0
# The first moments of a stop: what was under way ends.
SETTLE_S = 0.5
# Least rate of the others while one stands still, over their rate before, all stops of a case together.
RATE_MIN = 0.8
# A stop in which they make less than this share stalled them.
STALLED = 0.2

JOB = """seed = 1
[model]
kind = "dlrm"
embedding_dim = 8
bottom = [64, 8]
top = {top}
[optim.dense]
kind = "sgd"
lr = 0.001
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.01
[train]
batch_size = {batch}
epochs = 1000000
[checkpoint]
save = "none"
[run]
trace = true
tensorboard = false
log_every_s = 0.2
watchdog_s = 60
"""

# 290,000 dense parameters; 16 partitions and 8 workers, so that a stopped trainer leaves many messages behind.
LARGE, SMALL = (128, [800, 320]), (64, [16])
EASGD = {"roles.trainers": 3, "roles.sync_ps": 1, "train.worker_threads": 1}
CASES = {
    "shadow_easgd": (5, LARGE, "round", {**EASGD, "sync.method": "shadow_easgd"}),
    "foreground_easgd": (5, LARGE, "round", {**EASGD, "sync.method": "foreground_easgd", "sync.every": 4}),
    "independent": (3, SMALL, "step", {"roles.trainers": 2, "train.worker_threads": 8,
                                       "embedding.partitions": 16, "sync.method": "independent"}),
}


def ranks_of(job):
    """Process ids of the ranks of a job under way, by rank: the children of its mpirun."""
    pids = {}
    for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for variable in variables:
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                pids[int(variable.split(b"=")[1])] = int(pid)
    return pids


def wait_for(what, job, there, limit_s=120):
    """Polls until `there` gives something."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until and job.poll() is None:
        try:
            found = there()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.05)
    sys.exit(f"stopped: waited in vain for {what}")


def stop_and_go(folder, job, ranks, trainer):
    """Stops a trainer and lets it go on, STOPS times, once the job trains; then asks the job to stop."""
    pid = None
    try:
        metrics = folder / "metrics.jsonl"
        wait_for("the first steps", job, lambda: len(metrics.read_text().splitlines()) >= 2)
        pid = wait_for("all ranks", job, lambda: len(ranks_of(job)) == ranks and ranks_of(job))[trainer]
        for _ in range(STOPS):
            time.sleep(BETWEEN_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
        time.sleep(1)
        os.kill(pid, signal.SIGUSR1)
        job.wait(timeout=120)
    finally:
        if job.poll() is None:
            if pid is not None:
                os.kill(pid, signal.SIGCONT)
            job.terminate()
            job.wait(timeout=60)


def ends(trace, rank, name):
    """When the spans of this name of a rank ended, seconds."""
    spans = (event for event in trace if event.get("ph") == "X" and event["pid"] == rank and event["name"] == name)
    return sorted((event["ts"] + event["dur"]) / 1e6 for event in spans)


def rates(trace, span, trainers, stopped):
    """By stop: the rates of the other trainers in the seconds before it, and while it lasted, spans per second."""
    own = ends(trace, stopped, "step")
    gaps = [(a, b) for a, b in zip(own, own[1:]) if b - a > STOPPED_S - 0.5]
    others = [end for rank in range(trainers) if rank != stopped for end in ends(trace, rank, span)]
    rate = lambda a, b: sum(a < end <= b for end in others) / (b - a)
    return [(rate(a - BETWEEN_S + SETTLE_S, a), rate(a + SETTLE_S, a + STOPPED_S)) for a, _ in gaps]


def measure(runs, name):
    """The rates of the others in a case, before and in every stop."""
    ranks, (batch, top), span, sets = CASES[name]
    folder, job_file = runs.out / name, runs.out / f"{name}.toml"
    # What an earlier run reported is not this one's.
    shutil.rmtree(folder, ignore_errors=True)
    job_file.write_text(JOB.format(batch=batch, top=top))
    sets = {"data.train": f'["{runs.synth("stopped", 60000)}"]', "run.dir": str(folder.resolve()),
            "run.overwrite": "true", "roles.layout": "separate", "roles.embedding_ps": 1, **sets}
    trainers = sets["roles.trainers"]
    command = [*mpirun(ranks), os.environ["UMBRA"], "train", "-c", str(job_file.resolve()), *settings(sets)]
    with (runs.out / f"{name}.log").open("w") as log:
        job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        stop_and_go(folder, job, ranks, trainers - 1)
    trace = json.loads((folder / "trace.json").read_text())
    found = rates(trace, span, trainers, trainers - 1)
    if len(found) != STOPS:
        sys.exit(f"stopped: {name}: the trace shows {len(found)} of {STOPS} stops; its log is {runs.out / name}.log")
    for before, during in found:
        print(f"   {name}: {before:8.1f} {span}s per second before, {during:8.1f} while one trainer stood still",
              flush=True)
    return found


def rate_kept(found):
    """The rate of the others while one stands still over that before, all stops of a case together."""
    return sum(during for _, during in found) / sum(before for before, _ in found)


def main():
    show, runs = Show("stopped", [1]), Runs("stopped")
    names = os.environ.get("CASES", "").split() or list(CASES)
    least, stalls = [], 0
    for name in names:
        found = measure(runs, name)
        ratios = sorted(during / before for before, during in found)
        ratio = rate_kept(found)
        stalled = sum(ratio < STALLED for ratio in ratios)
        least.append(ratio)
        stalls += stalled
        show.row(case=name, stops=len(found), stalled=stalled, ratio=ratio, least=ratios[0])
    show.at_least("stopped_trainer_rate_min", min(least), RATE_MIN)
    show.at_most("stopped_trainer_stalls", stalls, 0)
    show.finish()


if __name__ == "__main__":
    main()
