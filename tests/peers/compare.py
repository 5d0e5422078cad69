"""Repeats in PyTorch, in float32, what `peer_dump` wrote, and exits 1 where the two differ.

    python compare.py FOLDER

For every case: logits of the first batch from the initial parameters, gradients of the first step,
the losses of all steps of plain SGD, and the parameters, running statistics and logits at the end.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from arrays import Arrays, batch_of
from models import DcnV2, Dlrm, Factorization, WideDeep

# Largest differences allowed. Both sides add float32 numbers in orders of their own.
LOGITS = 1e-5  # absolute, per logit of size about 1
GRADIENT = 1e-5  # relative to the largest element of the tensor
LOSSES = 1e-4  # relative
FINAL = 1e-4  # relative to the largest element of the tensor


def build(case, arrays):
    """The model of a case, its shapes read off the arrays."""
    cardinality = [int(x) for x in arrays["cardinality"]]
    dense = arrays["batch.0.dense"].shape[1]
    width = arrays["initial.table"].shape[1]

    def hidden(group):
        count = sum(n.startswith(f"{group}.") and n.endswith(".weight") for n in arrays.names("initial."))
        return [arrays[f"initial.{group}.{i}.weight"].shape[0] for i in range(count)]

    if case == "dlrm":
        return Dlrm(dense, cardinality, width, hidden("bottom"), hidden("top")[:-1])
    layers = sum(n.startswith("cross.") and n.endswith(".bias") for n in arrays.names("initial."))
    if case == "wide_deep":
        return WideDeep(dense, cardinality, width - 1, "mean", hidden("deep")[:-1], True)
    if case == "dcn_v2":
        return DcnV2(dense, cardinality, width, "sum", layers, None, "parallel", hidden("deep")[:-1], False)
    if case == "dcn_v2_low_rank":
        rank = arrays["initial.cross.0.v.weight"].shape[0]
        return DcnV2(dense, cardinality, width, "sum", layers, rank, "stacked", hidden("deep")[:-1], True)
    order, deep = {"lr": (1, []), "fm": (2, []), "deepfm": (2, hidden("deep")[:-1])}[case]
    pooling = "mean" if case == "deepfm" else "sum"
    return Factorization(dense, cardinality, width - 1, pooling, order, deep)


def places(model):
    """umbra's tensor names → PyTorch tensors of this model; the tables are apart."""
    found = {}
    for group in ("bottom", "top", "deep", "head"):
        layer = -1
        for module in getattr(model, group, None) or []:
            if isinstance(module, nn.Linear):
                layer += 1
                found[f"{group}.{layer}.weight"] = module.weight
                if module.bias is not None:
                    found[f"{group}.{layer}.bias"] = module.bias
            elif isinstance(module, nn.BatchNorm1d):
                found[f"{group}.{layer}.norm.scale"] = module.weight
                found[f"{group}.{layer}.norm.shift"] = module.bias
                found[f"{group}.{layer}.norm.mean"] = module.running_mean
                found[f"{group}.{layer}.norm.variance"] = module.running_var
    for layer, linear in enumerate(getattr(model, "cross", [])):
        down, up = linear if isinstance(linear, nn.Sequential) else (None, linear)
        found[f"cross.{layer}.bias"] = up.bias
        found[f"cross.{layer}.{'weight' if down is None else 'u.weight'}"] = up.weight
        if down is not None:
            found[f"cross.{layer}.v.weight"] = down.weight
    if isinstance(model, (Factorization, WideDeep)):
        found["bias"] = model.bias
        found["dense.weight"] = model.weight
        if getattr(model, "vectors", None) is not None:
            found["dense.vectors"] = model.vectors
    return found


def tables(model):
    """Tensors that side by side are the columns of umbra's rows, per field."""
    if isinstance(model, (Dlrm, DcnV2)):
        return [[table.weight] for table in model.tables]
    columns = [model.first] + ([model.second] if model.second is not None else [])
    return [[table.weight for table in field] for field in zip(*columns)]


