"""A step as a timeline: a row per bucket, with its stages against the backward pass."""

import math
from collections.abc import Sequence

from gradwire.report.figures import BucketTimes
from gradwire.report.html.charts import drawing, legend, percent
from gradwire.report.html.markup import Markup, element, join
from gradwire.report.overlap import STAGES, end, last_ready
from gradwire.report.units import milliseconds, size

__all__ = ["key", "timeline"]

_TOP = 22
_ROW = 40
_LANE = 12
_FOOT = 22
_MOST = 48


def key() -> Markup:
    """Return what the colours of a timeline mean."""
    return legend(
        ("pass", "backward pass, from its first bucket"),
        ("encode", "encode"),
        ("exchange", "exchange"),
        ("decode", "decode"),
        ("ready", "gradients of the bucket ready"),
    )


def timeline(buckets: Sequence[BucketTimes]) -> Markup:
    """Return a chart of one step.

    A stage within the shaded backward pass cost the loop no time; a stage after it made the loop
    wait. Only the first buckets are drawn if there are very many.

    Parameters
    ----------
    buckets : sequence of BucketTimes
        All of one step, in order.
    """
    ready, whole = last_ready(buckets), end(buckets)
    shown = buckets[:_MOST]
    rows = [_row(each, _TOP + index * _ROW, whole) for index, each in enumerate(shown)]
    bottom = _TOP + len(shown) * _ROW
    shade = element("rect", x="0", y=0, width=percent(ready, whole), height=bottom, class_="pass")
    limit = percent(ready, whole)
    line = element("line", x1=limit, x2=limit, y1=_TOP, y2=bottom, class_="mark")
    name = element("text", "backward", x="0", y=14, dx=4, class_="note")
    waited = element(
        "text", f"then waits {milliseconds(whole - ready)}", x="100%", y=14, class_="value note"
    )
    left = len(buckets) - len(shown)
    return join(
        drawing(
            f"Step {buckets[0].step}, bucket by bucket",
            f"{len(buckets)} buckets. The backward pass takes {milliseconds(ready)} from the first "
            f"bucket to the last, and then waits {milliseconds(whole - ready)}. The table of "
            "buckets has the same times.",
            bottom + _FOOT,
            shade,
            line,
            name,
            waited,
            *rows,
            *_axis(whole, bottom),
        ),
        element("p", f"… and {left} more buckets", class_="quiet") if left else None,
    )


def _row(each: BucketTimes, top: int, whole: float) -> Markup:
    base = top + 20
    pieces = [
        element(
            "rect",
            x=percent(first, whole),
            y=base,
            width=percent(last - first, whole),
            height=_LANE,
            class_=f"{stage} piece",
        )
        for stage in STAGES
        for first, last in (getattr(each, stage),)
    ]
    at = percent(each.ready, whole)
    label = f"{each.bucket}: {size(each.dense_bytes)} → {size(each.wire_bytes)}"
    spans = ", ".join(
        f"{stage} {milliseconds(last - first)}"
        for stage in STAGES
        for first, last in (getattr(each, stage),)
    )
    return element(
        "g",
        element("title", f"bucket {label}; ready at {milliseconds(each.ready)}; {spans}"),
        element("rect", x="0", y=base, width="100%", height=_LANE, rx=2, class_="lane"),
        *pieces,
        element("rect", x=at, y=base - 3, width=2, height=_LANE + 6, class_="ready"),
        element("text", f"bucket {label}", x="0", y=top + 15, dx=4, class_="label"),
    )


def _axis(whole: float, top: int) -> list[Markup]:
    """Return the ticks under a timeline: at most five, at round numbers."""
    if whole <= 0:
        return []
    step = _round_step(whole / 4)
    marks = []
    for index in range(int(whole / step) + 1):
        at, share = index * step, index * step / whole
        anchor = "start" if index == 0 else "end" if share > 0.9 else "middle"
        x = percent(at, whole)
        marks.append(element("line", x1=x, x2=x, y1=top, y2=top + 5, class_="tick"))
        note = f"{at:g} ms" if index else "0"
        marks.append(element("text", note, x=x, y=top + 18, text_anchor=anchor, class_="note"))
    return marks


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below."""
    least = max(least, 1e-12)  # a report of any origin may underflow to 0
    unit = 10.0 ** math.floor(math.log10(least))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least * (1 - 1e-9))
