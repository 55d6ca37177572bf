"""What ``make quantize`` shows: tables, a picture, and lines on targets."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from benches.harness import pages, results
from gradwire.cli.theme import STYLE, save

from . import times
from .document import Row, Rows, by_model, gap_of, mean, seeds, spread
from .plan import (
    BITS,
    BLOCK,
    BUDGETS,
    BY_LOSS_SEQUENTIAL,
    COMQ,
    FLOAT,
    GPTQ,
    MAGR_COMQ,
    MAGR_GPTQ,
    MEANS,
    METHODS,
    PAPER,
    RANGE,
    RECOMMENDED,
    ROW,
    SEEDS,
    TRAINED,
    ZERO,
    Setting,
)
from .targets import targets

Document = Mapping[str, Any]

PUBLISHED = results.FOLDER / "quantize.json"
PAGE = pages.ROOT / "docs" / "weights-measured.md"
FIGURE = "quantize.svg"
CHOICE, TRAINING, EVERY, SOLVING = "which method", "trained", "every method", "solving"

SHOWN = (
    *((name, 4.0) for name in (ZERO, RANGE, GPTQ, COMQ, RECOMMENDED)),
    *((name, 3.0) for name in (RANGE, GPTQ, COMQ, RECOMMENDED, BY_LOSS_SEQUENTIAL)),
    (BY_LOSS_SEQUENTIAL, 2.5),
    *((name, 2.0) for name in (RANGE, GPTQ, COMQ, RECOMMENDED)),
)
"""Methods and bits of the first table."""

# Okabe and Ito's palette; markers carry the same information.
LOOKS = {
    ZERO: ("#CC79A7", "D"),
    RANGE: ("#808080", "s"),
    GPTQ: ("#E69F00", "^"),
    PAPER: ("#56B4E9", "v"),
    MAGR_GPTQ: ("#F0E442", "P"),
    MAGR_COMQ: ("#009E73", "X"),
    COMQ: ("#0072B2", "o"),
    RECOMMENDED: ("#000000", "o"),
    BY_LOSS_SEQUENTIAL: ("#D55E00", "*"),
}


def bits_per_weight(row: Row) -> float:
    """Return the bits of a packed entry, with everything that is stored beside it."""
    return 8 * float(row["packed_bytes"]) / float(row["entries"])


def choice(document: Document) -> str:
    """Return the table from which one chooses: losses of all models, accuracy on images."""
    models = {name: rows for name, rows in by_model(document).items() if _packed(rows)}
    measures = {name: _measure(name) for name in models}
    headings = ["", "bits per weight"]
    headings += [f"{rows[FLOAT]['title']}{measures[name][1]}" for name, rows in models.items()]
    first = next(iter(models.values()))
    plain = [_cell(measures[name], [rows[FLOAT]]) for name, rows in models.items()]
    table = [["float32", "32", *plain]]
    for method, bits in SHOWN:
        every = [seeds(rows, method, bits, BLOCK) for rows in models.values()]
        if any(every):
            size = mean(
                [{"size": bits_per_weight(row)} for row in seeds(first, method, bits, BLOCK)],
                "size",
            )
            cells = [
                _cell(measures[name], found) for name, found in zip(models, every, strict=True)
            ]
            table.append([f"{bits:g} bits, {method}", f"{size:.2f}", *cells])
    return pages.table(headings, table)


def _packed(rows: Rows) -> bool:
    return any(each.method in METHODS for each in rows)


def _measure(name: str) -> tuple[str, str]:
    return ("accuracy", ", accuracy %") if name == "fashion" else ("loss", ", loss")


def _cell(measure: tuple[str, str], found: list[Row], *, spreads: bool = False) -> str:
    if not found:
        return ""
    name, _ = measure
    value, wide = mean(found, name), spread(found, name) / 2
    shown, half = (
        (f"{100 * value:.2f}", f"{100 * wide:.2f}")
        if name == "accuracy"
        else (f"{value:.4f}", f"{wide:.4f}")
    )
    return f"{shown} ± {half}" if spreads and len(found) > 1 else shown


def every(document: Document) -> str:
    """Return a table for each model: all methods, bits and blocks."""
    parts = []
    for name, rows in by_model(document).items():
        if not _packed(rows):
            continue
        plain = rows[FLOAT]
        measures = [("loss", "")] + ([_measure(name)] if name == "fashion" else [])
        for measure in measures:
            table = list(_every(rows, measure))
            title = f"**{plain['title']}**{measure[1]}, float32 {_cell(measure, [plain])}"
            headings = ["", "block", *(f"{bits:g} bits" for bits in (*BITS[:3], MEANS[1], BITS[3]))]
            parts += [title, pages.table(headings, table, texts=2)]
    return "\n\n".join(parts)


def _every(rows: Rows, measure: tuple[str, str]) -> Iterator[list[str]]:
    for method in METHODS:
        for block in (32, BLOCK, ROW):
            all_bits = (*BITS[:3], MEANS[1], BITS[3])
            cells = [
                _cell(measure, seeds(rows, method, bits, block), spreads=True) for bits in all_bits
            ]
            if any(cells):
                yield [method, "row" if block == ROW else str(block), *cells]


def training(document: Document) -> str:
    """Return what training for few bits gave."""
    table = []
    titles = {model.name: model.title for model in TRAINED}
    for name, rows in by_model(document).items():
        found = {each: row for each, row in rows.items() if each.method not in METHODS}
        for each, row in found.items():
            if name not in titles:
                continue
            what = f"{each.method}, {each.bits:g} bits" if each.method else "float32"
            read = row.get("read", {"": row})
            for bits, one in read.items():
                words = f"{what}, read at {bits}" if bits else what
                size = f"{bits_per_weight({**row, **one}):.2f}"
                accuracy = f"{100 * one['accuracy']:.2f}"
                table.append([titles[name], words, size, f"{one['loss']:.4f}", accuracy])
    if not table:
        return ""
    headings = ("", "training", "bits per weight", "loss", "accuracy %")
    return pages.table(headings, table, texts=2)


def compared(document: Document) -> str:
    """Return how the objectives of layers with COMQ compare with those of its rivals."""
    table = [
        [row["rival"], row["layers"], row["worse"], f"{row['worst']:.4f}", f"{row['mean']:.3f}"]
        for row in document["layers"]
    ]
    headings = ("COMQ compared with", "layers", "worse on", "largest ratio", "mean ratio")
    return pages.table(headings, table) if table else ""


def lines(document: Document) -> Iterator[str]:
    """Yield a line for each model."""
    for name, rows in by_model(document).items():
        gap = gap_of(rows, BLOCK)
        parts = [name, f"float32 {rows[FLOAT]['loss']:.3f}"]
        for bits in BITS[1:]:
            if seeds(rows, RECOMMENDED, bits, BLOCK):
                nearest, own = (gap(method, bits) for method in (RANGE, RECOMMENDED))
                parts.append(f"{bits} bits: nearest {nearest:+.3f}, packed {own:+.3f}")
        yield "   ".join(parts)


def draw(document: Document, path: Path) -> None:
    """Save the picture: loss against the bits of a weight, a curve for each method."""
    models = {name: rows for name, rows in by_model(document).items() if _packed(rows)}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(models), figsize=(4.2 * len(models), 4.0), squeeze=False, layout="constrained"
        )
        for panel, rows in zip(panels.flat, models.values(), strict=True):
            _panel(panel, rows)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        where: dict[str, Any] = {"loc": "outside upper center", "ncols": min(5, len(labels))}
        figure.legend(handles, labels, frameon=False, **where)
        save(figure, path)
        plt.close(figure)


def _panel(axes: Any, rows: Rows) -> None:
    plain, gap = rows[FLOAT]["loss"], gap_of(rows, BLOCK)
    top = plain + 1.3 * max(gap(RANGE, 3), gap(COMQ, 2), 1e-3)
    axes.axhline(plain, color="#404040", linewidth=1, linestyle=":", label="float32")
    for method, (color, marker) in LOOKS.items():
        all_bits = MEANS if method in BUDGETS else BITS
        every = [seeds(rows, method, bits, BLOCK) for bits in all_bits]
        points = [(bits_per_weight(found[0]), mean(found)) for found in every if found]
        x, y = ([point[i] for point in points] for i in (0, 1))
        axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=1.2, label=method)
    axes.set_xlim(left=2)
    axes.set_ylim(plain - 0.05 * (top - plain), top)
    axes.set_title(rows[FLOAT]["title"], fontweight="bold", fontsize=11)
    axes.set_xlabel("bits per weight")
    axes.set_ylabel("held-out loss")
    axes.grid(visible=True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def blocks(document: Document) -> dict[str, str]:
    """Return the blocks of the page."""
    picture = f"![Loss against bits per weight]({FIGURE})"
    where, versions = results.where(document["machine"]), results.listed(document["versions"])
    source = f"From `make quantize` ({where}; {versions}; {document['date'][:10]})."
    verdicts = "\n".join(f"* {each}" for each in targets(document))
    spreads = f"± is half the range over {len(SEEDS)} calibrations with different batches."
    solving = times.table(document["times"]) if document["times"] else ""
    found = {
        CHOICE: [choice(document), picture, source],
        TRAINING: [training(document)],
        EVERY: [every(document), spreads],
        SOLVING: [compared(document), solving, verdicts],
    }
    return {name: "\n\n".join(filter(None, parts)) for name, parts in found.items()}


def publish(document: Document) -> None:
    """Write the data, the blocks of the page and its picture."""
    results.write(document, PUBLISHED)
    for name, block in blocks(document).items():
        pages.replace(PAGE, name, block)
    draw(document, PAGE.with_name(FIGURE))


def described(setting: Setting) -> str:
    """Return a setting in words."""
    if setting == FLOAT:
        return "float32"
    block = "rows" if setting.block == ROW else f"blocks of {setting.block}"
    seed = f", calibration {setting.seed}" if setting.seed else ""
    return f"{setting.method}, {setting.bits:g} bits, {block}{seed}"
