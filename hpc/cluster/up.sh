#!/usr/bin/env bash
# Brings the test cluster up: NODES nodes on one machine, on links of RATE and LATENCY_US.
#
#     hpc/cluster/up.sh [NODES [RATE [LATENCY_US]]]      4 100mbit 0 unless told
#
# RATE is as tc writes it (100mbit, 1gbit) or "none". What is up already stays: nodes are added if there
# are fewer, and the links take the new shape. Needs root; changes nothing in the network of the machine.
set -euo pipefail
# shellcheck source=hpc/cluster/lib.sh
. "$(dirname "$0")/lib.sh"

count=${1:-4} rate=${2:-100mbit} latency=${3:-0}
need_number NODES 1 "$nodes_max" "$count"
need_rate "$rate"
need_number LATENCY_US 0 1000000 "$latency"
need_machine

# Starts a process that holds the namespaces of "switch" or of "node/N", and records it.
hold() {
    local name=$1 pid deadline
    rm -f "$state/$name.ready"
    # Of a session of its own: Ctrl-C in this terminal is not meant for it.
    # shellcheck disable=SC2016
    setsid unshare --net --uts --ipc --mount --propagation slave bash -euc '
        state=$1 name=$2
        echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
        # Not BBR, which measures the link by leaving it idle. Reno is in every kernel and open to every
        # namespace; nothing is lost here, so that it does as well as any.
        echo reno >/proc/sys/net/ipv4/tcp_congestion_control
        if [ "$name" != switch ]; then
            echo "umbra${name#node/}" >/proc/sys/kernel/hostname
            mount -t tmpfs -o mode=1777 shm /dev/shm
            mount --bind "$state/hosts" /etc/hosts
        fi
        touch "$state/$name.ready"
        exec sleep infinity
        ' umbra-hold "$state" "$name" </dev/null >/dev/null 2>"$state/log" &
    pid=$!
    deadline=$((SECONDS + 10))
    until [ -e "$state/$name.ready" ]; do
        if ! kill -0 $pid 2>/dev/null || [ $SECONDS -ge $deadline ]; then
            fail 1 "$name did not come up: $(cat "$state/log")"
        fi
        sleep 0.02
    done
    rm "$state/$name.ready"
    echo "$pid $(readlink /proc/$pid/ns/net)" >"$state/$name"
}

add_node() {
    local node=$1 pid
    mkdir -p "$state/tmp/$node"
    hold "node/$node"
    pid=$(holder "node/$node")
    # The link is made inside the switch and its near end given to the node: the machine never sees it.
    in_switch ip link add "port$node" mtu "$mtu" type veth peer name eth0 mtu "$mtu" netns "$pid"
    in_switch ip link set "port$node" up
    nsenter --net="/proc/$pid/ns/net" sh -c \
        "ip link set lo up && ip addr add 10.77.0.$((node + 1))/24 dev eth0 && ip link set eth0 up"
    # Without processor quotas there are no slow nodes, and everything else works.
    mkdir "$(node_cgroup "$node")" 2>/dev/null || true
}

was=$(nodes_up)
if [ "$was" = 0 ]; then
    # Nothing of it is up, but a crash may have left parts.
    "$cluster_dir/down.sh" --quiet
    mkdir -p "$state/node"
    {
        echo "127.0.0.1 localhost"
        for ((node = 0; node < nodes_max; node++)); do echo "10.77.0.$((node + 1)) umbra$node"; done
    } >"$state/hosts"
    hold switch
    in_switch ip link add bridge mtu "$mtu" type bridge
    in_switch ip link set bridge up
fi
for ((node = was; node < count; node++)); do add_node "$node"; done
shape "$rate" "$latency"
echo "cluster: $(nodes_up) nodes (umbra0 …), links of $rate, latency ${latency} us one way"
