"""Runs umbra and the PyTorch variants in turn, and checks the ratios of their rates.

A round measures umbra, a variant, umbra, the next variant, … and umbra again, all batch sizes each time.
A ratio is umbra's mean rate just before and just after a variant over the variant's; what is checked
is the median over the rounds. Usage: peers.py PYTHON TORCHREC_PYTHON; hpc/show/peers.sh sets the rest.
"""

import itertools
import json
import os
import select
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from load import Load
from show import Show

FULL = os.environ.get("FULL") == "1"
PHASES = os.environ.get("PHASES", "99")
# What `make show-speed` takes of it.
SPEED = "speed"
BATCHES = [128, 512, 2048]
ROUNDS = 5 if FULL else 3
SECONDS = 5.0 if FULL else 2.0
UMBRA_SECONDS = SECONDS * 0.6  # Taken twice for every sample of a variant.
ANSWER_SECONDS_MAX = 900
PEER = Path(__file__).parents[1] / "bench" / "peer.py"
# umbra's ratio over the fastest f32 variant, by workers, optimizer and batch size.
BOUNDS = {
    (1, "sgd"): {128: 1.8, 512: 1.6, 2048: 1.5},
    (1, "rowwise_adagrad"): {128: 1.8, 512: 1.6, 2048: 1.5},
    (2, "sgd"): {128: 1.6, 512: 1.6, 2048: 1.6},
    (2, "rowwise_adagrad"): {},
}
TORCHREC_BOUND = 3
# Of the peak of a core, PyTorch's products: a library that leaves instructions of this processor unused is no peer.
SGEMM_SHARE = 0.9


@dataclass(frozen=True)
class Peer:
    """A variant of peer.py in a process of its own kind. `f32`: counts in the ratios over the fastest. `precision`: umbra's beside it."""

    variant: str
    threads: int = 1
    processes: int = 1
    f32: bool = True
    precision: str = "f32"

    def __str__(self):
        return self.variant if self.processes == 1 or self.variant == "ddp" else f"hogwild {self.variant}"


def phases():
    """(workers, optimizer, peers)"""
    one = [Peer("compile_step"), Peer("compile"), Peer("torchrec")]
    two = [
        Peer("compile_step", processes=2),
        Peer("compile", threads=2),
        Peer("ddp", processes=2),
    ]
    more = [Peer("eager"), Peer("bags")]
    bf16 = [Peer("compile_step_bf16", f32=False, precision="bf16")]
    lower = [Peer("compile_step_medium", f32=False), *bf16]
    torchrec = [Peer("torchrec", threads=2)]
    every = [
        Peer("compile", processes=2),
        Peer("eager", processes=2),
        Peer("compile_step", threads=2),
        Peer("eager", threads=2),
        Peer("bags", threads=2),
    ]
    if PHASES == SPEED:
        yield 1, "sgd", one[:2] + bf16
        yield 2, "sgd", two[:2]
        return
    if FULL:
        for optimizer in ("sgd", "rowwise_adagrad"):
            yield 1, optimizer, one + more + lower
            yield 2, optimizer, two + torchrec + every
        return
    # What counts comes first: PHASES=2 ends there.
    yield 1, "sgd", one
    yield 2, "sgd", two[:1] + torchrec
    yield 1, "rowwise_adagrad", one
    yield 1, "sgd", more + lower
    yield 2, "sgd", two[1:]
    yield 2, "rowwise_adagrad", two[:1]


