"""The link speed below which compressing pays.

Two ranks, one thread each. Dense: a ring all-reduce moves each rank's whole tensor once over the
link, and nothing else is counted against it; in bf16 half of that, and the two casts. Compressed:
each rank encodes, sends its frame, and decodes both. With S and F the bytes sent dense and
compressed, and t the extra seconds of the compressed way, the two take as long at

    8 (S - F) / t    bits per second.

Below that, compressing wins. Overlap with the backward pass helps both sides and is left out.
"""

from rich.table import Table

from .peers import TorchHalf
from .rounds import Outcome, Result

RANKS = 2


def break_even(outcome: Outcome) -> dict[str, dict[str, float | None]]:
    """Return for each contestant the break-even link in bit/s, against fp32 and bf16.

    ``None`` where it sends no fewer bytes: then no link is slow enough. Infinite where the dense
    way itself takes longer than the compressed one.
    """
    by_name = {result.name: result for result in outcome.results}
    half = by_name[TorchHalf.name]
    dense = {
        "fp32": (4.0 * outcome.case.numel, 0.0),
        "bf16": (2.0 * outcome.case.numel, half.encode.median + half.decode.median),
    }
    return {
        result.name: {kind: _link(result, *cost) for kind, cost in dense.items()}
        for result in outcome.results
        if result.whole
    }


def _link(result: Result, dense_bytes: float, dense_seconds: float) -> float | None:
    saved = dense_bytes - result.nbytes.median
    if saved <= 0:
        return None
    extra = result.encode.median + RANKS * result.decode.median - dense_seconds
    return 8 * saved / extra if extra > 0 else float("inf")


def table(outcome: Outcome) -> Table:
    """Return the break-even links for a person to read, fastest first."""
    table = Table(
        title=f"Pays below this link speed: {outcome.case}, {RANKS} ranks",
        title_justify="left",
    )
    table.add_column("codec")
    table.add_column("against fp32", justify="right")
    table.add_column("against bf16", justify="right")
    links = break_even(outcome)
    for name in sorted(links, key=lambda name: -(links[name]["fp32"] or 0.0)):
        style = "bold" if name.startswith("gradwire") else ""
        table.add_row(name, gbit(links[name]["fp32"]), gbit(links[name]["bf16"]), style=style)
    return table


def gbit(speed: float | str | None) -> str:
    """Return a link speed for a person to read; a recorded one may be a word already."""
    if speed is None:
        return "never"
    return "always" if speed in (float("inf"), "always") else f"{float(speed) / 1e9:.3g} Gbit/s"
