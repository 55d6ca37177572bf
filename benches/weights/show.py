"""What ``make weights`` shows: tables and pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benches.harness import pages, results
from benches.harness.theme import bare, panels

from . import deltas, files, kernel, losses
from .losses import BUDGET, FLOAT, PLAIN, RANGE, SEQUENTIAL, USUAL, ZERO, Calibrated, Nearest

Document = Mapping[str, Any]
Row = Mapping[str, Any]
Rows = Mapping[Any, Row]

DOCS = pages.ROOT / "docs"
MEASURED = DOCS / "weights-measured.md"
LOSS_ALLOWED = {8: 0.001, 4: 0.012, 3: 0.06}
"""Above float32, for the first model."""
INT8_ALLOWED = 0.002
"""Between activations in float32 and in int8."""

SHOWN = (
    *((name, 4.0) for name in (ZERO, RANGE, "GPTQ", "COMQ", SEQUENTIAL)),
    *((name, 3.0) for name in (RANGE, "GPTQ", "COMQ", SEQUENTIAL, BUDGET)),
    (BUDGET, 2.5),
    *((name, 2.0) for name in (RANGE, "GPTQ", "COMQ", SEQUENTIAL)),
)
"""Methods and bits from which one chooses."""

# Okabe and Ito's palette; markers carry the same information.
FIT_LOOKS = {
    "squares": ("#0080c4", "o"),
    "range": ("#009E73", "s"),
    "sawb": ("#D55E00", "^"),
    "zero": ("#CC79A7", "D"),
}
LOOKS = {
    ZERO: ("#CC79A7", "D"),
    RANGE: ("#808080", "s"),
    "GPTQ": ("#E69F00", "^"),
    "COMQ as in the paper": ("#56B4E9", "v"),
    "MagR + GPTQ": ("#F0E442", "P"),
    "MagR + COMQ": ("#009E73", "X"),
    "COMQ": ("#0072B2", "o"),
    SEQUENTIAL: ("#000000", "o"),
    BUDGET: ("#D55E00", "*"),
}


def by_model(document: Document, kind: Callable[..., losses.Setting]) -> dict[str, Rows]:
    """Return the rows of each model by setting, where the unpacked model is among others."""
    found: dict[str, dict[Any, Row]] = {}
    for row in document["rows"]:
        found.setdefault(row["model"], {})[kind(**row["setting"])] = row
    plain = kind()
    return {
        name: rows
        for name, rows in found.items()
        if plain in rows and any(isinstance(s, Nearest) or s.method in losses.METHODS for s in rows)
    }


def bits_per_weight(row: Row) -> float:
    return 8 * float(row["packed_bytes"]) / float(row["entries"])


def usual(document: Document) -> str:
    """Return a table for each model: what is shown first, and what is read in other ways."""
    parts = []
    for found in by_model(document, Nearest).values():
        nested = [each for each in losses.NESTED if each.block == losses.BLOCK]
        rows = [
            [
                each,
                f"{bits_per_weight(row):.2f}",
                f"{row['bytes'] / 1e3:.0f}",
                f"{row['loss']:.4f}",
                f"{100 * row['accuracy']:.2f}",
            ]
            for each in [FLOAT, *USUAL, *nested, *losses.MULTIPLIED]
            if (row := found.get(each)) is not None
        ]
        headings = ("", "bits per weight", "model size, kB", "loss", "accuracy %")
        first = found[FLOAT]
        title = f"**{first['title']}**, {first['parameters'] / 1e6:.2f} M parameters, "
        title += f"{first['entries'] / 1e6:.2f} M of them packed"
        parts += [title, pages.table(headings, rows)]
    return "\n\n".join(parts)


def targets(document: Document) -> Iterator[str]:
    for place, (name, found) in enumerate(by_model(document, Nearest).items()):
        for each in USUAL if place == 0 else ():
            if each in found and each.bits in LOSS_ALLOWED:
                more = found[each]["loss"] - found[FLOAT]["loss"]
                what = f"{name}, {each}, compared with float32: loss {more:+.4f}"
                yield pages.judged(what, more, LOSS_ALLOWED[each.bits])
        for plain, rounded in zip(losses.MULTIPLIED[::2], losses.MULTIPLIED[1::2], strict=True):
            if plain in found and rounded in found:
                more = abs(found[rounded]["loss"] - found[plain]["loss"])
                what = f"{name}, {plain.bits} bits, multiplied in int8 and in float32: losses"
                yield pages.judged(f"{what} differ by {more:.5f}", more, INT8_ALLOWED)


def choice(document: Document) -> str:
    """Return the table from which one chooses: losses of all models, accuracy on images."""
    models = by_model(document, Calibrated)
    headings = ["", "bits per weight"]
    headings += [
        f"{rows[PLAIN]['title']}, {'accuracy %' if name == 'fashion' else 'loss'}"
        for name, rows in models.items()
    ]
    plain = [_cell(name, [rows[PLAIN]]) for name, rows in models.items()]
    table = [["float32", "32", *plain]]
    for method, bits in SHOWN:
        rows_of = {name: seeds(rows, method, bits) for name, rows in models.items()}
        if any(rows_of.values()):
            size = fmean(map(bits_per_weight, next(iter(rows_of.values()))))
            cells = [_cell(name, found) for name, found in rows_of.items()]
            table.append([f"{bits:g} bits, {method}", f"{size:.2f}", *cells])
    return pages.table(headings, table)


def seeds(rows: Rows, method: str, bits: float) -> list[Row]:
    """Return the rows of a method, one for each seed of calibration."""
    wanted = method, bits, losses.BLOCK
    return [row for each, row in rows.items() if (each.method, each.bits, each.block) == wanted]


def _cell(name: str, found: Sequence[Row]) -> str:
    if not found:
        return ""
    if name == "fashion":
        return f"{100 * fmean(row['accuracy'] for row in found):.2f}"
    return f"{fmean(row['loss'] for row in found):.4f}"


def draw(document: Document, part: str, path: Path) -> None:
    """Save the picture of a part: loss against bytes or bits, a panel for each model."""
    models = by_model(document, losses.KINDS[part])
    with panels(path, 1, len(models), (4.3 * len(models), 4.0)) as (figure, found):
        for axes, rows in zip(found.flat, models.values(), strict=True):
            (_nearest if part == "weights" else _calibrated)(axes, rows)
            axes.set_title(rows[losses.KINDS[part]()]["title"], fontweight="bold", fontsize=11)
            axes.set_ylabel("held-out loss")
            bare(axes)
        handles, labels = found.flat[0].get_legend_handles_labels()
        where: dict[str, Any] = {"loc": "outside upper center", "ncols": min(5, len(labels))}
        figure.legend(handles, labels, frameon=False, **where)


def _limit(axes: Any, plain: float, more: float) -> float:
    """Draw the line of float32, and return the largest loss that is shown."""
    top = plain + 1.3 * max(more, 1e-3)
    axes.axhline(plain, color="#404040", linewidth=1, linestyle=":", label="float32")
    axes.set_ylim(plain - 0.05 * (top - plain), top)
    return top


def _nearest(axes: Any, found: Rows) -> None:
    plain = found[FLOAT]["loss"]
    top = _limit(axes, plain, max(found[each]["loss"] for each in USUAL if each in found) - plain)
    for fit, (color, marker) in FIT_LOOKS.items():
        rows = [row for each, row in found.items() if each in losses.GRID and each.fit == fit]
        shown = [row for row in rows if row["loss"] <= top]
        x, y = ([row[name] for row in shown] for name in ("bytes", "loss"))
        axes.plot(x, y, color=color, marker=marker, markersize=6, linestyle="", label=f'"{fit}"')
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g}")
    axes.set_xlabel("model size, kB")


def _calibrated(axes: Any, rows: Rows) -> None:
    def loss(method: str, bits: float) -> float:
        return fmean(row["loss"] for row in seeds(rows, method, bits))

    plain = rows[PLAIN]["loss"]
    _limit(axes, plain, max(loss(RANGE, 3), loss("COMQ", 2)) - plain)
    for method, (color, marker) in LOOKS.items():
        bits = losses.MEANS if losses.METHODS[method].allot else losses.BITS
        found = [seeds(rows, method, each) for each in bits]
        x = [bits_per_weight(each[0]) for each in found if each]
        y = [fmean(row["loss"] for row in each) for each in found if each]
        axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.2, label=method)
    axes.set_xlim(left=2)
    axes.set_xlabel("bits per weight")


def blocks(document: Document, part: str) -> dict[tuple[Path, str], str]:
    where = results.where(document["machine"])
    source = f"From `make weights` ({where}; {results.listed(document['versions'])}; "
    source += f"{document['date'][:10]})."
    if part == "checkpoints":
        page = DOCS / "checkpoint-files-measured.md"
        source = f"From `make weights`: {where}."
        shown = {
            (page, "speeds"): [files.speed_table(document["speeds"]), source],
            (page, "sizes"): [files.size_table(document["sizes"]), source],
            (page, "patches"): [deltas.size_table(document), source],
            (page, "speeds of patches"): [deltas.speed_table(document)],
        }
    elif part == "quantize":
        picture = "![Loss against bits per weight](quantize.svg)"
        shown = {(MEASURED, "which method"): [choice(document), picture, source]}
    else:
        picture = (
            "![Loss against bytes](weights.svg)\n\nThe figure omits losses far above the 2-bit "
            "loss. Losses and accuracies are measured on all held-out data."
        )
        verdicts = "\n".join(f"* {each}" for each in targets(document))
        shown = {
            (MEASURED, "loss by bits"): [usual(document), verdicts, picture, source],
            (MEASURED, "speed"): [kernel.table(document["kernel"])],
        }
    return {place: "\n\n".join(filter(None, parts)) for place, parts in shown.items()}


def publish(document: Document, part: str) -> None:
    """Write the data of a part, its blocks of the pages and its picture."""
    path = results.FOLDER / f"{part}.json"
    # The figures of programs that are archived stay.
    results.write({**results.read(path), **document}, path)
    for (page, name), block in blocks(document, part).items():
        pages.replace(page, name, block)
    if part in losses.KINDS:
        draw(document, part, DOCS / f"{part}.svg")
