"""A page of reports: HTML in one file, with no script, and nothing from the network."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.resources import files
from itertools import groupby

from gradwire.report.figures import BucketTimes, ParameterReport, ReportFields
from gradwire.report.markup import Bar, Markup, chart, element, join, legend, line_chart, table
from gradwire.report.text import milliseconds, norm, quotient, size

STAGES = ("encode", "exchange", "decode")

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Lets the browser load nothing, whatever a parameter's name contains."""
_STEPS, _BUCKETS, _ROWS = 3, 48, 2000
"""The most that is drawn of steps, buckets of a step, and parameters."""


def page(reports: Sequence[ReportFields]) -> str:
    """Return a page that shows these reports: one, or one per rank.

    Parameters
    ----------
    reports : sequence of Report
        If a rank has several, as in a file that was appended to, the last one is shown, with charts
        of how its figures changed.

    Returns
    -------
    str
        HTML that is also XML. It opens offline, and its policy forbids it to load anything.

    Raises
    ------
    ValueError
        There is none.
    """
    if not reports:
        raise ValueError("there is no report to show")
    ordered = sorted(reports, key=lambda each: (each.rank, each.step))
    histories = [list(group) for _, group in groupby(ordered, key=lambda each: each.rank)]
    first = histories[0][-1]
    ranks = f"rank {first.rank}" if len(histories) == 1 else f"{len(histories)} ranks"
    title = f"gradwire: {ranks} of {first.world_size}, {first.steps:,} steps"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup((files(__package__) / "page.css").read_text("utf-8"))),
    )
    main = element("main", element("h1", title), *_about(first, reports), *_ranks(histories))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', main), lang='en')}\n"


_CELL_STYLE = """\
.gradwire-report table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0; }
.gradwire-report th, .gradwire-report td { padding: 0.15em 0.8em 0.15em 0; text-align: left; }
.gradwire-report thead th { border-bottom: 1px solid; }
.gradwire-report .scroll { overflow-x: auto; white-space: nowrap; }
.gradwire-report .scroll :is(th, td):not(:first-child) { text-align: right; }
.gradwire-report p { margin: 0.3em 0; overflow-wrap: anywhere; }
.gradwire-report summary { cursor: pointer; margin: 0.5em 0; }
"""
"""Has no colours: those of the notebook's theme hold, whether it is light or dark."""
_CELL_ROWS = 10


def notebook_cell(report: ReportFields) -> str:
    """Return a report as HTML to embed in another page: a summary, and the largest parameters.

    It needs neither a script nor a style sheet of the page, and follows the page's colours.
    """
    title = f"gradwire, rank {report.rank} of {report.world_size}: {report.steps:,} steps"
    rows = (
        element("tr", element("th", name, scope="row"), element("td", value), element("td", note))
        for name, value, note in _tiles(report)
    )
    largest, count = report.largest(_CELL_ROWS), len(report.parameters)
    which = f"The {len(largest)} largest of {count:,}" if count > len(largest) else f"All {count:,}"
    return element(
        "div",
        element("style", Markup(_CELL_STYLE)),
        element("p", element("b", title)),
        *_about(report, [report]),
        element("table", element("tbody", *rows)),
        element(
            "details",
            element("summary", f"{which} parameters"),
            table(_PARAMETER_COLUMNS, largest),
        ),
        class_="gradwire-report",
    )


def _about(first: ReportFields, reports: Sequence[ReportFields]) -> Iterable[Markup]:
    older = len(reports) - len({each.rank for each in reports})
    note = f" Of {len(reports)} reports, only the latest of each rank is shown." if older else ""
    yield element("p", element("code", first.codec), class_="quiet")
    yield element("p", f"Frames go over {first.carried_by}.{note}", class_="quiet")
    if first.exchange:
        yield element("p", element("code", first.exchange), class_="quiet")
    if first.decision:
        yield element("p", first.decision)
    if first.schedule:
        yield element("p", element("code", first.schedule))


