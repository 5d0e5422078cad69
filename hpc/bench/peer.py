"""Training steps of PyTorch, measured on request: a server on stdin and stdout.

    echo '{"variant": "compile_step", "optimizer": "sgd", "batch": 128, "seconds": 2}' | python peer.py

Says what it runs on in a first line of JSON; then a line of JSON comes back for each that goes in. The
first request for a variant, optimizer and batch compiles it and chooses the steps of a sample. Between
requests all processes wait for input and use no core.

With --processes 2 the processes train the same dense parameters and tables without locks (Hogwild);
each has a core, its own batches and its own compiled code.

`--check` compares the losses of variants with those of the plainest one on small tables, and exits 1
where they differ.
"""

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time

import torch
import torch.multiprocessing

from peers.model import TABLE_ROWS, Dlrm, Pool, Tables
from peers.variants import INITIAL_SUM, VARIANTS, Setting

CALIBRATION_SECONDS = 0.3
SGEMM_SAMPLES = 20
ANSWER_SECONDS_MAX = 600


class Shared:
    """What all processes train: tables, dense parameters, Adagrad's sums of squares of those."""

    def __init__(self, table_rows, shared):
        self.tables = Tables(table_rows, shared)
        self.dense = Dlrm()
        self.sums = {
            name: torch.full_like(parameter.data, INITIAL_SUM)
            for name, parameter in self.dense.named_parameters()
        }
        if shared:
            self.dense.share_memory()
            for tensor in self.sums.values():
                tensor.share_memory_()


class Worker:
    """One process's variants, each built when it is first asked for."""

    def __init__(self, shared, rank=0, processes=1, rendezvous=None):
        self.shared, self.rank, self.processes = shared, rank, processes
        self.rendezvous = rendezvous
        self.pool = Pool(shared.tables, seed=2 + rank)
        self.built = {}
        self.steps_done = 0

    def train(self, variant, optimizer, batch, steps):
        """Trains `steps` steps; wall seconds, CPU seconds and the last loss."""
        torch.set_float32_matmul_precision(VARIANTS[variant].matmul_precision)
        key = (variant, optimizer, batch)
        if key not in self.built:
            torch.compiler.set_stance("default")
            if variant == "ddp":
                self.join_group()
            shared = self.shared
            sums = dict(shared.sums)
            setting = Setting(shared.tables, self.pool, shared.dense, sums, optimizer, batch)
            self.built[key] = VARIANTS[variant].build(setting)
            for i in range(3):
                self.built[key](i)
        torch.compiler.set_stance("fail_on_recompile")
        step, first = self.built[key], self.steps_done
        self.steps_done += steps
        wall, cpu = time.perf_counter(), time.process_time()
        for i in range(first, self.steps_done):
            loss = step(i)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return wall, cpu, float(loss.detach())

    def join_group(self):
        """DDP's group. Collective over the processes."""
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"file://{self.rendezvous}",
                rank=self.rank,
                world_size=self.processes,
            )


