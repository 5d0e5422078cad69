#!/usr/bin/env bash
# make show-speed: steps against the floors of arithmetic and of rows, what batch norm and dropout cost, and
# what products of bf16s gain and what is learnt with them.
#
#     make show-speed                  about half an hour, on a machine that nobody else uses
#     make show-speed PHASES="norm"    some of: steps parts norm rows ranks sent bf16 inlined auc; and, only if named,
#                                      half_rows, strips, and peers and row_peers, which install PyTorch once (make
#                                      show-peers)
#     ROUNDS=11                        samples of every figure (5); of rows, processes, three at most
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python3 -B hpc/show/speed.py
