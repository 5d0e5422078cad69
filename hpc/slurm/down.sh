#!/usr/bin/env bash
# Takes the Slurm on this machine down: cancels its jobs, ends its daemons by the process ids that they left, and
# removes the state folder. Ends nothing else, and is content where nothing is up.
#
#     hpc/slurm/down.sh [--quiet]
set -euo pipefail
# shellcheck source=hpc/slurm/lib.sh
. "$(dirname "$0")/lib.sh"

quiet=${1:-}
if [ ! -d "$state" ]; then
    [ "$quiet" = --quiet ] || echo "slurm: nothing is up"
    exit 0
fi

# Jobs first: their processes are no children of the daemons, and nobody would end them later.
no_jobs() { [ -z "$(timeout 5 squeue --noheader)" ]; }
if daemon slurmctld >/dev/null; then
    # Twice: one that has just gone back into the queue may come out of it again.
    for _ in 1 2; do
        squeue --noheader --format=%A | sort -u | xargs --no-run-if-empty scancel --full || true
        if within 20 no_jobs; then break; fi
    done
fi
none_left() { [ -z "$(daemons)" ]; }
for signal in TERM KILL; do
    for name in $(daemons); do kill -$signal "$(daemon "$name")" 2>/dev/null || true; done
    if within 10 none_left; then break; fi
done
none_left || fail 1 "these do not end: $(daemons | tr '\n' ' ')"
# What holds a job's processes, and nobody has asked to end: where the daemons were killed with jobs under way.
for entry in /proc/[0-9]*; do
    if [[ $(cat "$entry/comm" 2>/dev/null) == slurmstepd ]] &&
        find "$entry/fd" -lname "$state/*" 2>/dev/null | grep -q .; then
        kill -KILL "${entry##*/}" 2>/dev/null || true
    fi
done
rm -rf "$state"
[ "$quiet" = --quiet ] || echo "slurm: down"
