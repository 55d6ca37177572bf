"""What carries parts over Gloo: its own collectives, or messages between pairs of ranks."""

import sys
from statistics import median

from benches.ranks import joined
from gradwire.cli.plan.quantities import format_rate

__all__ = ["table"]

RATES = (100_000_000, 1_000_000_000, None)
SIZES = (16_384, 131_072, 1_048_576)
WAYS = {"gather": "all-gather", "all to all": "all-to-all", "pairs": "pairs, receives first"}
ROUNDS = 3
COUNT = 7


def table(ranks: tuple[int, ...] = (2, 3, 4)) -> None:
    """Print milliseconds of all."""
    print(f"Milliseconds, the median of {ROUNDS * COUNT} of the slowest rank; in turns.\n")
    shown = " | ".join(WAYS.values())
    print(f"| ranks | link | bytes to each rank | at the link's rate | {shown} |")
    print("|---:|---:|---:|---:|" + "---:|" * len(WAYS))
    for size in ranks:
        with joined(size, "benches.scatter.carrier_rank", shaped=True) as processes:
            if processes.why_not is not None:
                print(f"links are not shaped: {processes.why_not}", file=sys.stderr)
            for rate in RATES:
                processes.shape(rate)
                name = format_rate(rate) if rate else "unshaped"
                for nbytes in SIZES:
                    times: dict[str, list[float]] = {way: [] for way in WAYS}
                    for _ in range(ROUNDS):
                        for way, found in times.items():
                            told = processes.ask(do="move", way=way, nbytes=nbytes, count=COUNT)
                            every = zip(*(each["seconds"] for each in told), strict=True)
                            found += [1e3 * max(each) for each in every]
                    least = f"{8e3 * nbytes * (size - 1) / rate:.2f}" if rate else ""
                    row = " | ".join(f"{median(found):.2f}" for found in times.values())
                    print(f"| {size} | {name} | {nbytes:,} | {least} | {row} |", flush=True)
