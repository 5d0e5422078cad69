#!/usr/bin/env bash
# umbra's models against PyTorch: the same parameters, batches and steps on both sides; and the Python lines of
# docs/formats.md on fresh checkpoints, and for datasets.
#
# Needs the Python registry once: PyTorch goes to target/peers/venv, 5 GB where the registry only has
# wheels with CUDA (PIP_INDEX_URL names another registry, UMBRA_PEERS_PYTHON a Python that has torch,
# numpy, h5py and pandas already). Exits 1 where the two differ.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh

folder=target/peers
python=${UMBRA_PEERS_PYTHON:-$folder/venv/bin/python}
if ! "$python" -c 'import torch, numpy, h5py, pandas' 2>/dev/null; then
    if [ -n "${UMBRA_PEERS_PYTHON:-}" ]; then
        echo "test-peers: $python lacks torch, numpy, h5py or pandas; install them there or unset UMBRA_PEERS_PYTHON" >&2
        exit 5
    fi
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "test-peers: python3 with venv is missing; on Debian: sudo apt-get install python3-venv" >&2
        exit 5
    fi
    echo "test-peers: installing PyTorch into $folder/venv"
    python3 -m venv "$folder/venv"
    "$python" -m pip install -q torch numpy h5py pandas
fi

rm -rf "$folder/cases"
cargo run -q -p umbra-tests --bin peer_dump -- "$folder/cases"
"$python" -c 'import torch; print("PyTorch", torch.__version__)'
"$python" -B tests/peers/compare.py "$folder/cases"

# A model per kind, and what makes it go another way: its run, the rows that it scores, and their logits. Two are saved in
# another way; of the one with the rows that changed an earlier checkpoint is read, since the last has all.
models=(
    'dlrm model.kind=dlrm model.bottom=[16,8] model.top=[24,12] model.batch_norm=true'
    'deepfm model.kind=deepfm model.top=[24,12] model.batch_norm=true model.pooling=mean'
    'fm model.kind=fm'
    'lr model.kind=lr model.pooling=mean'
    'dcn_v2 model.kind=dcn_v2 model.top=[24,12] model.cross_layers=3'
    'dcn_v2_low_rank model.kind=dcn_v2 model.top=[24] model.cross_layers=2 model.cross_rank=6 model.structure=stacked'
    'fm_changed model.kind=fm train.worker_threads=1 checkpoint.every=30 checkpoint.full_every=4 checkpoint.keep=9'
    'fm_bf16 model.kind=fm checkpoint.row_precision=bf16'
    'wide_deep model.kind=wide_deep model.top=[24,12] model.batch_norm=true'
    'dlrm_widths model.kind=dlrm model.bottom=[16,8] model.top=[24] embedding.dims={C1=2,C3=12}'
    'deepfm_widths model.kind=deepfm model.top=[24] embedding.dims={C2=16} embedding.columns=4'
)
umbra() { cargo run -q -p umbra-mpi --bin umbra -- "$@" &>"$folder/documented/log" || { cat "$folder/documented/log"; exit 1; }; }
rm -rf "$folder/documented"
mkdir -p "$folder/documented"
umbra synth --rows 20000 --output "$folder/documented/train.h5"
umbra synth --rows 1000 --first-row 20000 --output "$folder/documented/rows.h5"
for model in "${models[@]}"; do
    read -ra words <<<"$model"
    own="$folder/documented/${words[0]}"
    sets=("${words[@]:1}" "data.train=$folder/documented/train.h5" "run.dir=$own/run" model.embedding_dim=8
        sync.method=bsp embedding.partitions=3 optim.dense.kind=adagrad optim.dense.lr=0.05 optim.sparse.kind=rowwise_adagrad
        optim.sparse.lr=0.1 run.tensorboard=false)
    umbra train "${sets[@]/#/--set=}"
    case ${words[0]} in *_changed) saved=step-60 ;; *) saved=last ;; esac
    ln -s "run/checkpoints/$saved" "$own/checkpoint"
    umbra export --checkpoint "$own/checkpoint" --format flat --output "$own/model.flat"
    cargo run -q -p umbra-tests --bin peer_rows -- "$own/rows" "$own/model.flat" "$folder/documented/rows.h5"
done
"$python" -B tests/peers/documented.py "$folder/documented"
# What the lines for datasets write, umbra learns from.
"$python" -B tests/peers/dataset.py "$folder/documented"
umbra train --set="data.train=$folder/documented/python.h5" --set="data.test=$folder/documented/python_test.h5" \
    --set="run.dir=$folder/documented/python" --set=model.kind=lr --set=train.epochs=5 --set=train.batch_size=64 \
    --set=optim.sparse.kind=rowwise_adagrad --set=optim.sparse.lr=0.5 --set=run.tensorboard=false
"$python" -B tests/peers/dataset.py "$folder/documented" --learnt
echo "test-peers: all agree"