def load(model, arrays):
    """Sets the model to the initial values; every tensor of either side must have its twin."""
    twins = places(model)
    names = set(arrays.names("initial.")) - {"table", "logits"}
    assert names == set(twins), f"tensors of one side only: {names ^ set(twins)}"
    with torch.no_grad():
        for name, tensor in twins.items():
            tensor.copy_(torch.from_numpy(arrays[f"initial.{name}"]).reshape(tensor.shape))
        rows = torch.from_numpy(arrays["initial.table"])
        at = 0
        for field in tables(model):
            count = field[0].shape[0]
            column = 0
            for tensor in field:
                tensor.copy_(rows[at : at + count, column : column + tensor.shape[1]])
                column += tensor.shape[1]
            at += count


def table_of(model, pick):
    """The table as umbra lays it out, of parameters or of their gradients."""
    return torch.cat([torch.cat([pick(t) for t in field], 1) for field in tables(model)]).detach()


class Report:
    """Differences found, and whether any is too large."""

    def __init__(self, case):
        self.case, self.failed = case, False

    def check(self, what, difference, bound):
        holds = difference <= bound  # false for NaN
        self.failed |= not holds
        print(f"{self.case:15} {what:34} {difference:9.2e}  bound {bound:.0e}  {'ok' if holds else 'FAILED'}")

    def tensors(self, what, pairs, bound):
        """The largest difference over tensors, each relative to its own largest element."""
        worst = ("", 0.0)
        for name, expected, got in pairs:
            expected, got = torch.as_tensor(expected).double(), got.detach().double()
            scale = max(expected.abs().max().item(), 1e-3)
            difference = (expected.reshape(got.shape) - got).abs().max().item() / scale
            if not difference <= worst[1]:
                worst = (name, difference)
        self.check(f"{what} ({worst[0]})", worst[1], bound)


def compare(case, folder):
    arrays = Arrays(folder)
    model = build(case, arrays)
    load(model, arrays)
    report = Report(case)
    label, weight, dense, bags = batch_of(arrays, 0)

    def logits():
        model.eval()
        with torch.no_grad():
            return model(dense, bags).double()

    def worst(name):
        return (logits() - torch.from_numpy(arrays[name]).double()).abs().max().item()

    report.check("initial logits", worst("initial.logits"), LOGITS)
    losses = arrays["losses"]
    optimizer = torch.optim.SGD(model.parameters(), lr=float(arrays["learning_rate"][0]))
    differences = []
    model.train()
    for step, expected in enumerate(losses):
        step_label, step_weight, step_dense, step_bags = batch_of(arrays, step)
        optimizer.zero_grad()
        terms = F.binary_cross_entropy_with_logits(
            model(step_dense, step_bags), step_label, reduction="none"
        )
        loss = (terms * step_weight).sum() / step_weight.sum()
        loss.backward()
        if step == 0:
            pairs = [(n, arrays[f"gradient.{n}"], t.grad) for n, t in places(model).items() if t.requires_grad]
            pairs.append(("table", arrays["gradient.table"], table_of(model, lambda t: t.grad)))
            report.tensors("gradient", pairs, GRADIENT)
        optimizer.step()
        differences.append(abs(loss.item() / expected - 1.0))
    report.check(f"losses of {len(losses)} steps, {losses[0]:.3f} to {losses[-1]:.3f}", np.max(differences), LOSSES)
    pairs = [(n, arrays[f"final.{n}"], t) for n, t in places(model).items()]
    pairs.append(("table", arrays["final.table"], table_of(model, lambda t: t)))
    report.tensors("final", pairs, FINAL)
    report.check("final logits", worst("final.logits"), 10 * LOGITS)
    return report.failed


def main():
    torch.set_num_threads(1)
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob("*/arrays.txt"))
    if not folders:
        sys.exit(f"no cases in {sys.argv[1]}")
    # Every case runs, whatever the others find.
    failed = [folder.name for folder in folders if compare(folder.name, folder)]
    if failed:
        sys.exit(f"differs from PyTorch: {', '.join(failed)}")


main()
