#!/usr/bin/env bash
# make show-desk: what a person meets on the first day: every block of the documents, the first figure, a report in a
# browser, Slurm and MPICH, launches that can't work, memory and step times predicted, and input that is almost right.
#
#     make show-desk                   15 minutes on 2 cores, the builds aside
#     make show-desk PHASES="memory"   some of: blocks first report slurm mpich launches memory steps fuzz
#
# Chromium, Slurm and MPICH are looked for, and installed where that is allowed (Debian's packages); h5py and pandas,
# which blocks of Python want, from the Python registry where no Python has them.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python=${UMBRA_PEERS_PYTHON:-$PWD/target/peers/venv/bin/python}
if ! "$python" -c 'import h5py, numpy, pandas' 2>/dev/null; then
    python=$PWD/target/show/desk-venv/bin/python
    # Without them those blocks are skipped, and say why.
    "$python" -c 'import h5py, numpy, pandas' 2>/dev/null ||
        { python3 -m venv target/show/desk-venv && "$python" -m pip install -q h5py numpy pandas; } || true
fi
export UMBRA_PEERS_PYTHON=$python
trap 'hpc/cluster/down.sh --quiet || true' EXIT
python3 -B hpc/show/desk.py
