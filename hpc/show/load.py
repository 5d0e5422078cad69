"""What others use of this machine while something is measured: cores, from /proc/stat.

    python3 load.py FILE COMMAND …

runs the command, with its exit code, and adds a line of JSON to FILE: {"command", "others_cores"}.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


class Load:
    """Cores that others used since it was made: /proc/stat without this process and its descendants."""

    def __init__(self):
        self.start = time.monotonic(), self.others()

    def cores(self):
        seconds, others = time.monotonic() - self.start[0], self.others() - self.start[1]
        return max(0.0, others / seconds)

    @staticmethod
    def others():
        user, nice, system, _, _, irq, softirq, *_ = (
            int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        )
        busy = user + nice + system + irq + softirq
        return (busy - ticks_of_tree(os.getpid())) / os.sysconf("SC_CLK_TCK")


def ticks_of_tree(pid):
    """CPU time of a process, of its ended children, and of its living descendants."""
    try:
        # The second field, a name in brackets, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except FileNotFoundError:  # Ended meanwhile; its parent has the time then.
        return 0
    return sum(map(int, fields[11:15])) + sum(map(ticks_of_tree, children))


def main(record, *command):
    load = Load()
    ended = subprocess.run(command).returncode
    with open(record, "a") as lines:
        lines.write(json.dumps({"command": command, "others_cores": load.cores()}) + "\n")
    sys.exit(ended if ended >= 0 else 128 - ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
