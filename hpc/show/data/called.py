"""Programs that the phases of `make show-data` call, and what they print."""

import os
import subprocess
import sys
import time
from pathlib import Path

UMBRA = os.environ["UMBRA"]
EXAMPLES = Path(os.environ["EXAMPLES"])
OUT = Path("target/show/data").resolve()
OUT.mkdir(parents=True, exist_ok=True)

# A model that any data can train, but for `data.train`.
SMALL_JOB = """
[model]
kind = "deepfm"
embedding_dim = 4
top = [8]
[optim.dense]
kind = "sgd"
lr = 0.01
[optim.sparse]
kind = "adagrad"
lr = 0.05
[checkpoint]
save = "none"
[run]
tensorboard = false
"""


def call(name, *command, environment=(), limit_kb=None):
    """What a command prints; ends the show when it fails. Of memory it may have `limit_kb`."""
    began = time.monotonic()
    command = [str(part) for part in command]
    if limit_kb:
        command = ["sh", "-c", f'ulimit -v {limit_kb}; exec "$@"', "sh", *command]
    added = {key: str(value) for key, value in dict(environment).items()}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **added})
    (OUT / f"{name}.log").write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        sys.exit(f"{tail}\nshow: {name} ended with {done.returncode}; its log is {OUT / name}.log")
    print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)
    return done.stdout


def ids(said):
    """Lines of `id value`."""
    found = {}
    for line in said.splitlines():
        words = line.split()
        if len(words) == 2:
            try:
                found[words[0]] = float(words[1]) if "." in words[1] or "e" in words[1] else int(words[1])
            except ValueError:
                pass
    return found
