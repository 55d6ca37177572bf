"""Two nodes of two ranks, joined by a slow link: with and without a hierarchy.

    python -m benches.compare.nodes    # as root, or where user namespaces are allowed

Each node is a network namespace with two processes; what they send each other inside it does not
touch the link. Prints the table of `docs/hierarchy.md`.
"""

import statistics
import sys
import tempfile
from contextlib import ExitStack

from gradwire.cli.training.link import format_rate, open_link

from .exchange import Rank, together, turns

NODES, RANKS = 2, 2
RATES = (100_000_000, 1_000_000_000)
ROUNDS = 5


def main() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-bench-"))
        link, why_not = open_link(NODES)
        stack.enter_context(link)
        if why_not is not None:
            sys.exit(f"no shaped link: {why_not}")
        link.set_rate(200_000_000_000)
        ranks = []
        for number in range(NODES * RANKS):
            rank = Rank(
                link,
                number,
                folder,
                f"{__package__}.nodes_rank",
                ranks=NODES * RANKS,
                end=number // RANKS,
            )
            ranks.append(rank)
            stack.callback(rank.close)
        facts = together(ranks)[0]
        columns = []
        for rate in RATES:
            link.set_rate(rate)
            found, _, nbytes = turns(ranks, facts["methods"], ROUNDS, f"{rate}", _say)
            columns.append({key: statistics.median(each.values) for key, each in found.items()})
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
