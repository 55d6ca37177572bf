"""Whole exchanges end to end: two processes, DDP over Gloo, over links of known speed.

The model has 25 layers of 1000 x 1000, and its backward pass only hands over a gradient: the time
measured is the copy into DDP's bucket and the exchange. All methods use one bucket of 100 MB, so
nothing overlaps: with two buckets, PowerSGD's chained collectives run in a different order on every
rank, and on Gloo the run hangs or aborts.

If the system allows it, the ranks run in network namespaces joined by a shaped link, as in the
demo; otherwise they use the loopback device.
"""

from typing import Any

from rich.table import Table

from benches.ranks import Ranks, joined
from gradwire.cli.plan.quantities import format_rate

from .interleave import Tick
from .pages import span
from .rounds import Spread

RANKS = 2
# Bits per second; None is unlimited.
RATES = (1_000_000_000, 10_000_000_000, None)


def measure(rounds: int, tick: Tick) -> dict[str, Any]:
    """Return the time of a step of every method, over every link."""
    tick("opening a link")
    with joined(RANKS, f"{__package__}.exchange_rank") as ranks:
        outcomes = []
        for rate in RATES if ranks.why_not is None else (None,):
            ranks.shape(rate)
            rows = _over(ranks, rounds, rate, tick)
            outcomes.append({"bits_per_second": rate, "rows": rows})
    why_not, numel = ranks.why_not, ranks.facts["numel"]
    shaped = "network namespaces" if why_not is None else f"the loopback device: {why_not}"
    return {"ranks": RANKS, "numel": numel, "link": shaped, "outcomes": outcomes}


def _over(ranks: Ranks, rounds: int, rate: int | None, tick: Tick) -> list[dict[str, Any]]:
    """Return the row of each method, over a link of one rate."""
    seconds, _, nbytes = turns(ranks, rounds, link_name(rate), tick)
    return [
        {"method": method, "seconds": seconds[method].record(), "nbytes": nbytes[method]}
        for method in ranks.facts["methods"]
    ]


def turns(
    ranks: Ranks, rounds: int, title: str, tick: Tick
) -> tuple[dict[str, Spread], dict[str, Spread], dict[str, float | None]]:
    """Let all methods take turns; a step takes as long as its slowest rank.

    Returns the seconds of each method, round by round, those of processors for a rank, and the
    bytes that a rank sends.
    """
    methods: list[str] = ranks.facts["methods"]
    seconds: dict[str, Spread] = {method: Spread() for method in methods}
    worked: dict[str, Spread] = {method: Spread() for method in methods}
    nbytes: dict[str, float | None] = {}
    for turn in range(-1, rounds):
        # Another order each time: what one leaves behind in queues and windows meets all alike.
        at = turn % len(methods)
        for method in [*methods[at:], *methods[:at]]:
            tick(f"{title}, {method}")
            answers = ranks.ask(do="step", method=method)
            if turn >= 0:
                seconds[method].values.append(max(each["seconds"] for each in answers))
                worked[method].values.append(sum(each["cpu"] for each in answers) / len(ranks))
            nbytes[method] = answers[0]["nbytes"]
    return seconds, worked, nbytes


def link_name(rate: int | None) -> str:
    return "unshaped" if rate is None else format_rate(rate)


def table(measured: dict[str, Any]) -> Table:
    title = (
        f"A step of DDP end to end: {measured['numel']:,} float32, {measured['ranks']} processes, "
        f"Gloo over {measured['link']}"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("MB per rank", justify="right")
    for outcome in measured["outcomes"]:
        table.add_column(link_name(outcome["bits_per_second"]), justify="right")
    for row in measured["outcomes"][0]["rows"]:
        method = row["method"]
        cells = []
        for outcome in measured["outcomes"]:
            times = {each["method"]: each["seconds"]["median"] for each in outcome["rows"]}
            gain = times["none"] / times[method]
            cells.append(f"{span(times[method])} ({gain:.1f} x)")
        size = "" if row["nbytes"] is None else f"{row['nbytes'] / 1e6:.3g}"
        style = "bold" if method.startswith("gradwire") else ""
        table.add_row(method, size, *cells, style=style)
    table.caption = (
        "In parentheses: the time without compression divided by the row's. One bucket, so that "
        "nothing overlaps. `no exchange` is the rest of the step."
    )
    return table
