"""Statistics of a few steps, and whether they differ from earlier ones."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Self

_VARIES, _PRIOR = 0.1, 2
"""Prior of the spread of a step: relative to its duration, and the number of steps it counts as."""
SURE = 2.0
"""Standard errors between two durations that differ clearly."""
CHANGED = 0.3
"""Relative change of an exchange, or of the rest of a step, that shows another link or workload."""
MATTERS = 0.03
"""Share of a step below which a time does not matter."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """Medians over a few steps with one plan, in seconds."""

    steps: int  # number of steps
    period: float  # time from one step to the next
    buckets: tuple[int, ...]  # entries of each bucket, in the order in which they become ready
    tensors: int  # number of tensors in them
    codable: tuple[bool, ...]  # whether the codec applies to each bucket
    halvable: tuple[bool, ...]  # whether bfloat16 applies to each bucket
    # When each bucket would be ready, counted from the first one, if nothing else took processor
    # time from the backward pass.
    ready: tuple[float, ...]
    # Duration of each bucket's exchange, from its start or from the end of the previous one,
    # whichever is later.
    exchange: tuple[float, ...]
    nbytes: tuple[float, ...]  # bytes that a rank sends for each bucket
    exposed: float  # time from the last bucket's gradients until all buckets are decoded
    spread: float = 0.0  # standard deviation of the periods, without outliers
    # Time by which exchanges, encodes or other programs delayed the backward pass.
    held: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """Build the figures that another rank described by `to_json`."""
        values: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in plain.items()
        }
        return cls(**values)

    @property
    def compute(self) -> float:
        """Seconds of a step without any exchange."""
        return max(0.0, self.period - self.exposed - self.held)

    @property
    def error(self) -> float:
        """Standard error of the period, in seconds; few steps may be alike by chance."""
        prior = _PRIOR * (_VARIES * self.period) ** 2
        variance = (self.steps * self.spread**2 + prior) / (self.steps + _PRIOR)
        return math.sqrt(0.5 * math.pi * variance / self.steps)

    @property
    def exchanged(self) -> float:
        """Seconds of all exchanges of a step."""
        return sum(self.exchange)


def combined(every: Sequence[Figures]) -> Figures:
    """Combine the figures of all ranks; every rank gets the same.

    A rank whose gradients are ready early waits in its exchange for the others, so the duration of
    an exchange is that on the rank that waits least. For steps and backward passes, the slowest
    rank counts.
    """
    first = every[0]
    if any((each.buckets, each.codable) != (first.buckets, first.codable) for each in every):
        raise ValueError("the ranks have measured different buckets")

    def of(name: str, take: object) -> tuple[float, ...]:
        columns = zip(*(getattr(each, name) for each in every), strict=True)
        return tuple(map(take, columns))  # type: ignore[call-overload]

    return dataclasses.replace(
        first,
        steps=min(each.steps for each in every),
        period=max(each.period for each in every),
        ready=of("ready", max),
        exchange=of("exchange", min),
        exposed=min(each.exposed for each in every),
        spread=max(each.spread for each in every),
        held=min(each.held for each in every),
    )


def spread(periods: Sequence[float]) -> float:
    """Return a robust standard deviation: 1.4826 times the median absolute deviation."""
    middle = statistics.median(periods)
    return 1.4826 * statistics.median(abs(each - middle) for each in periods)


class Drift:
    """Compares figures with those at the time when the plan in use was chosen."""

    def __init__(self) -> None:
        self._reference: Figures | None = None
        self.strange = 0  # consecutive figures that were different

    def begin(self, reference: Figures | None) -> None:
        """Set the reference; None takes the next figures."""
        self._reference = reference
        self.strange = 0

    def differs(self, figures: Figures) -> bool:
        """Tell whether the durations of exchanges, or of the rest of a step, have changed."""
        then = self._reference
        if then is None or figures.buckets != then.buckets:
            self._reference = then = figures
        least = max(MATTERS * then.period, SURE * math.hypot(figures.error, then.error))
        rest, before = (each.period - each.exposed for each in (figures, then))
        found = _changed(figures.exchanged, then.exchanged, least) or _changed(rest, before, least)
        self.strange = self.strange + 1 if found else 0
        return found


def outdated(compute: float, figures: Figures) -> bool:
    """Tell whether the computation of a step differs from that which predictions assume."""
    return _changed(figures.compute, compute, SURE * figures.error)


def _changed(one: float, other: float, least: float) -> bool:
    """Tell whether two durations differ by their share `CHANGED`, and by the least seconds."""
    low, high = sorted((one, other))
    return high > (1.0 + CHANGED) * low and high - low > least
