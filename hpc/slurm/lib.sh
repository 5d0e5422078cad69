# shellcheck shell=bash
# What the scripts of the Slurm on this machine share. Sourced by bash, with errexit on.
#
# It is Debian's real Slurm: munged, slurmctld and a slurmd per node, all on this host, with a configuration, a
# key, sockets and ports of their own. Neither systemd nor /etc/slurm has a part in it.
#
# The state folder ($state) has all of it:
#   slurm.conf, cgroup.conf, munge.key
#   pid/NAME         of munged, slurmctld, slurmd-n0, …; a process is ours if this folder is in its command line
#   log/NAME.log     what they say
#   control/, spool/nN, tmp/nN    of slurmctld and of the nodes

slurm_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
slurm_root=$(cd "$slurm_dir/../.." && pwd)
# One Slurm per checkout and user, and of those one per $UMBRA_SLURM. The path is short, since there are sockets in it.
slurm_number=$(cksum <<<"$UID $slurm_root${UMBRA_SLURM:+ $UMBRA_SLURM}" | cut -d' ' -f1)
state=/tmp/umbra-slurm-$slurm_number
# Debian has daemons where only root looks for programs.
export PATH=$PATH:/usr/sbin SLURM_CONF=$state/slurm.conf

# Ends the script: "fail CODE MESSAGE". 2 is a mistake in the command line, 5 a machine on which there can be no
# Slurm, 1 a Slurm that did not do as told.
fail() {
    echo "slurm/${0##*/}: $2" >&2
    exit "$1"
}

# The programs that everything here is made of, or exit 5.
need_slurm() {
    local program missing=()
    for program in munged slurmctld slurmd sinfo squeue scancel sbatch srun; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    # On Debian munge, slurmctld, slurmd and slurm-client bring them; the plugins are in the last.
    [ ${#missing[@]} = 0 ] || fail 5 "missing: ${missing[*]}; on Debian: apt-get install --no-install-recommends \
munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins"
}

# The process of a record in pid/, if it is still ours.
daemon() {
    local pid
    pid=$(cat "$state/pid/$1" 2>/dev/null) && [ -n "$pid" ] &&
        tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$state/" && echo "$pid"
}

# The names of the daemons that run.
daemons() {
    local record
    for record in "$state"/pid/*; do
        if daemon "${record##*/}" >/dev/null; then echo "${record##*/}"; fi
    done
}

# Polls a command for so many seconds: "within SECONDS COMMAND…".
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}
