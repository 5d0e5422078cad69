#!/usr/bin/env bash
# make show-models: the published recipes of DCN v2 and Wide & Deep on Frappe_x1, three seeds each.
#
# Needs the data: $UMBRA_DATA, else ../shared/data. About 15 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python3 -B hpc/show/models.py
