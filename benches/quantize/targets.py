"""Lines on whether calibrated packing meets its targets."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benches.harness.pages import judged

from . import times
from .document import Rows, by_model, gap_of, mean, seeds, spread
from .plan import (
    ABSMAX,
    ALONE,
    ANY,
    ANY_BITS,
    BLOCK,
    BY_LOSS,
    BY_LOSS_SEQUENTIAL,
    COMQ,
    CONTINUED,
    FLOAT,
    GPTQ,
    GPTQ_SEQUENTIAL,
    MAGR_GPTQ,
    METHODS,
    PAPER,
    RANGE,
    RECOMMENDED,
    SAWB_PACT,
    SAWB_PLUS,
    STEPPED,
    Setting,
)

NEAR = 0.003
"""Above float32's loss, at 4 bits, on the transformers."""
POINTS = 0.1
"""Below float32's accuracy, at 4 bits, on images."""
PARTS = {3: 0.25, 2: 0.28}
"""Of the loss increase caused by rounding to the nearest code of the range."""
BUDGETED = 1.535
"""The first model's loss at the 2.5-bit size."""


def targets(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each target of each model."""
    models = by_model(document)
    for name, rows in models.items():
        yield from _four(name, rows)
    for name, rows in models.items():
        yield from _few(name, rows)
    yield from _layers(document)
    for name, rows in models.items():
        yield from _spread(name, rows)
    for name, rows in models.items():
        yield from _budgets(name, rows)
    for name, rows in models.items():
        yield from _trained(name, rows)
    if document["times"]:
        yield from times.targets(document["times"])


def _four(name: str, rows: Rows) -> Iterator[str]:
    for method in (RECOMMENDED, COMQ):
        found, what = seeds(rows, method, 4, BLOCK), f"{name}, {method}, 4 bits, compared with"
        if found and name in ("text", "wide"):
            more = mean(found) - rows[FLOAT]["loss"]
            yield judged(f"{what} float32: loss {more:+.4f}", more, NEAR)
        if found and name == "fashion":
            less = 100 * (rows[FLOAT]["accuracy"] - mean(found, "accuracy"))
            what += f" float32: accuracy {-less:+.2f} points"
            yield judged(what, less, POINTS, " lower")


def _few(name: str, rows: Rows) -> Iterator[str]:
    gap = gap_of(rows, BLOCK)
    for bits, allowed in PARTS.items():
        for method in (RECOMMENDED, COMQ):
            if seeds(rows, method, bits, BLOCK):
                part = gap(method, bits) / max(gap(RANGE, bits), 1e-9)
                what = f"{name}, {method}, {bits} bits: loss increase {part:.3f} times that of"
                yield judged(f"{what} round-to-nearest", part, allowed)
        own, best = gap(COMQ, bits), min(gap(each, bits) for each in (GPTQ, MAGR_GPTQ))
        if bits == 2 and not math.isnan(own):
            what = f"{name}, {COMQ}, 2 bits: loss increase {own:.4f}"
            yield judged(what, own, round(best, 4), f", the lower of {GPTQ} and {MAGR_GPTQ}")


def _layers(document: Mapping[str, Any]) -> Iterator[str]:
    for row in document["layers"]:
        what = f"COMQ compared with {row['rival']}: a larger objective on {row['worse']} of "
        what += f"{row['layers']} layers"
        if row["worse"]:
            what += f", by a factor of at most {row['worst']:.3f}"
        yield judged(what, row["worse"], 0)


def _spread(name: str, rows: Rows) -> Iterator[str]:
    pairs = ((COMQ, RANGE), (COMQ, GPTQ), (COMQ, PAPER), (RECOMMENDED, GPTQ_SEQUENTIAL))
    for bits in (3, 2):
        for method, rival in pairs:
            own, other = (seeds(rows, each, bits, BLOCK) for each in (method, rival))
            if len(own) > 1 and other:
                more, allowed = mean(own) - mean(other), max(spread(own), spread(other))
                side = "higher" if more > 0 else "lower"
                what = f"{name}, {method}, {bits} bits: loss {abs(more):.4f} {side} than with"
                yield judged(f"{what} {rival}", more, round(allowed, 4), " higher")


def _budgets(name: str, rows: Rows) -> Iterator[str]:
    for method, without in ((BY_LOSS, COMQ), (BY_LOSS_SEQUENTIAL, RECOMMENDED)):
        three, two = (mean(seeds(rows, without, bits, BLOCK)) for bits in (3, 2))
        for bits, line in ((3.0, three), (2.5, (two + three) / 2)):
            found = mean(seeds(rows, method, bits, BLOCK))
            if math.isnan(found + line):
                continue
            what = f"{name}, {without}, loss-based budget, {bits:g}-bit size: loss {found:.4f}"
            yield judged(what, found, round(line, 4))
            if name == "text" and bits == 2.5:
                yield judged(what, found, BUDGETED)


def _trained(name: str, rows: Rows) -> Iterator[str]:
    found = {each.method: row for each, row in rows.items() if each.method not in METHODS}
    plain = found.get(CONTINUED)
    if plain is None:
        return
    for method in (SAWB_PLUS, SAWB_PACT, ABSMAX):
        if method in found:
            less = 100 * (plain["accuracy"] - found[method]["accuracy"])
            what = f"{name}, {method}, 2-bit weights and activations, compared with {CONTINUED}:"
            what += f" accuracy {-less:+.2f} points"
            yield judged(what, less, 1, " lower") if method == SAWB_PLUS else f"{what}."
    if STEPPED in found:
        more = found[STEPPED]["loss"] - plain["loss"]
        what = f"{name}, 4-bit weights, inputs and hidden states, compared with {CONTINUED}:"
        yield judged(f"{what} loss {more:+.4f}", more, 0.02)
    for bits in ANY_BITS if ANY in found else ():
        alone = rows.get(Setting(ALONE, bits))
        if alone is not None:
            less = 100 * (alone["accuracy"] - found[ANY]["read"][str(bits)]["accuracy"])
            what = f"{name}, trained for 8, 4 and 2 bits, read at {bits}, compared with training"
            what += f" for {bits} bits alone: accuracy {-less:+.2f} points"
            yield judged(what, less, 1, " lower")
