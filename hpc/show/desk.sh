#!/usr/bin/env bash
# make show-desk: what a person meets on the first day: every block of the documents, the first figure, a report in a
# browser, Slurm and MPICH, launches that can't work, memory predicted, and input that is almost right.
#
#     make show-desk                   40 minutes on 2 cores, the builds aside
#     make show-desk PHASES="memory"   some of: blocks first report slurm mpich launches memory fuzz
#
# Chromium, Slurm and MPICH are looked for, and installed where that is allowed (Debian's packages).
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python3 -B hpc/show/desk.py
