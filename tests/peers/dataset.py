"""Runs the Python lines of docs/formats.md that write datasets, and looks at what umbra learns from them.

    python dataset.py FOLDER             writes python.h5 and python_test.h5
    python dataset.py FOLDER --learnt    exits 1 where the run FOLDER/python did not learn what the frames hold
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROWS, TEST_ROWS = 4000, 1000
# A tag that is there decides the click, but for one in twenty: the AUC of that tag alone is what can be learnt, and a run comes so near.
AUC_LESS = 0.01
DOCUMENT = Path(__file__).parents[2] / "docs/formats.md"


def frame():
    random = np.random.default_rng(1)
    rows = ROWS + TEST_ROWS
    tags = [[f"tag {x}" for x in random.integers(0, 9, size)] for size in random.integers(0, 4, rows)]
    click = np.array(["tag 3" in row for row in tags]) ^ (random.random(rows) < 0.05)
    site = pd.Categorical(random.choice(["a", "b", "c"], rows))
    return pd.DataFrame({"click": click.astype(int), "price": random.random(rows), "site": site, "tags": tags})


def best_auc():
    test = frame()[ROWS:]
    tagged = np.array(["tag 3" in tags for tags in test.tags])
    clicked, others = tagged[test.click == 1], tagged[test.click == 0]
    return (clicked[:, None] > others).mean() + (clicked[:, None] == others).mean() / 2


def main():
    folder = Path(sys.argv[1])
    if "--learnt" in sys.argv:
        auc = json.loads((folder / "python/summary.json").read_text())["test"]["auc"]
        least = best_auc() - AUC_LESS
        print(f"docs/formats.md, a dataset from Python: AUC {auc:.4f}, at least {least:.4f}")
        sys.exit(0 if auc >= least else "umbra does not learn from what the lines write")
    names = {}
    lines = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)[-1]
    exec(compile(lines, DOCUMENT, "exec"), names)
    all_rows = frame()
    train, test = all_rows[:ROWS], all_rows[ROWS:]
    keys = names["vocabulary"](train, ["site", "tags"])
    names["write"](folder / "python.h5", train, "click", ["price"], keys)
    names["write"](folder / "python_test.h5", test, "click", ["price"], keys)


main()
