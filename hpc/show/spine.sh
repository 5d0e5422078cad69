#!/usr/bin/env bash
# make show-spine: what holds the program together: bits that stay, a trainer that stands still, work that is kept,
# files that a method takes, messages that are as predicted, and how they grow.
#
#     make show-spine                          about 10 minutes on 2 cores
#     make show-spine PHASES="bits messages"   some of: bits stopped early method messages models
#
# "models" is make show-models, 15 minutes more, and is measured only when it is named; it needs the data
# ($UMBRA_DATA, else ../shared/data). "early" compiles the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python3 -B hpc/show/spine.py
