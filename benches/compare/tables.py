"""The tables printed by a run."""

from rich.table import Table

from .pages import span
from .rounds import Outcome, Result

# The peers that every row is compared with, and the headings of their columns.
PEERS = {
    "torch.topk": "topk",
    "torch.kthvalue": "kthvalue",
    "numpy.partition": "partition",
    "DGC sampling": "DGC",
    "SIDCo in torch": "SIDCo",
}

HEADINGS = (
    "median",
    "min - max",
    "/ copy",
    "decode / copy",
    "sent / asked",
    "bits/entry",
    "memory",
)

MEMORY_FROM = 10_000_000


def encode_table(outcome: Outcome) -> Table:
    """Return the times to encode, in copies and as multiples of each peer's speed."""
    case = outcome.case
    table = Table(title=str(case), title_justify="left", caption_justify="left")
    table.add_column("encode with residual")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for heading in PEERS.values():
        table.add_column(f"{heading} /", justify="right")
    times = {result.name: result.encode.median for result in outcome.results}
    copy = outcome.copy
    table.add_row("plain copy", span(copy.median), between(copy.values), "1.00")
    for result in outcome.results:
        ratios = [times[peer] / result.encode.median if peer in times else None for peer in PEERS]
        table.add_row(
            result.name,
            span(result.encode.median),
            between(result.encode.values),
            f"{result.encode_copies.median:.2f}",
            f"{result.decode_copies.median:.3f}",
            sent(result, outcome),
            f"{8 * result.nbytes.median / max(1, result.count.median):.3g}",
            memory(result, case.numel),
            *(f"{ratio:.1f} x" if ratio else "" for ratio in ratios),
            style="bold" if result.name.startswith("gradwire") else "",
        )
    table.caption = (
        "memory: kept between steps + taken on top by an encode, in tensors. Last columns: the "
        "peer's time over the row's, so above 1 the row is faster."
    )
    return table


def memory(result: Result, numel: int) -> str:
    """Return the memory that a contestant needs besides the gradient; small tensors are noise."""
    if result.held is None or result.extra is None or numel < MEMORY_FROM:
        return ""
    return f"{result.held / (4 * numel):.1f} + {result.extra / (4 * numel):.1f}"


def sent(result: Result, outcome: Outcome) -> str:
    asked = max(1, int(outcome.case.numel * outcome.case.ratio))
    if result.count.median == outcome.case.numel:
        return "all"
    return f"{result.count.median / asked:.2f}"


def between(values: list[float]) -> str:
    return f"{span(min(values))} - {span(max(values))}"
