"""Models whose time goes into rows: umbra over nn.EmbeddingBag and over TorchRec, on one core and on two.

umbra, a peer and umbra again, each in a process of its own: tables of 13 GB are there once at a time. A ratio is umbra's mean rate
before and after over the peer's. Usage: row_peers.py PYTHON TORCHREC_PYTHON; hpc/show/peers.sh sets the rest. SHAPES names the
models, all without it.
"""

import json
import os
import shlex
import subprocess
import sys
from statistics import mean

from load import Load
from peers import SECONDS, Peer, Server
from show import Show

SHAPES = os.environ.get("SHAPES", "rows64 rows128 bags10 bags50").split()
OPTIMIZERS = ("sgd", "rowwise_adagrad")
BATCH = 2048
# The least ratio over each that is asked for.
BOUNDS = {"bags": ("ratio_embeddingbag_rows_min", 3), "torchrec": ("ratio_torchrec_rows_min", 2)}


def umbra(shape, optimizer, workers, cores):
    command = [*shlex.split(os.environ["UMBRA_BENCH"]), "--steps-only", "--shape", shape, "--optimizer", optimizer, "--workers", str(workers),
               "--batch", str(BATCH), "--seconds", str(SECONDS), "--samples", "3", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores))
    return json.loads(done.stdout)["steps"][0]["examples_per_second"]


def main(python, torchrec_python):
    pythons = {"bags": python, "torchrec": torchrec_python}
    show, loads, ratios = Show("row_peers", []), [], {variant: [] for variant in pythons}
    allowed = sorted(os.sched_getaffinity(0))
    for shape in SHAPES:
        os.environ["UMBRA_PEERS_SHAPE"] = shape
        for optimizer in OPTIMIZERS:
            for workers in (1, 2):
                cores, load = allowed[-workers:], Load()
                before = umbra(shape, optimizer, workers, cores)
                for variant, its in pythons.items():
                    server = Server(f"{variant}-{shape}", its, workers, 1, cores)
                    theirs = server.sample(Peer(variant), optimizer, BATCH, SECONDS)["examples_per_second"]
                    server.close()
                    after = umbra(shape, optimizer, workers, cores)
                    ratio = mean((before, after)) / theirs
                    ratios[variant].append(ratio)
                    show.row(shape=shape, optimizer=optimizer, cores=workers, program=variant, examples_per_s=round(theirs),
                             umbra=round(mean((before, after))), ratio=ratio)
                    print(f"   {shape} {optimizer}, {workers} cores: {ratio:.2f} x {variant}", flush=True)
                    before = after
                loads.append(load.cores())
    for variant, (id, bound) in BOUNDS.items():
        show.at_least(id, min(ratios[variant]), bound)
    show.alone(loads)
    show.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
