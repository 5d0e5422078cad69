#!/usr/bin/env bash
# make show-shadow: what synchronization costs the workers, on one machine, over slow links and in the simulator,
# and what it does to the model.
#
#     make show-shadow                         about 70 minutes on 2 cores
#     make show-shadow PHASES="cost frappe"    some of: cost links scaling drivers synthetic frappe
#     make show-shadow FULL=1                  more rounds, longer runs, more seeds
#
# "links" wants root and what hpc/cluster needs; "frappe" wants the data ($UMBRA_DATA, else ../shared/data).
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
trap 'hpc/cluster/down.sh --quiet || true' EXIT
python3 -B hpc/show/shadow.py
