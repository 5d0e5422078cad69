"""Texts, schemas and files that are almost right, by the example programs `fuzz_prepare` and `damage`."""

from called import EXAMPLES, OUT, call, ids
from damage import MEMORY_KB, lost, tried, without_message

SEED = 1
# Of each format; with the mutated files they are more than five million.
CASES = {"criteo": 1_600_000, "libfm": 1_600_000, "csv": 1_600_000, "schema": 300_000, "parquet": 10_000,
         "prepare": 2_000}
# Files of HDF5: ours and those of h5py.
MUTATIONS = 16_000, 4_000


def measure(show):
    print("== fuzz", flush=True)
    folder = OUT / "fuzz"
    asked = [f"{name}={cases}" for name, cases in CASES.items()]
    said = call("fuzz", EXAMPLES / "fuzz_prepare", folder, SEED, *asked, limit_kb=MEMORY_KB)
    found = ids(said)
    print("".join(f"   {line}\n" for line in said.splitlines()), end="", flush=True)
    cases = {name: found[f"fuzz_{name}_cases"] for name in CASES}
    failures = {name: found[f"fuzz_{name}_failures"] for name in CASES}
    for kind, mutations in zip(("ours", "foreign"), MUTATIONS):
        found_here, kept = tried(kind, 0, 0, mutations)
        name = f"hdf5_{kind}"
        cases[name] = found_here["mutations"]
        # A file without checksums may say something else, or end the library; then the program has to say so.
        wrong = ["unnamed", "panic"] + (["silent", "hang", "crash"] if kind == "ours" else [])
        failures[name] = sum(found_here[f"mutations_{outcome}"] for outcome in wrong)
        if kind == "foreign":
            failures[name] += without_message(lost(kept))
    for name in cases:
        show.row(fuzzed=name, cases=cases[name], failures=failures[name])
    show.at_least("fuzz_cases", sum(cases.values()), 5_000_000)
    show.at_most("fuzz_failures", sum(failures.values()), 0)
    show.measured("fuzz_peak_rss_mb", found["fuzz_peak_rss_mb"])
