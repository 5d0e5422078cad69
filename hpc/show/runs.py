"""Runs of umbra for a show, their data, and what they came to. $UMBRA names the program."""

import json
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path

from show import summary

UMBRA = os.environ["UMBRA"]
# Shows have more threads than machines have cores, also those that are run by hand, not by make.
os.environ.setdefault("UMBRA_ALLOW_OVERSUBSCRIBE", "1")
DATA = Path("runs/data")
FRAPPE = Path(os.environ.get("UMBRA_DATA", "../shared/data")) / "frappe"


def mpirun(ranks):
    return ["mpirun", "-n", str(ranks), "--bind-to", "none"]


def settings(sets):
    """Settings as arguments."""
    return [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]


def speed(figures):
    """Examples per second, each trainer by its own clock: trainers do not wait for each other at the end."""
    trainers = figures["sync"].get("trainers")
    # Under bsp all end together, and a trainer's steps are those of its slices.
    if not trainers or figures["sync"]["method"] == "bsp":
        return figures["examples"] / figures["seconds"]
    return sum(trainer["steps"] * figures["batch_size"] / trainer["seconds"] for trainer in trainers)


def falling(steps, share=0.5):
    """Settings of rates that fall to 0 over the last `share` of the steps of a run."""
    start = int(steps * (1 - share))
    return {f"optim.{kind}.{key}": value for kind in ("dense", "sparse") for key, value in (
        ("decay_start_step", start), ("decay_steps", steps - start), ("final_lr", 0))}


class Runs:
    """Runs whose folders and logs are in target/show/NAME."""

    def __init__(self, name):
        self.out = Path("target/show") / name
        self.out.mkdir(parents=True, exist_ok=True)
        DATA.mkdir(parents=True, exist_ok=True)

    def call(self, name, command):
        """Runs a command; its output is kept and shown only when it fails."""
        began = time.monotonic()
        log = self.out / f"{name}.log"
        with log.open("w") as out:
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
        if code != 0:
            tail = "\n".join(log.read_text().splitlines()[-15:])
            sys.exit(f"{tail}\nshow: {name} failed with exit code {code}; its log is {log}")
        print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)

    def train(self, name, job, sets, launch):
        """The summary of a training run."""
        sets = {"run.dir": str((self.out / name).resolve()), "run.overwrite": "true", **sets}
        self.call(name, [*launch, UMBRA, "train", "-c", str(Path(job).resolve()), *settings(sets)])
        return summary(self.out / name)

    def synth(self, name, rows, first=0):
        """A file of synthetic clicks."""
        # What lies there may be of another length.
        path = DATA / f"{name}-{rows}.h5"
        if not path.exists():
            self.call(f"synth-{name}", [UMBRA, "synth", "--preset", "small", "--rows", str(rows),
                                        "--first-row", str(first), "--output", str(path)])
        return str(path.resolve())

    def files(self, name):
        """Training and test files of `synthetic` or `frappe` as settings; `None` where there are none."""
        return {"synthetic": self.synthetic, "frappe": self.frappe}[name]()

    def synthetic(self):
        """8 million synthetic clicks to learn from and the 400 000 after them, as settings."""
        return {"data.train": self.synth("shadow_train", 8_000_000),
                "data.test": self.synth("shadow_test", 400_000, 8_000_000)}

    def frappe(self):
        """Frappe's training file and, to test on, its other two, as settings; `None` where the text is not.

        No run stops or is kept by the validation file here, and on three times as many rows chance makes less of a test.
        """
        files = self.frappe_files()
        if files is None:
            return None
        return {"data.train": files["train"], "data.test": json.dumps([files["valid"], files["test"]])}

    def frappe_files(self):
        """Frappe's three files by their splits; `None` where the text is not."""
        if not (FRAPPE / "train.libsvm.xz").exists():
            print(f"   no Frappe in {FRAPPE}: set UMBRA_DATA to the folder that has frappe/train.libsvm.xz")
            return None
        files, vocabulary = {}, []
        for split in ("train", "valid", "test"):
            output = DATA / f"shadow_frappe_{split}.h5"
            if not output.exists():
                text = self.out / f"{split}.libsvm"
                text.write_bytes(lzma.open(FRAPPE / f"{split}.libsvm.xz").read())
                self.call(f"prepare-{split}", [UMBRA, "prepare", "--format", "libfm", "--input", str(text),
                                               "--output", str(output), *vocabulary])
                text.unlink()
            files[split] = str(output.resolve())
            vocabulary = ["--vocabulary", files["train"]]
        return files
