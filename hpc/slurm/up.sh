#!/usr/bin/env bash
# A real Slurm on this machine, from nothing: NODES nodes of CPUS processors each.
#
#     hpc/slurm/up.sh [NODES [CPUS]]       1 2 unless told
#     hpc/slurm/run sbatch …               a command of Slurm's on it
#     hpc/slurm/down.sh
#
# Nodes are names: all share the cores, and may together have more processors than the machine. What is up is
# taken down first, and its jobs with it. Tried as root only.
#
# Steps over two such nodes are for trying things: a few of a thousand starts hang or crash in MPI's start or end,
# of a program that does nothing else, too (Open MPI 4.1.4, TCP on one host). Within a node none did.
set -euo pipefail
# shellcheck source=hpc/slurm/lib.sh
. "$(dirname "$0")/lib.sh"

nodes=${1:-1} cpus=${2:-2}
for number in "$nodes" "$cpus"; do
    [[ $number =~ ^[1-9][0-9]?$ ]] || fail 2 "'$number' is no number from 1 to 99; see the head of $0"
done
need_slurm
"$slurm_dir/down.sh" --quiet

# munged wants its socket within everybody's reach. The key is not.
mkdir -m 711 "$state"
mkdir "$state"/{pid,log,control,spool,tmp}
host=$(uname -n)
# Ports below those that the system gives to whoever asks for any.
port=$((10000 + slurm_number % 20000))
{
    cat <<CONF
ClusterName=umbra
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
# A job that goes back into the queue rests until its credential has expired, two minutes unless told.
AuthInfo=socket=$state/munge.socket,cred_expire=5
StateSaveLocation=$state/control
SlurmctldPidFile=$state/pid/slurmctld
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdPidFile=$state/pid/slurmd-%n
SlurmdLogFile=$state/log/slurmd-%n.log
SlurmdSpoolDir=$state/spool/%n
# The PMIx plugins of two nodes would meet in one folder.
TmpFS=$state/tmp/%n
# Plain processes: no control groups, no accounting.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=3,sched_min_interval=0
# Nodes may have more processors than the machine.
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdTimeout=10
PropagateResourceLimits=NONE
PartitionName=umbra Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    for ((node = 0; node < nodes; node++)); do
        echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1 + node)) CPUs=$cpus"
    done
} >"$state/slurm.conf"
# Asked for by slurmd even where nothing uses control groups.
echo CgroupPlugin=cgroup/v1 >"$state/cgroup.conf"

# What a daemon says before it has its log, and the end of the log: "start NAME COMMAND…".
start() {
    local name=$1
    shift
    "$@" </dev/null >"$state/log/$name.start" 2>&1 && within 10 daemon "$name" >/dev/null ||
        give_up "$name did not start" "$name"
}
give_up() {
    {
        cat "$state/log/$2.start"
        tail -n 5 "$state/log/$2.log" || true
    } >&2
    "$slurm_dir/down.sh" --quiet
    fail 1 "$1"
}
all_idle() { [ "$(timeout 5 sinfo --noheader --states=idle --format=%D 2>/dev/null)" = "$nodes" ]; }

(umask 077 && head -c 128 /dev/urandom >"$state/munge.key")
start munged munged --key-file="$state/munge.key" --socket="$state/munge.socket" \
    --pid-file="$state/pid/munged" --log-file="$state/log/munged.log" --seed-file="$state/munge.seed"
start slurmctld slurmctld -f "$SLURM_CONF"
for ((node = 0; node < nodes; node++)); do
    mkdir "$state/spool/n$node" "$state/tmp/n$node"
    start "slurmd-n$node" slurmd -f "$SLURM_CONF" -N "n$node"
done
within 30 all_idle || give_up "not all nodes came up: $(sinfo --noheader --format='%D %T' | tr '\n' ';')" slurmctld
# The ranks of a step find each other by PMIx: Debian's Open MPI knows no other way.
srun --mpi=list 2>&1 | grep -qw pmix || give_up "this Slurm has no plugin pmix" slurmctld
echo "slurm: $(slurmctld -V), $nodes nodes of $cpus processors; hpc/slurm/run COMMAND…"
