#!/usr/bin/env bash
# make show-peers: umbra's training step against PyTorch's, in turn, on one core and on two.
#
# What is compared, how, and the results: hpc/bench/README.md. Needs the Python registry once:
# PyTorch goes to target/peers/venv and TorchRec with its own PyTorch to target/peers/torchrec, 5 GB
# each where the registry only has wheels with CUDA (PIP_INDEX_URL names another registry).
#
#     UMBRA_PEERS_PYTHON      a Python that has torch and numpy already
#     UMBRA_TORCHREC_PYTHON   a Python that has torchrec already
#     UMBRA_BENCH             what to run as `umbra bench`
#     PHASES=2                one and two cores with SGD alone: about 10 minutes
#     PHASES=rows             models whose time goes into rows instead, over nn.EmbeddingBag and TorchRec: about 20
#     SHAPES="rows64 bags10"  which of those models
#     FULL=1                  every variant, longer samples and more rounds: about an hour
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh

folder=target/peers
# FBGEMM's library loads with one version of PyTorch only.
torchrec_packages=(torch==2.14.1 fbgemm-gpu-cpu==1.9.0 numpy pyre-extensions tensordict torchmetrics tqdm)
torchrec=torchrec==1.9.2
disk_gb=12

fail() {
    echo "show-peers: $1" >&2
    exit 5
}

# A new environment in folder $1, once its disk is there.
environment() {
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "python3 with venv is missing; on Debian: sudo apt-get install python3-venv"
    mkdir -p "$folder"
    local free_gb
    free_gb=$(df -BG --output=avail "$folder" | tail -n 1 | tr -dc 0-9)
    [ "$free_gb" -ge $disk_gb ] ||
        fail "$folder has $free_gb GB of disk free, $disk_gb are needed to install PyTorch"
    echo "show-peers: installing into $1"
    python3 -m venv "$1"
}

python=${UMBRA_PEERS_PYTHON:-$folder/venv/bin/python}
if ! "$python" -c 'import torch, numpy' 2>/dev/null; then
    [ -z "${UMBRA_PEERS_PYTHON:-}" ] ||
        fail "$python has no torch or no numpy; install them there or unset UMBRA_PEERS_PYTHON"
    environment $folder/venv
    "$python" -m pip install -q torch numpy
fi
torchrec_python=${UMBRA_TORCHREC_PYTHON:-$folder/torchrec/bin/python}
if [ "${PHASES:-}" != speed ] && ! "$torchrec_python" -c 'import torchrec' 2>/dev/null; then
    [ -z "${UMBRA_TORCHREC_PYTHON:-}" ] ||
        fail "$torchrec_python has no torchrec; install it there or unset UMBRA_TORCHREC_PYTHON"
    environment $folder/torchrec
    "$torchrec_python" -m pip install -q "${torchrec_packages[@]}"
    # It asks for FBGEMM with CUDA, which would take the place of the one for CPUs.
    "$torchrec_python" -m pip install -q --no-deps $torchrec
fi

if [ -z "${UMBRA_BENCH:-}" ]; then
    cargo build --release -q -p umbra-mpi --bin umbra
    UMBRA_BENCH="${CARGO_TARGET_DIR:-target}/release/umbra bench"
fi
export UMBRA_BENCH

# PyTorch at its fastest: huge pages for large tensors, and an allocator that keeps what is freed
# instead of handing activations back to the system after every step.
export THP_MEM_ALLOC_ENABLE=1
export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
# What torch.compile made in an earlier run is used again.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$PWD/$folder/inductor}
export PYTHONDONTWRITEBYTECODE=1
# MKL as fast as the processor, whoever made it.
if grep -q AuthenticAMD /proc/cpuinfo; then
    mkdir -p $folder
    cc -shared -fPIC -O1 -o $folder/intel.so hpc/bench/peers/intel.c ||
        fail "a C compiler is needed: without hpc/bench/peers/intel.c PyTorch leaves AVX-512 unused here"
    export UMBRA_PEERS_PRELOAD=$PWD/$folder/intel.so
fi

echo "== the variants train alike"
OMP_NUM_THREADS=1 LD_PRELOAD=${UMBRA_PEERS_PRELOAD:-} "$python" hpc/bench/peer.py --check eager compile compile_step
[ "${PHASES:-}" = speed ] ||
    OMP_NUM_THREADS=1 LD_PRELOAD=${UMBRA_PEERS_PRELOAD:-} "$torchrec_python" hpc/bench/peer.py --check torchrec 2>/dev/null

if [ "${PHASES:-}" = rows ]; then
    exec python3 -B hpc/show/row_peers.py "$python" "$torchrec_python"
fi
python3 -B hpc/show/peers.py "$python" "$torchrec_python"
