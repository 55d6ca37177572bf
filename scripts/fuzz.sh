#!/usr/bin/env bash
# Build the fuzz targets, and run each (or those named) for so many seconds: as many at a time as
# there are cores.
#
#   scripts/fuzz.sh SECONDS [TARGET...]
#
# Built on the pinned toolchain, with debug assertions and without a sanitizer. SANITIZER=address
# takes the nightly toolchain. New inputs gather in target/fuzz/corpus, beside the few that are kept
# in rust/core/fuzz/corpus; an input that fails is written to target/fuzz/failures.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?how many seconds each?}
shift
crate=rust/core/fuzz
out=${CARGO_TARGET_DIR:-target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
targets=("$@")
((${#targets[@]})) || targets=($(sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' $crate/Cargo.toml))

command -v c++ >/dev/null || { echo "error: libFuzzer needs a C++ compiler (c++) to be built" >&2; exit 1; }
# What cargo-fuzz passes: coverage that libFuzzer reads.
flags=(--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=(-Cllvm-args=-sanitizer-coverage-$option)
done
if [ -n "${SANITIZER:-}" ]; then
    export RUSTUP_TOOLCHAIN=nightly
    flags+=(-Zsanitizer="$SANITIZER")
    out+=-$SANITIZER
fi
echo "==> building ${targets[*]} by $(rustc --version)"
RUSTFLAGS="${flags[*]}" cargo build --quiet --locked --release --manifest-path $crate/Cargo.toml \
    --target "$host" --target-dir "$out"

run() {
    local target=$1 log=$out/$1.log kept=()
    [ -d $crate/corpus/"$target" ] && kept+=($crate/corpus/"$target")
    [ "$target" = frame ] && kept+=(tests/golden/v1)
    mkdir -p "$out/corpus/$target" "$out/failures"
    if "$out/$host/release/$target" -max_total_time="$seconds" -max_len=1024 -print_funcs=0 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="$out/failures/$target-" \
        "$out/corpus/$target" "${kept[@]}" >"$log" 2>&1; then
        echo "    $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions"
    else
        echo "    $target: FAILED"
        grep -a -A 12 -m 1 'panicked at\|ERROR: ' "$log" || tail -n 20 "$log"
        sed -n 's/.*Test unit written to /    the input: /p' "$log"
        return 1
    fi
}
export -f run
export seconds crate out host
echo "==> $seconds s each"
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; run {}'
