"""The sections of a page: what was sent, when, and what is left, as charts and tables."""

from collections.abc import Callable, Sequence

from gradwire.report.figures import Figures, ParameterReport
from gradwire.report.html import tables
from gradwire.report.html.charts import Bar, bars, legend
from gradwire.report.html.markup import Child, Markup, element, join
from gradwire.report.html.timeline import key, timeline
from gradwire.report.html.trend import TRENDS, trend
from gradwire.report.overlap import STAGES, Split, by_step, last_ready, split
from gradwire.report.units import milliseconds, norm, ratio, size

__all__ = ["layers", "over_time", "ranks", "summary", "times", "wire"]

_LAYERS = 20
_STEPS = 3
_ROWS = 2000


def summary(report: Figures) -> Markup:
    """Return the figures that one looks for first."""
    kept = f"{report.bytes_per_entry():.3g} bytes per compressed entry"
    tiles = (
        ("compression", f"{report.compression:.1f}×", "fewer bytes than plain DDP"),
        ("sent per step", size(report.wire_bytes), f"plain DDP {size(report.dense_wire_bytes)}"),
        ("backward waited", milliseconds(report.wait_ms), "per step, after the last gradient"),
        ("achieved ratio", ratio(report.achieved), "entries sent / entries asked for"),
        ("residual norm", norm(report.residual_norm), "judge its trend, not its value"),
        ("memory", size(report.state_bytes), kept),
        ("steps", f"{report.steps:,}", f"{report.step:,} that counted, ever"),
    )
    return element("dl", join(*(_tile(*each) for each in tiles)), class_="tiles")


def _tile(name: str, value: str, note: str) -> Markup:
    return element("div", element("dt", name), element("dd", value, element("small", note)))


def wire(report: Figures) -> Markup:
    """Return the bytes on the wire beside those of dense exchanges, and the use of slots."""
    ring = 2 * (report.world_size - 1) / report.world_size
    numel = sum(each.numel for each in report.parameters)
    sent = report.wire_bytes
    rows = [
        _bytes("this rank", sent, sent, "main"),
        _bytes("dense, bfloat16", 2 * ring * numel, sent, "plain"),
        _bytes("dense, float32", 4 * ring * numel, sent, "plain"),
    ]
    if report.node_wire_bytes:
        inside = f"{size(report.node_wire_bytes)}, {milliseconds(report.node_ms)}"
        rows.insert(1, Bar("inside the node, dense", inside, (("plain", report.node_wire_bytes),)))
    full = Bar("room in slots that was used", f"{report.slot_use:.1%}", (("bar", report.slot_use),))
    return _charts(
        _figure(
            "Bytes on the wire",
            "Per step and rank. Dense is a ring all-reduce of every parameter, as plain DDP sends "
            "it and as a bf16 hook does.",
            bars(
                "Bytes sent per step", ", ".join(f"{row.label}: {row.value}" for row in rows), rows
            ),
        ),
        _figure(
            "Slots",
            "Frames go into slots of one size for all ranks. Threshold codecs leave room in them; "
            "top-k fills them.",
            bars("Use of slots", f"{report.slot_use:.1%} of the room was used", [full], most=1.0),
            legend(("bar", "used"), ("track", "unused")),
        ),
    )


def _bytes(label: str, nbytes: float, sent: float, name: str) -> Bar:
    times = "" if name == "main" or not sent else f", {nbytes / sent:.1f}×"
    return Bar(label, size(nbytes) + times, ((name, nbytes),))


def times(report: Figures) -> Markup:
    """Return the time of each stage, and timelines of the last steps if they are known."""
    steps = by_step(report.timeline)
    figures = [_stages(report), _overlap(steps) if steps else None]
    if not steps:
        hint = "This report has no times of single buckets: there was no step since the last reset."
        return join(_charts(*figures), element("p", hint, class_="quiet"))
    shown = list(reversed(steps[-_STEPS:]))
    drawn = (
        part
        for buckets in shown
        for part in (element("h4", f"Step {buckets[0].step}"), timeline(buckets))
    )
    return join(
        _charts(
            *figures,
            _figure(
                "The last steps",
                "A row per bucket. What lies within the backward pass costs the loop no time. What "
                "lies right of the dashed line makes it wait.",
                key(),
                *drawn,
                wide=True,
            ),
            _figure(
                "Buckets",
                f"Of step {steps[-1][0].step}. Overlapped: the share of the three stages that lay "
                "within the backward pass.",
                tables.of_buckets(steps[-1]),
                wide=True,
            ),
        )
    )


def _stages(report: Figures) -> Markup:
    rows = [
        Bar(stage, milliseconds(value), ((stage, value),))
        for stage in STAGES
        for value in (getattr(report, f"{stage}_ms"),)
    ]
    rows.append(Bar("backward waited", milliseconds(report.wait_ms), (("after", report.wait_ms),)))
    return _figure(
        "Time by stage",
        f"Means of {report.steps:,} steps. The stages overlap each other and the backward pass, so "
        "they do not add up to the time that it waited.",
        bars("Time by stage", ", ".join(f"{row.label}: {row.value}" for row in rows), rows),
    )