def _ranks(histories: Sequence[Sequence[ReportFields]]) -> Iterable[Markup]:
    if len(histories) == 1:
        yield _rank(histories[0])
        return
    last = [history[-1] for history in histories]
    yield element("h2", "Ranks")
    yield _figure(
        "All ranks",
        "The rank with the shortest wait is the one that the others wait for. A rank that encodes "
        "longer gets less processor time.",
        table(_RANK_COLUMNS, last, ["wait ms", "encode ms"]),
    )
    yield element("h2", f"Rank {last[0].rank}")
    yield _rank(histories[0])
    for history in histories[1:]:
        name = element("summary", element("b", f"Rank {history[-1].rank}"))
        yield element("details", name, _rank(history))


def _rank(history: Sequence[ReportFields]) -> Markup:
    report = history[-1]
    return join(
        _summary(report),
        _over_time(history),
        element("h2", "On the wire"),
        _wire(report),
        element("h2", "Time"),
        _times(report),
        element("h2", "By layer"),
        _layers(report),
    )


def _charts(*figures: str | None) -> Markup:
    return element("div", *figures, class_="charts")


def _figure(title: str, note: str, *content: str | None, kind: str | None = None) -> Markup:
    heading, caption = element("h3", title), element("figcaption", note)
    return element("figure", heading, caption, *content, class_=kind)


def _tiles(report: ReportFields) -> Sequence[tuple[str, str, str]]:
    """Return names, values and explanations of figures."""
    dense, share = report.uncompressed()
    return (
        ("compression", f"{report.compression:.1f}×", "fewer bytes than plain DDP"),
        ("sent per step", size(report.wire_bytes), f"plain DDP {size(report.dense_wire_bytes)}"),
        ("uncompressed", f"{share:.0%}", f"of these bytes, for {dense} parameters"),
        ("wait after backward", milliseconds(report.wait_ms), "per step, after the last gradient"),
        ("slots", f"{report.slot_use:.1%}", "of the slot space used"),
        ("achieved", quotient(report.achieved), "entries sent / requested"),
        ("residual norm", norm(report.residual_norm), "judge its trend, not its value"),
        (
            "memory",
            size(report.state_bytes),
            f"{report.bytes_per_entry():.3g} bytes per compressed entry",
        ),
        ("steps", f"{report.steps:,}", f"{report.step:,} in all, without rollbacks"),
    )


def _summary(report: ReportFields) -> Markup:
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, element("small", note)))
            for name, value, note in _tiles(report)
        ),
        class_="tiles",
    )


_TRENDS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "Residual norm": ("residual_norm", "Levels off, unless some entries are never sent.", norm),
    "Wait after backward": ("wait_ms", "Per step, after the last gradient.", milliseconds),
    "Sent per step": ("wire_bytes", "By this rank.", size),
    "Achieved": ("achieved", "Entries sent divided by entries requested.", quotient),
}
"""Charts over time: title, field, caption and format."""


def _over_time(history: Sequence[ReportFields]) -> Markup | None:
    """Return charts of a rank's reports, if they are of different steps."""
    if len({each.step for each in history}) < 2:
        return None
    figures = []
    for title, (name, note, write) in _TRENDS.items():
        values = [(each.step, getattr(each, name)) for each in history]
        points = [(step, value) for step, value in values if value is not None]
        if len(points) > 1:
            figures.append(_figure(f"{title} over time", note, line_chart(points, write)))
    return join(element("h2", "Over time"), _charts(*figures))


