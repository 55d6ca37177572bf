"""What ``make weights`` shows: tables, a picture, and a line for each model."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from benches.harness import pages, results
from gradwire.cli.theme import STYLE, save

from . import clips, kernel
from .plan import BITS, BLOCKS, FITS, FLOAT, GRID, NESTED, USUAL, Fit, Setting

Document = Mapping[str, Any]
Row = Mapping[str, Any]

PUBLISHED = results.FOLDER / "weights.json"
PAGE = pages.ROOT / "docs" / "weights-measured.md"
FIGURE = "weights.svg"
LOSSES, ALL, SPEED = "loss by bits", "loss by fit and block", "speed"

LOSS_ALLOWED = {8: 0.001, 4: 0.012, 3: 0.06}
"""Above float32, for the first model."""
INT8_ALLOWED = 0.002
"""Between activations in float32 and in int8."""

# Okabe and Ito's palette; markers carry the same information.
LOOKS: dict[Fit, tuple[str, str]] = {
    "squares": ("#0080c4", "o"),
    "range": ("#009E73", "s"),
    "sawb": ("#D55E00", "^"),
    "zero": ("#CC79A7", "D"),
}


def setting(row: Row) -> Setting:
    return Setting(**row["setting"])


def by_model(document: Document) -> Iterator[tuple[str, dict[Setting, Row]]]:
    """Yield each model with its rows by setting, where the unpacked one is among them."""
    found: dict[str, dict[Setting, Row]] = {}
    for row in document["rows"]:
        found.setdefault(row["model"], {})[setting(row)] = row
    yield from ((name, rows) for name, rows in found.items() if FLOAT in rows)


def named(each: Setting) -> str:
    """Return a setting in words."""
    if each == FLOAT:
        return "float32"
    if each.nested:
        first = "first 4 of 4 + 4 bits" if each.bits == 4 else "4 + 4 bits"
        return f'{first}, `"{each.fit}"`, block {each.block}'
    words = f'{each.bits} bits, `"{each.fit}"`, block {each.block}'
    return f"{words}, multiplied in {each.activations}" if each.activations else words


def bits_per_weight(row: Row) -> float:
    """Return the bits of a packed entry, with everything that is stored beside it."""
    nbytes, entries = float(row["packed_bytes"]), int(row["entries"])
    return 8 * nbytes / entries


def losses(document: Document) -> str:
    """Return a table for each model: what is shown first, and what is read in other ways."""
    parts = []
    for _, found in by_model(document):
        nested = [each for each in NESTED if each.block == USUAL[0].block]
        multiplied = [each for each in found if each.activations]
        chosen = [FLOAT, *USUAL, *nested, *multiplied]
        rows = [
            [
                named(each),
                f"{bits_per_weight(row):.2f}",
                f"{row['bytes'] / 1e3:.0f}",
                f"{row['loss']:.4f}",
                f"{100 * row['accuracy']:.2f}",
            ]
            for each in chosen
            if (row := found.get(each)) is not None
        ]
        headings = ("", "bits per weight", "model size, kB", "loss", "accuracy %")
        first = found[FLOAT]
        title = f"**{first['title']}**, {first['parameters'] / 1e6:.2f} M parameters, "
        title += f"{first['entries'] / 1e6:.2f} M of them packed"
        parts += [title, pages.table(headings, rows)]
    return "\n\n".join(parts)


def every(document: Document) -> str:
    """Return a table for each model: the loss at all bits, fits and blocks."""
    parts = []
    for _, found in by_model(document):
        rows = []
        for bits in BITS:
            for fit in FITS:
                at = [found.get(Setting(bits, fit, block)) for block in BLOCKS]
                if any(at):
                    cells = [f"{row['loss']:.4f}" if row else "" for row in at]
                    rows.append([bits, f'`"{fit}"`', *cells])
        if rows:
            headings = ("bits", "fit", *(f"block {block}" for block in BLOCKS))
            parts += [f"**{found[FLOAT]['title']}**, float32 {found[FLOAT]['loss']:.4f}"]
            parts += [pages.table(headings, rows, texts=2)]
    return "\n\n".join(parts)


def clip_table(rows: Sequence[Row]) -> str:
    """Return the errors of SAWB's clip and of the best one."""
    cells = [
        [
            row["law"],
            row["bits"],
            f"{row['sawb']:.5f}",
            f"{row['best']:.5f}",
            f"{row['sawb'] / row['best']:.3f}",
        ]
        for row in rows
    ]
    return pages.table(("distribution", "bits", "NMSE, SAWB", "NMSE, best clip", "ratio"), cells)


