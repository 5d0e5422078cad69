#!/usr/bin/env bash
# make show-gba: training on parameter servers with GBA: one worker against the synchronous step, slow trainers on the
# test cluster and in the simulator, a trainer that stands still, changes to it and back, by step and by policy, and what
# it costs where nobody is slow.
#
#     make show-gba                            40 minutes on 2 cores
#     PHASES="equivalence sim" make show-gba   some of: equivalence sim strained still switch policy day even, and of
#                                              what only this runs: learned tenth servers days
#
# "strained" and "policy" want root and what hpc/cluster needs; "switch" wants Frappe too, where $UMBRA_DATA says.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --workspace --release -q --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
trap 'hpc/cluster/down.sh --quiet || true' EXIT
python3 -B hpc/show/gba.py
