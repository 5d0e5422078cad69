# shellcheck shell=bash
# What the scripts of the test cluster share. Sourced by bash, with errexit on.
#
# A node is a process that sleeps in namespaces of its own: network, host name, System V IPC and
# mounts (so /dev/shm and /etc/hosts are its own, all other files are the machine's). The switch is
# one more such process, which owns the far ends of the nodes' links and joins them. The namespaces
# have no names: they end with the last process in them, and a crash of anything leaves at most
# sleeping processes behind, which down.sh finds.
#
# The state folder ($state) is the only record of what is up:
#   node/N, switch   "PID NETNS": the process that holds the namespaces, and the network namespace by
#                    which it and everything started in it is known again (a PID alone may be reused)
#   wire             the same of wire.py, which runs in the switch where there is latency
#   rate, latency    what the links are shaped to
#   hosts            the /etc/hosts of the nodes
#   tmp/N            TMPDIR on node N

cluster_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cluster_root=$(cd "$cluster_dir/../.." && pwd)
# One cluster per checkout: two checkouts on one machine do not end each other's. Not below target/,
# which `cargo clean` empties.
state=${UMBRA_CLUSTER_STATE:-/run/umbra-cluster/$(cksum <<<"$cluster_root" | cut -d' ' -f1)}
# Where a node's share of the processors is set (cgroup v1).
cpu_cgroups=/sys/fs/cgroup/cpu
export nodes_max=64

# Ends the script: "fail CODE MESSAGE". 2 is a mistake in the command line, 5 a machine on which there
# can be no cluster, 1 a cluster that did not do as told.
fail() {
    echo "${0##*/}: $2" >&2
    exit "$1"
}

# Root and the programs that everything here is made of, or exit 5.
need_machine() {
    local program missing=()
    [ "$(id -u)" = 0 ] ||
        fail 5 "the test cluster is made of network namespaces and needs root; try sudo"
    for program in ip tc unshare nsenter setsid chrt python3 mpirun; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    [ ${#missing[@]} = 0 ] ||
        fail 5 "missing: ${missing[*]}; on Debian: apt-get install iproute2 util-linux python3 openmpi-bin"
    unshare --net --uts --ipc --mount true 2>/dev/null ||
        fail 5 "this machine (a container?) does not permit namespaces, though we are root"
}

# A number of at least $2 and at most $3, or exit 2: "need_number NAME MIN MAX VALUE".
need_number() {
    if ! [[ $4 =~ ^[0-9]{1,9}$ ]] || [ "$4" -lt "$2" ] || [ "$4" -gt "$3" ]; then
        fail 2 "$1 is '$4'; expected a number from $2 to $3"
    fi
}

# A rate as tc writes it, or "none".
need_rate() {
    [[ $1 =~ ^([0-9]+(\.[0-9]+)?[kmg]bit|none)$ ]] ||
        fail 2 "the rate is '$1'; expected for example 100mbit, 1gbit or none"
}

# --- who is there --------------------------------------------------------------------------------

# The PID in a record of the state folder, if that process still holds its namespace.
holder() {
    local pid netns
    [ -e "$state/$1" ] && read -r pid netns <"$state/$1" &&
        [ "$(readlink "/proc/$pid/ns/net" 2>/dev/null)" = "$netns" ] && echo "$pid"
}

# How many nodes are up. Nodes are numbered from 0 without gaps.
nodes_up() {
    local count=0
    holder switch >/dev/null || { echo 0; return; }
    while holder "node/$count" >/dev/null; do count=$((count + 1)); done
    echo $count
}

# --- going there ---------------------------------------------------------------------------------

# Runs a command in the switch.
in_switch() { nsenter --net="/proc/$(holder switch)/ns/net" "$@"; }

# The folder that limits the processors of node $1. The PID keeps clusters of two checkouts apart.
node_cgroup() { echo "$cpu_cgroups/umbra$1-$(holder "node/$1")"; }

# Replaces this process by a command on node $1, with our folder, environment and limits of that node.
exec_on_node() {
    local node=$1 pid
    shift
    pid=$(holder "node/$node") || fail 5 "node $node is not up; see 'make cluster-up'"
    [ ! -d "$(node_cgroup "$node")" ] || echo $BASHPID >"$(node_cgroup "$node")/cgroup.procs"
    export TMPDIR=$state/tmp/$node
    local core=()
    # All cores of the machine, whatever we may run on ourselves.
    [ -z "${UMBRA_CLUSTER_PIN:-}" ] || core=(taskset -c $((node % $(getconf _NPROCESSORS_ONLN))))
    # Entering a mount namespace leaves us in its root: the folder has to be gone to again.
    # shellcheck disable=SC2016
    exec "${core[@]}" nsenter --target "$pid" --net --uts --ipc --mount \
        bash -c 'cd "$1" && shift && exec "$@"' umbra-node "$PWD" "$@"
}

# --- links ---------------------------------------------------------------------------------------

# Queues what exceeds the rate, for "tc … root". The bucket is small, so that a message of 64 KB already
# meets the rate: it holds one full frame, and what the link carries in 50 us, the time by which a busy
# machine wakes a queue late. The queue behind it is long enough that TCP's windows fill before it does:
# nothing is lost, as on a fabric with flow control.
mtu=${UMBRA_CLUSTER_MTU:-4000}
bucket() {
    local rate=$1 number bits
    number=${rate%[kmg]bit}
    case "$rate" in
        *kbit) bits=1e3 ;;
        *mbit) bits=1e6 ;;
        *gbit) bits=1e9 ;;
    esac
    awk -v rate="$number" -v unit=$bits -v frame=$((mtu + 14)) \
        'BEGIN { print int(frame + rate * unit / 8 * 50e-6) }'
}

