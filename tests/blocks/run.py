#!/usr/bin/env python3
"""Runs the code blocks of README.md and docs/, as a reader would, and says which do not do what they say.

    python3 tests/blocks/run.py [--umbra PROGRAM] [--keep] [-v] [DOCUMENT…]

Each document has an empty folder and an empty home of its own, and an environment with nothing but hpc/env.sh and a PATH with
`umbra` and `mpirun`. Its blocks run in order, in one shell after the other that goes on with the folder and the variables of the
one before. What the comments before blocks mean is in blocks.py. Prints `code_blocks_run`, `code_blocks_failed` and
`code_blocks_skipped`, and why each was skipped; exits 1 where one failed.

Python's standard library only. Blocks of Python run with the first of $UMBRA_PEERS_PYTHON, target/peers/venv and python3 that has what
they import. No block runs longer than LIMIT_S.
"""

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
from blocks import Mistake, blocks_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
# Of other programs that a block may want: where one is missing, the block cannot be run.
FOREIGN = ("sbatch", "srun", "scontrol", "sinfo", "squeue", "module", "spack", "apptainer")
# What a part of a job file leaves out, that a job must have.
JOB = {
    "data.train": "train.h5",
    "model.kind": "deepfm",
    "model.embedding_dim": 8,
    "model.top": [128, 128],
    "optim.dense.kind": "adagrad",
    "optim.dense.lr": 0.01,
    "optim.sparse.kind": "rowwise_adagrad",
    "optim.sparse.lr": 0.05,
    "train.worker_threads": 1,
}


class Skip(Exception):
    """Why a block cannot be run here."""


class Failed(Exception):
    """What a block did instead."""


class Shell:
    """A folder, a home and an environment that commands run in, one after the other."""

    def __init__(self, folder, umbra, data):
        self.home, self.work, self.state = folder / "home", folder / "work", folder / "state"
        tools = folder / "bin"
        for path in (self.home, self.work, tools):
            path.mkdir(parents=True)
        (tools / "umbra").symlink_to(umbra)
        path = [str(tools), "/usr/local/bin", "/usr/bin", "/bin"]
        mpirun = shutil.which("mpirun")
        if mpirun and str(Path(mpirun).parent) not in path:
            path.insert(1, str(Path(mpirun).parent))
        self.environment = {"PATH": ":".join(path), "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb"}
        if "LD_LIBRARY_PATH" in os.environ:
            self.environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        self.data = data
        self.where = folder / "where"
        self.where.write_text(str(self.work))
        self.state.write_text(f"cd '{ROOT}'\n. hpc/env.sh\n")

    @property
    def folder(self):
        """Where the next command starts."""
        return Path(self.where.read_text())

    def parse(self, text):
        """Looks at lines of bash without running them."""
        parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, timeout=LIMIT_S, check=False)
        if parsed.returncode:
            raise Failed(f"is not run, and not bash either: {parsed.stderr}")

    def run(self, text):
        """Runs lines of bash: their exit code and what they printed."""
        script = self.state.with_name("script")
        # What the lines export, and the folder in which they end, is what the next begin with.
        script.write_text(
            f"set -euo pipefail\n. '{self.state}'\ncd '{self.folder}'\n"
            f"trap 'export -p > {self.state}.new; printf %s \"$PWD\" > {self.where}' EXIT\n{text}"
        )
        output = self.state.with_name("output")
        with output.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", str(script)],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Failed(f"still running after {LIMIT_S} s") from None
        new = Path(f"{self.state}.new")
        if new.exists():
            new.replace(self.state)
        return (128 - code if code < 0 else code), output.read_text(errors="replace")


def tail(output, lines=30):
    """The end of what was printed, indented."""
    return "".join(f"        {line}\n" for line in output.splitlines()[-lines:])