def _wire(report: ReportFields) -> Markup:
    ring = 2 * (report.world_size - 1) / report.world_size
    numel, sent = sum(each.numel for each in report.parameters), report.wire_bytes
    rows = [Bar("this rank", size(sent), [("main", 0.0, sent)])]
    if inside := report.node_wire_bytes:
        figure = f"{size(inside)}, {milliseconds(report.node_ms)}"
        rows.append(Bar("inside the node, dense", figure, [("plain", 0.0, inside)]))
    for dtype, nbytes in (("bfloat16", 2 * ring * numel), ("float32", 4 * ring * numel)):
        times = f", {nbytes / sent:.1f}×" if sent else ""
        rows.append(Bar(f"dense, {dtype}", size(nbytes) + times, [("plain", 0.0, nbytes)]))
    return _figure(
        "Bytes on the wire",
        "Per step and rank. Dense is a ring all-reduce of every parameter, in float32 as in plain "
        "DDP, or in bfloat16 as with a bf16 hook.",
        chart(rows),
    )


def _times(report: ReportFields) -> Markup:
    stages = [(stage, getattr(report, f"{stage}_ms"), stage) for stage in STAGES]
    stages.append(("wait after backward", report.wait_ms, "after"))
    means = _figure(
        "Time by stage",
        f"Means of {report.steps:,} steps. The stages overlap each other and the backward pass, so "
        "their times do not add up to the wait.",
        chart([Bar(name, milliseconds(ms), [(kind, 0.0, ms)]) for name, ms, kind in stages]),
    )
    ordered = sorted(report.timeline, key=lambda each: (each.step, each.bucket))
    steps = [list(buckets) for _, buckets in groupby(ordered, key=lambda each: each.step)]
    if not steps:
        hint = "This report has no times per bucket: there was no step since the last reset."
        return join(_charts(means), element("p", hint, class_="quiet"))
    return _charts(
        means,
        _overlap(steps),
        _figure(
            "The last steps",
            "One row per bucket. Work within the backward pass costs the loop no time. Work to the "
            "right of it makes the loop wait.",
            legend(
                {
                    "pass": "backward pass, from its first bucket",
                    **{stage: stage for stage in STAGES},
                    "ready": "gradients of the bucket ready",
                }
            ),
            *(_timeline(buckets) for buckets in reversed(steps[-_STEPS:])),
            kind="wide",
        ),
        _figure(
            "Buckets",
            f"In step {steps[-1][0].step}. Overlapped: the share of the three stages that lay "
            "within the backward pass.",
            _bucket_table(steps[-1]),
            kind="wide",
        ),
    )


def _last_ready(buckets: Iterable[BucketTimes]) -> float:
    """Return when the last gradient of a step was ready: its backward pass ends there."""
    return max(each.ready for each in buckets)


def _spent(buckets: Iterable[BucketTimes], stage: str, until: float = math.inf) -> float:
    """Return the milliseconds that these buckets spent in a stage until then."""
    spans: Iterable[tuple[float, float]] = (getattr(each, stage) for each in buckets)
    return sum(max(min(end, until) - begin, 0.0) for begin, end in spans)


def _overlap(steps: Sequence[Sequence[BucketTimes]]) -> Markup:
    rows = []
    for stage in STAGES:
        total = sum(_spent(each, stage) for each in steps) / len(steps)
        within = sum(_spent(each, stage, _last_ready(each)) for each in steps) / len(steps)
        figure = f"{within / total if total else 0.0:.0%} of {milliseconds(total)}"
        rows.append(Bar(stage, figure, [("within", 0.0, within), ("after", within, total)]))
    return _figure(
        "What overlapped",
        f"Means of the last {len(steps)} steps, summed over buckets: how much of each stage lay "
        "within the backward pass.",
        chart(rows),
        legend({"within": "within the backward pass", "after": "after it"}),
    )


