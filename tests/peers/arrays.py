"""Folders of arrays that umbra's side writes (tests/src/arrays.rs)."""

import numpy as np
import torch


class Arrays:
    """The arrays of one case by name."""

    def __init__(self, folder):
        self.folder = folder
        lines = (folder / "arrays.txt").read_text().splitlines()
        self.known = {name: (kind, shape) for name, kind, *shape in map(str.split, lines)}

    def __getitem__(self, name):
        kind, shape = self.known[name]
        kind = {"f32": "<f4", "f64": "<f8", "u32": "<u4", "u64": "<u8"}[kind]
        return np.fromfile(self.folder / f"{name}.bin", kind).reshape([int(x) for x in shape])

    def names(self, prefix):
        """Names after `prefix` that are tensors of the replica."""
        return [n[len(prefix) :] for n in self.known if n.startswith(prefix)]


def batch_of(arrays, step):
    """Label, weight, dense, and for every field (values, offsets [n])."""
    get = lambda column: arrays[f"batch.{step}.{column}"]
    values, offsets = get("values").astype(np.int64), get("offsets").astype(np.int64)
    fields = len(arrays["cardinality"])
    bags = []
    for field in range(fields):
        ids, starts = [], []
        for i in range(len(get("label"))):
            starts.append(len(ids))
            bag = i * fields + field
            ids.extend(values[offsets[bag] : offsets[bag + 1]])
        bags.append((torch.tensor(ids, dtype=torch.int64), torch.tensor(starts)))
    return *(torch.from_numpy(get(column)) for column in ("label", "weight", "dense")), bags
