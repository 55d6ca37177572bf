"""Show a recorded run of ``make accuracy`` again, or write it into the documentation.

python -m benches.accuracy.show benches/results/FILE.json
    [--into docs/accuracy.md] [--readme README.md]

Only rows whose runs are all there are written into the documentation.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benches.compare import blocks

from . import document, tables
from .document import Document
from .plan import MEASURES
from .summary import Summary

BEST, RATES = "accuracy", "all learning rates"
README = "accuracy"
FIGURE = "accuracy.svg"
PICTURE = f"![Accuracy against bytes]({FIGURE})"


def best(summaries: Sequence[Summary]) -> list[str]:
    """Return the tables at the best learning rates, each with its verdicts."""
    parts = []
    for each in summaries:
        seeds = f"mean of {each.seeds} seeds ± standard error" if each.seeds > 1 else "one seed"
        caption = f"**{each.section.title}**, {each.section.size} parameters, {each.steps:,} steps"
        missing, searched = _named(each.missing), _named(each.searched)
        caption += f", {seeds}" + f"; not finished: {missing}" * bool(missing)
        parts += [
            [
                caption
                + f"; another rate is to be tried with more seeds: {searched}" * bool(searched)
            ],
            tables.best(each),
            tables.verdicts(each),
        ]
    return tables.joined([part for part in parts if part])


def _named(series: Sequence[tuple[str, int]]) -> str:
    """Return methods, each with its numbers of ranks."""
    ranks: dict[str, list[str]] = {}
    for method, count in series:
        ranks.setdefault(method, []).append(str(count))
    return ", ".join(f"`{name}` ({' and '.join(each)} ranks)" for name, each in ranks.items())


def rates(summaries: Sequence[Summary]) -> list[str]:
    """Return the tables of all learning rates."""
    parts = []
    for each in summaries:
        parts += [[f"**{each.section.title}**, {MEASURES[each.section.measure].heading}"]]
        parts += [tables.rates(each)]
    return tables.joined(parts)


def source(found: Document, path: str) -> list[str]:
    """Return where the figures come from."""
    processors = dict.fromkeys(each["processor"] for each in found["runs"])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    hours = sum(each["seconds"] for each in found["runs"]) / 3600
    text = (
        f"By `make accuracy` ({len(found['runs'])} runs, {hours:.1f} core-hours on "
        f"{' and '.join(processors)}; {versions}; "
        f"{found['date'][:10]}; [all runs]({path}))."
    )
    return ["", text]


def _shown(found: Document) -> list[Summary]:
    """Return what is published: of the sections in which something that compresses is finished."""
    return [each.finished for each in document.summaries(found) if each.verdicts()]


def page(found: Document, path: str) -> dict[str, list[str]]:
    """Return the lines of both blocks of the page."""
    summaries = _shown(found)
    return {
        BEST: [*best(summaries), "", PICTURE, *source(found, path)],
        RATES: rates(summaries),
    }


def readme(found: Document) -> list[str]:
    """Return the lines of the README's block."""
    summaries = _shown(found)
    seeds = max((each.seeds for each in summaries), default=0)
    source = (
        f"By `make accuracy`: means of {seeds} seeds ± standard error, each method at its best "
        "learning rate; [all figures](docs/accuracy.md)."
    )
    return [*tables.overview(summaries), "", source]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benches.accuracy.show", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the tables and the figure of this page")
    parser.add_argument("--readme", type=Path, help="rewrite the table in this README")
    chosen = parser.parse_args()
    found = document.read(chosen.file)
    summaries = document.summaries(found)
    if chosen.readme is not None:
        blocks.replace(chosen.readme, README, readme(found))
    if chosen.into is None:
        print("\n".join([*best(summaries), "", *rates(summaries), *source(found, chosen.file)]))
        return
    from .picture import draw

    path = chosen.file.resolve().relative_to(blocks.ROOT).as_posix()
    for name, lines in page(found, f"../{path}").items():
        blocks.replace(chosen.into, name, lines)
    draw(_shown(found), chosen.into.with_name(FIGURE))


if __name__ == "__main__":
    main()
