#!/usr/bin/env bash
# make show-resume: runs that are cut, killed, stopped and requeued, and what saving costs.
#
#     make show-resume                          about an hour on 2 cores
#     make show-resume PHASES="flips torn"      some of: requeues crash flips full torn stalls faults slurm
#
# "full" mounts a small disk in a namespace of its own and "slurm" starts a Slurm of its own: both need root.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --release -q -p umbra-mpi --bin umbra
cargo build -q -p umbra-tests --example crash_point
cargo build --release -q -p umbra-datasets --example hdf5_rate
TARGET=$(realpath "${CARGO_TARGET_DIR:-target}")
export UMBRA=$TARGET/release/umbra HDF5_RATE=$TARGET/release/examples/hdf5_rate CRASH_POINT=$TARGET/debug/examples/libcrash_point.so
python3 -B hpc/show/resume.py
