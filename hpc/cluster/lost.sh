#!/usr/bin/env bash
# Whether a job ends that loses a node: its link goes down for good, or all its processes stand still. On a
# cluster of its own, under `umbra launch`. About 9 minutes; exit 5 where there can be no cluster.
#
#     hpc/cluster/lost.sh            UMBRA=path of the program, if it is built already
#
# Prints for each case the seconds until the last process of the job that can still run has ended, and until
# the supervisor has.
set -euo pipefail
export UMBRA_CLUSTER_STATE=/run/umbra-cluster/lost-$$
# shellcheck source=hpc/cluster/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$cluster_root"
# shellcheck source=hpc/env.sh
. hpc/env.sh

need_machine
umbra=${UMBRA:-}
if [ -z "$umbra" ]; then
    cargo build --quiet --release -p umbra-mpi --bin umbra
    umbra=${CARGO_TARGET_DIR:-target}/release/umbra
fi
folder=$(mktemp -d)
trap '"$cluster_dir/down.sh" --quiet; rm -rf "$folder"' EXIT

watchdog=8
# The deadline, a rank that ends itself when nobody answers, and a crowded machine.
ranks_max=$((watchdog + 10 + 10))
# What the supervisor waits for after last words, and as above.
job_max=$((ranks_max + 40 + 10))
lost=2

"$umbra" synth --output "$folder/train.h5" --rows 20000 >/dev/null
cat >"$folder/job.toml" <<TOML
[data]
train = "$folder/train.h5"
[model]
kind = "dlrm"
embedding_dim = 8
bottom = [16, 8]
top = [24, 12]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[train]
batch_size = 64
epochs = 100000
worker_threads = 1
[run]
watchdog_s = $watchdog
log_every_s = 0.5
tensorboard = false
overwrite = true
TOML

# Processes in the network of the lost node, but for the one that holds it.
on_lost_node() {
    local holder
    holder=$(holder "node/$lost")
    for process in /proc/[0-9]*; do
        [ "${process#/proc/}" != "$holder" ] &&
            [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$(readlink "/proc/$holder/ns/net")" ] &&
            echo "${process#/proc/}"
    done
    return 0
}
# Ranks of the job that live and are not stopped.
ranks() {
    for process in /proc/[0-9]*; do
        if { tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null | grep -q "^[^ ]* train -c $folder/job.toml " &&
            ! grep -q '^State:[[:space:]]*[TZ]' "$process/status" 2>/dev/null; then
            echo "${process#/proc/}"
        fi
    done
}

failures=0
# "lose FAULT SETTINGS…"
lose() {
    local fault=$1 sets=() begun ranks_s='' job_s='' supervisor stopped=()
    shift
    for set in "$@"; do sets+=(--set "$set"); done
    rm -rf "$folder/run"
    "$cluster_dir/up.sh" 4 100mbit >/dev/null
    "$umbra" launch --restarts 0 -- "$cluster_dir/run" -n 4 -- "$umbra" train -c "$folder/job.toml" \
        --set run.dir="$folder/run" "${sets[@]}" >"$folder/out" 2>&1 &
    supervisor=$!
    for ((i = 0; i < 600; i++)); do
        [ "$(wc -l 2>/dev/null <"$folder/run/metrics.jsonl" || echo 0)" -ge 2 ] && break
        sleep 0.1
    done
    case $fault in
        link) "$cluster_dir/node" $lost ip link set eth0 down ;;
        stop) mapfile -t stopped < <(on_lost_node) && kill -STOP "${stopped[@]}" ;;
    esac
    begun=$SECONDS
    while [ $((SECONDS - begun)) -le $job_max ]; do
        [ -n "$ranks_s" ] || [ -n "$(ranks)" ] || ranks_s=$((SECONDS - begun))
        kill -0 $supervisor 2>/dev/null || { job_s=$((SECONDS - begun)) && break; }
        sleep 0.2
    done
    [ "$fault" = link ] || kill -KILL "${stopped[@]}" 2>/dev/null || true
    kill -KILL $supervisor 2>/dev/null || true
    wait $supervisor 2>/dev/null || true
    local verdict=ok status
    status=$(python3 -c 'import json, sys; it = json.load(open(sys.argv[1])); print(it["status"], it["reason"])' \
        "$folder/run/summary.json" 2>&1 | tail -n1)
    if [ "${ranks_s:-999}" -gt $ranks_max ] || [ "${job_s:-999}" -gt $job_max ] ||
        [[ $status != failed* ]]; then
        verdict=FAILED
        failures=$((failures + 1))
        cat "$folder/out"
    fi
    printf '%-5s %-60s ranks %4s s, job %4s s   %s: %s\n' "$fault" "$*" "${ranks_s:->}" "${job_s:->}" $verdict "$status"
    "$cluster_dir/down.sh" --quiet
}

for fault in link stop; do
    lose $fault sync.method=bsp
    lose $fault sync.method=shadow_easgd
    lose $fault sync.method=ds_sync
    lose $fault sync.method=shadow_ma roles.layout=separate roles.trainers=2 roles.embedding_ps=2
done
[ $failures = 0 ] || { echo "lost: $failures cases failed" >&2; exit 1; }