def _timeline(buckets: Sequence[BucketTimes]) -> Markup:
    ready = _last_ready(buckets)
    end = max(max(each.ready, *(getattr(each, stage)[1] for stage in STAGES)) for each in buckets)
    rows = []
    for each in buckets[:_BUCKETS]:
        spans = {stage: getattr(each, stage) for stage in STAGES}
        rows.append(
            Bar(
                f"bucket {each.bucket}: {size(each.dense_bytes)} → {size(each.wire_bytes)}",
                ", ".join(f"{stage} {milliseconds(b - a)}" for stage, (a, b) in spans.items()),
                [
                    ("pass", 0.0, ready),
                    *((stage, a, b) for stage, (a, b) in spans.items()),
                    ("ready", each.ready, each.ready),
                ],
            )
        )
    left = len(buckets) - len(rows)
    times = f"{milliseconds(ready)} of backward pass, then {milliseconds(end - ready)} of waiting"
    return join(
        element("h4", f"Step {buckets[0].step}: {times}"),
        chart(rows),
        element("p", f"… and {left} more buckets", class_="quiet") if left else None,
    )


def _bucket_table(buckets: Sequence[BucketTimes]) -> Markup:
    """Return a row per bucket of one step, and one of all."""
    ready = _last_ready(buckets)

    def overlapped(group: Sequence[BucketTimes]) -> str:
        total = sum(_spent(group, stage) for stage in STAGES)
        within = sum(_spent(group, stage, ready) for stage in STAGES)
        return f"{within / total:.0%}" if total else "-"

    def spent(stage: str, group: Sequence[BucketTimes]) -> str:
        return milliseconds(_spent(group, stage))

    columns: dict[str, Callable[[Sequence[BucketTimes]], str]] = {
        "bucket": lambda group: "all" if group is buckets else str(group[0].bucket),
        "parameters": lambda group: f"{sum(each.parameters for each in group):,}",
        "dense": lambda group: size(sum(each.dense_bytes for each in group)),
        "sent": lambda group: size(sum(each.wire_bytes for each in group)),
        "ready": lambda group: milliseconds(_last_ready(group)),
        **{stage: partial(spent, stage) for stage in STAGES},
        "overlapped": overlapped,
    }
    return table(columns, [*([each] for each in buckets), buckets])


def _layers(report: ReportFields) -> Markup:
    ordered = report.largest(_ROWS)
    left = len(report.parameters) - len(ordered)
    return _figure(
        f"The {len(ordered)} largest parameters" if left else "All parameters",
        "Compression is the size of the gradient divided by that of its frame. Achieved is entries "
        "sent divided by entries requested: the target is 1. A parameter whose residual dwarfs the "
        "others must send more entries.",
        table(_PARAMETER_COLUMNS, ordered, ["compression", "achieved", "residual norm"]),
    )


_PARAMETER_COLUMNS: dict[str, Callable[[ParameterReport], str]] = {
    "parameter": lambda each: each.name,
    "entries": lambda each: f"{each.numel:,}",
    "bytes/step": lambda each: f"{each.bytes_per_step:,.0f}",
    "compression": lambda each: "dense" if each.dense else f"{each.compression:.1f}",
    "achieved": lambda each: quotient(each.achieved),
    "trimmed": lambda each: f"{each.trimmed:,}",
    "encode ms": lambda each: f"{each.encode_ms:.3f}",
    "decode ms": lambda each: f"{each.decode_ms:.3f}",
    "residual norm": lambda each: norm(each.residual_norm),
    "memory": lambda each: size(each.state_bytes),
}

_RANK_COLUMNS: dict[str, Callable[[ReportFields], str]] = {
    "rank": lambda each: str(each.rank),
    "steps": lambda each: f"{each.steps:,}",
    "sent/step": lambda each: size(each.wire_bytes),
    "compression": lambda each: f"{each.compression:.1f}",
    "slots full": lambda each: f"{each.slot_use:.0%}",
    "achieved": lambda each: quotient(each.achieved),
    "encode ms": lambda each: f"{each.encode_ms:.2f}",
    "exchange ms": lambda each: f"{each.exchange_ms:.2f}",
    "decode ms": lambda each: f"{each.decode_ms:.2f}",
    "wait ms": lambda each: f"{each.wait_ms:.2f}",
    "residual norm": lambda each: norm(each.residual_norm),
    "memory": lambda each: size(each.state_bytes),
}