class Team:
    """Workers in processes of their own, each on its core. Trains as one does."""

    def __init__(self, shared, cores):
        context = torch.multiprocessing.get_context("spawn")
        rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
        self.start = start = context.Barrier(len(cores))
        self.pipes, self.processes = [], []
        for rank, core in enumerate(cores):
            ours, theirs = context.Pipe()
            place = (rank, len(cores), rendezvous)
            process = context.Process(
                target=run_worker, args=(theirs, start, core, shared, place), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def train(self, *work):
        """The longest wall time, the CPU seconds of all, the loss of one."""
        for pipe in self.pipes:
            pipe.send(work)
        parts = []
        for pipe in self.pipes:
            if not pipe.poll(ANSWER_SECONDS_MAX):
                sys.exit(f"peer: a process has not answered for {ANSWER_SECONDS_MAX} s")
            parts.append(pipe.recv())
        walls, cpus, losses = zip(*parts)
        return max(walls), sum(cpus), sum(losses) / len(losses)


def run_worker(pipe, start, core, shared, place):
    """A process of a team: trains as it is told until the pipe closes."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    worker = Worker(shared, *place)
    while True:
        try:
            *what, steps = pipe.recv()
        except EOFError:
            return
        worker.train(*what, 1)  # Builds; compiling takes each as long as it takes.
        start.wait(ANSWER_SECONDS_MAX)
        pipe.send(worker.train(*what, steps))


def sample(workers, processes, chosen, variant, optimizer, batch, seconds):
    """A sample of about `seconds`, after an eighth of that to warm up. `chosen`: steps by what is asked,
    found first, and adjusted by every sample."""
    what = (variant, optimizer, batch)
    if (what, seconds) not in chosen:
        steps, wall = 2, 0.0
        while wall < CALIBRATION_SECONDS:
            steps *= 2
            wall, _, _ = workers.train(*what, steps)
        chosen[what, seconds] = math.ceil(steps * seconds / wall)
    steps = chosen[what, seconds]
    workers.train(*what, steps // 8 + 1)
    wall, cpu, loss = workers.train(*what, steps)
    if not math.isfinite(loss):
        sys.exit(f"peer: {variant} with {optimizer} has a loss of {loss}")
    chosen[what, seconds] = math.ceil(steps * seconds / wall)
    examples = processes * steps * batch
    return {
        "examples_per_second": examples / wall,
        # Comparable with the rate by wall clock: what the cores in use would do if none were taken away.
        "examples_per_cpu_second": examples / cpu * max(processes, torch.get_num_threads()),
        "seconds": wall,
        "loss": loss,
    }


def sgemm_gflops():
    """What a core does in f32 products of squares, at best: whether the library uses what the processor has."""
    best = 0.0
    for n in (512, 1024):
        a, b, product = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        products = math.ceil(1e9 / n**3)
        for _ in range(SGEMM_SAMPLES):
            start = time.process_time()
            for _ in range(products):
                torch.mm(a, b, out=product)
            best = max(best, 2 * n**3 * products / (time.process_time() - start) / 1e9)
    return best


def versions():
    """What is measured, in the words of the libraries."""
    config = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    line_with = lambda text: next((line for line in config if text in line), "none")
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "sgemm_gflops": sgemm_gflops(),
        "preload": os.environ.get("LD_PRELOAD", ""),
        "mkl": line_with("Math Kernel Library"),
        "onednn": line_with("MKL-DNN"),
    }
    try:
        import fbgemm_gpu
        import torchrec
    except ImportError:
        return found
    return found | {"torchrec": torchrec.__version__, "fbgemm_gpu": fbgemm_gpu.__version__}


def serve(arguments):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < arguments.processes:
        sys.exit(f"peer: {arguments.processes} processes, but {len(cores)} cores")
    torch.set_num_threads(arguments.threads)
    shared = Shared(TABLE_ROWS, shared=arguments.processes > 1)
    if arguments.processes > 1:
        workers = Team(shared, cores[: arguments.processes])
    else:
        workers = Worker(shared)
    print(json.dumps(versions()), flush=True)
    chosen = {}
    for line in sys.stdin:
        print(json.dumps(sample(workers, arguments.processes, chosen, **json.loads(line))), flush=True)


CHECK_BATCH = 128
CHECK_ROWS_MAX = 10_000
# One batch over and over: the loss falls far enough that a missing update of the rows shows (3e-2).
CHECK_STEPS = 8
# SGD moves rows by a few units in their last place: how far they went has four digits.
CHECK_TOLERANCE, CHECK_TOLERANCE_LOWER = 5e-4, 5e-3


def check(variants):
    """Losses and rows after the first steps of each variant against those of the plainest."""
    torch.set_num_threads(1)
    failed = False
    for optimizer in ("sgd", "rowwise_adagrad"):
        expected = first_steps("bags", optimizer)
        for variant in variants:
            lower = variant.endswith(("medium", "bf16"))
            tolerance = CHECK_TOLERANCE_LOWER if lower else CHECK_TOLERANCE
            got = first_steps(variant, optimizer)
            worst = max(abs(a - b) / a for a, b in zip(expected, got, strict=True))
            agrees = worst <= tolerance
            failed |= not agrees
            verdict = "" if agrees else f"  DIFFERS by more than {tolerance:.0e}"
            print(f"{variant:20} {optimizer:16} {worst:.1e} off bags{verdict}", flush=True)
    sys.exit(1 if failed else 0)


def first_steps(variant, optimizer):
    """From seeded parameters and small tables: the losses of the first steps, then how far the rows went."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision(VARIANTS[variant].matmul_precision)
    table_rows = [min(rows, CHECK_ROWS_MAX) for rows in TABLE_ROWS]
    if optimizer == "rowwise_adagrad":  # No row twice in a batch: the variants differ there.
        table_rows = [CHECK_ROWS_MAX] * len(TABLE_ROWS)
    shared = Shared(table_rows, shared=False)
    tables, before = shared.tables, shared.tables.rows.clone()
    pool = Pool(tables, seed=2)
    if optimizer == "rowwise_adagrad":
        pool.ids = (torch.arange(len(pool.ids)) % CHECK_ROWS_MAX)[:, None].repeat(1, len(table_rows))
        pool.numbered = pool.ids + tables.first_row
    step = VARIANTS[variant].build(
        Setting(tables, pool, shared.dense, shared.sums, optimizer, CHECK_BATCH)
    )
    losses = [float(step(0).detach()) for _ in range(CHECK_STEPS)]
    after = tables.rows
    for collection in tables.collections.values():
        after = torch.cat(list(collection.state_dict().values()))
    return [*losses, float((after.double() - before.double()).norm())]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="of every process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--check", nargs="+", metavar="VARIANT", choices=VARIANTS)
    given = parser.parse_args()
    # Every batch size and optimizer is code of its own; beyond a limit PyTorch falls back silently.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    check(given.check) if given.check else serve(given)
