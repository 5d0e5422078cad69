"""The models in plain PyTorch, written from the papers and not from umbra's source.

DLRM: Naumov et al., arXiv 1906.00091. DeepFM: Guo et al., IJCAI 2017. FM: Rendle, ICDM 2010.
DCN v2: Wang et al., arXiv 2008.13535. Wide & Deep: Cheng et al., arXiv 1606.07792.
Letters: n examples, D dense features, S fields, d elements of an embedding vector.
"""

import torch
from torch import nn


def mlp(widths, batch_norm, relu_last):
    """Linear, batch norm, ReLU; the last layer has no batch norm. No bias before a batch norm."""
    layers = []
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        last = i + 2 == len(widths)
        norm = batch_norm and not last
        layers.append(nn.Linear(inputs, outputs, bias=not norm))
        if norm:
            layers.append(nn.BatchNorm1d(outputs))
        if relu_last or not last:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """One EmbeddingBag per table, pairwise dot products of all vectors, a top MLP."""

    def __init__(self, dense, cardinality, d, bottom, top):
        super().__init__()
        self.bottom = mlp([dense, *bottom], False, True)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, d, mode="sum") for rows in cardinality)
        vectors = 1 + len(cardinality)
        self.top = mlp([d + vectors * (vectors - 1) // 2, *top, 1], False, False)

    def forward(self, dense, bags):
        """dense [n, D]; bags: one (values, offsets [n]) per field. Returns logits [n]."""
        x = self.bottom(dense)
        t = torch.stack([x, *(table(*bag) for table, bag in zip(self.tables, bags))], dim=1)
        z = t @ t.transpose(1, 2)
        i, j = torch.tril_indices(t.shape[1], t.shape[1], offset=-1)
        return self.top(torch.cat([x, z[:, i, j]], dim=1)).squeeze(1)


class Factorization(nn.Module):
    """LR (order 1), FM (order 2), DeepFM (order 2 and an MLP over the vectors of all features)."""

    def __init__(self, dense, cardinality, d, pooling, order, deep):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(dense))
        self.vectors = nn.Parameter(torch.zeros(dense, d)) if order == 2 else None
        bag = lambda rows, width: nn.EmbeddingBag(rows, width, mode=pooling)
        self.first = nn.ModuleList(bag(rows, 1) for rows in cardinality)
        self.second = nn.ModuleList(bag(rows, d) for rows in cardinality) if order == 2 else None
        widths = [(len(cardinality) + dense) * d, *deep, 1] if deep else None
        self.deep = mlp(widths, True, False) if deep else None
        if deep:
            # One bias for the whole sum is enough.
            self.deep[-1] = nn.Linear(widths[-2], 1, bias=False)

    def forward(self, dense, bags):
        """dense [n, D]; bags: one (values, offsets [n]) per field. Returns logits [n]."""
        logits = self.bias + dense @ self.weight
        for table, bag in zip(self.first, bags):
            logits = logits + table(*bag).squeeze(1)
        if self.second is not None:
            sparse = torch.stack([table(*bag) for table, bag in zip(self.second, bags)], dim=1)
            v = torch.cat([sparse, dense[:, :, None] * self.vectors], dim=1)
            logits = logits + 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
            if self.deep is not None:
                logits = logits + self.deep(v.flatten(1)).squeeze(1)
        return logits


class WideDeep(nn.Module):
    """Logistic regression beside an MLP over the embeddings and the dense features."""

    def __init__(self, dense, cardinality, d, pooling, deep, batch_norm):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(dense))
        bag = lambda rows, width: nn.EmbeddingBag(rows, width, mode=pooling)
        self.first = nn.ModuleList(bag(rows, 1) for rows in cardinality)
        self.second = nn.ModuleList(bag(rows, d) for rows in cardinality)
        widths = [len(cardinality) * d + dense, *deep, 1]
        self.deep = mlp(widths, batch_norm, False)
        # One bias for the whole sum is enough.
        self.deep[-1] = nn.Linear(widths[-2], 1, bias=False)

    def forward(self, dense, bags):
        """dense [n, D]; bags: one (values, offsets [n]) per field. Returns logits [n]."""
        wide = self.bias + dense @ self.weight
        for table, bag in zip(self.first, bags):
            wide = wide + table(*bag).squeeze(1)
        x = torch.cat([*(table(*bag) for table, bag in zip(self.second, bags)), dense], dim=1)
        return wide + self.deep(x).squeeze(1)


class DcnV2(nn.Module):
    """Cross layers beside an MLP ("parallel") or under it ("stacked"); of full rank where rank is None."""

    def __init__(self, dense, cardinality, d, pooling, layers, rank, structure, deep, batch_norm):
        super().__init__()
        self.structure = structure
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, d, mode=pooling) for rows in cardinality)
        width = len(cardinality) * d + dense

        def linear():
            if rank is None:
                return nn.Linear(width, width)
            return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))

        self.cross = nn.ModuleList(linear() for _ in range(layers))
        self.deep = mlp([width, *deep, 1], batch_norm, False)
        self.head = None
        if structure == "parallel":
            # The output layer is one vector over [x_L, h]; its two parts and one bias.
            self.deep[-1] = nn.Linear(deep[-1], 1, bias=False)
            self.head = nn.Sequential(nn.Linear(width, 1))

    def forward(self, dense, bags):
        """dense [n, D]; bags: one (values, offsets [n]) per field. Returns logits [n]."""
        x0 = torch.cat([*(table(*bag) for table, bag in zip(self.tables, bags)), dense], dim=1)
        x = x0
        for linear in self.cross:
            x = x0 * linear(x) + x
        if self.structure == "stacked":
            return self.deep(x).squeeze(1)
        return (self.head(x) + self.deep(x0)).squeeze(1)
