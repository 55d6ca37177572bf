"""Ways to average a bucket, and plans: one for each bucket."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

_STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
_AGAIN = 0.3
"""Strength of selecting or rounding the sums a second time: less than one step of the ladder."""
OWNERS_FROM = 3
"""Least number of ranks for owners of ranges; two ranks send as many bytes by an all-gather."""

Route: TypeAlias = Literal["gather", "owners"]
"""An all-gather of frames, or sums of ranges by their owners; see ``docs/exchanges.md``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a bucket is averaged."""

    # A plain all-reduce in the bucket's own dtype, one in bfloat16, or the codec.
    kind: Literal["fp32", "bf16", "codec"]
    ratio: float | None = None  # share of the entries that the codec sends; None if it has none
    # How the ranks combine the codec's frames: `gradwire.exchange.AllGather`; or, of
    # `gradwire.exchange.ReduceScatter` and `gradwire.exchange.QuantizedAllReduce`, the one that
    # goes with the codec.
    exchange: Route = "gather"

    def __str__(self) -> str:
        if self.kind != "codec":
            return self.kind
        ratio = "" if self.ratio is None else f" at ratio {self.ratio:g}"
        return f"the codec{ratio}{' with reduce-scatter' * (self.exchange == 'owners')}"


FP32 = Setting("fp32")
BF16 = Setting("bf16")

Plan: TypeAlias = tuple[Setting, ...]
"""The setting of each bucket, in the order in which they become ready."""


def ladder(least: float, most: float = 1.0) -> tuple[float, ...]:
    """Return the ratios to try, from at most ``most`` down to ``least``, which is always tried."""
    return (*(each for each in _STEPS if least < each <= most), least)


def compresses(plan: Plan) -> bool:
    """Tell whether the codec is in use."""
    return any(each.kind == "codec" for each in plan)


def leaves(plan: Plan, other: Plan) -> list[bool]:
    """Tell of each bucket whether it leaves the codec between two plans."""
    return [one.kind == "codec" != then.kind for one, then in zip(plan, other, strict=True)]


def strength(plan: Plan, numels: Sequence[int]) -> float:
    """Return how much a plan leaves out; of two equally fast plans the weaker one is better."""
    total = 0.0
    for setting, numel in zip(plan, numels, strict=True):
        if setting.kind == "bf16":
            total += 0.5 * numel
        elif setting.kind == "codec":
            again = _AGAIN if setting.exchange == "owners" else 0.0
            ratio = 0.0 if setting.ratio is None else -math.log(setting.ratio)
            total += numel * (1.0 + again + ratio)
    return total


def describe(plan: Plan) -> str:
    """Return a plan in words."""
    counts = Counter(map(str, plan))
    if len(counts) == 1:
        return next(iter(counts))
    shown = [f"{text} for {count} of {len(plan)}" for text, count in counts.most_common()]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) + " buckets"
