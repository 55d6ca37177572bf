"""What someone gains or loses who gives a codec the learning rate of dense training.

python -m benches.study.unchanged [--into docs/auto.md docs/choosing.md]

From the runs of `make accuracy` and the curves of `make study`: the best rate of both, and what the
codec gives at that of dense training.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benches.accuracy import document
from benches.accuracy.plan import SECTIONS, SEEDS, Section
from benches.accuracy.tables import head, rate, row
from benches.compare import blocks

from .store import Store

BLOCK = "dense rate"
DENSE, CODEC = "dense AdamW", "adam(0.01)"
NAMES = {DENSE: DENSE, CODEC: CODEC, "fp32": DENSE}
"""Of both, here and in the study."""
STUDY = blocks.ROOT / "benches" / "results" / "study.jsonl"

Tried = dict[float, list[float]]
"""The measure of each seed in points, by learning rate."""


@dataclass(frozen=True)
class Pair:
    """Dense training and the codec on a task, with so many ranks."""

    section: Section
    ranks: int
    dense: Tried
    codec: Tried

    @property
    def rate(self) -> float:
        """The best rate of dense training."""
        return best(self.dense)


def best(tried: Tried) -> float:
    """Return the rate with the best mean over all seeds."""
    most = max(map(len, tried.values()))
    return max((each for each in tried if len(tried[each]) == most), key=lambda r: fmean(tried[r]))


def pairs(records: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Return the tasks and numbers of ranks with which the codec was trained with all seeds."""
    found: dict[tuple[str, int, str], Tried] = {}
    for record in records:
        key = record["key"]
        if key["section"] in SECTIONS and key["method"] in NAMES and not record["diverged"]:
            where = key["section"], key["ranks"], NAMES[key["method"]]
            value = 100 * SECTIONS[key["section"]].value(record["points"])
            found.setdefault(where, {}).setdefault(key["learning_rate"], []).append(value)
    every = []
    for (name, ranks, method), tried in sorted(found.items(), key=_order):
        # Averages are the same for any number of ranks, unless BatchNorm sees each rank's batch.
        dense = found.get((name, ranks, DENSE), found.get((name, 2, DENSE)))
        if method == CODEC and dense and _known(tried) and _known(dense):
            every.append(Pair(SECTIONS[name], ranks, dense, tried))
    return every


def _order(item: tuple[tuple[str, int, str], Tried]) -> tuple[int, int]:
    (name, ranks, _), _ = item
    return list(SECTIONS).index(name), ranks


def _known(tried: Tried) -> bool:
    return max(map(len, tried.values())) >= SEEDS


def table(every: Iterable[Pair]) -> list[str]:
    """Return the table: what the codec gives at the rate of dense training, and at its own."""
    lines = head(
        "task", "ranks", "best rate: dense", "`adam(0.01)`", "factor",
        "points: dense", "`adam(0.01)` at dense's rate (seeds)", "difference", "at its own rate",
    )  # fmt: skip
    for each in every:
        own, dense = best(each.codec), fmean(each.dense[each.rate])
        there = each.codec.get(each.rate)
        shown = ("not tried", "") if there is None else (
            f"{fmean(there):.2f} ({len(there)})", f"{fmean(there) - dense:+.2f}"
        )  # fmt: skip
        lines.append(
            row(
                each.section.title.partition(",")[0],
                str(each.ranks),
                rate(each.rate),
                rate(own),
                f"{own / each.rate:g}",
                f"{dense:.2f}",
                *shown,
                f"{fmean(each.codec[own]):.2f}",
            )
        )
    return lines


def lines() -> list[str]:
    """Return what stands in the pages."""
    runs = [*document.read(document.PUBLISHED)["runs"], *Store(STUDY).curves().values()]
    source = (
        "By `python -m benches.study.unchanged`, from runs of `make accuracy` and `make study`."
    )
    return [*table(pairs(runs)), "", source]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benches.study.unchanged", description=__doc__)
    parser.add_argument(
        "--into", type=Path, nargs="*", default=[], help="rewrite it in these pages"
    )
    chosen = parser.parse_args()
    found = lines()
    for path in chosen.into:
        blocks.replace(path, BLOCK, found)
    print("\n".join(found))


if __name__ == "__main__":
    main()
