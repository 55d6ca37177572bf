#!/usr/bin/env bash
# Rewrites requirements/*.txt from requirements/*.in: exact versions for every platform and every
# Python from 3.11 on. One joint solution is found first, so that the layers agree with each other.
# Each package is a line with the hashes of its files, and installing checks them.
# Only the layer torch has torch and what it brings along, which TORCH, TORCH_INDEX and SYSTEM_TORCH
# replace: of the others, the trainers depend on it.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

compile() {
    uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url \
        --no-emit-find-links --no-header "$@"
}

with_hashes() {
    uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-header \
        --no-annotate --no-deps --generate-hashes - | sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ta' -e '}'
}

without_torch() {
    grep -vE '^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)=='
}

joint=$(mktemp)
trap 'rm -f "$joint"' EXIT
compile ./*.in --no-annotate --output-file "$joint"
for layer in *.in; do
    echo "locking ${layer%.in}"
    case $layer in torch.in | cuda.in) keep=cat ;; *) keep=without_torch ;; esac
    { echo '# Written by `make lock`; edit the .in file instead.'
      compile "$layer" --constraints "$joint" --no-annotate | $keep | with_hashes
    } >"${layer%.in}.txt"
done
