"""The time of a method's step, from the rows of a cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from . import methods


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: the median of its turns, and how far they spread.

    Attributes
    ----------
    low, high : float
        The quartiles; of fewer than four turns, the least and the largest.
    count : int
        Turns.
    bucket : float or None
        MiB, where the best of several sizes was taken.
    nbytes : float
        Bytes that a rank sends.
    """

    seconds: float
    low: float
    high: float
    count: int
    bucket: float | None
    nbytes: float


def step_time(rows: Sequence[Mapping[str, Any]], section: str, method: str) -> StepTime:
    """Return the time of a method's step: with its best buckets, or the mean of its phases.

    Sizes of buckets that were given up after their first turn do not count.
    """
    found = []
    for contestant, share in methods.phases(section, method):
        mine = [_timed(row) for row in rows if row["method"] == contestant and not row["dropped"]]
        found.append((min(mine, key=lambda each: each.seconds), share))
    if len(found) == 1:
        return found[0][0]
    names = ("seconds", "low", "high", "nbytes")
    means = {name: sum(getattr(each, name) * share for each, share in found) for name in names}
    return StepTime(**means, count=min(each.count for each, _ in found), bucket=None)


def processor_time(rows: Sequence[Mapping[str, Any]], method: str, bucket: float | None) -> float:
    """Return the seconds of a processor in a step."""
    (mine,) = [row for row in rows if (row["method"], row["bucket"]) == (method, bucket)]
    return float(median(mine["processor_seconds"]))


def _timed(row: Mapping[str, Any]) -> StepTime:
    values = sorted(row["seconds"])
    low, high = values[0], values[-1]
    if len(values) > 3:
        low, _, high = quantiles(values, n=4, method="inclusive")
    return StepTime(median(values), low, high, len(values), row["bucket"], row["nbytes"])
