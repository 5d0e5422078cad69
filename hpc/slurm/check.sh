#!/usr/bin/env bash
# Whether job scripts and launches do under a real Slurm what they say. On a Slurm of its own, which goes down again,
# beside one that may be up, and with copies of the scripts outside of this checkout. A line for each check; about
# two minutes.
#
#     hpc/slurm/check.sh            UMBRA=path of the program, if it is built already
set -euo pipefail
export UMBRA_SLURM=check
# shellcheck source=hpc/slurm/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$slurm_root"
hpc/setup.sh --quiet slurm
# shellcheck source=hpc/env.sh
. hpc/env.sh

if [ -z "${UMBRA:-}" ]; then
    cargo build --quiet -p umbra-mpi --bin umbra
    UMBRA=${CARGO_TARGET_DIR:-target}/debug/umbra
fi
UMBRA=$(realpath "$UMBRA")
export UMBRA
work=$(mktemp -d)
trap '"$slurm_dir/down.sh" --quiet; rm -rf "$work"' EXIT
cp hpc/jobs/*.sbatch "$work"
run=$slurm_dir/run
"$slurm_dir/up.sh" 2 4
cd "$work"

passed=0 failed=0
# "check WHAT COMMAND…": a line, and when the command fails the end of the newest log.
check() {
    local what=$1
    shift
    if "$@"; then
        echo "ok      $what"
        passed=$((passed + 1))
        return
    fi
    echo "FAILED  $what"
    failed=$((failed + 1))
    for log in log/*; do
        if [ "$log" -nt mark ]; then tail -n 20 "$log" | sed "s|^|        $log: |"; fi
    done
}
# What Slurm says of a job, or of each task of an array: "STATE EXIT:SIGNAL RESTARTS".
states() {
    "$run" scontrol --oneliner show job "$1" |
        sed -E 's/.*JobState=([A-Z_]+).*Restarts=([0-9]+).* ExitCode=([0-9:]+).*/\1 \3 \2/'
}
over() { ! states "$1" | grep -qvE '^(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|OUT_OF_MEMORY|DEADLINE)'; }
# Waits for a job's end, and says how it ended.
ended() {
    within 240 over "$1" || { "$run" scancel "$1"; echo "job $1 did not end"; return; }
    states "$1" | sort -u
}
# Submits with the logs of this check; the number of the job.
submit() {
    touch mark
    "$run" sbatch --parsable --output="log/%x-%j.log" --time=10 "$@"
}
one() { submit --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 "$@"; }
is() { [ "$1" = "$2" ] || { echo "        '$1' instead of '$2'"; false; }; }
says() { grep -qF -e "$1" log/*-"$2".log; }
# A figure of a run's summary, as a Python expression of "it".
figure() { python3 -c 'import json, sys; it = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1/summary.json" "$2"; }
# "done_with RUN EXPRESSION VALUE"
done_with() { is "$(figure "$1" "it['status'], $2")" "('done', $3)"; }

# --- data and a job ------------------------------------------------------------------------------
mkdir log
awk 'BEGIN { srand(7); for (row = 0; row < 6000; row++) {
    user = int(rand() * 50); item = int(rand() * 80)
    print (rand() < (user + item) % 5 / 5), user ":1", (100 + item) ":1" } }' >all.txt
head -n 5000 all.txt >train.txt
tail -n 1000 all.txt >test.txt
cat >job.toml <<'END'
data = { train = "train.h5", test = "test.h5" }
model = { kind = "deepfm", embedding_dim = 8, top = [16] }
optim = { dense = { kind = "adam", lr = 1e-3 }, sparse = { kind = "rowwise_adagrad", lr = 0.05 } }
train = { batch_size = 64, worker_threads = 1 }
run = { watchdog_s = 120, tensorboard = false }
END

# --- preparing, and jobs that wait for it ---------------------------------------------------------
small=(--cpus-per-task=1)
wait_for() { echo "--dependency=afterok:$1"; }
train=$(submit "${small[@]}" prepare.sbatch --format libfm --input train.txt --output train.h5)
test=$(submit "${small[@]}" "$(wait_for "$train")" --kill-on-invalid-dep=yes prepare.sbatch --format libfm \
    --input test.txt --output test.h5 --vocabulary train.h5)
job=$(one "$(wait_for "$test")" --kill-on-invalid-dep=yes train.sbatch job.toml run.dir=runs/chain)
check "prepare.sbatch, two of them one after the other" is "$(ended "$train"; ended "$test")" $'COMPLETED 0:0 0\nCOMPLETED 0:0 0'
check "a training that waited for its data" is "$(ended "$job")" "COMPLETED 0:0 0"
check "its run is done, on 2 ranks" done_with runs/chain "it['ranks']" 2
bad=$(submit "${small[@]}" prepare.sbatch --format libfm --input absent.txt --output absent.h5)
never=$(one "$(wait_for "$bad")" --kill-on-invalid-dep=yes train.sbatch job.toml run.dir=runs/never)
check "a failed preparation is exit 3" is "$(ended "$bad")" "FAILED 3:0 0"
check "and what waited for it never starts" is "$(ended "$never"; ls -d runs/never 2>&1 | wc -l)" $'CANCELLED 0:0 0\n1'

# --- one node, many nodes, roles, arrays ---------------------------------------------------------
job=$(one one-node.sbatch job.toml run.dir=runs/one)
check "one-node.sbatch" is "$(ended "$job")" "COMPLETED 0:0 0"
check "its run is done, on 2 ranks" done_with runs/one "it['ranks']" 2
job=$(submit --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 train.sbatch job.toml run.dir=runs/%j)
check "train.sbatch on two nodes" is "$(ended "$job")" "COMPLETED 0:0 0"
check "its run has the job's number, and 2 ranks" done_with "runs/$job" "it['ranks']" 2

# Options of the command line are the first component's; the second has those of its header.
sed -E 's/--nodes=[0-9]+/--nodes=1/; s/--cpus-per-task=[0-9]+/--cpus-per-task=1/; s/--time=[0-9:]+/--time=10/
    1,/hetjob/ s/--ntasks-per-node=1/--ntasks-per-node=2/; s|^(#SBATCH --output=).*|\1log/%x-%j.log|' \
    roles.sbatch >roles-small.sbatch
touch mark
job=$("$run" sbatch --parsable roles-small.sbatch job.toml run.dir=runs/roles)
check "roles.sbatch: two trainers, an embedding PS on another node" is "$(ended "$job")" "COMPLETED 0:0 0"
check "its run is one of 3 ranks" done_with runs/roles "it['ranks']" 3
check "and of these roles" is "$(grep -E '^(layout|trainers|embedding_ps) ' runs/roles/config.toml | tr -d '\n "')" \
    "layout=separatetrainers=2embedding_ps=1"

for dim in 4 8 16; do echo "model.embedding_dim=$dim seed=$dim"; done >settings.txt
array=$(submit --array=1-3 --cpus-per-task=1 sweep.sbatch job.toml settings.txt)
check "sweep.sbatch: an array of three" is "$(ended "$array")" "COMPLETED 0:0 0"
dims=$(grep -h '^embedding_dim' runs/sweep-"$array"/[123]/config.toml | tr -dc '0-9\n' | tr '\n' ' ')
check "each with its line and its folder" is "$dims" "4 8 16 "
job=$(submit --array=4 --cpus-per-task=1 sweep.sbatch job.toml settings.txt)
check "a task without a line is exit 2" is "$(ended "$job")" "FAILED 2:0 0"

# --- a slot that ends ----------------------------------------------------------------------------
long=(train.batch_size=8 train.epochs=8 sync.method=bsp checkpoint.every=100)
whole=$(one train.sbatch job.toml run.dir=runs/whole "${long[@]}")
ended "$whole" >/dev/null
job=$(one train.sbatch job.toml run.dir=runs/stopped "${long[@]}")
saved() { [ -e runs/stopped/checkpoints/LATEST ]; }
check "a run saves as it goes" within 120 saved
"$run" scancel --signal=USR1 "$job"
check "a signal, a checkpoint, and back into the queue once" is "$(ended "$job")" "COMPLETED 0:0 1"
check "what is learnt is what a run without the signal learns" \
    is "$(figure runs/stopped "it['test']")" "$(figure runs/whole "it['test']")"
job=$(one train.sbatch job.toml run.dir=runs/lost data.train=absent.h5)
check "another exit code does not go back into the queue" is "$(ended "$job")" "FAILED 3:0 0"
# A program that is stopped twice, and then done.
cat >twice <<'END'
#!/bin/sh
echo start >>starts
[ "$(wc -l <starts)" -gt 2 ] || exit 75
END
chmod +x twice
job=$(UMBRA=$work/twice submit --nodes=1 --ntasks=1 --cpus-per-task=1 train.sbatch job.toml)
check "exit 75 goes back into the queue as often as it comes" is "$(ended "$job")" "COMPLETED 0:0 2"

# --- launches ------------------------------------------------------------------------------------
job=$(submit --ntasks=1 --wrap="'$UMBRA' train -c job.toml --set run.dir=runs/bare")
check "bare umbra in a batch script of one task" is "$(ended "$job")" "COMPLETED 0:0 0"
job=$(submit --nodes=1 --ntasks=2 --wrap="'$UMBRA' train -c job.toml --set run.dir=runs/bare-2")
check "of two tasks it is refused, exit 5" is "$(ended "$job")" "FAILED 5:0 0"
check "with a cure" says "UMBRA_ALLOW_SINGLETON=1" "$job"
job=$(submit --nodes=1 --ntasks=2 --wrap="mpirun -n 2 '$UMBRA' train -c job.toml --set run.dir=runs/mpirun")
check "mpirun in the batch script" is "$(ended "$job")" "COMPLETED 0:0 0"
check "its run is one of 2 ranks" done_with runs/mpirun "it['ranks']" 2
for plugin in none pmi2; do
    status=0
    touch mark
    "$run" srun --mpi=$plugin -N1 -n2 "$UMBRA" train -c job.toml --set run.dir=runs/$plugin &>log/srun-$plugin.log ||
        status=$?
    check "srun --mpi=$plugin of two tasks is refused, exit 5" is $status 5
    check "with one message and a cure" is "$(grep -c 'srun --mpi=pmix' log/srun-$plugin.log)" 1
done
status=0
touch mark
"$run" srun --mpi=pmix -N1 -n2 "$UMBRA" doctor &>log/doctor.log || status=$?
check "umbra doctor of two ranks under srun" is "$status $(grep -c 'launch .* 2 ranks' log/doctor.log)" "0 1"
job=$(UMBRA=no-such-program one train.sbatch job.toml)
check "a program that is not there is exit 5" is "$(ended "$job")" "FAILED 5:0 0"
check "with a cure" says "or set UMBRA" "$job"

# --- docs/cluster.md ------------------------------------------------------------------------------
# The blocks of shell under "Under Slurm", one after the other, with umbra installed.
PREFIX=$work/umbra "$slurm_root/hpc/install.sh" >/dev/null
mkdir -p doc
cp job.toml train.txt test.txt doc
# Whoever reads on waits until the jobs of a block are done.
awk '/^## / { meant = /Under Slurm/ } meant && /^```sh$/ { inside = 1; next }
    inside && /^```$/ { inside = 0; print "all_done" } inside' \
    "$slurm_root/docs/cluster.md" >doc/commands
no_jobs() { [ -z "$("$run" squeue --noheader)" ]; }
all_done() { within 120 no_jobs; }
read_out() (
    cd doc
    unset UMBRA
    export UMBRA_ROOT=$work/umbra PATH=$work/umbra/bin:$PATH
    export -f all_done no_jobs within && export run
    "$run" bash -euxo pipefail commands &>../log/commands.log || echo "exit $?"
    # Their jobs wait for each other, and have folders of their own.
    for job in $(sed -n 's/^Submitted batch job //p' ../log/commands.log); do ended "$job"; done | sort | uniq -c
)
touch mark
check "the commands of docs/cluster.md: five jobs, arrays included" \
    is "$(read_out)" "      5 COMPLETED 0:0 0"
check "each left a run that is done" is "$(grep -l '"status": *"done"' doc/runs/*/summary.json doc/runs/*/*/summary.json |
    wc -l)" 9

