"""Bits that stay, a trainer that stands still, early work, files of a method, messages: what spine.sh says.

Python's standard library only. $UMBRA names the program; target/show/spine.json has what came out.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import stopped as stopping
from runs import UMBRA, Runs, mpirun, settings
from saved import digests
from show import Show, phases

JOB = "hpc/show/spine.toml"
GLOBAL_BATCH = 256
ROWS = 20_000
# A hundred full steps.
MESSAGES_ROWS = 25_600
GOLDEN = Path("tests/golden/bsp_weights.txt")
# Work of a trainer that ends early, as a share of what it did.
KEPT_MIN = 1 - 1e-6
# What a method took, from the settings to the wire.
METHOD_COMMIT = "SlowMo in groups"
METHOD_FILES_MAX = 6
SOURCES = ("core/src/", "datasets/src/", "mpi-runtime/src/")
PREDICTION_RANKS = (2, 4, 8)
PREDICTION_ERROR_MAX = 0.02
FEW, MANY = 64, 1024
# An exchange counts what goes to every other rank and comes from it, 128 bytes each; nothing else grows.
EVAL_GROWTH_MAX = 1.05

show, runs = Show("spine", [7]), Runs("spine")


def output(command):
    """What a command prints; ends the show when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"show: {' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def launch(ranks):
    return mpirun(ranks) if ranks > 1 else []


def bits():
    """Weights that bulk-synchronous training makes against those kept from earlier."""
    print("== bits", flush=True)
    golden = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    flags = Path("/proc/cpuinfo").read_text().split()
    needs = {"plain": [], "avx2": ["avx2", "fma"], "avx512": ["avx512f"]}
    changed, compared = 0, 0
    data = runs.synth("spine", ROWS)
    for simd, *expected in golden:
        if not all(flag in flags for flag in needs[simd]):
            continue
        os.environ["UMBRA_SIMD"] = simd
        for ranks in (1, 2, 4):
            name = f"bits-{simd}-{ranks}"
            checkpoints = (runs.out / name / "checkpoints").resolve()
            runs.train(name, JOB, {"data.train": data, "train.batch_size": GLOBAL_BATCH // ranks,
                                   "sync.method": "bsp", "checkpoint.save": "last",
                                   "checkpoint.dir": str(checkpoints)}, launch(ranks))
            found = [f"{digest:08x}" for digest in digests(checkpoints / "last")]
            changed += sum(one != other for one, other in zip(found, expected))
            compared += len(found)
        del os.environ["UMBRA_SIMD"]
    show.measured("bsp_digests", compared)
    show.at_most("bsp_bits_changed", changed, 0)


def stopped():
    """The rate of the other trainers while one stands still, over their rate before."""
    print("== stopped", flush=True)
    kept = [stopping.rate_kept(stopping.measure(runs, name)) for name in stopping.CASES]
    show.at_least("stopped_trainer_rate_min", min(kept), stopping.RATE_MIN)


def early():
    """What a trainer that ends early had learned, in the model in the end, under every schedule."""
    print("== early", flush=True)
    text = output(["cargo", "test", "-q", "-p", "umbra-tests", "--test", "simulator", "early_work", "--",
                   "--nocapture"])
    kept = re.findall(r"early work kept: (.+) (\S+)$", text, re.MULTILINE)
    for name, share in kept:
        print(f"   {name}: {share}")
    show.at_least("early_work_kept_min", min((float(share) for _, share in kept), default=float("nan")), KEPT_MIN)


def method():
    """Source files that a new method took."""
    print("== method", flush=True)
    commit = output(["git", "log", "-1", "--format=%H", f"--grep=^{METHOD_COMMIT}"]).strip()
    files = output(["git", "show", "--format=", "--name-only", commit]).split() if commit else None
    if files is None:
        print(f"   no commit begins with {METHOD_COMMIT}")
        count = float("nan")
    else:
        count = sum(file.startswith(SOURCES) and file.endswith(".rs") for file in files)
    show.at_most("files_for_a_method", count, METHOD_FILES_MAX)


def planned(ranks, sets):
    """What each of so many ranks is predicted to send, receive and hold."""
    job = ["train", "-c", str(Path(JOB).resolve()), "--dry-run", "--json", "--ranks", str(ranks)]
    return json.loads(output([UMBRA, *job, *settings(sets)]))["ranks"]


def prediction_error(name, ranks, sets):
    """The greatest difference between what a rank counted a step and what was predicted, over what was counted."""
    sets = {"checkpoint.save": "none", **sets}
    predicted = planned(ranks, sets)
    figures = runs.train(f"messages-{name}-{ranks}", JOB, sets, mpirun(ranks))
    worst = 0
    for counts, expected in zip(figures["wire"]["ranks"], predicted, strict=True):
        for kind in ("embedding", "dense"):
            for figure, count in counts[kind].items():
                count, expects = count / figures["steps"], expected[kind][figure]
                worst = max(worst, abs(expects - count) / count if count else float(expects > 0))
    return worst


def messages():
    """Messages and bytes against their prediction, and how many there are for very many ranks."""
    print("== messages", flush=True)
    errors, data = [], {"data.train": runs.synth("spine", MESSAGES_ROWS)}
    for ranks in PREDICTION_RANKS:
        cases = {"bsp": {"sync.method": "bsp", "train.batch_size": GLOBAL_BATCH // ranks},
                 "rows": {"roles.layout": "separate", "roles.trainers": 1, "roles.embedding_ps": ranks - 1,
                          "train.batch_size": GLOBAL_BATCH}}
        for name, sets in cases.items():
            errors.append(prediction_error(name, ranks, {**data, **sets}))
            print(f"   {name} on {ranks} ranks: {errors[-1]:.4f} of what was counted")
    show.at_most("message_prediction_error_max", max(errors), PREDICTION_ERROR_MAX)
    sets = {**data, "sync.method": "bsp", "train.batch_size": GLOBAL_BATCH}
    sent = lambda rank: rank["embedding"]["messages_sent"] + rank["dense"]["messages_sent"]
    few, many = (max(sent(rank) for rank in planned(ranks, sets)) for ranks in (FEW, MANY))
    print(f"   bsp: {few:.0f} messages of the busiest rank a step on {FEW} ranks, {many:.0f} on {MANY}")
    show.at_most("messages_per_rank_1024_over_64", many / few, MANY / FEW)
    # As many rows for every rank, 20 000: the same file as many times more often as there are more ranks. What grows
    # is a few words for every other rank.
    test = data["data.train"]
    held = lambda ranks: max(rank["evaluation_bytes"] for rank in planned(
        ranks, {**sets, "data.test": json.dumps([str(test)] * (50 * ranks // FEW))}))
    few, many = held(FEW), held(MANY)
    print(f"   evaluation: {few} bytes on a trainer with {FEW} ranks, {many} with {MANY}")
    show.at_most("eval_bytes_1024_over_64", many / few, EVAL_GROWTH_MAX)


def models():
    """The figures of make show-models."""
    print("== models", flush=True)
    subprocess.run([sys.executable, "-B", "hpc/show/models.py"])
    checks = json.loads(Path("target/show/models.json").read_text())["checks"]
    for check in checks:
        if check["id"] in ("dcn_v2_auc_mean", "wide_deep_auc_mean"):
            show.at_least(check["id"], check["value"], check["bound"])


chosen = phases(bits, stopped, early, method, messages, models)
if not os.environ.get("PHASES"):
    chosen.remove(models)
for phase in chosen:
    phase()
show.finish()
