#!/usr/bin/env python3
"""Tries launches that can't do what their user meant, for real, and prints what umbra says to each.

    UMBRA=target/release/umbra hpc/show/launches.py

Prints a row for each and `wrong_launches_refused_share`: of those tried, how many ended with the exit code and the
cure that they should. What this machine can't try (another MPI's launcher, a /dev/shm of one's own, a second core) is
named as skipped and counts neither way.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UMBRA = str(Path(os.environ["UMBRA"]).resolve())
JOB = """[data]
train = "train.h5"
[model]
kind = "deepfm"
embedding_dim = 4
top = [8]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "adagrad"
lr = 0.05
[train]
worker_threads = 1
"""
# The first bytes of the note in which a linker names a build.
NOTE = bytes([4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0]) + b"GNU\0"
# Longest that a launch may take: none may hang.
LIMIT_S = 240
DRY = "U train -c job.toml --dry-run"


def two(one, other):
    return f"mpirun --oversubscribe -n 1 {one} : --oversubscribe -n 1 {other}"


def run(folder, line, variables):
    """Exit code and what was said of a command line; `U` stands for the program."""
    words = [UMBRA if word == "U" else word for word in line.split()]
    environment = {**os.environ, "UMBRA_ALLOW_OVERSUBSCRIBE": "0", **variables}
    try:
        ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, f"still there after {LIMIT_S} s"
    said = [line for line in ended.stderr.splitlines() if line.startswith("umbra: ")]
    return ended.returncode, " / ".join(said) or "\n".join(ended.stderr.splitlines()[-3:])


def prepare(folder):
    """A folder with data and a job, one with the job alone, and a program of another build."""
    subprocess.run([UMBRA, "synth", "--rows", "2000", "--output", "train.h5"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    (folder / "elsewhere").mkdir()
    for place in (folder, folder / "elsewhere"):
        (place / "job.toml").write_text(JOB)
    (folder / "small").write_text('mount -t tmpfs -o size=1m none /dev/shm && exec "$@"\n')
    program = bytearray(Path(UMBRA).read_bytes())
    at = program.find(NOTE)
    if at >= 0:
        program[at + len(NOTE)] ^= 1
        (folder / "another").write_bytes(program)
        (folder / "another").chmod(0o755)
    return at >= 0


def launches(folder, has_name):
    """What is wrong, the command line, variables, the exit code, what must be said; `None` for what can't be tried."""
    core = min(os.sched_getaffinity(0))
    bound = len(os.sched_getaffinity(0)) > 1 and shutil.which("taskset")
    may = subprocess.run(["unshare", "--map-root-user", "--mount", "sh", str(folder / "small"), "true"],
                         capture_output=True).returncode == 0
    mpich = shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra")
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    yield "srun without a PMI", "U train -c job.toml", step, 5, "srun --mpi=pmix"
    yield "srun with the wrong PMI", "U train -c job.toml", {**step, "PMI_RANK": "0", "PMI_SIZE": "2"}, 5, "pmix"
    yield "a batch script without srun", "U train -c job.toml", {
        "SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, 5, "UMBRA_ALLOW_SINGLETON"
    yield ("another MPI's launcher", f"{mpich} -n 2 U train -c job.toml" if mpich else None, {}, 5, "mpirun.openmpi")
    yield ("more threads than cores", "U train -c job.toml --set train.worker_threads=4000", {}, 5,
           "set train.worker_threads =")
    yield ("a rank bound to one core", f"taskset -c {core} U train -c job.toml --set train.worker_threads=2" if bound
           else None, {}, 5, "--bind-to none")
    yield ("mpirun binds ranks to cores",
           "mpirun -n 2 --oversubscribe --bind-to core U train -c job.toml --set train.worker_threads=2" if bound
           else None, {}, 5, "--bind-to none")
    yield ("mixed programs", two(DRY, DRY.replace("U", "./another", 1)) if has_name else None, {}, 5,
           "install one umbra on all nodes")
    yield ("different jobs", two(DRY, DRY + " --set optim.dense.lr=0.5"), {}, 5, "`optim.dense.lr`")
    yield ("a data file on one node only", two(DRY, f"--wdir {folder / 'elsewhere'} {DRY}"), {}, 3,
           "all nodes share")
    yield ("a job file on one node only", two(DRY, f"--wdir {folder / 'none'} {DRY}"), {}, 2, "all nodes share")
    yield ("a small /dev/shm", f"unshare --map-root-user --mount sh small mpirun --oversubscribe -n 2 {DRY}" if may
           else None, {}, 5, "--shm-size")
    yield ("roles that do not add up", f"{DRY} --set roles.layout=separate --set roles.trainers=2 --set "
           "roles.embedding_ps=1", {}, 5, "need 3 ranks")


def main():
    tried = refused = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        has_name = prepare(folder)
        (folder / "none").mkdir()
        for what, line, variables, code, cure in launches(folder, has_name):
            if line is None:
                print(f"skipped   {what}: this machine can't try it")
                continue
            ended, said = run(folder, line, variables)
            good = ended == code and cure in said
            tried, refused = tried + 1, refused + good
            print(f"{'refused' if good else 'NOT SO':8}  {what}: exit code {ended}\n          {said}", flush=True)
    print(f"wrong_launches_tried {tried}")
    print(f"wrong_launches_refused_share {refused / tried:.3f}")
    sys.exit(refused != tried)


if __name__ == "__main__":
    main()
