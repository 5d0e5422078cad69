"""A job that Slurm stops at its time limit and that goes back into the queue, and an array of jobs, on a real Slurm.

Python's standard library only. $UMBRA names the program. Called by itself, it checks and writes
target/show/slurm_requeue.json; `measure` is for other shows. About 5 minutes on 2 cores.

Slurm knows limits of whole minutes, and looks at them twice a minute: a signal that is asked for SIGNAL_S before the
limit of one minute comes 60 - SIGNAL_S - 30 to 60 - SIGNAL_S seconds after the start.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from runs import Runs, mpirun
from saved import digests
from show import Show, summary

JOB = "hpc/show/spine.toml"
SCRIPT = "hpc/jobs/train.sbatch"
ROWS, TEST_ROWS = 1_000_000, 200_000
SIGNAL_S = 25
# So long the run takes without a stop, so that two slots of any length are not enough for it.
TRAIN_S = 2 * (60 - SIGNAL_S) + 10
# As often at least.
REQUEUES = 2
PROBE_EXAMPLES = 1_000_000
ARRAY = 4
ARRAY_EXAMPLES = 200_000
RANKS = 2
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"}


def slurm(*command):
    """What a command of Slurm's prints."""
    done = subprocess.run(["hpc/slurm/run", *command], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"show: {' '.join(command)} failed: {done.stderr}")
    return done.stdout


@contextmanager
def cluster(nodes, cpus):
    """A Slurm that goes down again, whatever happens, a SIGTERM to us included. False where there is none."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        code = subprocess.run(["hpc/slurm/up.sh", str(nodes), str(cpus)]).returncode
        if code not in (0, 5):
            sys.exit("show: Slurm did not come up")
        yield code == 0
    finally:
        subprocess.run(["hpc/slurm/down.sh", "--quiet"])
        signal.signal(signal.SIGTERM, before)


def submit(options, sets):
    """Submits the job script that users copy; the number of the job."""
    pairs = [f"{key}={value}" for key, value in sets.items()]
    return slurm("sbatch", "--parsable", *options, SCRIPT, JOB, *pairs).strip()


def wait_for(job, limit_s):
    """State and restarts of every task of a job that has come to its end; ends the show when it does not."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        shown = slurm("scontrol", "--oneliner", "show", "job", job).strip().splitlines()
        states = [re.search(r"JobState=(\w+)", line)[1] for line in shown]
        if set(states) <= ENDED:
            return states, [int(re.search(r"Restarts=(\d+)", line)[1]) for line in shown]
        time.sleep(1)
    sys.exit(f"show: job {job} did not end in {limit_s} s:\n{slurm('squeue')}")


def requeued(runs, data):
    """Whether a run that Slurm stopped is the one that nobody stopped, and how often it was.

    On a machine that others have left since the probe, a run of that length is over too soon: then one by its own rate.
    """
    probe = runs.train("probe", JOB, {**data, "train.max_examples": PROBE_EXAMPLES}, mpirun(RANKS))
    rate = probe["examples_per_second"]
    for _ in range(3):
        equal, requeues, now = stopped_run(runs, data, int(rate * TRAIN_S))
        if not equal or requeues >= REQUEUES:
            break
        rate = max(2 * rate, now)
    return equal, requeues


def stopped_run(runs, data, examples):
    """Whether the two runs of so many examples are the same, how often the second was stopped, and their rate."""
    sets = {**data, "train.max_examples": examples, "train.epochs": examples // ROWS + 1}
    whole = runs.train("whole", JOB, sets, mpirun(RANKS))
    stopped, log = runs.out / "stopped", runs.out / "stopped.log"
    # What lies there would be gone on from.
    shutil.rmtree(stopped, ignore_errors=True)
    log.unlink(missing_ok=True)
    began = time.monotonic()
    job = submit(["--nodes=1", f"--ntasks-per-node={RANKS}", "--cpus-per-task=1", "--time=1",
                  f"--signal=USR1@{SIGNAL_S}", f"--output={log}"], {**sets, "run.dir": stopped})
    states, restarts = wait_for(job, 10 * TRAIN_S)
    if states != ["COMPLETED"]:
        sys.exit(f"show: the job ended as {states}; its log is {log}")
    print(f"   stopped: {time.monotonic() - began:.0f} s, {restarts[0]} times back in the queue", flush=True)
    figures = summary(stopped)
    one, other = (digests(folder / "checkpoints/last") for folder in (runs.out / "whole", stopped))
    equal = one == other and whole["test"] == figures["test"]
    print(f"   dense and rows {one}, {other}; test {whole['test']}, {figures['test']}", flush=True)
    return equal, restarts[0], whole["examples_per_second"]


def array(runs, data):
    """How many jobs of an array ended well, each in a folder of its own."""
    shutil.rmtree(runs.out / "array", ignore_errors=True)
    job = submit(["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=5", f"--array=1-{ARRAY}",
                  f"--output={runs.out}/array-%a.log"],
                 {**data, "train.max_examples": ARRAY_EXAMPLES, "seed": "%a", "run.dir": runs.out / "array/%A/%a"})
    wait_for(job, 300)
    ended = [json.loads(path.read_text()) for path in runs.out.glob(f"array/{job}/*/summary.json")]
    return len({run["seed"] for run in ended if run["status"] == "done"})


def measure(out_dir):
    """The figures by their ids, with logs and run folders in `out_dir`; none where there is no Slurm."""
    runs = Runs(Path(out_dir).resolve())
    with cluster(1, RANKS) as up:
        if not up:
            return {}
        data = {"data.train": runs.synth("slurm_train", ROWS), "data.test": runs.synth("slurm_test", TEST_ROWS, ROWS)}
        equal, requeues = requeued(runs, data)
        return {"slurm_requeue_bits_equal": int(equal), "slurm_requeues": requeues,
                "slurm_array_done": array(runs, data)}


def main():
    show = Show("slurm_requeue", [7, *range(1, ARRAY + 1)])
    figures = measure("target/show/slurm_requeue")
    bounds = {"slurm_requeue_bits_equal": 1, "slurm_requeues": REQUEUES, "slurm_array_done": ARRAY}
    for id, value in figures.items():
        show.at_least(id, value, bounds[id])
    show.finish()


if __name__ == "__main__":
    main()
