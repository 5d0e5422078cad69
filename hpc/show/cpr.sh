#!/usr/bin/env bash
# make show-cpr: lost shards of rows, played by runs: what saving and recovering take of a job's time and of its AUC; and jobs
# whose ranks are killed, which go on inside or are started again.
#
#     make show-cpr                        40 minutes on 2 cores
#     PHASES="table draws" make show-cpr   some of: table draws losses costs storage cluster
#                                          kills free restart
#     KILLS=5 RESTARTS=3 PAIRS=2           so many kills of "kills" (30) and of "restart" (10), pairs of runs of "free" (15)
#
# "table" and "losses" want Frappe too, where $UMBRA_DATA says. "kills" and "free" want Open MPI 5, from the Python registry
# (hpc/ulfm.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --workspace --release -q --bin umbra
cargo build -p umbra-core --release -q --example usage_costs
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
case " ${PHASES:-kills free} " in *" kills "* | *" free "*) hpc/ulfm.sh ;; esac
python3 -B hpc/show/cpr.py
