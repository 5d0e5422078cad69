#!/usr/bin/env bash
# Whether what packagers need works: install, move, load as a module, uninstall; the archive that builds without a
# network; the recipes, as far as they can be read. About half a minute.
#
#     hpc/packaging/check.sh        UMBRA=path of the program, if it is built already; SKIP_VENDOR=1 without the archive
set -euo pipefail
cd "$(dirname "$0")/../.."
. hpc/env.sh

if [ -z "${UMBRA:-}" ]; then
    hpc/setup.sh --quiet
    cargo build --quiet -p umbra-mpi --bin umbra
    UMBRA=${CARGO_TARGET_DIR:-target}/debug/umbra
fi
UMBRA=$(realpath "$UMBRA")
export UMBRA
version=$("$UMBRA" -V | cut -d' ' -f2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

passed=0 failed=0
ok() { echo "ok      $1" && passed=$((passed + 1)); }
check() {
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then ok "$what"; else
        echo "FAILED  $what"
        sed 's/^/        /' "$work/log"
        failed=$((failed + 1))
    fi
}
is() { [ "$1" = "$2" ] || { echo "'$1' instead of '$2'"; false; }; }

# --- install ---------------------------------------------------------------------------------------
umask 077
prefix=/opt/umbra
there=$work/image$prefix moved=$work/moved
check "make install with PREFIX and DESTDIR" make --no-print-directory install PREFIX=$prefix DESTDIR="$work/image"
check "everybody may read and run it" is "$(find "$there" ! -perm -o=r)$(stat -c %a "$there/bin/umbra")" 755
# A file of somebody else's, which stays.
mkdir -p "$there/bin" && touch "$there/bin/other"
mv "$there" "$moved"
check "nothing in it names where it was installed" is \
    "$(grep -rlF -e $prefix/ -e "$work" "$moved" --exclude=README.md --exclude-dir=doc || true)" ""
check "it runs where it was moved to" is "$("$moved/bin/umbra" -V)" "$("$UMBRA" -V)"
check "job scripts come with it" bash -n "$moved"/share/umbra/jobs/{one-node,train,roles,sweep,prepare}.sbatch

parts() { "$moved/bin/umbra" --version | sed -E 's/^(umbra|MPI|HDF5|SIMD) .*[0-9a-z].*/\1/' | tr '\n' ' '; }
check "umbra --version names MPI, HDF5 and SIMD" is "$(parts)" "umbra MPI HDF5 SIMD "

# --- module ----------------------------------------------------------------------------------------
hpc/setup.sh --quiet modules || true
init=
for file in ${MODULESHOME:+"$MODULESHOME/init/bash"} /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    if [ -e "$file" ]; then init=$file && break; fi
done
in_module() {
    env -u UMBRA_ROOT -u SLURM_MPI_TYPE bash -c '. "$0" && module use "$1" && module load umbra &&
        echo "$(command -v umbra) $UMBRA_ROOT $SLURM_MPI_TYPE" && module unload umbra && echo "${UMBRA_ROOT:-gone}"' \
        "$init" "$moved/share/modulefiles" 2>&1
}
if [ -n "$init" ]; then
    check "module load and unload umbra, with $init" is "$(in_module)" "$moved/bin/umbra $moved pmix"$'\n'gone
else
    echo "skipped: module load: neither Environment Modules nor Lmod is here (Debian: environment-modules)"
fi

check "make uninstall" make --no-print-directory uninstall PREFIX="$moved"
check "leaves what is not its own, and nothing else" is "$(cd "$moved" && find . -type f)" ./bin/other
check "a second one says that there is nothing" \
    bash -c '! make --no-print-directory uninstall PREFIX="$0" 2>&1 | grep -q "^uninstalled"' "$moved"

# --- recipes ---------------------------------------------------------------------------------------
check "recipes of Spack and Apptainer, read" python3 hpc/packaging/check.py

# --- archive ---------------------------------------------------------------------------------------
offline() { (cd "$work/umbra-$version" && CARGO_HOME=$work/cargo CARGO_TARGET_DIR=$work/target cargo --offline --frozen "$@"); }
if [ -z "${SKIP_VENDOR:-}" ]; then
    check "an archive with all crates" hpc/packaging/vendor.sh "$work/vendored.tar.gz"
    tar xf "$work/vendored.tar.gz" -C "$work"
    check "it has every crate of the workspace" offline metadata --format-version 1
    check "and builds the core without a network" offline check -p umbra-core
fi

echo "packaging: $SECONDS s"
echo "packaging: $passed passed, $failed failed"
[ $failed = 0 ]
