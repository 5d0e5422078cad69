#!/usr/bin/env bash
# make show-dssync: averaging in small groups against bulk-synchronous training, over slow links, at scale in the
# simulator, and what it does to the model.
#
#     make show-dssync                         about an hour on 2 cores
#     make show-dssync PHASES="links scale"    some of: contraction links loss scale synthetic frappe
#     make show-dssync FULL=1                  more rounds, longer runs, more seeds
#
# "links" and "loss" want root and what hpc/cluster needs; "frappe" wants the data ($UMBRA_DATA, else
# ../shared/data).
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
trap 'hpc/cluster/down.sh --quiet || true' EXIT
python3 -B hpc/show/dssync.py
