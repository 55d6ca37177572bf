"""The table of each headline, with all that was measured for it."""

import math
from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from benches.accuracy.store import Record
from benches.accuracy.summary import POINTS
from benches.accuracy.tables import head, row
from gradwire.codec import Codec
from gradwire.sparsify import ChunkTopK

from . import allreduce_rank, throughput_rank
from .counting import rate
from .gains import SIDCO, SIDCO_IN_TORCH, link
from .links import Row
from .trainings import CODECS, DENSE, SETTINGS, Training

Made = Mapping[Training, Record]

ALIKE = POINTS
"""Points of accuracy behind dense training that count as equal, as in docs/accuracy.md."""


def ends(made: Made, setting: str, method: str, ranks: int | None = None) -> list[Record]:
    """Return the records of a method, of every seed."""
    return [
        record
        for run, record in made.items()
        if (run.setting, run.method) == (setting, method) and ranks in (None, run.ranks)
    ]


def accuracy(records: Iterable[Record]) -> float:
    """Return the mean accuracy at the end, in percent; NaN if a run diverged."""
    found = [
        float("nan") if each["diverged"] else 100 * each["points"][-1]["accuracy"]
        for each in records
    ]
    return mean(found) if found else float("nan")


def behind(made: Made, setting: str, method: str, ranks: int | None = None) -> float:
    """Return the points of accuracy behind dense training, seed by seed."""
    dense = {run.seed: each for run, each in made.items()
             if (run.setting, run.method) == (setting, DENSE)}  # fmt: skip
    found = [
        accuracy([dense[run.seed]]) - accuracy([record])
        for run, record in made.items()
        if (run.setting, run.method) == (setting, method)
        and ranks in (None, run.ranks)
        and run.seed in dense
    ]
    return mean(found) if found else float("nan")


def chunk(codec: Codec) -> int:
    """Return the entries of which one is sent."""
    assert isinstance(codec.sparsify, ChunkTopK)
    return codec.sparsify.chunk


def scalecom(made: Made) -> list[str]:
    """Return the rates at which training with a leader ends as dense training does."""
    lines = head("", "learners", "seeds", "rate", "bytes", "accuracy %", "points behind dense")
    tried = dict.fromkeys((run.setting, run.method, run.ranks) for run in made)
    for setting, method, ranks in sorted(tried, key=lambda each: (each[0], each[2])):
        records = ends(made, setting, method, ranks)
        sparse = method != DENSE
        lines.append(
            row(
                f"{setting}, {method}",
                str(ranks) if sparse else "",
                str(len(records)),
                f"{chunk(CODECS[method])} ×" if sparse else "",
                f"{fewer(records, made, setting, ranks):.0f} ×" if sparse else "",
                f"{accuracy(records):.2f}",
                f"{behind(made, setting, method, ranks):+.2f}" if sparse else "",
            )
        )
    return lines


def fewer(records: list[Record], made: Made, setting: str, ranks: int) -> float:
    """Return by how much fewer bytes a rank sends than in a ring all-reduce of as many ranks."""
    (any_run, any_dense), *_ = [
        (run, each) for run, each in made.items() if (run.setting, run.method) == (setting, DENSE)
    ]
    numel = any_dense["bytes_per_step"] / _ring(any_run.ranks)
    return float(numel * _ring(ranks) / mean(each["bytes_per_step"] for each in records))


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def adacomp(made: Made) -> list[str]:
    """Return the compression of each kind of layer, and the accuracy of each task."""
    titles = ("entries", "as the paper counts", "by frames", "accuracy %", "points behind dense")
    lines = head("", *titles)
    for setting, method in compressed(made):
        records = ends(made, setting, method)
        for name, sent in kinds(records).items():
            counted, framed = rate(sent)
            lines.append(
                row(
                    f"{setting}, {method}: {name}",
                    f"1 in {sent['numel'] / sent['count']:.0f}",
                    f"{counted:.0f} ×",
                    f"{framed:.0f} ×",
                    f"{accuracy(records):.2f}",
                    f"{behind(made, setting, method):+.2f}",
                )
            )
    return lines


def compressed(made: Made) -> list[tuple[str, str]]:
    """Return settings and methods that were trained, but for dense training."""
    order = list(SETTINGS)
    found = {(run.setting, run.method) for run in made if run.method != DENSE}
    return sorted(found, key=lambda each: (order.index(each[0]), each[1]))


