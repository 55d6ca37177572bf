"""Two nodes of two ranks, joined by a slow link: with and without a hierarchy.

    python -m benches.compare.nodes    # as root, or where user namespaces are allowed

Each node is a network namespace with two processes; what they send each other inside it does not
touch the link. Prints the table of `docs/hierarchy.md`.
"""

import statistics
import sys

from benches.ranks import joined
from gradwire.cli.plan.quantities import format_rate

from .exchange import turns

NODES, RANKS = 2, 2
RATES = (100_000_000, 1_000_000_000)
ROUNDS = 5


def main() -> None:
    with joined(NODES * RANKS, f"{__package__}.nodes_rank", nodes=NODES, shaped=True) as ranks:
        columns = []
        for rate in RATES:
            ranks.shape(rate)
            found, _, nbytes = turns(ranks, ROUNDS, f"{rate}", _say)
            columns.append({key: statistics.median(each.values) for key, each in found.items()})
    facts = ranks.facts
    rates = " | ".join(map(format_rate, RATES))
    print(f"| {facts['numel']:,} float32 | kB from a rank to other nodes | {rates} |")
    print("| --- |" + " ---: |" * (1 + len(RATES)))
    for method in facts["methods"]:
        sent = nbytes[method]
        cells = [f"{1e3 * column[method]:,.0f} ms" for column in columns]
        kilobytes = "" if sent is None else f"{sent / 1e3:,.1f}"
        print(f"| {method} | {kilobytes} | {' | '.join(cells)} |")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
