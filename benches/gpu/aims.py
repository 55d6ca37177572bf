"""The aims of the CUDA extension, and how a run fares beside them."""

from collections.abc import Callable
from typing import Any

from benches.compare.aim import Aim, Document, Figure

from .measure import MANY, ONE

ONCE = (1,)
"""Threads of the host take no part."""


def row(document: Document, section: str, name: str) -> Any:
    """Return a row of a section, or None."""
    rows = document["sections"].get(section, {}).get("rows", [])
    return next((each for each in rows if each["name"] == name), None)


def _copies(section: str, name: str) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        found = row(document, section, name)
        return float(found["copies"]["median"]) if found else None

    return figure


def _times(section: str, name: str, other: str) -> Figure:
    """By how much one takes longer than the other."""

    def figure(document: Document, threads: int) -> float | None:
        found, base = row(document, section, name), row(document, section, other)
        if not (found and base):
            return None
        return float(found["seconds"]["median"] / base["seconds"]["median"])

    return figure


def _microseconds(name: str) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        found = row(document, "small", name)
        return 1e6 * float(found["seconds"]["median"]) if found else None

    return figure


def _slowest(selects: bool) -> Callable[[Document, int], float | None]:
    def figure(document: Document, threads: int) -> float | None:
        rows = document["sections"].get("presets", {}).get("rows", [])
        copies = [each["copies"]["median"] for each in rows if each["selects"] is selects]
        return max(copies, default=None)

    return figure


AIMS = (
    Aim("top-k with residual, 0.001, steady", 1.8, _copies("contest", "gradwire topk")),
    Aim(
        "the same, against a torch.topk encode",
        40,
        _times("contest", "torch.topk", "gradwire topk"),
        "times as fast",
        at_least=True,
    ),
    Aim("the same, cold", 4, _copies("contest", "gradwire topk, first step")),
    Aim("SIDCo, steady", 2, _copies("contest", "gradwire sidco")),
    Aim("presets that leave out entries, slowest", 4, _slowest(True)),
    Aim("dense presets, slowest", 1.5, _slowest(False)),
    Aim("decode and add, 0.01, one frame", 0.5, _copies("receive", "1 frame")),
    Aim("a bucket of many parameters", 1.5, _times("bucket", MANY, ONE), "times one tensor"),
    Aim("a small tensor, top-k", 40, _microseconds("gradwire topk"), "µs"),
    Aim("a small tensor, SIDCo", 40, _microseconds("gradwire sidco"), "µs"),
)