def kinds(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Return what was sent of each kind of layer, all runs together."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        for name, sent in record["sent"].items():
            before = found.get(name, {})
            found[name] = {field: before.get(field, 0) + each for field, each in sent.items()}
    return found


def accordion(rows: list[Row]) -> list[str]:
    """Return what the schedule saves, run by run."""
    lines = head("", "link", "seed", "bytes per step", "seconds", "accuracy %")
    for each in rows:
        low, high = each["schedule"]["low"], each["schedule"]["high"]
        for name, found in ((f"{low} throughout", each["low"]),
                            (f"Accordion({low}, {high})", each["scheduled"])):  # fmt: skip
            lines.append(
                row(name, link(each["rate"]), str(each.get("seed", 0)),
                    f"{found['bytes_per_step']:,.0f}", f"{found['seconds']:.1f}",
                    f"{100 * found['accuracy']:.2f}")
            )  # fmt: skip
    return lines


def by_method(rows: list[Row], **given: Any) -> dict[str, Row]:
    """Return the rows with these fields, by method."""
    return {each["method"]: each for each in rows if given.items() <= each.items()}


def taken(found: Row, scale: float, digits: int) -> str:
    """Return the median of what steps took, and the range if there is more than one."""
    middle = f"{scale * found['seconds']:.{digits}f}"
    if found["rounds"] == 1:
        return middle
    ends = (f"{scale * found[each]:.{digits}f}" for each in ("fastest", "slowest"))
    return f"{middle} ({' to '.join(ends)})"


def sidco(rows: list[Row]) -> list[str]:
    """Return how much faster a step is with SIDCo than with others: gradwire's, and torch's.

    The second table has one framework throughout, and what its SIDCo sends.
    """
    names = (throughput_rank.DENSE, *throughput_rank.PEERS, *throughput_rank.OURS)
    others = [name for name in names if name != SIDCO]
    first = head("ratio, link", "gradwire sidco, ms", *(f"over {each}" for each in others))
    peers = [name for name in throughput_rank.PEERS if name != SIDCO_IN_TORCH]
    titles = (f"over {each}" for each in peers)
    second = head("ratio, link", f"{SIDCO_IN_TORCH}, ms", *titles, "entries sent over target")
    for ratio, rate_ in dict.fromkeys((each["ratio"], each["rate"]) for each in rows):
        found = by_method(rows, ratio=ratio, rate=rate_)
        place = f"{ratio}, {link(rate_)}"
        for lines, own, against in ((first, SIDCO, others), (second, SIDCO_IN_TORCH, peers)):
            gains = [found[each]["seconds"] / found[own]["seconds"] for each in against]
            cells = [place, taken(found[own], 1e3, 0), *(f"{each:.1f} ×" for each in gains)]
            if own == SIDCO_IN_TORCH:
                cells.append(f"{_excess(found[own]):.1f} ×")
            lines.append(row(*cells))
    return [*first, "", "Within torch:", "", *second]


def _excess(found: Row) -> float:
    """Return by how much a peer sends more entries than its target; 8 bytes are an entry."""
    entries = found["nbytes"] / (found["ranks"] - 1) / 8
    return float(entries / (found["ratio"] * found["numel"]))


def dryden(rows: list[Row]) -> list[str]:
    """Return how much faster a quantised all-reduce is than a dense one."""
    lines = head("ranks, link", "method", "MB a rank", "seconds", "faster than fp32")
    for ranks, rate_ in dict.fromkeys((each["ranks"], each["rate"]) for each in rows):
        found = by_method(rows, ranks=ranks, rate=rate_)
        for name, each in found.items():
            if name != allreduce_rank.NOTHING:
                gain = found[allreduce_rank.DENSE]["seconds"] / each["seconds"]
                cells = f"{each['nbytes'] / 1e6:.3g}", taken(each, 1.0, 3), f"{gain:.1f} ×"
                lines.append(row(f"{ranks}, {link(rate_)}", name, *cells))
    return lines


def places(made: Made) -> list[tuple[str, int]]:
    """Return settings and numbers of learners with which a leader was trained."""
    found = {(run.setting, run.ranks) for run in made if run.method != DENSE}
    order = list(SETTINGS)
    return sorted(found, key=lambda each: (order.index(each[0]), each[1]))


def reached(made: Made, setting: str, ranks: int) -> str | None:
    """Return the method with the highest rate that costs no accuracy; None if all do."""
    found = [
        method
        for method in _methods(made, setting, ranks)
        if round(behind(made, setting, method, ranks), 2) <= ALIKE
    ]
    return max(found, key=lambda method: chunk(CODECS[method]), default=None)


def nearest(made: Made, setting: str, ranks: int) -> str:
    """Return the method that costs the least accuracy."""
    found = _methods(made, setting, ranks)
    lost = {method: behind(made, setting, method, ranks) for method in found}
    return min(found, key=lambda method: math.inf if math.isnan(lost[method]) else lost[method])


def _methods(made: Made, setting: str, ranks: int) -> list[str]:
    every = [run.method for run in made if (run.setting, run.ranks) == (setting, ranks)]
    return [method for method in dict.fromkeys(every) if method != DENSE]
