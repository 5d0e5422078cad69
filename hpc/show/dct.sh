#!/usr/bin/env bash
# make show-dct: gradients of which what matters is sent: bytes, and what that does to the model and to the time.
#
#     make show-dct                          its phases together take some 39 minutes on 2 cores
#     make show-dct PHASES="codec frappe"    some of: codec frappe split links full pooled; and of: others clicks vectors reach virtual
#     SEEDS=1,2                              these seeds of "frappe", "split" and "clicks" (1,2,3,4,5)
#
# "frappe", "split", "others", "vectors" and "reach" want the data ($UMBRA_DATA, else ../shared/data), "links" root and what hpc/cluster needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
cargo build --release -q -p umbra-core --example codec_rate
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
trap 'hpc/cluster/down.sh --quiet || true' EXIT
python3 -B hpc/show/dct.py
