"""The work that is compared: the DLRM of Criteo's Kaggle data, as PyTorch code.

Dense part 13-512-256-64-16 below, 367-512-256-1 above, dot products of all pairs of 27 vectors of 16
elements between, binary cross-entropy; f32. Batches are cut from one pool of examples that is made
before anything is measured: one uniform id per table, as many examples as umbra's own measurement
cycles through.

$UMBRA_PEERS_SHAPE names another of the shapes of `umbra bench --shape`: models whose time goes into rows.
"""

import os
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn

TABLE_ROWS = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]  # fmt: skip
# Rows of the tables, elements of a row, hidden layers below and above, ids of a bag.
SHAPES = {
    "criteo-kaggle": (TABLE_ROWS, 16, [512, 256, 64], [512, 256], 1),
    "rows64": ([1_000_000] * 26, 64, [], [16], 1),
    "rows128": ([1_000_000] * 26, 128, [], [16], 1),
    "bags10": ([1_000_000] * 8, 64, [], [16], 10),
    "bags50": ([1_000_000] * 8, 64, [], [16], 50),
}
SHAPE = os.environ.get("UMBRA_PEERS_SHAPE", "criteo-kaggle")
TABLE_ROWS, DIM, LOWER, UPPER, BAG = SHAPES[SHAPE]
BOTTOM = [13, *LOWER, DIM]
PAIRS = (len(TABLE_ROWS) + 1) * len(TABLE_ROWS) // 2
TOP = [DIM + PAIRS, *UPPER, 1]
EXAMPLES = 131072
LEARNING_RATE = 0.01


def mlp(sizes):
    """Linear layers with ReLU after each but one that has a single output."""
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers.append(nn.Linear(inputs, outputs))
        if outputs > 1:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """All but the tables."""

    def __init__(self):
        super().__init__()
        self.bottom, self.top = mlp(BOTTOM), mlp(TOP)
        vectors = len(TABLE_ROWS) + 1
        rows, columns = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("pairs", rows * vectors + columns)

    def forward(self, x, rows):
        """Logits [B] of dense features x [B, 13] and rows [B, 26, 16]."""
        bottom = self.bottom(x)
        vectors = torch.cat([bottom.unsqueeze(1), rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        top = torch.cat([bottom, products.index_select(1, self.pairs)], 1)
        return self.top(top).squeeze(1)


def loss_of(logits, labels):
    """Mean log loss. logits, labels: [B]"""
    return F.binary_cross_entropy_with_logits(logits, labels)


class Pool:
    """Examples in memory: dense features [EXAMPLES, 13], labels [EXAMPLES], and ids [EXAMPLES, T], both
    within each table and numbering the rows of all tables together; of bags [EXAMPLES, T, BAG], within tables."""

    def __init__(self, tables, seed):
        draw = torch.Generator().manual_seed(seed)
        self.x = torch.rand(EXAMPLES, BOTTOM[0], generator=draw)
        size = (EXAMPLES,) if BAG == 1 else (EXAMPLES, BAG)
        ids = [torch.randint(0, rows, size, generator=draw) for rows in tables.table_rows]
        self.ids = torch.stack(ids, 1)
        self.numbered = self.ids + tables.first_row if BAG == 1 else None
        self.labels = (torch.rand(EXAMPLES, generator=draw) < 0.25).float()

    def batches(self, batch):
        """(x [B, 13], ids within tables [B, T] or [B, T, BAG], labels [B]) of every batch."""
        return list(zip(*(of.split(batch) for of in (self.x, self.ids, self.labels))))

    def numbered_batches(self, batch):
        """The same with ids of all tables together."""
        return list(zip(*(of.split(batch) for of in (self.x, self.numbered, self.labels))))


class Tables:
    """All tables as one matrix [sum of rows, DIM], and the row-wise Adagrad state of its rows.

    The variants of a process take turns with them, and two processes share them: what is compared
    does not depend on the values.
    """

    def __init__(self, table_rows, shared):
        self.table_rows = table_rows
        self.first_row = torch.tensor([0, *table_rows[:-1]]).cumsum(0)
        self.state = torch.zeros(sum(table_rows))
        self.collections = {}  # Other libraries' own tables, by optimizer.
        if shared:
            self.rows.share_memory_()
            self.state.share_memory_()

    @cached_property
    def rows(self):
        """Made when they are first asked for: of the larger shapes there is memory for one program's."""
        rows = torch.empty(sum(self.table_rows), DIM)
        return rows.uniform_(-0.01, 0.01, generator=torch.Generator().manual_seed(1))

    def split(self):
        """The tables one by one, as views."""
        return self.rows.split(self.table_rows)
