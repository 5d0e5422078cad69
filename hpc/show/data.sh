#!/usr/bin/env bash
# make show-data: damaged and almost right files, splits that do not belong together, rates, days, Parquet, many files.
#
#     make show-data                            some 20 minutes on 2 cores
#     make show-data PHASES="damage fuzz"       some of: damage pairs fuzz prepare reader days parquet files
#
# "parquet" needs pandas and pyarrow: of $UMBRA_PYTHON, or installed from the Python registry into target/show/venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
hpc/setup.sh --quiet
. hpc/env.sh
cargo build --workspace --release -q --bin umbra --examples
TARGET=$(realpath "${CARGO_TARGET_DIR:-target}")
export UMBRA=$TARGET/release/umbra EXAMPLES=$TARGET/release/examples
case " ${PHASES:-parquet} " in *" parquet "*)
    UMBRA_PYTHON=${UMBRA_PYTHON:-$TARGET/show/venv/bin/python}
    if ! "$UMBRA_PYTHON" -c 'import pandas, pyarrow' 2>/dev/null; then
        [ "$UMBRA_PYTHON" = "$TARGET/show/venv/bin/python" ] ||
            { echo "show-data: $UMBRA_PYTHON has no pandas or no pyarrow; install them there" >&2; exit 5; }
        python3 -m venv "$TARGET/show/venv"
        "$UMBRA_PYTHON" -m pip install -q pandas pyarrow
    fi
    export UMBRA_PYTHON
esac
python3 -B hpc/show/data.py
