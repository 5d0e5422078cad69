#!/usr/bin/env bash
# Fuzzing of what the formats of data do not cover (tests/src/fuzz): millions of cases from a seed, then libFuzzer
# where cargo-fuzz and a nightly compiler are.
#
#     tests/fuzz/run.sh              also `make fuzz`
#     CASES=12000000 SEED=1          cases over all targets, and what they are drawn from
#     LIBFUZZER_S=10                 seconds of libFuzzer a target; 0: none
#     PROFILE=dev                    checks of overflow are on; release is a third faster
#
# Prints `id value` lines: of every target cases, crashes and seconds; the last two are `fuzz_cases` and
# `fuzz_crashes` of all. A case that failed is kept in target/fuzz. Exit code 1 when one did.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hpc/env.sh

cases=${CASES:-12000000}
seed=${SEED:-1}
libfuzzer_s=${LIBFUZZER_S:-10}
profile=${PROFILE:-dev}
folder=target/fuzz
# What is written in a case belongs in memory.
scratch=$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)" umbra-fuzz.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$folder"

# Of a thousand cases, by how long one takes: checkpoints and run folders are files, a job file has many keys.
shares=(
    job=8 set=5 cluster=25 schema=25 cores=10 rows=60 bags=40 coded=25 links=250 post=250 tokens=40 manifest=17
    checkpoint=5 flat=232 records=8
)
asked=()
for share in "${shares[@]}"; do
    asked+=("${share%=*}=$((cases * ${share#*=} / 1000))")
done

cargo build --profile "$profile" -p umbra-tests --example fuzz
program=target/$([ "$profile" = dev ] && echo debug || echo "$profile")/examples/fuzz
status=0
"$program" "$scratch" "$seed" "${asked[@]}" >"$folder/cases.txt" || status=$?
cp "$scratch"/failed-* "$folder" 2>/dev/null || true
grep -v '^fuzz_cases \|^fuzz_crashes ' "$folder/cases.txt" || true
all=$(sed -n 's/^fuzz_cases //p' "$folder/cases.txt")
crashes=$(sed -n 's/^fuzz_crashes //p' "$folder/cases.txt")
# A process that has ended itself says neither.
[ $status -le 1 ] && [ -n "$all" ] || { all=${all:-0}; crashes=$((${crashes:-0} + 1)); }

if [ "$libfuzzer_s" != 0 ]; then
    if cargo fuzz --version >/dev/null 2>&1 && cargo +nightly --version >/dev/null 2>&1; then
        "$program" "$folder/seeds" seeds
        # Instrumented: not the compiler's other output, and not where the house test reads sources.
        how=(--fuzz-dir tests/fuzz --target-dir target/libfuzzer --sanitizer none read)
        cargo +nightly fuzz build "${how[@]}"
        for share in "${shares[@]}"; do
            name=${share%=*}
            mkdir -p "$folder/corpus/$name" "$folder/artifacts/$name"
            said=$folder/$name.txt
            failed=0
            # Exit codes of libFuzzer: 77 for what it has found.
            TMPDIR=$scratch UMBRA_FUZZ=$name cargo +nightly fuzz run "${how[@]}" \
                "$folder/corpus/$name" "$folder/seeds/$name" -- -max_total_time="$libfuzzer_s" -timeout=5 \
                -rss_limit_mb=1024 -max_len=8192 -seed="$seed" -print_final_stats=1 \
                -artifact_prefix="$folder/artifacts/$name/" >"$said" 2>&1 || failed=1
            units=$(sed -n 's/^stat::number_of_executed_units: *//p' "$said")
            echo "libfuzzer_${name}_cases ${units:-0}"
            echo "libfuzzer_${name}_crashes $failed"
            [ $failed = 0 ] || tail -n 30 "$said"
            all=$((all + ${units:-0}))
            crashes=$((crashes + failed))
        done
    else
        echo "libFuzzer: SKIPPED, it wants \`cargo install cargo-fuzz\` and a nightly compiler"
    fi
fi
echo "fuzz_cases $all"
echo "fuzz_crashes $crashes"
[ "$crashes" = 0 ]