# Sets or lifts the rate of device $1 in the namespace of the process $2.
shape_device() {
    local device=$1 pid=$2 rate=$3
    if [ "$rate" = none ]; then
        nsenter --net="/proc/$pid/ns/net" tc qdisc replace dev "$device" root pfifo
    else
        nsenter --net="/proc/$pid/ns/net" tc qdisc replace dev "$device" root \
            tbf rate "$rate" burst "$(bucket "$rate")" limit 64mb
    fi
}

# Shapes every link to RATE in both directions and to LATENCY_US one way between any two nodes. Nodes
# talk through a bridge, or, where there is latency, through wire.py instead.
shape() {
    local rate=$1 latency=$2 count node ports=() wire deadline
    count=$(nodes_up)
    for ((node = 0; node < count; node++)); do
        shape_device eth0 "$(holder "node/$node")" "$rate"
        shape_device "port$node" "$(holder switch)" "$rate"
        ports+=("port$node")
    done
    # The wire is made anew: it knows its latency and its ports from its start.
    if wire=$(holder wire); then
        kill "$wire"
        while holder wire >/dev/null; do sleep 0.02; done
    fi
    rm -f "$state/wire" "$state/wire.ready"
    for ((node = 0; node < count; node++)); do
        if [ "$latency" = 0 ]; then
            in_switch ip link set "port$node" master bridge
        else
            in_switch ip link set "port$node" nomaster
        fi
    done
    if [ "$latency" != 0 ]; then
        # Before all other processes: a wire does not wait for a processor.
        setsid nsenter --net="/proc/$(holder switch)/ns/net" chrt --fifo 1 \
            python3 "$cluster_dir/wire.py" "$latency" "${ports[@]}" \
            </dev/null >"$state/wire.ready" 2>"$state/wire.log" &
        wire=$!
        deadline=$((SECONDS + 10))
        until [ -s "$state/wire.ready" ]; do
            [ $SECONDS -lt $deadline ] || fail 1 "the wire did not start in 10 s: $(cat "$state/wire.log")"
            sleep 0.02
        done
        echo "$wire $(readlink "/proc/$wire/ns/net")" >"$state/wire"
    fi
    echo "$rate" >"$state/rate"
    echo "$latency" >"$state/latency"
}

# Limits node $1 to QUOTA percent of one core; "off" lifts the limit. Holds for what runs there already.
limit_node() {
    local node=$1 quota=${2%\%} group period_us=10000
    [ "$quota" = off ] || need_number "the quota of node $node" 1 100000 "$quota"
    [ -n "$(holder "node/$node")" ] || fail 2 "there is no node '$node'; nodes are 0 to $(($(nodes_up) - 1))"
    group=$(node_cgroup "$node")
    [ -d "$group" ] ||
        fail 5 "a slow node needs the processor quotas of cgroup v1, $cpu_cgroups, which is not there or not ours"
    # A short period: a slow machine is slow all the time, not stopped for three quarters of 100 ms. But no
    # quota may be below 1 ms.
    if [ "$quota" = off ]; then
        echo -1 >"$group/cpu.cfs_quota_us"
    else
        [ "$quota" -ge 10 ] || period_us=100000
        echo $period_us >"$group/cpu.cfs_period_us"
        echo $((quota * period_us / 100)) >"$group/cpu.cfs_quota_us"
    fi
}
