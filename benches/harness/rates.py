"""Learning rates by task and method, each measured as the best of one grid for all.

The table, ``rates.json``, was made by simulated ranks at commit 5ed8a39. A codec that is not in it
gets the rate of the one that is most like it.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gradwire.codec import Codec

FILE = Path(__file__).with_name("rates.json")

USUAL = {"AdamW(": 0.002, "SGD(0)": 0.512, "SGD(": 0.128}
"""Rates by family of optimizer, where nothing was measured."""


@dataclass(frozen=True)
class Rate:
    """A learning rate, and where it comes from; empty if it was measured with the method itself."""

    value: float
    source: str = ""


def family(optimizer: str) -> str:
    """Return the family of an optimizer in words. Without momentum, steps of SGD are shorter."""
    return next(name for name in USUAL if name in optimizer)


@cache
def table() -> dict[str, Any]:
    """Return the measured table."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def codec_of(entry: dict[str, Any]) -> Codec | None:
    """Return the codec of an entry. Options that are newer than the entry have their defaults."""
    return None if entry["codec"] is None else Codec.from_config(entry["codec"])


def rate_for(task: str, method: str, codec: Codec | None, optimizer: str) -> Rate:
    """Return the learning rate for a method: a preset, or one of torch without a codec.

    Rates of another family of optimizers mean nothing.
    """
    config = None if codec is None else codec.get_config()
    known = [
        each
        for each in table()["tasks"].get(task, [])
        if each["learning_rate"] is not None and family(each["optimizer"]) == family(optimizer)
    ]
    if not known:
        return Rate(USUAL[family(optimizer)], "not measured")

    def unlike(entry: dict[str, Any]) -> tuple[Any, ...]:
        other = entry["codec"]
        return (
            entry["optimizer"] != optimizer,
            _kind(other) != _kind(config),
            entry["method"] != method,
            _distance(other, config),
        )

    best = min(known, key=unlike)
    own = (best["method"], codec_of(best), best["optimizer"]) == (method, codec, optimizer)
    return Rate(best["learning_rate"], "" if own else f"that of {best['call']}")


def _kind(config: dict[str, Any] | None) -> tuple[str, str]:
    """Return what matters most: whether all entries are sent, and what is kept of them."""
    if config is None:
        return "all", "none"
    every = config["sparsify"]["kind"] == "all"
    return "all" if every else "some", config["memory"]["kind"]


def _distance(one: dict[str, Any] | None, other: dict[str, Any] | None) -> float:
    """Return how different the shares of entries are; infinite if only one has such a share."""
    first, second = (each["sparsify"].get("ratio") if each else None for each in (one, other))
    if first is None or second is None:
        return 0.0 if first is second else math.inf
    return abs(math.log(first / second))
