"""Reads the recipe of Spack's and the definitions of Apptainer's as far as that goes without either program.

Spack's directives are run against stand-ins that note what they are told; a method that the recipe takes from Spack and
that is no stand-in is an error. Of Apptainer's definitions, the keys of headers and the names of sections.
"""

import re
import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def spack():
    """What the recipe tells Spack: dependencies, variants, versions; and what it would run."""
    told, ran = {"depends_on": [], "variant": [], "version": []}, []

    class Executable:
        def __init__(self, name):
            self.name, self.env = name, {}

        def add_default_env(self, name, value):
            self.env[name] = value

        def __call__(self, *arguments):
            ran.append((self.name, arguments, self.env))

    def passes(*arguments, **options):
        return lambda function: function

    stand_in = types.ModuleType("spack.package")
    for name, notes in told.items():
        setattr(stand_in, name, lambda spec, *rest, notes=notes, **options: notes.append((spec, options)))
    stand_in.license = lambda name: None
    stand_in.Package = type("Package", (), {})
    stand_in.Executable = Executable
    stand_in.which = lambda name, required: Executable(name)
    stand_in.join_path = lambda *parts: "/".join(map(str, parts))
    stand_in.run_after = stand_in.on_package_attributes = passes
    sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), stand_in
    path = HERE / "spack/packages/umbra/package.py"
    names = {"__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), names)

    recipe = names["Umbra"]()
    assert names["CHECKOUT"] == ROOT, f"the recipe takes {names['CHECKOUT']} for the checkout"
    needed = [spec for spec, _ in told["depends_on"]]
    assert any(spec.startswith("mpi@") for spec in needed) and any(spec.startswith("hdf5@") for spec in needed), needed
    rust = re.search(r'^rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    assert f"rust@{rust}:" in needed, f"the recipe is not for Rust {rust}: {needed}"
    conditions = {options["when"][1:] for _, options in told["depends_on"] if "when" in options}
    assert conditions <= {name for name, _ in told["variant"]}, conditions
    recipe.install(None, "/prefix")
    (cargo, words, _), (installer, _, environment) = ran
    assert cargo == "cargo" and "--locked" in words and (ROOT / installer).exists(), ran
    assert environment["PREFIX"] == "/prefix", environment
    return f"{len(needed)} dependencies, {len(told['variant'])} variant"


def apptainer(path):
    """The sections of a definition, each of which Apptainer knows."""
    sections = {"setup", "files", "post", "environment", "runscript", "startscript", "test", "labels", "help",
                "arguments"}
    keys = {"Bootstrap", "From", "Stage"}
    seen, inside = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("%"):
            name = line[1:].split()[0]
            assert name in sections, f"{path}:{number}: no section {name}"
            seen.append(name)
            inside = True
        elif line and not line.startswith(("#", " ")):
            key = line.split(":")[0]
            assert key in keys, f"{path}:{number}: neither a key of a header nor indented: {line}"
            assert not inside or key == "Bootstrap", f"{path}:{number}: a header begins with Bootstrap"
            inside = False
    assert seen.count("post") == 2 and "files" in seen and "environment" in seen, f"{path}: {seen}"
    return f"{len(seen)} sections"


def main():
    print("ok      the recipe of Spack's, against stand-ins:", spack())
    for path in sorted((HERE / "apptainer").glob("*.def")):
        print(f"ok      {path.name} of Apptainer's, its sections:", apptainer(path))


if __name__ == "__main__":
    main()
