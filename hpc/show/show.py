"""What every `make show-NAME` needs: checks against bounds, a table, target/show/NAME.json.

Python's standard library only.
"""

import json
import math
import os
import platform
import shlex
import subprocess
import sys
from itertools import groupby
from math import hypot
from pathlib import Path
from statistics import median, stdev

# More than this, in the median, and speeds are those of the others too: measure again.
OTHERS_CORES_MAX = 0.1


def error_of_difference(one, other):
    """Standard error of the difference between the means of two samples, which are independent of each other."""
    return hypot(stdev(one) / len(one) ** 0.5, stdev(other) / len(other) ** 0.5)


def summary(run):
    """The summary of a run that finished."""
    figures = json.loads((Path(run) / "summary.json").read_text())
    if figures["status"] != "done":
        sys.exit(f"show: {run} ended as {figures['status']}")
    return figures


def step_losses(run):
    """Loss of every step, from losses.csv: a heading, then `step,loss` with all its digits."""
    lines = (Path(run) / "losses.csv").read_text().splitlines()[1:]
    return [float(line.split(",")[1]) for line in lines]


def machine():
    """The machine in one line, and the f32 GFLOP/s of a core that does nothing but multiply and add."""
    program = os.environ.get("UMBRA_BENCH")
    program = program or f"{os.environ.get('CARGO_TARGET_DIR', 'target')}/release/umbra bench"
    command = [*shlex.split(program), "--peak-only", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"show: {shlex.join(command)} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    peak = found["peak_gflops"]
    return (
        f"{found['machine']}, {found['cores']} cores, {found['simd']}, {peak:.1f} GFLOP/s of f32 per core, "
        f"{platform.system()} {platform.release()}",
        peak,
    )


def git():
    """The commit, marked when files differ from it."""
    run = lambda *args: subprocess.run(["git", *args], capture_output=True, text=True).stdout.strip()
    return run("rev-parse", "HEAD") + ("-dirty" if run("status", "--porcelain", "-uno") else "")


def phases(*known, more=()):
    """The functions, of those `known` and `more`, that $PHASES names; all `known` without it."""
    asked = os.environ.get("PHASES", "").split() or [phase.__name__ for phase in known]
    known = (*known, *more)
    names = [phase.__name__ for phase in known]
    for name in asked:
        if name not in names:
            print(f"show: no phase is called {name}; there are: {' '.join(names)}", file=sys.stderr)
            sys.exit(2)
    return [phase for phase in known if phase.__name__ in asked]


class Show:
    """Collects checks and rows; `finish` prints them, writes the file and exits."""

    def __init__(self, name, seeds):
        self.name, self.seeds, self.checks, self.rows = name, seeds, [], []
        self.machine, self.peak_gflops = machine()

    def at_least(self, id, value, bound):
        self._check(id, value, bound, ">=", value >= bound)

    def at_most(self, id, value, bound):
        self._check(id, value, bound, "<=", value <= bound)

    def alone(self, loads):
        """Checks that others left the machine alone: cores that they used, sample by sample."""
        self.at_most("others_cores", median(loads), OTHERS_CORES_MAX)

    def measured(self, id, value):
        """A figure without a bound."""
        self._check(id, value, None, "", math.isfinite(value))

    def row(self, **columns):
        self.rows.append(columns)

    def _check(self, id, value, bound, relation, holds):
        # A figure that is not a number holds no bound, and is not JSON either.
        value = value if math.isfinite(value) else None
        self.checks.append({"id": id, "value": value, "bound": bound, "holds": holds, "relation": relation})

    def finish(self):
        if not self.checks and not self.rows:
            sys.exit("show: nothing was measured")
        print()
        # Rows of other columns are a table of their own.
        for names, rows in groupby(self.rows, key=list):
            table = [names] + [[text(row.get(name)) for name in names] for row in rows]
            widths = [max(map(len, column)) for column in zip(*table)]
            for line in table:
                print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
            print()
        for check in self.checks:
            bound = f"{check['relation']} {text(check['bound'])}" if check["relation"] else ""
            verdict = ("holds" if bound else "") if check["holds"] else "DOES NOT HOLD"
            print(f"  {check['id']:32} {text(check['value']):>12}  {bound:14} {verdict}".rstrip())
        folder = Path("target/show")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        result = {
            "name": self.name,
            "git": git(),
            "machine": self.machine,
            "seeds": self.seeds,
            "checks": self.checks,
            "rows": self.rows,
        }
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"\n  {path}")
        sys.exit(0 if all(check["holds"] for check in self.checks) else 1)


def text(value):
    """A number short enough to read; all digits are in the file."""
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
