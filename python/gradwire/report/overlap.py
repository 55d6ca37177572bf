"""What of each stage lay within the backward pass, by the times of recent buckets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from gradwire.report.figures import BucketTimes

__all__ = ["STAGES", "Split", "by_step", "end", "last_ready", "split"]

STAGES = ("encode", "exchange", "decode")


@dataclass(frozen=True, slots=True)
class Split:
    """Milliseconds of a stage within the backward pass, and after it."""

    within: float = 0.0
    after: float = 0.0

    @property
    def total(self) -> float:
        """Milliseconds of the stage."""
        return self.within + self.after

    def __add__(self, other: "Split") -> "Split":
        return Split(self.within + other.within, self.after + other.after)


def by_step(timeline: Iterable[BucketTimes]) -> list[list[BucketTimes]]:
    """Return the buckets of each step, in order."""
    ordered = sorted(timeline, key=lambda each: (each.step, each.bucket))
    return [list(buckets) for _, buckets in groupby(ordered, key=lambda each: each.step)]


def last_ready(buckets: Iterable[BucketTimes]) -> float:
    """Return when the last gradient of a step was ready: its backward pass ends there."""
    return max(each.ready for each in buckets)


def end(buckets: Iterable[BucketTimes]) -> float:
    """Return when all buckets of a step were decoded."""
    return max(
        max(each.ready, each.encode[1], each.exchange[1], each.decode[1]) for each in buckets
    )


def split(buckets: Sequence[BucketTimes], stage: str, ready: float) -> Split:
    """Divide the time that these buckets spent in a stage.

    Parameters
    ----------
    buckets : sequence of BucketTimes
        Buckets of one step.
    stage : {"encode", "exchange", "decode"}
    ready : float
        When the last gradient of the step was ready.
    """
    total = Split()
    for each in buckets:
        first, last = getattr(each, stage)
        within = max(min(last, ready) - first, 0.0)
        total += Split(within, last - first - within)
    return total
