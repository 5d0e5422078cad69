"""Runs the Python lines of docs/formats.md on checkpoints, and exits 1 where their logits differ from umbra's.

    python documented.py FOLDER

FOLDER has a folder per model: a checkpoint of it, and the rows that `peer_rows` has scored.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

import torch

from arrays import Arrays, batch_of

# Largest difference allowed, absolute: logits are of size about 1.
LOGITS = 1e-5
DOCUMENT = Path(__file__).parents[2] / "docs/formats.md"


def logits(lines, checkpoint, dense, bags):
    """What the lines make of a checkpoint, as a program of their own."""
    sys.argv = ["lines", str(checkpoint)]
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(lines, DOCUMENT, "exec"), names)
    for number, table in enumerate(names["tables"]):
        assert str(table.shape) in printed.getvalue(), f"table {number} is not printed"
    with torch.no_grad():
        return names["model"](dense, bags)


def main():
    torch.set_num_threads(1)
    all_blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    # NumPy's, which read a checkpoint, and PyTorch's, which go on from there.
    blocks = [lines for lines in all_blocks if "def read(folder)" in lines or "class Model" in lines]
    if len(blocks) != 2:
        sys.exit(f"{DOCUMENT}: {len(blocks)} blocks of Python that make a model, expected NumPy's and PyTorch's")
    folders = sorted(path.parent.parent for path in Path(sys.argv[1]).glob("*/rows/arrays.txt"))
    if not folders:
        sys.exit(f"no models in {sys.argv[1]}")
    failed = []
    for folder in folders:
        arrays = Arrays(folder / "rows")
        *_, dense, bags = batch_of(arrays, 0)
        expected = torch.from_numpy(arrays["logits"]).double()
        got = logits("".join(blocks), folder / "checkpoint", dense, bags).double()
        assert got.shape == expected.shape and expected.std() > 0.01, "logits that say something"
        difference = (got - expected).abs().max().item()
        holds = difference <= LOGITS  # false for NaN
        failed += [] if holds else [folder.name]
        what = f"docs/formats.md, {len(got)} logits"
        print(f"{folder.name:15} {what:34} {difference:9.2e}  bound {LOGITS:.0e}  {'ok' if holds else 'FAILED'}")
    if failed:
        sys.exit(f"the lines of {DOCUMENT} give other logits: {', '.join(failed)}")


main()
