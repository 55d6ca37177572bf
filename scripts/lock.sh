#!/usr/bin/env bash
# Rewrites requirements/*.txt from requirements/*.in: exact versions for every platform and every
# Python from 3.11 on. One joint solution is found first, so that the layers agree with each other.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

compile() {
    uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url \
        --no-emit-find-links --no-header "$@"
}

joint=$(mktemp)
trap 'rm -f "$joint"' EXIT
compile ./*.in --no-annotate --output-file "$joint"
for layer in *.in; do
    echo "locking ${layer%.in}"
    { echo '# Written by `make lock`; edit the .in file instead.'
      compile "$layer" --constraints "$joint" --no-annotate
    } >"${layer%.in}.txt"
done
