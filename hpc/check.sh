#!/usr/bin/env bash
# Everything that must hold before a change goes in: what CI runs and what a person runs.
#
#     hpc/check.sh            the stages up to "simd"
#     hpc/check.sh STAGE…     some of: format clippy docs core build test simd cluster mpich slurm packaging
#
# "cluster" measures and wants a quiet machine; "mpich" builds everything once more, "slurm" and "packaging" take minutes.
#
# A stage that fails ends the run with its exit code; each prints the seconds it took.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=("$@")
[ $# != 0 ] || stages=(format clippy docs core build test simd)

stage_format() { cargo fmt --all --check; }
stage_clippy() { cargo clippy --workspace --all-targets -- -D warnings; }
stage_docs() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps; }
# The core alone, without std: nothing in the workspace may have lent it a feature. A test links it.
stage_core() { cargo check -p umbra-core --no-default-features; }
# All that the tests run, the program included, in one compilation; "test" then finds it built.
stage_build() { cargo build --workspace --lib --bins --tests --examples; }
# Tests that need several ranks start mpirun themselves, on 2 and on 4 ranks.
stage_test() { cargo test --workspace --no-fail-fast; }
# The same on the instruction sets that this machine has and did not choose; without the tests of how ranks talk and
# trainers synchronize (what they send coded too), how jobs end and what is refused, which calculate nothing that the others do not, and without
# golden_bsp, which goes through the sets itself.
stage_simd() {
    local set name tests=()
    for name in core/tests/*.rs core/tests/*/main.rs tests/tests/*.rs; do
        name=$(basename "${name%/main.rs}" .rs)
        case $name in
            protocols | loom_replica | threads | shadow | ds_sync | simulate | simulator | resume) ;;
            served | switch | compress | pooling | split) ;;
            faults | stops | kills | bad_input | fuzz | cli | house | jobs | prediction | mpi | golden_bsp) ;;
            data_safety | days | parquet | docs | report | records | launches) ;;
            *) tests+=(--test "$name") ;;
        esac
    done
    for set in plain avx2 avx512; do
        # Where AVX-512 is, AVX2 was not chosen, and where AMX was, AVX-512 was not.
        if case $set in plain) ;; avx2) grep -qw avx512f /proc/cpuinfo ;; avx512) grep -qw amx_bf16 /proc/cpuinfo ;; esac; then
            echo "-- UMBRA_SIMD=$set"
            UMBRA_SIMD=$set cargo test -p umbra-core -p umbra-tests --no-fail-fast --lib --bins "${tests[@]}" || return 1
        fi
    done
}
# The test cluster keeps its rates. Where it may not be (no root, no namespaces) is no fault of the change.
stage_cluster() {
    local status=0
    hpc/cluster/check.sh || status=$?
    [ $status = 5 ] || return $status
    echo "-- skipped: this machine permits no test cluster"
}
# Of these three each is a make target, too, and prints a line for each check.
stage_mpich() { hpc/mpich.sh; }
stage_slurm() { hpc/slurm/check.sh; }
stage_packaging() { hpc/packaging/check.sh; }

timing=
run() {
    local from=$SECONDS status=0
    echo "== $1"
    "stage_$1" || status=$?
    timing+=$(printf '%8s  %4d s' "$1" $((SECONDS - from)))$'\n'
    if [ $status != 0 ]; then
        printf '%s' "$timing"
        echo "check: $1 failed" >&2
        exit $status
    fi
}

for stage in "${stages[@]}"; do
    case "$stage" in
        format | clippy | docs | core | build | test | simd | cluster | mpich | slurm | packaging) ;;
        *)
            echo "check: no stage '$stage'; expected: format clippy docs core build test simd cluster mpich slurm packaging" >&2
            exit 2
            ;;
    esac
done
hpc/setup.sh
. hpc/env.sh
# Tests that start ranks wait for most of their time: for launchers, deadlines, each other.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(nproc)))}"
# They have more threads than machines have cores.
export UMBRA_ALLOW_OVERSUBSCRIBE="${UMBRA_ALLOW_OVERSUBSCRIBE:-1}"
# errexit does not reach into functions called with ||: each stage is one command, and so is safe.
for stage in "${stages[@]}"; do
    run "$stage"
done
printf '%s' "$timing"
echo "check: all of ${stages[*]} hold, $SECONDS s"
