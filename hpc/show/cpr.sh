#!/usr/bin/env bash
# make show-cpr: lost shards of rows, played by runs: what saving and recovering take of a job's time and of its AUC.
#
#     make show-cpr                        20 minutes on 2 cores
#     PHASES="table draws" make show-cpr   some of: table draws losses costs
#
# "table" and "losses" want Frappe too, where $UMBRA_DATA says.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --workspace --release -q --bin umbra
cargo build -p umbra-core --release -q --example usage_costs
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python3 -B hpc/show/cpr.py
