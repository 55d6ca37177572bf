"""Figures over time: a line per figure, through the reports of one rank."""

from collections.abc import Callable, Sequence

from gradwire.report.figures import Figures
from gradwire.report.html.charts import drawing, percent
from gradwire.report.html.markup import Markup, element
from gradwire.report.units import milliseconds, norm, ratio, size

__all__ = ["TRENDS", "trend"]

_TOP, _HEIGHT, _FOOT = 22, 90, 22

TRENDS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "Residual norm": ("residual_norm", "Levels off, or grows with what is never sent.", norm),
    "Backward waited": ("wait_ms", "Per step, after the last gradient.", milliseconds),
    "Sent per step": ("wire_bytes", "Bytes of this rank.", size),
    "Achieved ratio": ("achieved", "Entries sent divided by entries asked for.", ratio),
}
"""What is drawn over time: the field, what it means, and how to write it."""


def trend(
    title: str, reports: Sequence[Figures], name: str, write: Callable[[float], str]
) -> Markup | None:
    """Return a chart of one field through these reports, from zero up.

    None if fewer than two of them have it.
    """
    points = [(each.step, value) for each in reports if (value := getattr(each, name)) is not None]
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    most = max(value for _, value in points) or 1.0
    places = [
        (100 * (step - first) / max(last - first, 1), 100 * (1 - value / most))
        for step, value in points
    ]
    line = element(
        "polyline",
        points=" ".join(f"{x:.3f},{y:.3f}" for x, y in places),
        class_="line",
        vector_effect="non-scaling-stroke",
    )
    plot = element(
        "svg",
        line,
        y=_TOP,
        width="100%",
        height=_HEIGHT,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        overflow="visible",
    )
    bottom = _TOP + _HEIGHT
    return drawing(
        f"{title} over time",
        f"From {write(points[0][1])} at step {first} to {write(points[-1][1])} at step {last}, "
        f"at most {write(most)}, in {len(points)} reports.",
        bottom + _FOOT,
        element("rect", x="0", y=_TOP, width="100%", height=_HEIGHT, class_="track"),
        element("text", f"at most {write(most)}", x="0", y=14, class_="note"),
        element("text", f"now {write(points[-1][1])}", x="100%", y=14, class_="value"),
        plot,
        *(
            _dot(x, y, step, write(value))
            for (x, y), (step, value) in zip(places, points, strict=True)
        ),
        element("text", f"step {first:,}", x="0", y=bottom + 16, class_="note"),
        element("text", f"step {last:,}", x="100%", y=bottom + 16, class_="value note"),
    )


def _dot(x: float, y: float, step: int, value: str) -> Markup:
    note = element("title", f"step {step:,}: {value}")
    across, down = percent(x, 100), _TOP + _HEIGHT * y / 100
    return element("circle", note, cx=across, cy=down, r=2.5, class_="dot")
