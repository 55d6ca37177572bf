#!/usr/bin/env bash
# Every static check. All of them run; the exit status tells whether all were clean.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
check() {
    local name=$1
    shift
    printf '==> %s\n' "$name"
    "$@" || failed+=("$name")
}

# Promises about length that nothing else would hold: limit, then file.
short_enough() {
    local status=0 limit file lines
    while read -r limit file; do
        [ -f "$file" ] || continue
        lines=$(wc -l <"$file")
        if ((lines > limit)); then
            echo "$file has $lines lines; the limit is $limit"
            status=1
        fi
    done <<<"250 docs/frame-format.md
150 README.md
146 Makefile"
    return $status
}

# mypy exits 2 when it crashes, which a stale cache of its own can make it do: then without it.
types() {
    mypy || { [ $? = 2 ] && rm -rf .mypy_cache && mypy; }
}

check "cargo fmt" cargo fmt --all --check
check "cargo clippy" cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
check "cargo doc" env RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
    cargo doc --quiet --locked --workspace --no-deps --document-private-items
check "ruff check" ruff check --quiet .
check "ruff format" ruff format --check --quiet .
check "mypy --strict" types
check "stubtest" stubtest gradwire._native --mypy-config-file pyproject.toml \
    --allowlist scripts/stubtest-allowlist.txt --ignore-unused-allowlist
check "lengths" short_enough

if ((${#failed[@]})); then
    printf 'lint: FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
echo "lint: all clean"
