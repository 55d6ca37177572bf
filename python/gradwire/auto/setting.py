"""Ways to average a bucket, and plans: one for each bucket."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["BF16", "FP32", "Plan", "Setting", "compresses", "describe", "ladder", "strength"]

_STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a bucket is averaged.

    Attributes
    ----------
    kind : {"fp32", "bf16", "codec"}
        A plain all-reduce in the bucket's own dtype, one in bfloat16, or the codec.
    ratio : float or None
        Share of the entries that the codec sends; None if it has none.
    """

    kind: Literal["fp32", "bf16", "codec"]
    ratio: float | None = None

    def __str__(self) -> str:
        if self.kind != "codec":
            return self.kind
        return "the codec" if self.ratio is None else f"the codec at ratio {self.ratio:g}"


FP32 = Setting("fp32")
BF16 = Setting("bf16")

Plan: TypeAlias = tuple[Setting, ...]
"""The setting of each bucket, in the order in which they become ready."""


def ladder(least: float) -> tuple[float, ...]:
    """Return the ratios that are tried, from the largest down to the least one allowed."""
    return (*(each for each in _STEPS if each > least), least)


def compresses(plan: Plan) -> bool:
    """Tell whether the codec is in use."""
    return any(each.kind == "codec" for each in plan)


def strength(plan: Plan, numels: Sequence[int]) -> float:
    """Return how much a plan leaves out: of two that are as fast, the weaker one is better."""
    total = 0.0
    for setting, numel in zip(plan, numels, strict=True):
        if setting.kind == "bf16":
            total += 0.5 * numel
        elif setting.kind == "codec":
            total += numel * (1.0 + (0.0 if setting.ratio is None else -math.log(setting.ratio)))
    return total


def describe(plan: Plan) -> str:
    """Return a plan in words."""
    counts = Counter(map(str, plan))
    if len(counts) == 1:
        return next(iter(counts))
    shown = [f"{text} for {count} of {len(plan)}" for text, count in counts.most_common()]
    return " and ".join([", ".join(shown[:-1]), shown[-1]])
