"""Runs that go on: what resume.sh says.

Python's standard library only. $UMBRA names the program, $CRASH_POINT the library that ends it at a system call;
target/show/resume.json has what came out.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from statistics import mean, stdev

import kills
import stall
from runs import UMBRA, Runs, mpirun, settings
from saved import digests, records, tensors
from show import Show, phases
from slurm_requeue import REQUEUES, measure as slurm_measure

JOB = str(Path("hpc/show/resume.toml").resolve())
GLOBAL_BATCH = 128
ROWS, TEST_ROWS = 20_000, 20_000
EPOCHS = 3
STEPS = EPOCHS * -(-ROWS // GLOBAL_BATCH)
SEEDS = [1, 2, 3, 4, 5]
STOPPED = 75
# What a checkpoint is refused with.
DAMAGED = 4
KILLED = -9

show, runs = Show("resume", SEEDS), Runs("resume")


def fresh(name):
    """The folder of a run that has not begun."""
    folder = (runs.out / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def data():
    return {"data.train": runs.synth("resume", ROWS), "data.valid": runs.synth("resume-test", TEST_ROWS, ROWS),
            "data.test": runs.synth("resume-test", TEST_ROWS, ROWS)}


def launch(ranks):
    return mpirun(ranks) if ranks > 1 else []


def train(folder, ranks, sets, expected=0, environment=()):
    """Trains; ends the show when it ends otherwise than expected. Returns its code and what it said."""
    every = {"run.dir": str(folder), "train.batch_size": GLOBAL_BATCH // ranks, **sets}
    command = [*launch(ranks), UMBRA, "train", "-c", JOB, *settings(every)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **dict(environment)})
    if expected is not None and done.returncode != expected:
        sys.exit(f"show: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.returncode, done.stderr


def left(folder):
    """What a run leaves: its weights, optimizer state and figures."""
    summary = json.loads((folder / "summary.json").read_text())
    return digests(folder / "checkpoints" / "last"), summary["valid"], summary["test"]


def cut(name, pieces, sets):
    """A run in pieces, each of so many ranks up to such a step."""
    folder = fresh(name)
    for ranks, stop in pieces:
        asked = {} if stop is None else {"recovery.inject.stop_step": stop - 1}
        train(folder, ranks, {**sets, **asked}, 0 if stop is None else STOPPED)
    return folder


def requeues():
    """Runs cut into six, and the same in one piece: bits under bsp, AUC with the other methods."""
    print("== requeues", flush=True)
    equal, tried = 0, 0
    for seed in SEEDS:
        sets = {**data(), "sync.method": "bsp", "seed": seed}
        stream = random.Random(seed)
        whole = left(cut(f"bsp-{seed}", [(2, None)], sets))
        stops = sorted(stream.sample(range(1, STEPS), 5))
        moved = sorted(stream.sample(range(1, STEPS), 3))
        pieces = {"six": [*((2, stop) for stop in stops), (2, None)],
                  "ranks": [*zip((4, 2, 8), moved), (1, None)]}
        for kind, piece in pieces.items():
            same = left(cut(f"bsp-{seed}-{kind}", piece, sets)) == whole
            print(f"   seed {seed}, {kind} at {[stop for _, stop in piece[:-1]]}: {'equal' if same else 'DIFFERS'}",
                  flush=True)
            equal, tried = equal + same, tried + 1
    show.measured("requeues_tried", tried)
    show.at_least("requeues_bit_identical", equal / tried, 1.0)
    for method in ("shadow_easgd", "ds_sync", "foreground_bmuf", "independent"):
        whole, pieces = [], []
        for seed in SEEDS:
            sets = {**data(), "sync.method": method, "seed": seed}
            # Not near each other: a stop takes effect where all trainers meet.
            stops = [first + random.Random(seed).randrange(40) for first in (20, 110, 200)]
            auc = lambda name, piece: left(cut(name, piece, sets))[2]["auc"]
            whole.append(auc(f"{method}-{seed}", [(2, None)]))
            # Trainers make fewer steps of their own where nobody waits: all stops are in the first half.
            pieces.append(auc(f"{method}-{seed}-cut", [*((2, stop) for stop in stops), (2, None)]))
        difference = [one - other for one, other in zip(pieces, whole)]
        print(f"   {method}: AUC {mean(whole):.4f}, spread {stdev(whole):.4f}, cut - whole {mean(difference):.4f} "
              f"(se {stdev(difference) / len(difference) ** 0.5:.4f})", flush=True)
        show.at_most(f"{method}_difference_over_spread", abs(mean(difference)) / stdev(whole), 1.0)


FEW = """
[model]
kind = "deepfm"
embedding_dim = 2
top = [2]
[optim.dense]
kind = "adam"
lr = 1e-3
[optim.sparse]
kind = "adagrad"
lr = 0.05
[run]
tensorboard = false
"""
SHORT = {"train.max_examples": 4096, "checkpoint.every": 6, "checkpoint.keep": 1, "sync.method": "bsp",
         "train.eval_every": 0}


def crash():
    """The program ends after every system call of its saves, one after the other, and goes on."""
    print("== crash", flush=True)
    tried, failed = 0, 0
    # Two ranks both end at their own call of that number: every fifth. Of what one rank saves, some have only the rows
    # that changed.
    for ranks, stride, full_every in ((1, 1, 3), (2, 5, 1)):
        sets = {**data(), **SHORT, "checkpoint.full_every": full_every}
        whole = left(cut(f"crash-{ranks}-whole", [(ranks, None)], sets))
        for call in range(1, 10_000, stride):
            folder = fresh(f"crash-{ranks}")
            shim = {"LD_PRELOAD": os.environ["CRASH_POINT"], "CRASH_UNDER": "/checkpoints", "CRASH_AFTER": str(call)}
            code, _ = train(folder, ranks, sets, None, shim)
            if code == 0:
                break
            tried += 1
            code, said = train(folder, ranks, sets, None)
            if code != 0 or left(folder) != whole:
                failed += 1
                print(f"   {ranks} ranks, call {call}: {said[-500:]}", flush=True)
        print(f"   {ranks} ranks: {call - 1} calls", flush=True)
    show.at_least("crash_points", tried, 100)
    show.at_most("crash_points_failed", failed, 0)


def flips():
    """One bit of every byte of a small checkpoint, one after the other: verified, and here and there gone on from."""
    print("== flips", flush=True)
    stream = random.Random(1)
    folder = fresh("flips")
    folder.mkdir(parents=True)
    # Three fields of eight ids.
    lines = (f"{stream.randrange(2)} " + " ".join(f"{8 * field + stream.randrange(8)}:1" for field in range(3))
             for _ in range(512))
    (folder / "few.libsvm").write_text("\n".join(lines) + "\n")
    (folder / "few.toml").write_text(FEW)
    few = {"data.train": folder / "few.h5", "run.dir": folder / "run", "checkpoint.resume": "auto",
           "train.batch_size": 32, "checkpoint.every": 1, "checkpoint.full_every": 3, "checkpoint.keep": 100}
    call = lambda *command: subprocess.run([UMBRA, *command], capture_output=True).returncode
    train_few = lambda sets: call("train", "-c", folder / "few.toml", *settings(sets))
    if call("prepare", "--format", "libfm", "--input", folder / "few.libsvm", "--output", folder / "few.h5") != 0 \
            or train_few(few) != 0:
        sys.exit("show: no small checkpoint could be made")
    # One with the rows that changed, and the one with the others.
    checkpoint, base = (folder / "run" / "checkpoints" / f"step-{step}" for step in (3, 1))
    verify = lambda: call("checkpoint", "verify", checkpoint)
    if verify() != 0 or tensors(checkpoint)[0]["base"]["step"] != 1:
        sys.exit("show: the checkpoint is damaged from the start")
    tried, missed = 0, 0
    for path in sorted([*checkpoint.iterdir(), *base.iterdir()]):
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << stream.randrange(8)
            path.write_bytes(damaged)
            codes = [verify()]
            if place % 97 == 0:
                codes.append(train_few({**few, "run.dir": fresh("flips-again"), "checkpoint.resume": checkpoint}))
            tried += 1
            missed += any(code != DAMAGED for code in codes)
            if any(code != DAMAGED for code in codes):
                print(f"   {path.parent.name}/{path.name}, byte {place}: {codes}", flush=True)
        path.write_bytes(whole)
    print(f"   {tried} bytes", flush=True)
    show.at_least("bytes_flipped", tried, 1000)
    show.at_most("flips_missed", missed, 0)


def full():
    """A disk that is full, one that becomes read-only: training goes on, and what was saved stays."""
    print("== full", flush=True)
    sets = {**data(), **SHORT, "checkpoint.save": "none", "train.max_examples": 60_000, "checkpoint.every": 60,
            "checkpoint.keep": 2}
    failed, tried = 0, 0
    for name, after in (("full", "dd if=/dev/zero of=$DISK/filler bs=64k"), ("read-only", "mount -o remount,ro $DISK")):
        folder, disk = fresh(f"disk-{name}"), fresh(f"disk-{name}-mount")
        disk.mkdir(parents=True)
        every = {"run.dir": folder, "train.batch_size": GLOBAL_BATCH // 2, **sets, "checkpoint.dir": disk / "checkpoints"}
        command = " ".join([*mpirun(2), UMBRA, "train", "-c", JOB, *map(json.dumps, settings(every))])
        # The job runs in a mount namespace of its own; when it has saved, its disk changes.
        script = f"""
            mount -t tmpfs -o size=16m tmpfs $DISK
            {command} &
            until [ -e $DISK/checkpoints/LATEST ]; do sleep .05; kill -0 $! || exit 9; done
            {after} 2>/dev/null
            wait $!; code=$?
            {UMBRA} checkpoint verify $DISK/checkpoints/last >/dev/null || exit 8
            exit $code
        """
        done = subprocess.run(["unshare", "--mount", "--", "sh", "-c", script], capture_output=True, text=True,
                              env={**os.environ, "DISK": str(disk)})
        warnings = done.stderr.count("umbra: warning: no checkpoint was written: ")
        print(f"   {name}: exit code {done.returncode}, {warnings} warnings", flush=True)
        tried, failed = tried + 1, failed + (done.returncode != 0 or warnings == 0)
    show.at_least("disks_tried", tried, 2)
    show.at_most("disks_failed", failed, 0)


def torn():
    """Rows and their optimizer state in checkpoints that were written while trainers went on without waiting.

    Adagrad's sum of squares is 0 until a row is touched: it differs from 0 exactly where the values have moved, or else
    the two are of different moments.
    """
    print("== torn", flush=True)
    changed, torn_rows = 0, 0
    for method, layout in (("independent", {}), ("shadow_easgd", {"roles.layout": "separate", "roles.trainers": 2, "roles.sync_ps": 1,
                                                                  "roles.embedding_ps": 1})):
        ranks = 4 if layout else 2
        folder = fresh(f"torn-{method}")
        sets = {**data(), "sync.method": method, "train.worker_threads": 2, "checkpoint.every": 40, **layout,
                "checkpoint.full_every": 4,
                "checkpoint.keep": 1000, "train.early_stop.restore_best": "false", "train.eval_every": 0}
        train(folder, ranks, sets)
        steps = sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
        initial = None
        for step in steps:
            manifest, found = records(folder / "checkpoints" / f"step-{step}")
            width = manifest["row_width"]
            rows = [array("f", bytes(record)) for record in found]
            if initial is None:
                # What nobody has touched by then stands as it was made.
                initial = [row if not any(row[width:]) else None for row in rows]
                continue
            for before, row in zip(initial, rows):
                if before is None:
                    continue
                pairs = zip(before[:width], row[:width], row[width:])
                moved = [(value != was, square != 0) for was, value, square in pairs]
                changed += any(map(any, moved))
                torn_rows += any(one != other for one, other in moved)
        print(f"   {method}: {len(steps)} checkpoints", flush=True)
    show.at_least("rows_compared", changed, 1000)
    show.at_most("torn_rows", torn_rows, 0)


def stalls():
    """Training at one checkpoint a minute, 1 GB; what a save and a start cost beside the disk itself."""
    stall.measure(show, runs)


def faults():
    """Ranks that are killed or stand still at random moments, supervised."""
    kills.measure(show)


def slurm():
    """A time limit, a requeue and an array under a real Slurm."""
    figures = slurm_measure(runs.out / "slurm")
    if not figures:
        print("   no Slurm here: hpc/slurm/up.sh says what is missing")
        return
    show.at_least("slurm_requeues", figures["slurm_requeues"], REQUEUES)
    show.at_least("slurm_requeue_bits_equal", figures["slurm_requeue_bits_equal"], 1)
    show.at_least("slurm_array_done", figures["slurm_array_done"], 4)


for phase in phases(requeues, crash, flips, full, torn, stalls, faults, slurm):
    phase()
show.finish()
