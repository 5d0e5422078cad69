"""Eight runs, one page: `umbra report` on runs of several methods, two of which did not come to their end, opened in
headless Chromium at two widths, light and dark.

Python's standard library only. $UMBRA names the program, $CHROMIUM the browser (default: chromium). Runs, page and
screenshots go to target/show/report. Prints `report_console_errors N`: whatever the page said on the console as an
error, every exception nobody caught, every request that was made for anything but the page. That such a thing is
counted is tried first, on a page that does all three. Exit code 5: there is no browser.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from browser import Browser
from runs import UMBRA, Runs, mpirun, settings
from show import Show
from stopped import ranks_of, wait_for

ROWS, VALID_ROWS, TEST_ROWS = 240_000, 30_000, 60_000
WIDTHS = (400, 1600)

JOB = """seed = 1
[model]
kind = "dlrm"
embedding_dim = 8
bottom = [64, 8]
top = [128, 64]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[train]
batch_size = 128
epochs = 2
worker_threads = 1
eval_every = 200
[checkpoint]
every = 300
[run]
tensorboard = false
log_every_s = 0.2
"""

# What of the job is another in each run, and the signal that ends it early.
RUNS = {
    "bsp": ({"sync.method": "bsp", "run.trace": "true"}, None),
    "local-sgd": ({"sync.method": "local_sgd", "sync.every": 16}, None),
    "shadow-easgd": ({"sync.method": "shadow_easgd"}, None),
    "shadow-ma": ({"sync.method": "shadow_ma"}, None),
    "gba": ({"sync.method": "gba"}, None),
    "async-ps": ({"sync.method": "async_ps"}, None),
    "bsp-stopped": ({"sync.method": "bsp", "optim.dense.lr": 0.005, "train.epochs": 50}, signal.SIGUSR1),
    "shadow-bmuf-killed": ({"sync.method": "shadow_bmuf", "train.epochs": 50}, signal.SIGKILL),
}


def train(runs, name, data):
    """One run. A signal goes to its second rank, once there are figures to show."""
    sets, ends_by = RUNS[name]
    folder, job_file = runs.out / "runs" / name, runs.out / "job.toml"
    shutil.rmtree(folder, ignore_errors=True)
    job_file.write_text(JOB)
    sets = {**data, "run.dir": str(folder.resolve()), **sets}
    command = [*mpirun(2), UMBRA, "train", "-c", str(job_file.resolve()), *settings(sets)]
    log = runs.out / f"{name}.log"
    with log.open("w") as out:
        job = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            if ends_by:
                metrics = folder / "metrics.jsonl"
                wait_for("figures", job, lambda: metrics.read_text().count('"valid"') >= 3)
                os.kill(wait_for("all ranks", job, lambda: ranks_of(job))[1], ends_by)
            code = job.wait(timeout=600)
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(timeout=60)
    if (code == 0) != (ends_by is None):
        sys.exit(f"report: {name} ended with {code}; its log is {log}")


BAD_PAGE = """<!DOCTYPE html><title>bad</title><script>
console.error("said");
fetch("http://example.invalid/").catch(() => {});
throw new Error("thrown");
</script>"""


def counted(runs, browser):
    """Whether errors are counted at all: a page that does each of them once."""
    page = runs.out / "bad.html"
    page.write_text(BAD_PAGE)
    browser.open(page, 400)
    found = [any(what in error for error in browser.errors) for what in ("said", "thrown", "a request for http://")]
    if not all(found):
        sys.exit(f"report: an error on a page was not counted: {browser.errors}")


def looked_at(runs, browser, page):
    """What went wrong on the page at all widths, in both themes; and how often it was wider than its window."""
    errors, wide = [], 0
    for width in WIDTHS:
        for dark in (False, True):
            theme = "dark" if dark else "light"
            browser.open(page, width, dark)
            # All that a reader can press, and a walk through every chart.
            browser.run(EVERYTHING)
            charts, drawn = browser.run("[document.querySelectorAll('.plot').length, "
                                        "document.querySelectorAll('.plot canvas').length]")
            shown = browser.run("document.documentElement.dataset.theme")
            if charts < 8 or drawn != charts or shown != theme:
                errors.append(f"{width} {theme}: {drawn} of {charts} charts are drawn, in the theme {shown}")
            wide += browser.run("document.documentElement.scrollWidth > innerWidth")
            browser.picture(runs.out / f"report-{width}-{theme}.png")
            errors += browser.errors
    return errors, wide


EVERYTHING = """(() => {
    const press = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    for (const button of document.querySelectorAll("thead button, .chip")) { button.click(); button.click(); }
    const [axes, smoothing] = document.querySelectorAll(".segments");
    for (const buttons of [axes, smoothing]) {
        for (const button of [...buttons.children].reverse()) button.click();
    }
    for (const plot of document.querySelectorAll(".plot")) {
        plot.focus();
        for (const key of ["ArrowRight", "End", "ArrowLeft", "Home", "Escape"]) press(plot, key);
        plot.blur();
    }
})()"""


def main():
    show, runs = Show("report", [1]), Runs("report")
    with Browser() as browser:
        counted(runs, browser)
        data = {f"data.{name}": runs.synth(f"report_{name}", rows, first) for name, rows, first in (
            ("train", ROWS, 0), ("valid", VALID_ROWS, ROWS), ("test", TEST_ROWS, ROWS + VALID_ROWS))}
        for name in RUNS:
            train(runs, name, data)
        page = runs.out / "report.html"
        command = [UMBRA, "report", str(runs.out / "runs"), "--output", str(page), "--overwrite"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"report: it ended with {done.returncode}: {done.stderr}")
        print(done.stdout)
        errors, wide = looked_at(runs, browser, page)
    for error in errors:
        print(f"   {error}")
    print(f"report_console_errors {len(errors)}")
    show.at_least("report_runs", len(RUNS), 8)
    show.at_most("report_console_errors", len(errors), 0)
    show.at_most("report_wider_than_window", wide, 0)
    show.measured("report_bytes", page.stat().st_size)
    show.finish()


if __name__ == "__main__":
    main()
