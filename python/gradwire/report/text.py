"""Figures with their units, and a report as text for a terminal."""

from collections.abc import Collection, Mapping, Sequence

from gradwire.report.figures import ParameterReport, ReportFields

_ROWS = 20
_HEADINGS = (
    f"{'parameter':<40} {'entries':>11} {'bytes/step':>11} {'compression':>11} {'achieved':>10} "
    f"{'enc ms':>8} {'dec ms':>8} {'residual':>10}"
)


def size(nbytes: float) -> str:
    """Return bytes in B, kB, MB or GB, with four digits."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def quotient(value: float | None) -> str:
    """Return a quotient with three decimals, or a dash for none."""
    return "-" if value is None else f"{value:.3f}"


def norm(value: float | None) -> str:
    """Return a norm with four digits, or a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def milliseconds(value: float) -> str:
    """Return milliseconds with their unit: three digits, at most three decimals."""
    return f"{value:.3g} ms" if abs(value) < 1000 else f"{value:.0f} ms"


def columns(table: Mapping[str, Sequence[str]], texts: Collection[str]) -> list[str]:
    """Return the lines of a table: those of `texts` flush left, all other columns flush right."""
    rows = zip(*([title, *cells] for title, cells in table.items()), strict=True)
    widths = [max(map(len, (title, *cells))) for title, cells in table.items()]
    return [
        "  ".join(
            cell.ljust(width) if title in texts else cell.rjust(width)
            for title, width, cell in zip(table, widths, row, strict=True)
        ).rstrip()
        for row in rows
    ]


def as_text(report: ReportFields) -> str:
    """Return a summary and a table of the largest parameters."""
    wire, ddp = size(report.wire_bytes), size(report.dense_wire_bytes)
    buckets = report.collectives / max(report.steps, 1)
    stages = ("encode", "exchange", "decode")
    each_ms = ", ".join(f"{stage} {getattr(report, stage + '_ms'):.2f}" for stage in stages)
    kept = f"{size(report.state_bytes)}, {report.bytes_per_entry():.3g} bytes per entry"
    carried = f"over {report.carried_by}, slots {report.slot_use:.0%} full"
    inside = f"{size(report.node_wire_bytes)} per step, dense, {report.node_ms:.2f} ms"
    dense, share = report.uncompressed()
    small = f"{share:.0%} of these, for {dense} of {len(report.parameters)} parameters"
    lines = [
        f"gradwire, rank {report.rank} of {report.world_size}: {report.steps} steps",
        f"  codec           {report.codec}",
        *([f"  exchange        {report.exchange}"] if report.exchange else []),
        *([f"  decision        {report.decision}"] if report.decision else []),
        *([f"  schedule        {report.schedule}"] if report.schedule else []),
        f"  bytes sent      {wire} per step, {report.compression:.1f}x less than plain DDP ({ddp})",
        f"  uncompressed    {small}",
        *([f"  inside the node {inside}"] if report.node_wire_bytes else []),
        f"  collectives     {buckets:.1f} per step {carried}",
        f"  achieved        {quotient(report.achieved)} (entries sent / requested)",
        f"  ms per step     {each_ms}; wait after backward {report.wait_ms:.2f}",
        f"  residual norm   {norm(report.residual_norm)}",
        f"  memory          {kept}",
        "",
        _HEADINGS,
        *(_row(parameter) for parameter in report.largest(_ROWS)),
    ]
    if len(report.parameters) > _ROWS:
        lines.append(f"... and {len(report.parameters) - _ROWS} smaller ones: see to_json()")
    return "\n".join(lines)


def _row(each: ParameterReport) -> str:
    name = each.name if len(each.name) <= 40 else "..." + each.name[-37:]
    left = "dense" if each.dense else norm(each.residual_norm)
    return (
        f"{name:<40} {each.numel:>11,} {each.bytes_per_step:>11,.0f} {each.compression:>11.1f} "
        f"{quotient(each.achieved):>10} {each.encode_ms:>8.3f} {each.decode_ms:>8.3f} {left:>10}"
    )
