"""Measure many small layers in DDP: 300 of 2000 to 4000 entries, against torch's all-reduce hook.

Two processes use the loopback device, on which sending costs almost nothing: the methods differ in
the work of each rank on a bucket, most of which is a fixed cost per layer. The methods are
interleaved, and compared by the difference to the plain hook within one round.
"""

from typing import Any

from rich.table import Table

from benches.ranks import joined

from .exchange import RANKS, turns
from .interleave import Tick
from .pages import span
from .rounds import Spread

PLAIN = "torch allreduce hook"


def measure(rounds: int, tick: Tick) -> dict[str, Any]:
    """Return the time of a step with every method, and its excess over the plain hook."""
    with joined(RANKS, f"{__package__}.layers_rank", loopback=True) as ranks:
        seconds, worked, _ = turns(ranks, rounds, "layers", tick)
    rows = []
    for method, own in seconds.items():
        pairs = zip(own.values, seconds[PLAIN].values, strict=True)
        beyond = Spread([mine - plain for mine, plain in pairs])
        row = {"seconds": own, "beyond": beyond, "cpu": worked[method]}
        rows.append({"method": method, **{name: each.record() for name, each in row.items()}})
    return {"ranks": RANKS, "numel": ranks.facts["numel"], "rows": rows}


def table(measured: dict[str, Any]) -> Table:
    title = (
        f"A step of DDP with 300 small layers: {measured['numel']:,} float32, "
        f"{measured['ranks']} processes, Gloo over the loopback device"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for heading in ("median", "min", "beyond the plain hook", "processor"):
        table.add_column(heading, justify="right")
    for row in measured["rows"]:
        beyond = f"{1e3 * row['beyond']['median']:+.2f} ms"
        seconds = row["seconds"]
        style = "bold" if row["method"].startswith("gradwire") else ""
        table.add_row(
            row["method"],
            span(seconds["median"]),
            span(seconds["min"]),
            beyond,
            span(row["cpu"]["median"]),
            style=style,
        )
    table.caption = (
        "Beyond the plain hook: the median difference within one round. Processor: processor time "
        "of all threads of a rank, which depends least on the load of the machine."
    )
    return table
