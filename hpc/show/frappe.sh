#!/usr/bin/env bash
# make show-frappe: the published DeepFM recipe on Frappe_x1, and the same training on 1, 2 and 4 ranks.
#
# Three seeds of hpc/jobs/frappe.toml at a time; then a fixed number of epochs under bsp on 1, 2 and
# 4 ranks at one global batch, the last twice. Needs the data: $UMBRA_DATA, else ../shared/data.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh

source=${UMBRA_DATA:-../shared/data}/frappe
epochs=${EPOCHS:-8}
seeds=(1 2 3)
global_batch=4096
data=runs/data
runs=target/show/frappe
umbra=${CARGO_TARGET_DIR:-target}/release/umbra

if [ ! -e "$source/train.libsvm.xz" ]; then
    echo "SKIPPED: no Frappe in $source; set UMBRA_DATA to the folder that has frappe/train.libsvm.xz" >&2
    exit 3
fi
cargo build --release -q -p umbra-mpi --bin umbra
mkdir -p $data $runs

echo "== data"
vocabulary=()
for split in train valid test; do
    xz -dc "$source/$split.libsvm.xz" >$runs/$split.libsvm
    "$umbra" prepare --format libfm --input $runs/$split.libsvm --output $data/frappe_$split.h5 \
        --overwrite "${vocabulary[@]}"
    vocabulary=(--vocabulary $data/frappe_train.h5)
    rm $runs/$split.libsvm
done

# The log of a run is kept beside it and shown only when the run fails.
train() {
    local name=$1 ranks=$2
    shift 2
    local from=$SECONDS
    if ! mpirun -n "$ranks" "$umbra" train "$@" --set run.dir=$runs/$name --set run.overwrite=true \
        >$runs/$name.log 2>&1; then
        tail -n 20 $runs/$name.log >&2
        echo "show: $name failed; its log is $runs/$name.log" >&2
        return 1
    fi
    echo "   $name: $((SECONDS - from)) s"
}

echo "== the recipe, seeds ${seeds[*]}"
# Each has one worker thread, so that they share the cores. What is still running ends with this script.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
recipes=()
for seed in "${seeds[@]}"; do
    train seed-"$seed" 1 -c hpc/jobs/frappe.toml --set seed="$seed" &
    recipes+=($!)
done
for recipe in "${recipes[@]}"; do wait "$recipe"; done

echo "== bsp on 1, 2 and 4 ranks, $epochs epochs"
# The recipe without validation, so that every run makes the same steps.
sed -e '/^\[train.early_stop\]/,/^$/d' -e '/^valid *=/d' hpc/jobs/frappe.toml >$runs/fixed.toml
fixed() {
    train "$1" "$2" -c $runs/fixed.toml --set sync.method=bsp --set train.epochs="$epochs" \
        --set train.batch_size=$((global_batch / $2)) --set run.step_losses=true
}
fixed ranks-1 1
fixed ranks-2 2
fixed ranks-4 4
fixed ranks-4-again 4

python3 -B hpc/show/frappe.py $runs "${seeds[@]}"
