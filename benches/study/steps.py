"""Times of steps: real processes over real shaped links, in which all methods take turns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches.harness.processes import Ranks

from .plan import DENSE, LARGE, SECTIONS, Cell, Plan, contestants

PLENTY = 4.0
"""Seconds after which a contestant that has had two turns takes no more."""
MEMORY = 5e9
"""Bytes for each rank, with all contestants of the large model."""

Listed = list[tuple[str, str, float | None]]


def measure(
    ranks: Ranks, plan: Plan, cell: Cell, tell: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Return a row for each contestant of a cell, with the seconds of its steps.

    All take turns, each time in another order; a step takes as long as its slowest rank. Of a dense
    method with buckets of several sizes only the best goes on where steps are long; rows of the
    others say so.
    """
    listed, count = contestants(cell.section), SECTIONS[cell.section].steps_a_turn
    ranks.shape(cell.link)
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in listed}
    for turn in range(-1, plan.turns):
        at = turn % len(listed)
        for name, method, _ in [*listed[at:], *listed[:at]]:
            if turn > 0 and done(name, method, listed, seconds, count):
                continue
            if turn < 0 and cell.link is not None and method in DENSE:
                continue  # they keep nothing that a first turn would settle
            tell(f"{name}, turn {max(0, turn + 1)} of {plan.turns}")
            answers = ranks.ask(do="step", contestant=name, steps=count)
            if turn >= 0:
                seconds[name].append(max(answers))
    return [
        {
            "contestant": name,
            "method": method,
            "bucket": bucket,
            "dropped": plan.turns > 1 and len(seconds[name]) == 1,
            "seconds": [float(f"{each:.4g}") for each in seconds[name]],
        }
        for name, method, bucket in listed
    ]


def done(
    name: str, method: str, listed: Listed, seconds: dict[str, list[float]], count: int
) -> bool:
    """Tell whether a contestant has been timed for long enough."""
    if sum(seconds[name]) * count < PLENTY:
        return False
    if len(seconds[name]) > 1:
        return True
    rivals = [seconds[other][0] for other, same, _ in listed if same == method]
    return seconds[name][0] > min(rivals)


def too_large(cell: Cell) -> bool:
    """Tell whether the models of a cell do not fit into memory; False if that is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return False
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return cell.section == LARGE and bool(free) and free[0] < MEMORY * cell.ranks
