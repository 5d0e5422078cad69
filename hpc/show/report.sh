#!/usr/bin/env bash
# make show-report: the page of `umbra report` on eight runs, opened in headless Chromium at 400 and 1600 pixels, light
# and dark: errors on its console, and pictures in target/show/report.
#
#     make show-report                 two minutes on 2 cores, the build aside
#     CHROMIUM=… make show-report      another browser of its kind
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --workspace --release -q --bin umbra
UMBRA=$(realpath "${CARGO_TARGET_DIR:-target}/release/umbra")
export UMBRA
python3 -B hpc/show/report.py
