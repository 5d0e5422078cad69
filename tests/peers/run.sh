#!/usr/bin/env bash
# umbra's models against PyTorch: the same parameters, batches and steps on both sides.
#
# Needs the Python registry once: PyTorch goes to target/peers/venv, 5 GB where the registry only has
# wheels with CUDA (PIP_INDEX_URL names another registry, UMBRA_PEERS_PYTHON a Python that has torch
# and numpy already). Exits 1 where the two differ.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh

folder=target/peers
python=${UMBRA_PEERS_PYTHON:-$folder/venv/bin/python}
if ! "$python" -c 'import torch, numpy' 2>/dev/null; then
    if [ -n "${UMBRA_PEERS_PYTHON:-}" ]; then
        echo "test-peers: $python has no torch or no numpy; install them there or unset UMBRA_PEERS_PYTHON" >&2
        exit 5
    fi
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "test-peers: python3 with venv is missing; on Debian: sudo apt-get install python3-venv" >&2
        exit 5
    fi
    echo "test-peers: installing PyTorch into $folder/venv"
    python3 -m venv "$folder/venv"
    "$python" -m pip install -q torch numpy
fi

rm -rf "$folder/cases"
cargo run -q -p umbra-tests --bin peer_dump -- "$folder/cases"
"$python" -c 'import torch; print("PyTorch", torch.__version__)'
"$python" -B tests/peers/compare.py "$folder/cases"
echo "test-peers: all agree"
