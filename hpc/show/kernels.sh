#!/usr/bin/env bash
# make show-kernels: training steps against the floor that their arithmetic sets, and what the reader, a
# second worker, row-wise Adagrad and MPI cost.
#
#     make show-kernels           about 10 minutes; rounds of what is compared take turns
#     make show-kernels FULL=1    longer samples, more rounds
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh

rounds=5
seconds=10
runs_of_each=3
rows=262144
if [ -n "${FULL:-}" ]; then
    rounds=11 seconds=44 runs_of_each=5
fi
seed=1
data=runs/data/kernels.h5
out=target/show/kernels
umbra=${CARGO_TARGET_DIR:-target}/release/umbra

cargo build --release -q -p umbra-mpi --bin umbra
rm -rf $out
mkdir -p "$(dirname $data)" $out

echo "== $rows rows of synthetic clicks"
"$umbra" synth --preset criteo-kaggle --seed $seed --rows $rows --output $data --overwrite

# What is measured by others' leave: how much of the machine they used meanwhile is a check.
alone() {
    python3 -B hpc/show/load.py $out/load.jsonl "$@"
}

echo "== kernels and steps from memory"
alone "$umbra" bench --seconds $seconds --samples $rounds --json $out/memory.json

echo "== steps from memory and through the reader"
alone "$umbra" bench --steps-only --data $data --optimizer sgd --workers 1 \
    --seconds $seconds --samples $rounds --json $out/reader.json

# The log of a run is kept beside its folder and shown only when the run fails.
train() {
    local name=$1 from=$SECONDS
    shift
    if ! alone "$@" -c hpc/show/kernels.toml --set run.dir=$out/"$name" >$out/"$name".log 2>&1; then
        tail -n 20 $out/"$name".log >&2
        echo "show: $name failed; its log is $out/$name.log" >&2
        return 1
    fi
    echo "   $name: $((SECONDS - from)) s"
}

echo "== training alone on one core, and as trainer and embedding PS over MPI"
core=$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')
for round in $(seq $runs_of_each); do
    train solo-"$round" taskset -c "$core" "$umbra" train
    train mpi-"$round" mpirun -n 2 "$umbra" train \
        --set roles.layout=separate --set roles.trainers=1 --set roles.embedding_ps=1
done

echo "== prepare"
alone hpc/bench/prepare.sh >$out/prepare.json

python3 -B hpc/show/kernels.py $out "$runs_of_each" $seed
