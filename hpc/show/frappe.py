"""Reads the runs of frappe.sh, checks them against the published figures and each other."""

import sys
from pathlib import Path

from show import Show, step_losses, summary

FIRST_STEPS = 50

runs, seeds = Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]]
show = Show("frappe", seeds)


def row(name):
    figures = summary(runs / name)
    test = figures["test"]
    show.row(
        run=name,
        ranks=figures["ranks"],
        steps=figures["steps"],
        test_auc=test["auc"],
        test_logloss=test["logloss"],
        examples_per_second=figures["examples_per_second"],
        seconds=figures["seconds"],
    )
    return figures


def bytes_differ(a, b):
    """Bytes that differ between the weight files of two runs, a missing or shorter file included."""
    files = lambda run: {p.relative_to(run): p.read_bytes() for p in sorted(run.rglob("*.safetensors"))}
    a, b = files(runs / a), files(runs / b)
    if not a:
        sys.exit("show: the runs kept no checkpoint to compare")
    different = 0
    for name in a.keys() | b.keys():
        x, y = a.get(name, b""), b.get(name, b"")
        different += sum(p != q for p, q in zip(x, y)) if x != y else 0
        different += abs(len(x) - len(y))
    return different


recipe = [row(f"seed-{seed}") for seed in seeds]
ranks = {n: row(f"ranks-{n}") for n in (1, 2, 4)}
row("ranks-4-again")

mean = lambda values: sum(values) / len(values)
aucs = [run["test"]["auc"] for run in recipe]
show.at_least("test_auc_mean", mean(aucs), 0.980)
show.measured("test_auc_min", min(aucs))
show.at_most("test_logloss_mean", mean([run["test"]["logloss"] for run in recipe]), 0.170)

losses = {n: step_losses(runs / f"ranks-{n}") for n in ranks}
for n, auc_bound, loss_bound in ((4, 5e-4, 1e-5), (2, 5e-4, 1e-5)):
    auc_difference = abs(ranks[1]["test"]["auc"] - ranks[n]["test"]["auc"])
    show.at_most(f"auc_difference_1_{n}_ranks", auc_difference, auc_bound)
    pairs = list(zip(losses[1], losses[n]))[:FIRST_STEPS]
    if len(pairs) < FIRST_STEPS:
        sys.exit(f"show: {len(pairs)} steps to compare, expected {FIRST_STEPS}")
    differences = [abs(x - y) / abs(x) for x, y in pairs]
    # A loss that is not a number makes the sum so too, where a maximum could hide it.
    worst = max(differences) if sum(differences) == sum(differences) else float("nan")
    show.at_most(f"loss_difference_1_{n}_ranks", worst, loss_bound)
show.at_most("bsp_rerun_bytes_differ", bytes_differ("ranks-4", "ranks-4-again"), 0)
show.measured("examples_per_second", ranks[4]["examples_per_second"])
show.finish()
