"""One function per variant: each returns `step(i)`, a whole training step on batch i that returns the loss.

A step is forward, loss, backward and the update of the dense parameters and of the rows that were
looked up. What makes each variant as fast as PyTorch goes is with the variant; what all share (threads,
allocator, huge pages) is set by hpc/show/peers.sh and peer.py.

`optimizer` is "sgd" (dense and rows) or "rowwise_adagrad" (rows; element-wise Adagrad for the dense
part). Variants with one matrix for all tables apply row-wise Adagrad to each occurrence of a row rather
than to their sum: cheaper than what umbra and TorchRec do, and left so in their favour.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from . import model
from .model import BAG, DIM, LEARNING_RATE, SHAPE, loss_of

ROW_EPSILON = 1e-8
DENSE_EPSILON = 1e-10
# Of Adagrad's sums of squares. From zero the first steps divide rounding noise by itself, and no two
# programs stay together.
INITIAL_SUM = 1e-3


@dataclass
class Setting:
    """What a variant is built on."""

    tables: model.Tables
    pool: model.Pool
    dense: model.Dlrm
    """Shared between the processes of Hogwild."""
    sums: dict
    """Adagrad's sum of squares for every dense parameter, by name; shared as they are."""
    optimizer: str
    batch: int


def dense_optimizer(setting, parameters=None):
    """The fused optimizer of all dense parameters, or of others than the setting's."""
    if parameters is None:
        parameters = dict(setting.dense.named_parameters())
    if setting.optimizer == "sgd":
        return torch.optim.SGD(parameters.values(), lr=LEARNING_RATE, fused=True)
    optimizer = torch.optim.Adagrad(
        parameters.values(),
        lr=LEARNING_RATE,
        eps=DENSE_EPSILON,
        initial_accumulator_value=INITIAL_SUM,
        fused=True,
    )
    for name, parameter in parameters.items():
        if name in setting.sums:
            optimizer.state[parameter]["sum"] = setting.sums[name]
    return optimizer


def update_rows(optimizer, rows, state, ids, gradients):
    """Updates the rows [N, 16] and their state [N] at ids [K] with gradients [K, 16]."""
    if optimizer == "sgd":
        rows.index_add_(0, ids, gradients, alpha=-LEARNING_RATE)
        return
    state.index_add_(0, ids, gradients.square().mean(1))
    scale = state.index_select(0, ids).sqrt().add(ROW_EPSILON).reciprocal()
    rows.index_add_(0, ids, gradients * scale.unsqueeze(1), alpha=-LEARNING_RATE)


def by_table(ids):
    """Ids of a batch, table by table: [T, B] or [T, B · BAG]."""
    return ids.transpose(0, 1).reshape(ids.shape[1], -1).contiguous()


def bags(setting):
    """The straightforward program: an nn.EmbeddingBag for every table, with sparse gradients; torch.optim."""
    firsts = torch.arange(setting.batch) * BAG
    bags = nn.ModuleList(
        nn.EmbeddingBag(*table.shape, mode="sum", sparse=True, _weight=table)
        for table in setting.tables.split()
    )
    states = setting.tables.state.split(setting.tables.table_rows)
    batches = [
        (x, by_table(ids).unbind(), labels)
        for x, ids, labels in setting.pool.batches(setting.batch)
    ]
    optimizer = dense_optimizer(setting)
    row_optimizer = torch.optim.SGD(bags.parameters(), lr=LEARNING_RATE)

    def update_bags():
        if setting.optimizer == "sgd":
            row_optimizer.step()
            return
        # torch.optim has no row-wise Adagrad.
        for bag, state in zip(bags, states):
            gradient = bag.weight.grad.coalesce()
            ids = gradient.indices()[0]
            update_rows(setting.optimizer, bag.weight, state, ids, gradient.values())

    def step(i):
        x, ids, labels = batches[i % len(batches)]
        rows = torch.stack([bag(column, firsts) for bag, column in zip(bags, ids)], 1)
        loss = loss_of(setting.dense(x, rows), labels)
        optimizer.zero_grad()
        row_optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            update_bags()
        return loss

    return step