mpich=$slurm_root/${CARGO_TARGET_DIR:-target}/mpich/debug/umbra
if [ -x "$mpich" ]; then
    job=$(UMBRA=$mpich SLURM_MPI_TYPE=pmi2 submit --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 train.sbatch \
        job.toml run.dir=runs/mpich)
    check "train.sbatch on two nodes, MPICH and pmi2" is "$(ended "$job")" "COMPLETED 0:0 0"
    check "its run is one of 2 ranks" done_with runs/mpich "it['ranks']" 2
    touch mark
    job=$(UMBRA=$mpich SLURM_MPI_TYPE=pmi2 "$run" sbatch --parsable roles-small.sbatch job.toml run.dir=runs/mpich-roles)
    check "roles.sbatch, MPICH and pmi2" is "$(ended "$job")" "COMPLETED 0:0 0"
    check "its run is one of 3 ranks" done_with runs/mpich-roles "it['ranks']" 3
    status=0
    touch mark
    "$run" srun --mpi=pmix -N1 -n2 "$mpich" train -c job.toml --set run.dir=runs/mpich-2 &>log/srun-mpich.log || status=$?
    check "MPICH under srun --mpi=pmix is refused, exit 5" is $status 5
    check "with its own cure" says "srun --mpi=pmi2" mpich
else
    echo "skipped: MPICH under Slurm: there is no target/mpich/debug/umbra (make test MPI=mpich)"
fi

"$slurm_dir/down.sh" --quiet
check "nothing is left behind" is "$(ls -d "$state" 2>/dev/null)" ""
echo "slurm: $SECONDS s"
echo "slurm: $passed passed, $failed failed"
[ $failed = 0 ]
