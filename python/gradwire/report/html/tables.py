"""Tables of figures."""

from collections.abc import Iterable, Sequence

from gradwire.report.figures import BucketTimes, Figures, ParameterReport
from gradwire.report.html.markup import Markup, element, join
from gradwire.report.overlap import STAGES, end, last_ready, split
from gradwire.report.units import milliseconds, norm, ratio, size

__all__ = ["of_buckets", "of_parameters", "of_ranks"]


def of_parameters(parameters: Sequence[ParameterReport]) -> Markup:
    """Return a row per parameter."""
    headings = (
        "parameter",
        "entries",
        "bytes/step",
        "compression",
        "achieved",
        "trimmed",
        "encode ms",
        "decode ms",
        "residual norm",
        "memory",
    )
    return _table("Parameters", headings, (_of_parameter(each) for each in parameters))


def _of_parameter(each: ParameterReport) -> list[str]:
    return [
        each.name,
        f"{each.numel:,}",
        f"{each.bytes_per_step:,.0f}",
        "dense" if each.dense else f"{each.compression:.1f}",
        ratio(each.achieved),
        f"{each.trimmed:,}",
        f"{each.encode_ms:.3f}",
        f"{each.decode_ms:.3f}",
        norm(each.residual_norm),
        size(each.state_bytes),
    ]


def of_buckets(buckets: Sequence[BucketTimes]) -> Markup:
    """Return a row per bucket of one step, with how much of it lay within the backward pass."""
    headings = ("bucket", "parameters", "dense", "sent", "ready", *STAGES, "overlapped")
    ready = last_ready(buckets)
    rows = [_of_bucket(each, ready) for each in buckets]
    total = [split(buckets, stage, ready) for stage in STAGES]
    whole = sum(each.total for each in total)
    rows.append(
        [
            "all",
            f"{sum(each.parameters for each in buckets):,}",
            size(sum(each.dense_bytes for each in buckets)),
            size(sum(each.wire_bytes for each in buckets)),
            milliseconds(end(buckets)),
            *(milliseconds(each.total) for each in total),
            f"{sum(each.within for each in total) / whole:.0%}" if whole else "-",
        ]
    )
    return _table(f"Buckets of step {buckets[0].step}", headings, rows)


def _of_bucket(each: BucketTimes, ready: float) -> list[str]:
    total = [split([each], stage, ready) for stage in STAGES]
    whole = sum(stage.total for stage in total)
    return [
        str(each.bucket),
        f"{each.parameters:,}",
        size(each.dense_bytes),
        size(each.wire_bytes),
        milliseconds(each.ready),
        *(milliseconds(stage.total) for stage in total),
        f"{sum(stage.within for stage in total) / whole:.0%}" if whole else "-",
    ]


def of_ranks(reports: Sequence[Figures]) -> Markup:
    """Return a row per rank."""
    headings = (
        "rank",
        "steps",
        "sent/step",
        "compression",
        "slots full",
        "achieved",
        *(f"{stage} ms" for stage in (*STAGES, "wait")),
        "residual norm",
        "memory",
    )
    rows = (
        [
            str(each.rank),
            f"{each.steps:,}",
            size(each.wire_bytes),
            f"{each.compression:.1f}",
            f"{each.slot_use:.0%}",
            ratio(each.achieved),
            *(f"{getattr(each, stage + '_ms'):.2f}" for stage in (*STAGES, "wait")),
            norm(each.residual_norm),
            size(each.state_bytes),
        ]
        for each in reports
    )
    return _table("Ranks", headings, rows)


def _table(caption: str, headings: Iterable[str], rows: Iterable[Sequence[str]]) -> Markup:
    head = element("tr", join(*(element("th", each, scope="col") for each in headings)))
    body = (element("tr", join(*(element("td", each) for each in row))) for row in rows)
    return element(
        "div",
        element("table", element("thead", head), element("tbody", join(*body)), aria_label=caption),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )
