#!/usr/bin/env bash
# Run asv over the package's history; its arguments are asv's range of commits (default: HEAD).
set -euo pipefail
cd "$(dirname "$0")/../benches/asv"

# One cargo cache for all commits: the dependencies are built once.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(cd ../.. && pwd)/.cache/asv/target}
asv machine --yes >/dev/null
asv run --show-stderr "${@:-HEAD^!}"
asv publish >/dev/null
echo "==> results: .cache/asv/html (asv preview, run in benches/asv, serves them)"
