"""A first day with umbra, measured by using it; see desk.sh."""

import json
import os
import re
import subprocess
import sys

from runs import Runs, mpirun, speed
from show import Show, phases

UMBRA = os.environ["UMBRA"]
ROWS = 100_000
show, runs = Show("desk", [1]), Runs("desk")
# Names of runs, ranks, threads, and what else they set: short ones, and one that lasts for seconds.
SHORT = {
    "alone": (1, 1, {}),
    "threads": (1, 2, {}),
    "bsp": (2, 1, {"sync.method": "bsp"}),
    "shadow": (2, 1, {"sync.method": "shadow_easgd"}),
    "gba": (2, 1, {"sync.method": "gba"}),
    "four": (4, 1, {"sync.method": "shadow_ma"}),
}
EPOCHS = 20
# Step times: what a link of the test cluster is, in words of tc and in bytes per second, and who trains over it.
LINK, LATENCY_US = ("100mbit", 1.25e7), 200
METHODS = ("independent", "bsp", "local_sgd", "shadow_ma", "ds_sync", "gba")


def asked(name, command, environment=None):
    """The lines of a script, and its exit code; its output is shown as it comes, and kept."""
    print(f"== {name}", flush=True)
    lines, log = [], runs.out / f"{name}.log"
    with log.open("w") as kept, subprocess.Popen(command, env={**os.environ, **(environment or {})}, text=True,
                                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            kept.write(line)
            lines.append(line.rstrip("\n"))
    return lines, process.returncode


def figure(lines, id):
    """The figure of the last line `id value`."""
    found = [line.split()[1] for line in lines if re.fullmatch(rf"{id} +[0-9.e+-]+", line)]
    if not found:
        print("\n".join(lines[-15:]), file=sys.stderr)
        sys.exit(f"show: nothing said {id}")
    return float(found[-1])


def passed(lines, what):
    """Checks that passed and failed, of the line `WHAT: N passed, M failed`."""
    found = [re.fullmatch(rf"{what}: (\d+) passed, (\d+) failed", line) for line in lines]
    found = [match for match in found if match]
    if not found:
        print("\n".join(lines[-15:]), file=sys.stderr)
        sys.exit(f"show: {what} has no result")
    return int(found[-1][1]), int(found[-1][2])


def blocks():
    lines, _ = asked("blocks", [sys.executable, "-B", "tests/blocks/run.py"])
    for line in lines:
        if line.startswith("FAILED"):
            print(f"   {line}")
    show.at_least("code_blocks_run", figure(lines, "code_blocks_run"), 1)
    show.at_most("code_blocks_failed", figure(lines, "code_blocks_failed"), 0)
    show.measured("code_blocks_skipped", figure(lines, "code_blocks_skipped"))


def first():
    """Points of short runs, and when the first figure of one that lasts is there: training time at the first report."""
    print("== first", flush=True)
    data = runs.out / "train.h5"
    runs.call("synth", [UMBRA, "synth", "--rows", str(ROWS), "--output", str(data), "--overwrite"])
    job = runs.out / "job.toml"
    job.write_text(f'data = {{ train = "{data.resolve()}" }}\nmodel = {{ kind = "deepfm" }}\n')

    def points(name, ranks, sets):
        sets = {"run.tensorboard": "false", **sets}
        runs.train(name, job, sets, mpirun(ranks) if ranks > 1 else [])
        lines = (runs.out / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    least = []
    for name, (ranks, threads, sets) in SHORT.items():
        found = points(name, ranks, {"train.worker_threads": threads, **sets})
        least.append(len(found))
        show.row(run=name, ranks=ranks, threads=threads, points=len(found), steps=found[-1]["step"], seconds=found[-1]["seconds"])
    show.at_least("points_per_run_min", min(least), 20)
    began = []
    for name in ("alone", "bsp"):
        ranks, threads, sets = SHORT[name]
        # Nothing but the clock makes a report this early: a point is a twentieth of the run apart.
        found = points(f"{name}-long", ranks, {"train.worker_threads": threads, "train.epochs": EPOCHS, **sets})
        began.append(found[0]["seconds"])
        show.row(run=f"{name}, {EPOCHS} epochs", first_figure_s=found[0]["seconds"], all_s=found[-1]["seconds"])
    show.at_most("seconds_to_first_figure", max(began), 1)


def report():
    lines, _ = asked("report", [sys.executable, "-B", "hpc/show/report.py"])
    show.at_most("report_console_errors", figure(lines, "report_console_errors"), 0)


def slurm():
    lines, _ = asked("slurm", ["hpc/slurm/check.sh"])
    good, bad = passed(lines, "slurm")
    show.at_least("slurm_tests_passed", good, 1)
    show.at_most("slurm_tests_failed", bad, 0)


def mpich():
    lines, _ = asked("mpich", ["hpc/mpich.sh"])
    good, bad = passed(lines, "mpich")
    show.at_least("mpich_tests_passed", good, 1)
    show.at_most("mpich_tests_failed", bad, 0)


def launches():
    lines, _ = asked("launches", [sys.executable, "-B", "hpc/show/launches.py"])
    for line in lines:
        if line.startswith(("NOT SO", "skipped")):
            print(f"   {line}")
    show.measured("wrong_launches_tried", figure(lines, "wrong_launches_tried"))
    show.at_least("wrong_launches_refused_share", figure(lines, "wrong_launches_refused_share"), 1)


def memory():
    lines, _ = asked("memory", [sys.executable, "-B", "hpc/show/memory.py"])
    for line in lines:
        if "predicted" in line:
            print(f"   {line}")
    show.at_most("plan_memory_error_max", figure(lines, "plan_memory_error_max"), 0.1)


def steps():
    """What `umbra plan` says of a step, and what it takes on two nodes of the test cluster."""
    print("== steps", flush=True)
    data = runs.synth("desk_steps", 200_000)
    job = runs.out / "steps.toml"
    job.write_text(f'data = {{ train = "{data}" }}\nmodel = {{ kind = "deepfm", top = [512, 256] }}\n'
                   "train = { batch_size = 512, worker_threads = 1 }\n")
    for command in (["hpc/cluster/up.sh", "2", LINK[0], str(LATENCY_US)], ["hpc/cluster/run", "-n", "2", "true"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"   skipped: no test cluster: {done.stderr.strip()}")
            return
    _, bytes_per_s = LINK
    planned = subprocess.run([UMBRA, "plan", str(job), "--ranks", "2", "--link", str(bytes_per_s), "--latency-us",
                              str(LATENCY_US)], capture_output=True, text=True, check=True).stdout
    predicted = {name: float(rate) for name, rate in re.findall(r"step time   (\w+) +[0-9.]+ ms, +(\d+) examples/s", planned)}
    worst = 0
    for method in METHODS:
        sets = {"sync.method": method, "run.tensorboard": "false"}
        figures = runs.train(f"steps-{method}", job, sets, ["hpc/cluster/run", "-n", "2", "--pin", "--"])
        measured = speed(figures)
        error = predicted[method] / measured - 1
        worst = max(worst, abs(error))
        show.row(method=method, examples_per_s_planned=predicted[method], examples_per_s=measured, error=error)
    subprocess.run(["hpc/cluster/down.sh"], check=True, capture_output=True)
    show.measured("plan_step_time_error_max", worst)


def fuzz():
    lines, _ = asked("fuzz", ["tests/fuzz/run.sh"], {"LIBFUZZER_S": os.environ.get("LIBFUZZER_S", "0")})
    show.at_least("fuzz_cases", figure(lines, "fuzz_cases"), 10_000_000)
    show.at_most("fuzz_crashes", figure(lines, "fuzz_crashes"), 0)


for phase in phases(blocks, first, report, slurm, mpich, launches, memory, steps, fuzz):
    phase()
show.finish()
