#!/usr/bin/env bash
# Takes the test cluster down: ends every process in its namespaces, which end with them, and removes the
# state folder. Ends nothing else, and is content where nothing is up.
#
#     hpc/cluster/down.sh [--quiet]
set -euo pipefail
# shellcheck source=hpc/cluster/lib.sh
. "$(dirname "$0")/lib.sh"

quiet=${1:-}
if [ ! -d "$state" ]; then
    [ "$quiet" = --quiet ] || echo "cluster: nothing is up"
    exit 0
fi
[ "$(id -u)" = 0 ] || fail 5 "the cluster belongs to root; try sudo"

records=()
for record in "$state"/node/* "$state/switch"; do
    [ -e "$record" ] && records+=("${record#"$state"/}")
done

# All processes of the cluster: those in a network namespace of it. Asked anew each time, as mpirun starts
# and ends some while we look, and in two processes, as a busy machine has thousands.
everyone() {
    local record netns all=' '
    for record in "${records[@]}"; do
        read -r _ netns <"$state/$record"
        all+="$netns "
    done
    # Lines of stat: '/proc/PID/ns/net' -> 'net:[NUMBER]'. Processes that end meanwhile have none.
    { stat --format=%N /proc/[0-9]*/ns/net 2>/dev/null || true; } |
        awk -F"'" -v all="$all" 'index(all, " " $4 " ") { split($2, path, "/"); print path[3] }'
}

# Politely first: mpirun ends its ranks and removes its files.
signal=TERM
deadline=$((SECONDS + 3))
while pids=$(everyone) && [ -n "$pids" ]; do
    # shellcheck disable=SC2086
    kill -$signal $pids 2>/dev/null || true
    if [ $SECONDS -ge $deadline ]; then
        [ $signal = TERM ] ||
            fail 1 "these processes do not end: $(ps -o pid=,stat=,wchan=,args= -p "${pids//$'\n'/,}" | tr '\n' ';')"
        signal=KILL
        deadline=$((SECONDS + 5))
    fi
    sleep 0.1
done

for record in "${records[@]}"; do
    if [[ $record == node/* ]]; then
        read -r pid _ <"$state/$record"
        group="$cpu_cgroups/umbra${record#node/}-$pid"
        # A group is busy until the kernel has buried its last process.
        for _ in {1..50}; do
            [ ! -d "$group" ] || rmdir "$group" 2>/dev/null || { sleep 0.02; continue; }
            break
        done
        [ ! -d "$group" ] || fail 1 "$group cannot be removed"
    fi
done
rm -rf "$state"
rmdir --ignore-fail-on-non-empty "$(dirname "$state")"
[ "$quiet" = --quiet ] || echo "cluster: down"
