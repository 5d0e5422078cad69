#!/usr/bin/env bash
# Whether the test cluster is what it says: rate, latency, slow nodes, exit codes, and that nothing is left
# behind. On a cluster of its own, beside one that may be up. About 15 s; exit 5 where there can be no
# cluster.
#
#     hpc/cluster/check.sh            PINGPONG=path of the example, if it is built already
set -euo pipefail
export UMBRA_CLUSTER_STATE=/run/umbra-cluster/check-$$
# shellcheck source=hpc/cluster/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$cluster_root"
# shellcheck source=hpc/env.sh
. hpc/env.sh

need_machine
pingpong=${PINGPONG:-}
if [ -z "$pingpong" ]; then
    cargo build --quiet -p umbra-mpi --example pingpong
    pingpong=${CARGO_TARGET_DIR:-target}/debug/examples/pingpong
fi
report=$(mktemp)
trap '"$cluster_dir/down.sh" --quiet; rm -f "$report"' EXIT

failures=0
# "expect WHAT LOW VALUE HIGH": VALUE must lie between the other two.
expect() {
    local verdict=ok
    if ! awk -v low="$2" -v value="$3" -v high="$4" 'BEGIN { exit !(low <= value && value <= high) }'; then
        verdict=FAILED
        failures=$((failures + 1))
    fi
    printf '%-46s %10.6g   in %g … %g   %s\n' "$1" "$3" "$2" "$4" $verdict
}
show() { printf '%-46s %10.6g\n' "$1" "$2"; }
# A figure of the last report, as a Python expression of "it".
figure() {
    python3 -c 'import json, sys; it = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$report" "$1"
}
of_size() { echo "next(row for row in it['$1'] if row['bytes'] == $2)['$3']"; }
# Everything of the machine that a cluster could change; the names of those of others do not matter.
machine() {
    ip -o link | sed 's/ state .*//'
    ip -o -4 addr
    ip route
    cat /proc/sys/net/ipv4/tcp_congestion_control /proc/sys/kernel/hostname
    grep -c . /proc/mounts
}

before=$(machine)
"$cluster_dir/up.sh" 4 100mbit
nodes=$(cat "$state"/node/*)
"$cluster_dir/up.sh" 4 100mbit >/dev/null
expect "up twice: the same nodes" 1 "$([ "$nodes" = "$(cat "$state"/node/*)" ] && echo 1 || echo 0)" 1
expect "host names of 4 ranks" 4 "$("$cluster_dir/run" -n 4 cat /proc/sys/kernel/hostname | sort -u | wc -l)" 4
status=0
"$cluster_dir/run" -n 4 sh -c 'exit 7' 2>/dev/null || status=$?
expect "exit code of ranks that exit 7" 7 $status 7

"$cluster_dir/run" -n 4 "$pingpong" 1048576 0.2 >"$report"
# 100 Mbit/s are 12.5 MB/s. Of the shorter message the best, with room below: asking leave to send it is a
# round trip of its own, on which others of the machine weigh. Room above is the bucket of the link.
expect "100mbit: MB/s at 64 KiB, best" 4 \
    "$(figure "65536 / $(of_size ping_pong 65536 one_way_us_best)")" 14.4
expect "100mbit: MB/s at 1 MiB" 10.6 "$(figure "$(of_size ping_pong 1048576 mb_per_s)")" 14.4
# No algorithm sends less than 2·(4 - 1)/4 of the payload over each link one way, which takes 126 ms; the
# one that Open MPI takes here sends more.
expect "100mbit: ms of an all-reduce of 1 MiB" 120 \
    "$(figure "$(of_size all_reduce_f32_sum 1048576 us) / 1e3")" 500
show "µs one way of 1 byte" "$(figure "$(of_size ping_pong 1 one_way_us_best)")"

"$cluster_dir/run" -n 4 --rate 1gbit --latency-us 1000 "$pingpong" 1 >"$report"
expect "latency 1000: µs one way of 1 byte" 1000 "$(figure "$(of_size ping_pong 1 one_way_us_best)")" 1300
expect "shape after the run" 1 "$([ "$(cat "$state/rate" "$state/latency")" = $'100mbit\n0' ] && echo 1 || echo 0)" 1

# The most cores that any node may run on.
"$cluster_dir/run" -n 4 --pin nproc >"$report"
expect "pin: cores of a node" 1 "$(sort -nr "$report" | head -n1)" 1

if [ -d "$(node_cgroup 2)" ]; then
    # Processor time in a second of a rank that takes all it gets: no more than the quota, however busy the
    # machine is.
    "$cluster_dir/run" -n 4 --slow 2=25% python3 "$cluster_dir/busy.py" >"$report"
    expect "slow 2=25%: its % of a core" 5 "$(awk '$1 == "umbra2" { print $2 }' "$report")" 29
    show "the % of node 1, as the machine has it to give" "$(awk '$1 == "umbra1" { print $2 }' "$report")"
else
    echo "no processor quotas of cgroup v1 here: slow nodes are not checked"
fi

# A run that never ends is ended by down, too.
"$cluster_dir/run" -n 4 sleep 1000 >/dev/null 2>&1 &
sleep 1
groups=$(for node in 0 1 2 3; do node_cgroup $node; done)
held=$(cut -d' ' -f2 "$state"/node/* "$state/switch")
"$cluster_dir/down.sh"
wait
# shellcheck disable=SC2086
left=$(ls -d $groups "$state" 2>/dev/null || true)
expect "left behind: cgroups and state" 0 "$(grep -c . <<<"$left" || true)" 0
expect "left behind: processes" 0 \
    "$(readlink /proc/[0-9]*/ns/net 2>/dev/null | grep -cFx "$held" || true)" 0
expect "changed in the machine's network, names, mounts" 0 \
    "$(diff <(echo "$before") <(machine) | grep -c '^[<>]' || true)" 0
[ $failures = 0 ] || fail 1 "$failures failed"
echo "cluster: all as asked, $SECONDS s"