def _overlap(steps: Sequence[Sequence[object]]) -> Markup:
    rows = []
    for stage in STAGES:
        total = Split()
        for buckets in steps:
            total += split(buckets, stage, last_ready(buckets))  # type: ignore[arg-type]
        mean = Split(total.within / len(steps), total.after / len(steps))
        share = mean.within / mean.total if mean.total else 0.0
        value = f"{share:.0%} of {milliseconds(mean.total)}"
        rows.append(Bar(stage, value, (("within", mean.within), ("after", mean.after))))
    return _figure(
        "What overlapped",
        f"Means of the last {len(steps)} steps, summed over buckets: how much of each stage lay "
        "within the backward pass.",
        bars("What overlapped", ", ".join(f"{row.label}: {row.value}" for row in rows), rows),
        legend(("within", "within the backward pass"), ("after", "after it")),
    )


def layers(report: Figures) -> Markup:
    """Return charts of the largest parameters, in the order of the model, and a table of all."""
    chosen = {each.name for each in report.largest(_LAYERS)}
    largest = [each for each in report.parameters if each.name in chosen]
    charts = _charts(
        _chart(
            "Compression",
            "Bytes of the gradient divided by bytes of its frame. Parameters that are sent dense "
            "have 1.",
            largest,
            lambda each: each.compression,
            lambda value: f"{value:.1f}×",
        ),
        _chart(
            "Achieved ratio",
            "Entries sent divided by entries asked for. The mark is the target, 1.",
            largest,
            lambda each: each.achieved,
            ratio,
            mark=1.0,
        ),
        _chart(
            "Residual norm",
            "What is still to be sent. One that dwarfs the others needs more entries.",
            largest,
            lambda each: each.residual_norm,
            norm,
        ),
        kind="charts thirds",
    )
    ordered = report.largest(_ROWS)
    left = len(report.parameters) - len(ordered)
    return join(
        charts,
        element(
            "div",
            element(
                "h3", "All parameters" if not left else f"The {len(ordered)} largest parameters"
            ),
            tables.of_parameters(ordered),
            class_="card",
        ),
    )


def _chart(
    title: str,
    note: str,
    parameters: Sequence[ParameterReport],
    read: Callable[[ParameterReport], float | None],
    write: Callable[[float | None], str],
    mark: float | None = None,
) -> Markup | None:
    """Return a chart of one figure, or nothing if no parameter has it."""
    found = [(each, value) for each in parameters if (value := read(each)) is not None]
    if not found:
        return None
    rows = [Bar(each.name, write(value), (("bar", value),)) for each, value in found]
    said = ", ".join(f"{row.label}: {row.value}" for row in rows[:3])
    drawn = bars(f"{title} by parameter", f"{len(rows)} parameters; {said}", rows, mark=mark)
    return _figure(title, note, drawn)


def over_time(reports: Sequence[Figures]) -> Markup | None:
    """Return the figures of a rank through its reports, if it has several of different steps."""
    if len({each.step for each in reports}) < 2:
        return None
    ordered = sorted(reports, key=lambda each: each.step)
    drawn = (
        (title, note, trend(title, ordered, name, write))
        for title, (name, note, write) in TRENDS.items()
    )
    figures = [_figure(title, note, chart) for title, note, chart in drawn if chart is not None]
    return join(element("h2", "Over time"), _charts(*figures))


def ranks(reports: Sequence[Figures]) -> Markup:
    """Return the figures of several ranks beside each other."""
    waited = [
        Bar(f"rank {each.rank}", milliseconds(each.wait_ms), (("after", each.wait_ms),))
        for each in reports
    ]
    encoded = [
        Bar(f"rank {each.rank}", milliseconds(each.encode_ms), (("encode", each.encode_ms),))
        for each in reports
    ]
    return join(
        _charts(
            _figure(
                "Backward waited",
                "Per step, after the last gradient. A rank that waits less than the others is the "
                "one that they wait for.",
                bars("Waiting time by rank", f"{len(reports)} ranks", waited),
            ),
            _figure(
                "Encode",
                "Per step. A rank that encodes longer has less processor for it.",
                bars("Encoding time by rank", f"{len(reports)} ranks", encoded),
            ),
        ),
        element("div", tables.of_ranks(reports), class_="card"),
    )


def _charts(*figures: Child, kind: str = "charts") -> Markup:
    return element("div", *figures, class_=kind)


def _figure(title: str, note: str, *content: Child, wide: bool = False) -> Markup:
    return element(
        "figure",
        element("h3", title),
        element("figcaption", note),
        *content,
        class_="wide" if wide else None,
    )