def loose(line):
    """A line without what differs from run to run: numbers, sums, widths."""
    line = re.sub(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{16,}\b", "#", line)
    line = re.sub(r"[-+]?(?:\d[\d_,]*)?\.?\d+(?:[eE][-+]?\d+)?", "#", line)
    return re.sub(r"\s+", " ", re.sub(r"[─-╿]+", "", line)).strip()


def missing_line(expected, output):
    """The first line of `expected` that `output` does not have after the one before it. `…` stands for anything."""
    printed = [loose(line) for line in output.splitlines()]
    at = 0
    for line in expected.splitlines():
        if not line.strip() or line.strip() == "…":
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in loose(line).split("…")))
        while at < len(printed) and not pattern.fullmatch(printed[at]):
            at += 1
        if at == len(printed):
            return line
        at += 1
    return None


class Document:
    """The blocks of one document, and what the ones before have left."""

    def __init__(self, shell, verbs):
        self.shell, self.verbs = shell, verbs
        self.printed, self.python_lines = None, ""

    def run(self, block):
        """Runs one block, or raises `Skip` or `Failed`."""
        says = block.clauses
        if "skip" in says:
            if block.language == "sh":
                self.shell.parse(block.text)
            raise Skip(says["skip"])
        if "if" in says and says["if"].split()[-1] not in self.verbs:
            raise Skip(f"the program has no verb `{says['if'].split()[-1]}`")
        if "same" in says:
            return self.same(block, says["same"])
        if "file" in says:
            path = self.shell.folder / says["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        return getattr(self, block.language)(block)

    def sh(self, block):
        self.printed = None
        for name in FOREIGN:
            if re.search(rf"(^|[|&;] *|-- ){name}\b", block.text, re.M) and not shutil.which(name):
                raise Skip(f"no {name} here")
        code, output = self.shell.run(block.text)
        expected = int(block.clauses.get("exit", 0))
        if code != expected:
            raise Failed(f"exit code {code}, expected {expected}:\n{tail(output)}")
        self.printed = output

    def text(self, block):
        if "file" in block.clauses:
            return
        if self.printed is None:
            raise Skip("the command whose output this is was not run")
        line = missing_line(block.text, self.printed)
        if line is not None:
            raise Failed(f"is not printed: {line}\n      but:\n{tail(self.printed)}")

    def json(self, block):
        self.text(block)

    def toml(self, block):
        says = block.clauses
        try:
            parsed = tomllib.loads(block.text)
        except tomllib.TOMLDecodeError as error:
            raise Failed(f"not valid TOML: {error}") from None
        if "schema" in says:
            command = f"umbra prepare --format csv --schema '{{}}' --input '{says['schema']}' --output block.h5 --overwrite"
        elif "cluster" in says:
            command = f"umbra simulate --cluster '{{}}' {self.sets({})} --set run.dir=block --set run.overwrite=true"
        elif "file" in says:
            return  # Commands of the document use it.
        else:
            command = f"umbra train -c '{{}}' --dry-run --ranks {says.get('ranks', 4)} {self.sets(parsed)}"
        path = self.shell.state.with_name("block.toml")
        path.write_text(block.text)
        code, output = self.shell.run(command.format(path))
        if code:
            raise Failed(f"exit code {code} of {command.format('BLOCK')}:\n{tail(output)}")

    def sets(self, parsed):
        """What a job has to say beside `parsed`."""
        words = []
        for key, value in JOB.items():
            inner = parsed
            for name in key.split("."):
                inner = inner.get(name) if isinstance(inner, dict) else None
            if key == "data.train" and (inner is None or not (self.shell.folder / str(inner)).exists()):
                words.append(f"--set 'data.train={self.shell.data}' --set 'data.valid={self.shell.data}'")
            elif inner is None:
                words.append(f"--set '{key}={value}'")
        return " ".join(words)

    def python(self, block):
        self.python_lines = (self.python_lines if "after" in block.clauses else "") + block.text
        if "file" in block.clauses:
            return
        program = python_with(imports(self.python_lines))
        lines = self.shell.state.with_name("block.py")
        lines.write_text(self.python_lines)
        self.printed = None
        code, output = self.shell.run(f"'{program}' -B '{lines}' {block.clauses.get('args', '')}")
        if code:
            raise Failed(f"exit code {code}:\n{tail(output)}")
        self.printed = output

    def same(self, block, file):
        """Every line of the block stands in `file`, in its order."""
        lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
        at = 0
        for line in filter(None, map(str.strip, block.text.splitlines())):
            if line not in lines[at:]:
                raise Failed(f"{file} does not have the line: {line}")
            at += lines[at:].index(line) + 1

    def rust(self, block):
        raise Failed("a block of Rust needs <!-- run: same FILE --> or a skip")


def imports(lines):
    """The modules that lines of Python import, but for those that every Python has."""
    names = set()
    for node in ast.walk(ast.parse(lines)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return sorted(names - sys.stdlib_module_names)


def python_with(modules):
    """The first Python that has them all."""
    candidates = [os.environ.get("UMBRA_PEERS_PYTHON"), ROOT / "target/peers/venv/bin/python", sys.executable]
    for program in filter(None, candidates):
        if not shutil.which(program):
            continue
        test = [program, "-c", "import " + ", ".join(modules or ["sys"])]
        if subprocess.run(test, capture_output=True, timeout=LIMIT_S, check=False).returncode == 0:
            return program
    raise Skip(f"no Python with {', '.join(modules)} here")


def documents(names):
    """The documents to run: those that are named, else README.md and all of docs/."""
    if names:
        return [Path(name).resolve() for name in names]
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main():
    parser = argparse.ArgumentParser(description="Run the code blocks of README.md and docs/.")
    parser.add_argument("--umbra", type=Path, help="the program; default: $UMBRA, else target/release/umbra")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the documents, and say where they are")
    parser.add_argument("-v", "--verbose", action="store_true", help="say of every block how long it took")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT")
    options = parser.parse_args()
    umbra = options.umbra or Path(os.environ.get("UMBRA") or ROOT / "target/release/umbra")
    if not umbra.is_file():
        sys.exit(f"test-docs: {umbra} is not there; `make build` makes it, --umbra names another")
    umbra = umbra.resolve()
    helps = subprocess.run([umbra, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    verbs = re.findall(r"^  ([a-z]+)  ", helps, re.M)

    top = Path(tempfile.mkdtemp(prefix="umbra-docs-"))
    count = {"run": 0, "failed": 0, "skipped": 0}
    reasons, begin = {}, time.monotonic()
    try:
        data = top / "block.h5"
        subprocess.run([umbra, "synth", "--rows", "4096", "--output", data], capture_output=True, timeout=LIMIT_S, check=True)
        for number, path in enumerate(documents(options.documents)):
            name = os.path.relpath(path, ROOT)
            try:
                blocks = blocks_of(name, path.read_text())
            except Mistake as mistake:
                print(f"FAILED {mistake}")
                count["failed"] += 1
                continue
            document = Document(Shell(top / str(number), umbra, data), verbs)
            for block in blocks:
                since = time.monotonic()
                try:
                    document.run(block)
                    what = "run"
                except Skip as skip:
                    what = "skipped"
                    reasons.setdefault(str(skip), []).append(block.place)
                except Failed as failed:
                    what = "failed"
                    print(f"FAILED {block.place} ({block.language}): {failed}")
                if not block.hidden or what == "failed":
                    count[what] += 1
                    count["run"] += what == "failed"
                if options.verbose:
                    print(f"{what:7} {time.monotonic() - since:6.1f} s  {block.place} {block.language}", flush=True)
    finally:
        if options.keep:
            print(f"folders: {top}")
        else:
            shutil.rmtree(top, ignore_errors=True)
    for reason, places in reasons.items():
        print(f"skipped {len(places):3}  {reason}: {', '.join(places)}")
    print(f"seconds {time.monotonic() - begin:.0f}")
    for what, value in count.items():
        print(f"code_blocks_{what} {value}")
    sys.exit(1 if count["failed"] else 0)


main()
