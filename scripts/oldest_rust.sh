#!/usr/bin/env bash
# Build the crates with the oldest Rust that Cargo.toml declares, which rustup fetches where it is
# missing. Where that cannot be done it is an error, unless OLDEST_OPTIONAL=1, which says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
leave_out() {
    echo "Rust $version left out: $1"
    [ "${OLDEST_OPTIONAL:-}" = 1 ] && exit 0
    exit 1
}
command -v rustup >/dev/null || leave_out "there is no rustup to get it with"
rustup run "$version.0" rustc --version >/dev/null 2>&1 ||
    rustup toolchain install "$version.0" --profile minimal >/dev/null 2>&1 ||
    leave_out "rustup cannot fetch it (rustup toolchain install $version.0)"

echo "==> the crates by $(rustup run "$version.0" rustc --version)"
RUSTUP_TOOLCHAIN=$version.0 cargo check --quiet --locked --workspace --target-dir "${CARGO_TARGET_DIR:-target}/oldest"
