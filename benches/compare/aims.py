"""Compare a recorded run with the project's aims, for one thread and for two.

python -m benches.compare.aims benches/results/FILE.json [--into docs/performance.md]

A page has a table for each SIMD level: what bounds the speed is not the same without AVX-512.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from . import aim, blocks, plan, record
from .aim import Aim, Document, Figure
from .rounds import Case


def _row(document: Document, name: str, ratio: float, threads: int, numel: int) -> Any:
    wanted = vars(Case(plan.HEADLINE_LAW, numel, ratio, threads))
    for outcome in document["outcomes"]:
        if outcome["case"] == wanted:
            return next((row for row in outcome["results"] if row["name"] == name), None)
    return None


def _copies(name: str, ratio: float) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        row = _row(document, name, ratio, threads, plan.HEADLINE)
        return float(row["encode_copies"]["median"]) if row else None

    return figure


def _faster(name: str, peer: str, ratio: float = 0.001) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        ours, theirs = (_row(document, n, ratio, threads, plan.HEADLINE) for n in (name, peer))
        if not (ours and theirs):
            return None
        return float(theirs["encode"]["median"] / ours["encode"]["median"])

    return figure


def _threads(name: str, ratio: float) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        one, many = (_row(document, name, ratio, t, plan.HEADLINE) for t in (1, threads))
        return float(one["encode"]["median"] / many["encode"]["median"]) if one and many else None

    return figure


def _slower(name: str, peer: str, ratio: float) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        ours, theirs = (_row(document, n, ratio, threads, plan.HEADLINE) for n in (name, peer))
        if not (ours and theirs):
            return None
        return float(ours["encode_copies"]["median"] / theirs["encode_copies"]["median"])

    return figure


def _bits(document: Document, threads: int) -> float | None:
    row = _row(document, "gradwire topk bf16", 0.001, threads, plan.HEADLINE)
    return float(8 * row["nbytes"]["median"] / row["count"]["median"]) if row else None


def _microseconds(name: str) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        row = _row(document, name, 0.01, threads, 1000)
        return float(1e6 * row["encode"]["median"]) if row else None

    return figure


def _section(document: Document, name: str, threads: int) -> Any:
    runs = document["sections"].get(name, [])
    found = [run["rows"] for run in runs if run.get("threads", 1) == threads]
    found += [run["rows"] for run in runs if run.get("case", {}).get("threads") == threads]
    return found[0] if found else []


def _worst(section: str, value: Callable[[Any], float | None], highest: bool) -> Figure:
    def figure(document: Document, threads: int) -> float | None:
        every = [value(row) for row in _section(document, section, threads)]
        values = [each for each in every if each is not None]
        return (max if highest else min)(values) if values else None

    return figure


def _preset(limit: float) -> Figure:
    def value(row: Any) -> float | None:
        return row["encode_copies"]["median"] if row["aim_copies"] == limit else None

    return _worst("presets", value, True)


def _dtype(dtype: str, share: str) -> Figure:
    def value(row: Any) -> float | None:
        return float(row[share]["median"]) if row["dtype"] == dtype else None

    return _worst("dtypes", value, False)


def _frames(number: int) -> Figure:
    def value(row: Any) -> float | None:
        right = row["ratio"] == 0.01 and row["frames"] == number
        return row["copies"]["median"] if right else None

    return _worst("receive", value, True)


def _avx2(document: Document, threads: int) -> float | None:
    if document["machine"]["simd"] != "avx512":
        return None  # shares are those of the highest level that the machine has
    rows = _section(document, "levels", threads)
    return min((float(row["share"]) for row in rows if row["level"] == "avx2"), default=None)


AIMS = (
    Aim("top-k with residual, 0.001, steady", 1.2, _copies("gradwire topk", 0.001)),
    Aim("the same, 0.01", 1.5, _copies("gradwire topk", 0.01)),
    Aim("the same, 0.1", 2.5, _copies("gradwire topk", 0.1)),
    Aim(
        "the same, 0.001, against torch.topk",
        40,
        _faster("gradwire topk", "torch.topk"),
        "times as fast",
        at_least=True,
    ),
    Aim("the same, 0.001, first step", 4, _copies("gradwire topk, first step", 0.001)),
    *(
        Aim(
            f"{what} with a bfloat16 residual, 0.001",
            1.2,
            _slower(f"gradwire {name}, bf16 residual", f"gradwire {name}", 0.001),
            "times float32's",
        )
        for what, name in (("top-k", "topk"), ("SIDCo", "sidco"))
    ),
    Aim("AdamCorrection at 0.01, steady", 2.6, _copies("gradwire adam", 0.01)),
    Aim("SIDCo, published two-stage fit, 0.001", 2.2, _copies("gradwire sidco, 2 stages", 0.001)),
    Aim(
        "the same, against DGC's sampling",
        4,
        _faster("gradwire sidco, 2 stages", "DGC sampling"),
        "times as fast",
        at_least=True,
    ),
    Aim("SIDCo, tracking, 0.001, steady", 1.2, _copies("gradwire sidco tracking", 0.001)),
    Aim("dense bfloat16", 1.2, _copies("gradwire dense bf16", 0.001)),
    Aim("dense float16", 1.2, _copies("gradwire dense f16", 0.001)),
    Aim("decode and add, 0.01, one frame", 0.5, _frames(1)),
    Aim("decode and add, 0.01, eight frames", 2.5, _frames(8)),
    Aim("top-k with bfloat16 values, 0.001", 27.7, _bits, "bits per entry"),
    Aim(
        "two threads against one, top-k, 0.001",
        1.6,
        _threads("gradwire topk", 0.001),
        "times as fast",
        at_least=True,
        threads=(2,),
    ),
    Aim("1 000 entries from Python, top-k", 10, _microseconds("gradwire topk"), "µs"),
    Aim("1 000 entries from Python, SIDCo", 10, _microseconds("gradwire sidco"), "µs"),
    *(
        Aim(
            f"{what} bytes per second, {dtype} tensors, worst codec",
            0.8,
            _dtype(dtype, share),
            "of float32's",
            at_least=True,
        )
        for dtype in ("bfloat16", "float16", "float64")
        for what, share in (("input", "share"), ("moved", "share_moved"))
    ),
    Aim(
        "AVX2, slowest case",
        0.7,
        _avx2,
        "of AVX-512's",
        at_least=True,
        threads=(1,),
    ),
    Aim("sparse presets, slowest", 4, _preset(4.0)),
    Aim("dense presets, slowest", 2.5, _preset(2.5)),
)


def block(document: Document) -> str:
    """Return the name of the block for runs at this run's SIMD level."""
    return f"aims {document['machine']['simd']}"


def rows(document: Document) -> Iterator[aim.Row]:
    """Yield work, aim, and per number of threads figure and verdict, for each measured aim."""
    return aim.rows(AIMS, document)


HEADINGS = ("25 M float32, Student's t(3)", "aim", "one thread", "two threads")


def table(document: Document) -> Table:
    table = Table(title="Aims", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if "thread" in heading else "left")
    for work, wanted, values in rows(document):
        cells = ["" if v is None else f"{v[0]:.3g}{'' if v[1] else ' missed'}" for v in values]
        table.add_row(work, wanted, *cells)
    return table


def markdown(document: Document, path: str) -> list[str]:
    """Return the table and its source; figures that miss their aim are in italics."""
    lines = aim.lines(HEADINGS, rows(document))
    machine = document["machine"]
    source = f"{machine['processor']}, {machine['cores']} cores, SIMD level {machine['simd']}"
    return [*lines, "", f"From `{path}` ({source}); figures that miss their aim are in italics."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the table in this file")
    chosen = parser.parse_args()
    path = chosen.file.resolve().relative_to(blocks.ROOT).as_posix()
    document = record.read(chosen.file)
    lines = markdown(document, path)
    if chosen.into:
        blocks.replace(chosen.into, block(document), lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
