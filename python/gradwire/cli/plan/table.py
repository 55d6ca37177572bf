"""The tables of a plan, as text."""

import math
from collections.abc import Callable, Sequence

from gradwire.cli.plan.quantities import duration, format_rate, size
from gradwire.cli.plan.work import Plan, Row

__all__ = ["lines"]

_COLUMNS = 8
"""Numbers of ranks in one row of a table."""


def lines(plan: Plan) -> list[str]:
    """Return the lines that ``gradwire plan`` prints."""
    asked = plan.asked
    nodes = f", nodes of {asked.node_size}" if asked.node_size > 1 else ""
    link, compute = asked.link, duration(asked.workload.compute)
    title = f"{asked.workload.numel:,} parameters over {format_rate(link.bandwidth)}{nodes}"
    made = [f"{title}, latency {duration(link.latency)}; {compute} of computation", ""]
    shown = _shown(asked.ranks)
    winners = plan.winners()

    def step(row: Row, at: int) -> str:
        mark = " *" if winners[at] is row else "  "
        return duration(row.predictions[at].step) + mark

    made += _table("step time", plan, shown, step)
    made += ["* the fastest", ""]
    made += _table("pays below", plan, shown, _pays)
    made.append("")
    made += _table("sent", plan, shown, lambda row, at: size(row.predictions[at].sent))
    made += ["bytes of a rank and step, to other nodes", ""]
    made += _table("memory", plan, shown, lambda row, at: size(row.predictions[at].memory))
    made.append("bytes of a rank beside model and gradients: states, and what is exchanged")
    return made


def _shown(ranks: Sequence[int]) -> list[int]:
    """Return which numbers of ranks have a column: all, or some that are spread evenly."""
    if len(ranks) <= _COLUMNS:
        return list(range(len(ranks)))
    last = len(ranks) - 1
    return sorted({round(last * at / (_COLUMNS - 1)) for at in range(_COLUMNS)})


def _table(title: str, plan: Plan, shown: list[int], cell: Callable[[Row, int], str]) -> list[str]:
    ranks = plan.asked.ranks
    table = [[title, *(f"{ranks[at]:,} ranks" if ranks[at] > 1 else "1 rank" for at in shown)]]
    table += [[row.method.name, *(cell(row, at) for at in shown)] for row in plan.rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        ).rstrip()
        for line in table
    ]


def _pays(row: Row, at: int) -> str:
    if row.pays_below is None:
        return "-"
    speed = row.pays_below[at]
    if speed == 0.0:
        return "never"
    return "always" if math.isinf(speed) else format_rate(speed)
