#!/usr/bin/env bash
# From nothing to a trained model over MPI: set-up, release build, synthetic data with a planted model,
# training on 4 ranks, and how close the test AUC comes to the planted model's own.
#
#     hpc/demo.sh            about 5 minutes on 2 cores, the build included
#     RANKS=2 hpc/demo.sh    another number of ranks
set -euo pipefail
cd "$(dirname "$0")/.."
hpc/setup.sh
. hpc/env.sh

ranks=${RANKS:-4}
train_rows=3000000
test_rows=200000
data=runs/data
run=runs/demo

timing=
stage() {
    local name=$1 from=$SECONDS
    shift
    echo "== $name"
    "$@"
    timing+=$(printf '  %-28s %4d s' "$name" $((SECONDS - from)))$'\n'
}

umbra=${CARGO_TARGET_DIR:-target}/release/umbra
# The train rows come first in one endless log, the test rows right after them.
make_train() {
    "$umbra" synth --preset small --seed 1 --rows $train_rows --output $data/demo_train.h5 --overwrite
}
make_test() {
    "$umbra" synth --preset small --seed 1 --first-row $train_rows --rows $test_rows \
        --output $data/demo_test.h5 --overwrite | tee $data/demo_test.txt
}
train() {
    mpirun -n "$ranks" "$umbra" train -c hpc/jobs/demo.toml --set run.dir=$run --set run.overwrite=true
}

mkdir -p $data
stage "release build" cargo build --release -p umbra-mpi --bin umbra
stage "$train_rows training rows" make_train
stage "$test_rows test rows" make_test
stage "training on $ranks ranks" train

# A figure of the run's summary: its section, or "" for the top level, and its name.
figure() {
    local text
    text=$(tr -d ' \n' <$run/summary.json)
    [ -z "$1" ] || text=$(sed -n "s/.*\"$1\":{\([^}]*\)}.*/\1/p" <<<"$text")
    sed -n "s/.*\"$2\":\([-+.eE0-9]*\).*/\1/p" <<<"$text"
}
planted=$(sed -n 's/.*AUC[^0-9]*\([01]\.[0-9]*\).*/\1/p' $data/demo_test.txt | tail -n 1)

echo
printf '  %-28s %s\n' \
    "test AUC" "$(printf %.4f "$(figure test auc)")" \
    "AUC of the planted model" "$(printf %.4f "$planted")   (the ceiling)" \
    "test log loss" "$(printf %.4f "$(figure test logloss)")" \
    "examples per second" "$(printf %.0f "$(figure '' examples_per_second)")   on $ranks ranks, $(nproc) cores" \
    "run folder" "$run   (summary.json, metrics.jsonl, checkpoints/)"
echo
printf '%s' "$timing"
echo "  all                          $(printf %4d $SECONDS) s"