class Server:
    """A running peer.py. Blocked, and so without a core, but for the time of an answer."""

    def __init__(self, name, python, threads, processes, cores):
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        environment["LD_PRELOAD"] = os.environ.get("UMBRA_PEERS_PRELOAD", "")
        logs = Path("target/show/peers")
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}-{processes}-processes-{threads}-threads.log"
        self.process = subprocess.Popen(
            [python, PEER, "--threads", str(threads), "--processes", str(processes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.versions = self.answer()

    def sample(self, peer, optimizer, batch, seconds):
        request = {"variant": peer.variant, "optimizer": optimizer, "batch": batch, "seconds": seconds}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS_MAX)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            sys.exit(f"show: peer.py gave no answer; its log is {self.log}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def umbra(optimizer, workers, cores, precisions):
    """umbra's step at all batch sizes: {(batch, precision): figures}"""
    command = [
        *shlex.split(os.environ["UMBRA_BENCH"]),
        "--steps-only",
        *("--batch", ",".join(map(str, BATCHES))),
        *("--optimizer", optimizer),
        *("--precision", ",".join(precisions)),
        *("--workers", str(workers)),
        *("--seconds", str(UMBRA_SECONDS)),
        *("--samples", "1"),
        *("--json", "-"),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS_MAX,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode != 0:
        sys.exit(f"show: {shlex.join(command)} failed:\n{done.stderr}")
    name = lambda step: "bf16" if step["optimizer"].endswith(" bf16") else "f32"
    return {(step["batch"], name(step)): step for step in json.loads(done.stdout)["steps"]}


class Track:
    """The samples of one row: who, on how many cores, optimizer, batch size."""

    def __init__(self):
        self.rates, self.cpu_rates, self.loads = [], [], []
        self.ratios, self.cpu_ratios, self.peaks = [], [], []

    def add(self, figures, load):
        self.rates.append(figures["examples_per_second"])
        self.cpu_rates.append(figures["examples_per_cpu_second"])
        self.loads.append(load)
        if "peak_gflops" in figures:  # umbra's alone say it.
            self.peaks.append(figures["peak_gflops"])


def measure(workers, optimizer, peers, servers, cores):
    """All rounds of a phase: {(name, batch): Track}"""
    tracks, precisions = {}, sorted({"f32", *(peer.precision for peer in peers)}, reverse=True)

    def track(name, batch, figures, load):
        tracks.setdefault((name, batch), Track()).add(figures, load)

    def ours():
        load = Load()
        figures = umbra(optimizer, workers, cores, precisions)
        for (batch, precision), own in figures.items():
            track("umbra" if precision == "f32" else f"umbra {precision}", batch, own, load.cores())
        return figures

    for peer in peers:  # Compiles, and chooses the steps of a sample.
        for batch in BATCHES:
            servers[server_of(peer)].sample(peer, optimizer, batch, SECONDS)
    for number in range(ROUNDS):
        # Another order each time: nobody is always first or last.
        shift = number * len(peers) // ROUNDS
        before = ours()
        for peer in peers[shift:] + peers[:shift]:
            theirs = {}
            for batch in BATCHES:
                load = Load()
                figures = servers[server_of(peer)].sample(peer, optimizer, batch, SECONDS)
                track(peer, batch, figures, load.cores())
                theirs[batch] = figures
            after = ours()
            for batch in BATCHES:
                near = lambda rate: mean(side[batch, peer.precision][rate] for side in (before, after)) / theirs[batch][rate]
                tracks[peer, batch].ratios.append(near("examples_per_second"))
                tracks[peer, batch].cpu_ratios.append(near("examples_per_cpu_second"))
            before = after
        print(f"   round {number + 1} of {ROUNDS}", flush=True)
    return tracks


def server_of(peer):
    """Which process answers for a peer."""
    return peer.variant == "torchrec", peer.threads, peer.processes


def row(show, name, workers, optimizer, batch, track, sgemm):
    """`sgemm`: GFLOP/s of a core in the products of the program's library."""
    show.row(
        program=str(name),
        precision="f32" if getattr(name, "f32", not str(name).endswith("bf16")) else "lower",
        cores=workers,
        optimizer=optimizer,
        batch=batch,
        examples_per_second=round(median(track.rates)),
        low=round(min(track.rates)),
        high=round(max(track.rates)),
        per_cpu_second=round(median(track.cpu_rates)),
        others_cores=round(median(track.loads), 2),
        ratio=median(track.ratios) if track.ratios else None,
        ratios=" ".join(f"{ratio:.2f}" for ratio in track.ratios),
        cpu_ratio=median(track.cpu_ratios) if track.cpu_ratios else None,
        peak_gflops=round(median(track.peaks), 1) if track.peaks else None,
        sgemm_gflops=round(sgemm, 1) if isinstance(name, Peer) else None,
    )


def check(show, workers, optimizer, peers, tracks):
    """The ratios of a phase, against their bounds."""
    suffix = "" if optimizer == "sgd" else "_adagrad"
    for batch in BATCHES:
        ratio = {peer: median(tracks[peer, batch].ratios) for peer in peers}
        best = min((peer for peer in peers if peer.f32), key=ratio.get)
        id, bound = f"ratio_best_{workers}t_{batch}{suffix}", BOUNDS[workers, optimizer].get(batch)
        if bound is None:
            show.measured(id, ratio[best])
        else:
            show.at_least(id, ratio[best], bound)
        for peer in peers:
            id = f"ratio_{peer.variant}_{workers}t_{batch}{suffix}"
            if peer.variant == "torchrec" and (workers, optimizer, batch) == (1, "sgd", 128):
                show.at_least(id, ratio[peer], TORCHREC_BOUND)
            elif peer.variant == "torchrec" or peer.precision == "bf16" or peer == Peer("compile"):
                show.measured(id, ratio[peer])


def main(python, torchrec_python):
    pythons = {"torch": python, "torchrec": torchrec_python}
    show = Show("peers", [])
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        sys.exit("show: two cores are needed")
    if PHASES != SPEED and (not PHASES.isdigit() or int(PHASES) == 0):
        print(f"show: PHASES={PHASES}: here it is how many of the phases to run, 1 or more", file=sys.stderr)
        sys.exit(2)
    start = time.monotonic()
    servers, versions, loads = {}, {}, []
    for workers, optimizer, peers in itertools.islice(phases(), None if PHASES == SPEED else int(PHASES)):
        cores = allowed[-workers:]
        needed = {server_of(peer) for peer in peers}
        # Each holds tables of 2 GB: those no longer needed go.
        for key in servers.keys() - needed:
            servers.pop(key).close()
        for key in sorted(needed - servers.keys()):
            name = "torchrec" if key[0] else "torch"
            servers[key] = Server(name, pythons[name], *key[1:], cores)
            # Of several servers the one whose products are slowest: the check is of all.
            served = servers[key].versions
            versions[name] = min(versions.get(name, served), served, key=lambda served: served["sgemm_gflops"])
        print(f"== {workers}-core {optimizer}, after {time.monotonic() - start:.0f} s", flush=True)
        tracks = measure(workers, optimizer, peers, servers, cores)
        for (name, batch), track in tracks.items():
            sgemm = servers[server_of(name)].versions["sgemm_gflops"] if isinstance(name, Peer) else 0
            row(show, name, workers, optimizer, batch, track, sgemm)
            loads += track.loads
        # The fastest is known by now: slower ones are rows alone.
        if any(peer.variant == "compile_step" for peer in peers):
            check(show, workers, optimizer, peers, tracks)
    for server in servers.values():
        server.close()
    for name, found in versions.items():
        print(f"  {name}: " + "; ".join(f"{key} {value}" for key, value in found.items()))
        show.row(program=f"versions of {name}", **found)
        show.at_least(f"sgemm_share_{name}", found["sgemm_gflops"] / show.peak_gflops, SGEMM_SHARE)
    show.alone(loads)
    print(f"  {time.monotonic() - start:.0f} s")
    show.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
