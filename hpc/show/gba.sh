#!/usr/bin/env bash
# make show-gba: training on parameter servers with GBA: one worker against the synchronous step, slow trainers on the
# test cluster and in the simulator, a trainer that stands still, and what it costs where nobody is slow.
#
#     make show-gba                            some 15 minutes on 2 cores
#     make show-gba PHASES="equivalence sim"   some of: equivalence sim strained still even
#
# "strained" wants root and what hpc/cluster needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --workspace --release -q --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
trap 'hpc/cluster/down.sh --quiet || true' EXIT
python3 -B hpc/show/gba.py