def by_hand(setting, forward, update):
    """One matrix for all tables: `forward(x, rows, labels)` is the loss, `update` changes the rows.
    The gradient stops at the rows that were looked up, and autograd never sees the matrix."""
    batches = setting.pool.numbered_batches(setting.batch)
    optimizer, tables = dense_optimizer(setting), setting.tables

    def step(i):
        x, ids, labels = batches[i % len(batches)]
        rows = F.embedding(ids, tables.rows).requires_grad_(True)
        loss = forward(x, rows, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            update(setting.optimizer, tables.rows, tables.state, ids.view(-1), rows.grad.view(-1, DIM))
        return loss

    return step


def eager(setting):
    """Uncompiled."""

    def update(optimizer, rows, state, ids, gradients):
        if optimizer == "sgd":  # Faster than index_add_ uncompiled.
            sparse = torch.sparse_coo_tensor(ids[None], gradients, rows.shape, check_invariants=False)
            rows.add_(sparse, alpha=-LEARNING_RATE)
        else:
            update_rows(optimizer, rows, state, ids, gradients)

    return by_hand(setting, lambda x, rows, labels: loss_of(setting.dense(x, rows), labels), update)


def compiled(setting, dense=None):
    """torch.compile of forward and backward, and of the update of the rows."""
    dense = dense or setting.dense
    forward = torch.compile(lambda x, rows, labels: loss_of(dense(x, rows), labels), dynamic=False)
    # With two threads the generated update is many times slower.
    update = torch.compile(update_rows, dynamic=False, options={"cpp.threads": 1})
    return by_hand(setting, forward, update)


def ddp(setting):
    """DistributedDataParallel of the dense part over gloo, compiled; the tables are shared, since their
    gradients would be as large as they are. Every process starts from the same dense parameters, its
    own from then on."""
    dense = model.Dlrm()
    dense.load_state_dict(setting.dense.state_dict())
    setting.sums.clear()
    setting.dense = dense
    return compiled(setting, nn.parallel.DistributedDataParallel(dense))


def compiled_step(setting, autocast=False):
    """torch.compile of the whole step as one graph, gradients by torch.func: no autograd engine, no
    optimizer object, one call per step."""
    dense, tables, optimizer = setting.dense, setting.tables, setting.optimizer
    batches = setting.pool.numbered_batches(setting.batch)
    parameters = {name: parameter.detach() for name, parameter in dense.named_parameters()}
    buffers = dict(dense.named_buffers())

    def loss(parameters, rows, x, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = torch.func.functional_call(dense, (parameters, buffers), (x, rows))
        return loss_of(logits.float(), labels)

    gradients_and_loss = torch.func.grad_and_value(loss, argnums=(0, 1))

    def whole(parameters, sums, rows, state, x, ids, labels):
        looked_up = F.embedding(ids, rows)
        (gradients, row_gradients), value = gradients_and_loss(parameters, looked_up, x, labels)
        for name, gradient in gradients.items():
            if optimizer == "sgd":
                parameters[name].sub_(gradient, alpha=LEARNING_RATE)
            else:
                sums[name].add_(gradient.square())
                scaled = gradient / (sums[name].sqrt() + DENSE_EPSILON)
                parameters[name].sub_(scaled, alpha=LEARNING_RATE)
        update_rows(optimizer, rows, state, ids.view(-1), row_gradients.reshape(-1, DIM))
        return value

    whole = torch.compile(whole, dynamic=False)

    def step(i):
        x, ids, labels = batches[i % len(batches)]
        with torch.no_grad():
            return whole(parameters, setting.sums, tables.rows, tables.state, x, ids, labels)

    return step


def fused_collection(setting):
    """TorchRec's tables, filled from the setting's; one collection per optimizer, for all batch sizes."""
    from torchrec import EmbeddingBagConfig
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    collections = setting.tables.collections
    if setting.optimizer not in collections:
        table_rows = setting.tables.table_rows
        sgd = setting.optimizer == "sgd"
        collection = FusedEmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=f"table_{i}",
                    embedding_dim=DIM,
                    num_embeddings=rows,
                    feature_names=[f"field_{i}"],
                )
                for i, rows in enumerate(table_rows)
            ],
            optimizer_type=torch.optim.SGD if sgd else RowWiseAdagrad,
            optimizer_kwargs={"lr": LEARNING_RATE} | ({} if sgd else {"eps": ROW_EPSILON}),
            device=torch.device("cpu"),
        )
        # Of the larger shapes there is memory for one program's tables, and values do not matter.
        if SHAPE == "criteo-kaggle":
            with torch.no_grad():
                state = collection.state_dict()
                for i, rows in enumerate(setting.tables.split()):
                    state[f"embedding_bags.table_{i}.weight"].copy_(rows)
        collections[setting.optimizer] = collection
    return collections[setting.optimizer]


def torchrec(setting):
    """TorchRec's FusedEmbeddingBagCollection (FBGEMM's fused tables) and its DLRM modules."""
    from torchrec import KeyedJaggedTensor
    from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

    collection = fused_collection(setting)
    keys = [f"field_{i}" for i in range(len(setting.tables.table_rows))]
    bottom = DenseArch(model.BOTTOM[0], model.BOTTOM[1:])
    top = OverArch(model.TOP[0], model.TOP[1:])
    interaction = InteractionArch(len(keys))
    parameters = dict(nn.ModuleDict({"bottom": bottom, "top": top}).named_parameters("torchrec"))
    with torch.no_grad():  # The same parameters in the same order, under other names.
        for its, ours in zip(parameters.values(), setting.dense.parameters(), strict=True):
            its.copy_(ours)
    optimizer = dense_optimizer(setting, parameters)
    ends = torch.arange(len(keys) * setting.batch + 1) * BAG
    batches = [
        (x, KeyedJaggedTensor(keys=keys, values=by_table(ids).reshape(-1), offsets=ends), labels)
        for x, ids, labels in setting.pool.batches(setting.batch)
    ]

    def step(i):
        x, ids, labels = batches[i % len(batches)]
        rows = collection(ids).values().view(-1, len(keys), DIM)
        logits = top(interaction(dense_features=bottom(x), sparse_features=rows)).squeeze(1)
        loss = loss_of(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


@dataclass
class Variant:
    """How to build a variant, and the precision its matrix products are allowed."""

    build: callable
    matmul_precision: str = "highest"


VARIANTS = {
    "bags": Variant(bags),
    "eager": Variant(eager),
    "compile": Variant(compiled),
    "compile_step": Variant(compiled_step),
    "ddp": Variant(ddp),
    "torchrec": Variant(torchrec),
    # Not f32 work: the products of bf16 numbers, in rows of their own.
    "compile_step_medium": Variant(compiled_step, "medium"),
    "compile_step_bf16": Variant(lambda setting: compiled_step(setting, autocast=True)),
}
