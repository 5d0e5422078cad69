"""Jobs that lose a rank at random moments, supervised: tests/tests/kills.rs, which says what counts.

Python's standard library only. $KILLS says how many (60), $SEED which.
"""

import re
import subprocess
import sys

COUNTS = ("kills_tried", "kills_late", "kills_lost", "hangs", "unnamed", "unnamed_before_mpi", "shm_left")


def measure(show):
    print("== faults", flush=True)
    command = ["cargo", "test", "-q", "--workspace", "--test", "kills", "--", "--ignored", "--nocapture"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = {}
    for line in process.stdout:
        if re.match(r"(\d+|[a-z_]+ [a-z]+): ", line):
            print(f"   {line.rstrip()}", flush=True)
        name, _, count = line.strip().partition(" ")
        if name in COUNTS:
            found[name] = int(count)
    process.wait()
    if set(found) != set(COUNTS):
        sys.exit(f"show: {' '.join(command)} ended without its figures")
    show.at_least("kills_tried", found["kills_tried"], 60)
    for name in ("kills_lost", "hangs", "unnamed", "shm_left"):
        show.at_most(name, found[name], 0)
    for name in ("kills_late", "unnamed_before_mpi"):
        show.measured(name, found[name])
