"""Single flipped bits and cut files: the example program `damage` tries them, and `umbra` those that HDF5 dies of."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from called import EXAMPLES, OUT, SMALL_JOB, UMBRA, call, ids
from runs import settings

FLIPS, CUTS = 10_000, 1_000
FOREIGN_FLIPS, FOREIGN_CUTS = 1_000, 200
# What data is refused with.
DAMAGED = 3
# Of a child of the program: addresses, in kB. A damaged length is asked of the system in vain.
MEMORY_KB = 6_000_000
OUTCOMES = ("detected", "harmless", "silent", "unnamed", "panic", "hang", "crash")

def tried(kind, *numbers):
    """What came of damaging files of a kind, and the files that were kept."""
    folder = OUT / f"damage-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    said = call(folder.name, EXAMPLES / "damage", folder, kind, *numbers, limit_kb=MEMORY_KB)
    # Foreign files have no checksums: what one of them says in silence stands in the log.
    shown = [line for line in said.splitlines() if kind == "ours" or not line.startswith("silent-")]
    print("".join(f"   {line}\n" for line in shown), end="", flush=True)
    return ids(said), sorted((folder / "kept").iterdir())


def without_message(files):
    """Of files that HDF5 crashed or hung on, how many `umbra` does not refuse by their names, verifying or training."""
    job = OUT / "damage.toml"
    job.write_text(f"{SMALL_JOB}watchdog_s = 30\n")

    def wrong(numbered):
        number, file = numbered
        sets = {"data.train": file, "run.dir": OUT / f"damage-run-{number}", "run.overwrite": "true"}
        missed = 0
        for command in ([UMBRA, "data", "verify", file], [UMBRA, "train", "-c", job, *settings(sets)]):
            try:
                done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=150)
                code, said = done.returncode, done.stderr
            except subprocess.TimeoutExpired:
                code, said = "none in 150 s", ""
            # An error: what a run begins with names its files, too.
            told = [line for line in said.splitlines() if line.startswith("umbra: ") and file.name in line]
            # In another process the library may live through it: then it is an error like others, or rows that
            # nothing in such a file can tell from those that were written.
            if code != 0 and (code != DAMAGED or not told):
                missed += 1
                print(f"   {file.name}: umbra {command[1]} ended with {code}: {said[-300:]}", flush=True)
        return missed > 0

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(wrong, enumerate(files)))


def lost(files):
    """Those on which the library crashed or hung."""
    return [file for file in files if Path(file).name.split("-")[0] in ("crash", "hang")]


def measure(show):
    print("== damage", flush=True)
    ours, kept = tried("ours", FLIPS, CUTS, 0)
    both = lambda outcome: ours[f"flips_{outcome}"] + ours[f"cuts_{outcome}"]
    show.at_least("flips", ours["flips"], 10_000)
    show.at_least("truncations", ours["cuts"], 1_000)
    for outcome in ("detected", "harmless"):
        show.measured(f"flips_{outcome}", ours[f"flips_{outcome}"])
    # An error that does not name its file is no better than silence.
    show.at_most("flips_silent", both("silent") + both("unnamed"), 0)
    show.at_most("hangs", both("hang"), 0)
    show.at_most("crashes", both("crash") + both("panic"), 0)
    foreign, kept = tried("foreign", FOREIGN_FLIPS, FOREIGN_CUTS, 0)
    for outcome in OUTCOMES:
        show.measured(f"foreign_{outcome}", foreign[f"flips_{outcome}"] + foreign[f"cuts_{outcome}"])
    show.at_most("foreign_panics_or_unnamed", sum(
        foreign[f"{kind}_{outcome}"] for kind in ("flips", "cuts") for outcome in ("panic", "unnamed")), 0)
    show.at_most("foreign_lost_without_message", without_message(lost(kept)), 0)