def targets(document: Document) -> Iterator[str]:
    """Yield a line for each target of losses and clips."""
    for place, (name, found) in enumerate(by_model(document)):
        for each, allowed in zip(USUAL, map(LOSS_ALLOWED.get, BITS), strict=True):
            if place == 0 and allowed is not None and each in found:
                more = found[each]["loss"] - found[FLOAT]["loss"]
                what = f"{name}, {named(each)}, compared with float32: loss {more:+.4f}"
                yield pages.judged(what, more, allowed)
        for each in [each for each in found if each.activations == "int8"]:
            plain = Setting(**{**found[each]["setting"], "activations": "float32"})
            if plain in found:
                more = abs(found[each]["loss"] - found[plain]["loss"])
                what = f"{name}, {each.bits} bits, multiplied in int8 and in float32: losses differ"
                yield pages.judged(f"{what} by {more:.5f}", more, INT8_ALLOWED)
    if document["clips"]:
        worst = max(row["sawb"] / row["best"] for row in document["clips"])
        what = f"SAWB's error is at most {worst:.3f} times that of the best clip"
        yield pages.judged(what, worst, clips.ALLOWED)


def lines(document: Document) -> Iterator[str]:
    """Yield a line for each model, that of the first one last and with the time of a row."""
    found = [_line(name, rows) for name, rows in by_model(document)]
    yield from found[1:]
    if found:
        speed = kernel.one_row(document["kernel"]) if document["kernel"] else None
        row = "" if speed is None else f"     one row: {speed:.1f} × bfloat16"
        yield f"{found[0]}{row}"


def _line(name: str, found: Mapping[Setting, Row]) -> str:
    parts = [f"{each.bits} bits {found[each]['loss']:.3f}" for each in USUAL if each in found]
    return "   ".join([name, f"float32 {found[FLOAT]['loss']:.3f}", *parts])


def draw(document: Document, path: Path) -> None:
    """Save the picture: loss against the bytes of a whole model, by fit, at all blocks."""
    models = list(by_model(document))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(models), figsize=(4.5 * len(models), 4.0), squeeze=False, layout="constrained"
        )
        for panel, (_, found) in zip(panels.flat, models, strict=True):
            _panel(panel, found)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        where: dict[str, Any] = {"loc": "outside upper center", "ncols": len(labels)}
        figure.legend(handles, labels, frameon=False, **where)
        save(figure, path)
        plt.close(figure)


def _panel(axes: Any, found: Mapping[Setting, Row]) -> None:
    plain = found[FLOAT]["loss"]
    worst = max(found[each]["loss"] for each in USUAL if each in found)
    top = plain + 1.3 * max(worst - plain, 1e-3)
    axes.axhline(plain, color="#808080", linewidth=1, label="float32")
    for fit, (color, marker) in LOOKS.items():
        rows = [
            row
            for each, row in found.items()
            if each in GRID and each.fit == fit and row["loss"] <= top
        ]
        x, y = ([row[name] for row in rows] for name in ("bytes", "loss"))
        axes.plot(x, y, color=color, marker=marker, markersize=6, linestyle="", label=f'"{fit}"')
    axes.set_xlim(left=0)
    axes.set_ylim(plain - 0.05 * (top - plain), top)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g}")
    axes.set_title(found[FLOAT]["title"], fontweight="bold", fontsize=11)
    axes.set_xlabel("model size, kB")
    axes.set_ylabel("held-out loss")
    axes.grid(visible=True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def blocks(document: Document) -> dict[str, str]:
    """Return the blocks of the page."""
    verdicts = "\n".join(f"* {each}" for each in targets(document))
    picture = (
        f"![Loss against bytes]({FIGURE})\n\nThe figure omits losses far above the 2-bit loss. "
        "Losses and accuracies are measured on all held-out data."
    )
    speed = [kernel.table(document["kernel"])] if document["kernel"] else []
    found = {
        LOSSES: [losses(document), verdicts, picture, source(document)],
        ALL: [every(document), clip_table(document["clips"])],
        SPEED: speed,
    }
    return {name: "\n\n".join(filter(None, parts)) for name, parts in found.items()}


def source(document: Document) -> str:
    """Return where the figures come from."""
    where = results.where(document["machine"])
    versions = results.listed(document["versions"])
    return f"From `make weights` ({where}; {versions}; {document['date'][:10]})."


def publish(document: Document) -> None:
    """Write the data, the blocks of the page and its picture."""
    results.write(document, PUBLISHED)
    for name, block in blocks(document).items():
        pages.replace(PAGE, name, block)
    draw(document, PAGE.with_name(FIGURE))
