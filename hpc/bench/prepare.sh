#!/usr/bin/env bash
# Speed of `umbra prepare` on Criteo-format text: whole command, on one core and on two.
#
#     hpc/bench/prepare.sh [ROWS]      default 1,700,000 rows, 415 MB
#
# Prints one JSON line. mb_per_cpu_second is megabytes (10^6) of text per second of user and system time
# on one core; the wall rates are of one core and of two; each the median of 3 runs. Other work on the cores
# costs caches, and so CPU time too: measure on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hpc/env.sh

rows=${1:-1700000}
folder=target/bench/prepare
target=${CARGO_TARGET_DIR:-target}
cargo build --release -q -p umbra-mpi --bin umbra
cargo build --release -q -p umbra-datasets --example criteo_text
mkdir -p "$folder"
text=$folder/criteo-$rows.tsv
[ -e "$text" ] || { "$target/release/examples/criteo_text" "$rows" "$text.partial" && mv "$text.partial" "$text"; }

UMBRA=$target/release/umbra TEXT=$text FOLDER=$folder ROWS=$rows python3 - <<'PYTHON'
import json, os, statistics, subprocess, time

text, rows = os.environ["TEXT"], int(os.environ["ROWS"])
output = os.environ["FOLDER"] + "/out.h5"
megabytes = os.path.getsize(text) / 1e6
command = [os.environ["UMBRA"], "prepare", "--format", "criteo", "--input", text, "--output", output, "--overwrite"]


def measure(cores):
    """CPU seconds, wall seconds and peak resident megabytes of one run on the first `cores` cores."""
    pinned = ["taskset", "-c", ",".join(map(str, range(cores)))]
    started = time.monotonic()
    process = subprocess.Popen(
        pinned + command, stdout=subprocess.DEVNULL, env=os.environ | {"RAYON_NUM_THREADS": str(cores)}
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"prepare failed: {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - started, usage.ru_maxrss / 1e3


def run(cores):
    samples = [measure(cores) for _ in range(3)]
    return [statistics.median(column) for column in zip(*samples)], samples


(cpu, wall, peak), samples = run(1)
result = {
    "bench": "prepare",
    "text_mb": round(megabytes, 1),
    "rows": rows,
    "mb_per_cpu_second": round(megabytes / cpu, 1),
    "mb_per_second": round(megabytes / wall, 1),
    "peak_rss_mb": round(peak, 1),
    "output_mb": round(os.path.getsize(output) / 1e6, 1),
    "cpu_seconds": [round(sample[0], 2) for sample in samples],
}
if (os.cpu_count() or 1) > 1:
    (cpu, wall, peak), _ = run(2)
    result |= {"mb_per_second_2_cores": round(megabytes / wall, 1), "peak_rss_mb_2_cores": round(peak, 1)}
os.remove(output)
print(json.dumps(result))
PYTHON
