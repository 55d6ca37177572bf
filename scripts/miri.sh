#!/usr/bin/env bash
# Run what packs, reads and writes bytes, the buffers and the kernels under Miri, which finds undefined
# behaviour that no processor shows: of the kernels the scalar ones, and those of AVX2 that it knows.
#
#   scripts/miri.sh [TEST-FILTER...]
#
# Miri comes with the nightly toolchain: rustup toolchain install nightly --component miri,rust-src
set -euo pipefail
cd "$(dirname "$0")/.."

export RUSTUP_TOOLCHAIN=nightly
if ! cargo miri --version >/dev/null 2>&1; then
    echo "error: no Miri: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
fi
filters=("$@")
((${#filters[@]})) || filters=(pack:: frame:: simd:: buffer::)
# Each case takes a thousand times as long as elsewhere.
export PROPTEST_CASES=${PROPTEST_CASES:-2} PROPTEST_FAILURE_PERSISTENCE=off
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
exec cargo miri test --locked -p gradwire-core --lib --target-dir "${CARGO_TARGET_DIR:-target}/miri" -- "${filters[@]}"
