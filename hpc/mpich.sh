#!/usr/bin/env bash
# make test MPI=mpich: the program built against MPICH, in a target folder of its own (nothing rebuilds by itself when
# another MPI is meant), and the tests that start ranks, by MPICH's launcher.
#
#     hpc/mpich.sh                MPICC=mpicc.mpich MPIRUN=mpirun.mpich, as Debian has them beside Open MPI's
#     hpc/mpich.sh TEST…          these of tests/tests
#
# What is skipped is printed with its reason. Exits 5 where MPICH can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."
hpc/setup.sh --quiet mpich
. hpc/env.sh
open_mpi_umbra=${CARGO_TARGET_DIR:-target}/debug/umbra
export MPICC=${MPICC:-mpicc.mpich} MPIRUN=${MPIRUN:-mpirun.mpich}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/mpich

tests=("$@")
[ $# != 0 ] || tests=(mpi ranks end_to_end faults stops)
# Name of a test | why it does not apply. The first is a check within the test "mpi", which leaves it out by itself.
skipped=(
    "a_silent_sender|with MPICH a large message crosses while its sender stands still"
)
# Its waits spin, and so steal the time of who is waited for.
[ "$(nproc)" -ge 4 ] || skipped+=(
    "every_check_holds_on_4_ranks|with fewer cores than ranks MPICH is too slow for the test's time limit"
)

selected=() skips=()
for name in "${tests[@]}"; do selected+=(--test "$name"); done
for line in "${skipped[@]}"; do
    echo "skipped: ${line%%|*}: ${line#*|}"
    skips+=(--skip "${line%%|*}")
done

passed=0 failed=0
count() {
    local what=$1
    shift
    if "$@"; then echo "ok      $what" && passed=$((passed + 1)); else echo "FAILED  $what" && failed=$((failed + 1)); fi
}

cargo build -p umbra-mpi -p umbra-tests --bins --examples "${selected[@]}"
umbra=$CARGO_TARGET_DIR/debug/umbra
names_mpich() { "$umbra" --version | tee /dev/stderr | grep -q '^MPI *MPICH .*, compiled against MPICH '; }
count "umbra --version names MPICH twice" names_mpich
# "refused LAUNCHER UMBRA CURE": two ranks of it end with exit 5, and the cure.
refused() {
    local status=0 text
    text=$("$1" -n 2 "$2" train -c hpc/jobs/demo.toml 2>&1) || status=$?
    [ $status = 5 ] && grep -qF "$3" <<<"$text" || { echo "exit $status: $text"; false; }
}
if command -v mpirun.openmpi >/dev/null; then
    count "MPICH's umbra under Open MPI's mpirun: exit 5 and a cure" refused mpirun.openmpi "$umbra" mpirun.mpich
    if [ -x "$open_mpi_umbra" ]; then
        count "Open MPI's umbra under MPICH's: exit 5 and a cure" refused "$MPIRUN" "$open_mpi_umbra" mpirun.openmpi
    else
        echo "skipped: Open MPI's umbra under MPICH's mpirun: there is no $open_mpi_umbra"
    fi
else
    echo "skipped: umbra under the mpirun of another MPI: Open MPI is not here"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
cargo test -p umbra-tests --no-fail-fast "${selected[@]}" -- "${skips[@]}" 2>&1 | tee "$log" || status=$?
read -r good bad < <(awk '/^test result:/ { good += $4; bad += $6 } END { print good + 0, bad + 0 }' "$log")
passed=$((passed + good)) failed=$((failed + bad))
# What did not compile, or was killed, has no result of its own.
[ $status = 0 ] || [ $failed != 0 ] || failed=1
echo "mpich: $SECONDS s"
echo "mpich: $passed passed, $failed failed"
[ $failed = 0 ]
