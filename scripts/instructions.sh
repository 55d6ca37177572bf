#!/usr/bin/env bash
# Print the instructions per element of kernels and encodes whose names have a text, as a table.
# Times vary from run to run; counts do not. callgrind counts at the AVX2 level, the highest that it
# supports, for one thread and Laplace entries, in the core's example `instructions`.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --release --locked -p gradwire-core --example instructions
program=${CARGO_TARGET_DIR:-target}/release/examples/instructions

printf '| work | instructions per element |\n|---|---:|\n'
"$program" | grep -F -- "${1:-}" | while read -r work; do
    # The program says how many elements it had, and at which level; valgrind, what it counted.
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
        '--toggle-collect=*::measured*' "$program" "$work" 2>&1 </dev/null |
        awk -v work="$work" '
            / Collected : / { count = $4 }
            /^[0-9]+ [a-z0-9]+$/ { elements = $1; level = $2 }
            END {
                if (!count || !elements) { print "valgrind failed at " work; exit 1 }
                if (level != "avx2") { print "warning: " work " ran at the level " level }
                printf "| %s | %.2f |\n", work, count / elements
            }'
done
