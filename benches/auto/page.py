"""The table of what was measured."""

import statistics
from collections.abc import Mapping
from typing import Any

from gradwire.cli.plan.quantities import format_rate

__all__ = ["name", "table"]


def name(rate: int | None) -> str:
    """Return a rate in words."""
    return "unshaped" if rate is None else format_rate(rate)


def table(measured: Mapping[str, Any]) -> list[str]:
    """Return the table in Markdown, and what ``auto`` said of each link."""
    outcomes = measured["outcomes"]
    methods = list(outcomes[0]["seconds"])
    cores = measured["machine"]["cores"]
    title = (
        f"Measured on {measured['date'][:10]}, {measured['ranks']} ranks on {cores} cores, 8.4 M "
        "parameters, AdamW, Gloo; milliseconds of a step, medians; the best setting of each link "
        "is in bold."
    )
    columns = [*methods, "auto over the best", "over fp32", "first steps"]
    lines = [title, "", f"| link | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    lines += [_row(outcome) for outcome in outcomes]
    lines += ["", "What it said:", ""]
    lines += [f"* {name(each['rate'])}: {each['decision']}" for each in outcomes]
    return lines


def _row(outcome: Mapping[str, Any]) -> str:
    found = {
        method: statistics.median(each for turn in turns for each in turn)
        for method, turns in outcome["seconds"].items()
    }
    best = min(seconds for method, seconds in found.items() if method != "auto")
    cells = [
        f"**{1e3 * seconds:.0f}**" if seconds == best else f"{1e3 * seconds:.0f}"
        for seconds in found.values()
    ]
    start = outcome["start"]
    unsettled = "" if outcome["settled"] else "not settled after "
    cells += [
        f"{found['auto'] / best - 1:+.1%}",
        f"{found['auto'] / found['fp32'] - 1:+.1%}",
        f"{unsettled}{len(start)}: {sum(start):.1f} s",
    ]
    return f"| {name(outcome['rate'])} | " + " | ".join(cells) + " |"
