"""What all ranks have measured of a few steps."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Self

__all__ = ["Figures", "combined", "spread"]

_VARIES = 0.1
"""By what share of itself a step varies, as long as few have been seen."""
_PRIOR = 2
"""Steps that this assumption counts as."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """Medians over a few steps with one plan, in seconds.

    Attributes
    ----------
    steps : int
        How many steps were measured.
    period : float
        From one step to the next.
    buckets : tuple of int
        Entries of each bucket, in the order in which they become ready.
    tensors : int
        Number of tensors in them.
    codable, halvable : tuple of bool
        Whether the codec and bfloat16 apply to each bucket.
    ready : tuple of float
        When each bucket would be ready, from when the first one is, if nothing took the processor
        from the backward pass.
    exchange : tuple of float
        The exchange of each bucket, from the end of the previous one if that is later than its
        start.
    nbytes : tuple of float
        Bytes that a rank sends for each bucket.
    exposed : float
        From when the last bucket is ready until all are exchanged and decoded.
    spread : float
        By how much periods vary: a standard deviation that leaves outliers out.
    held : float
        For how long something did: exchanges, encodes, other programs.
    """

    steps: int
    period: float
    buckets: tuple[int, ...]
    tensors: int
    codable: tuple[bool, ...]
    halvable: tuple[bool, ...]
    ready: tuple[float, ...]
    exchange: tuple[float, ...]
    nbytes: tuple[float, ...]
    exposed: float
    spread: float = 0.0
    held: float = 0.0

    def told(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        """Read what another rank has `told`."""
        values: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in told.items()
        }
        return cls(**values)

    @property
    def compute(self) -> float:
        """Seconds of a step without any exchange."""
        return max(0.0, self.period - self.exposed - self.held)

    @property
    def error(self) -> float:
        """The standard error of the period, in seconds: few steps may be alike by chance."""
        prior = _PRIOR * (_VARIES * self.period) ** 2
        variance = (self.steps * self.spread**2 + prior) / (self.steps + _PRIOR)
        return math.sqrt(0.5 * math.pi * variance / self.steps)

    @property
    def exchanged(self) -> float:
        """Seconds of all exchanges of a step."""
        return sum(self.exchange)


def combined(every: Sequence[Figures]) -> Figures:
    """Return one set of figures, the same on every rank, from those of all ranks.

    A rank whose gradients are ready early waits in an exchange for those of the others, so an
    exchange takes what it takes on the rank that waits least. Steps and backward passes take what
    they take on the slowest rank.
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
    """Return the standard deviation that the middle of these numbers shows."""
    middle = statistics.median(periods)
    return 1.4826 * statistics.median(abs(each - middle) for each in periods)
