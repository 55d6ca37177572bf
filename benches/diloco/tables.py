"""The tables of docs/diloco.md."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from benches.accuracy.store import Record
from benches.accuracy.tables import head, rate, row
from benches.compare.blocks import ROOT, replace

from .results import DENSE, STEPS, Run
from .settings import CHOSEN, OVERLAPPED, SETTINGS, STREAMED, TRIED, Setting

PAGE = ROOT / "docs" / "diloco.md"

SEEDS = (0, 1, 2)
"""Those with which dense training is recorded."""

CHOICE, *JUDGING = SEEDS
"""The setting was chosen by the first, and not by the others."""

SHORT = 400
"""Steps of the runs that compare fragments and delays."""

MORE = 4
"""Ranks of the run that shows what their number changes, with as many tokens in all."""

Made = Mapping[Run, Record]


def runs() -> list[Run]:
    """Return all runs of the tables, most telling first."""
    return [
        *(Run(name, seed) for seed in SEEDS for name in (DENSE, CHOSEN)),
        *(Run(name, CHOICE) for name in (DENSE, *TRIED)),
        *(Run(name, CHOICE, SHORT) for name in {**OVERLAPPED, **STREAMED}),
        Run(CHOSEN, CHOICE, STEPS, MORE),
    ]


def tables(made: Made) -> dict[str, list[str]]:
    """Return the tables by name, each of the rows that have results."""
    return {
        "held": _held(made),
        "overlapped": _overlapped(made),
        "ranks": _ranks(made),
        "streamed": _streamed(made),
        "tried": _tried(made),
    }


def write(found: Mapping[str, list[str]]) -> None:
    """Put all tables into the page."""
    for name, lines in found.items():
        replace(PAGE, name, lines)


def _held(made: Made) -> list[str]:
    """Return the losses of dense training and of the chosen setting, for every seed."""
    titles = ("dense", CHOSEN, "against dense", "bytes per step", "times fewer")
    lines = head("seed", *titles)
    ratios = {}
    for seed in SEEDS:
        dense, chosen = made.get(Run(DENSE, seed)), made.get(Run(CHOSEN, seed))
        if dense and chosen:
            ratios[seed] = _end(chosen) / _end(dense)
            losses = _loss(dense), _loss(chosen)
            found = _percent(ratios[seed])
            lines.append(row(str(seed), *losses, found, *_bytes(chosen, dense)))
    for name, seeds in (("mean", SEEDS), (f"mean without {CHOICE}", JUDGING)):
        if all(seed in ratios for seed in seeds):
            percent = _percent(mean(ratios[seed] for seed in seeds))
            lines.append(row(name, "", "", percent, "", ""))
    return lines


def _overlapped(made: Made) -> list[str]:
    """Return what fragments and delays cost, and the largest message, in short runs."""
    titles = ("delay", "`mixing`", "loss", "against the first", "largest message, bytes")
    lines = head("fragments", *titles)
    first = made.get(Run(CHOSEN, CHOICE, SHORT))
    for name, setting in OVERLAPPED.items():
        record = made.get(Run(name, CHOICE, SHORT))
        if record and first:
            lines.append(
                row(
                    str(setting.fragments),
                    f"{setting.delay} of {setting.inner_steps}",
                    _mixing(setting),
                    _loss(record),
                    _percent(_end(record) / _end(first)),
                    f"{record['largest_message']:,.0f}",
                )
            )
    return lines


def _streamed(made: Made) -> list[str]:
    """Return what a delay costs where every entry is sent, by the outer momentum."""
    titles = ("delay", "`mixing`", "loss", "against no delay")
    lines, first = head("outer momentum", *titles), math.nan
    for name, setting in STREAMED.items():
        record = made.get(Run(name, CHOICE, SHORT))
        if record and not setting.delay:
            first = _end(record)
        if record:
            lines.append(
                row(
                    rate(setting.outer_momentum),
                    f"{setting.delay} of {setting.inner_steps}",
                    _mixing(setting),
                    _loss(record),
                    _percent(_end(record) / first),
                )
            )
    return lines


def _mixing(setting: Setting) -> str:
    if not setting.delay:
        return ""
    return "None" if setting.mixing is None else rate(setting.mixing)


def _ranks(made: Made) -> list[str]:
    """Return the chosen setting with more ranks, at equal tokens in all."""
    lines = head("ranks", "loss", "against dense", "bytes per step")
    dense = made.get(Run(DENSE, CHOICE))
    for ranks in (2, MORE):
        record = made.get(Run(CHOSEN, CHOICE, STEPS, ranks))
        if record and dense:
            percent, sent = _percent(_end(record) / _end(dense)), record["bytes_per_step"]
            lines.append(row(str(ranks), _loss(record), percent, f"{sent:,.0f}"))
    return lines


def _tried(made: Made) -> list[str]:
    """Return every setting, for the seed that one was chosen by."""
    titles = ("rate", "β1", "outer rate", "outer momentum", "loss", "against dense")
    lines = head("", *titles, "bytes per step", "times fewer")
    dense = made.get(Run(DENSE, CHOICE))
    for name in TRIED:
        record, setting = made.get(Run(name, CHOICE)), SETTINGS[name]
        if record and dense:
            lines.append(
                row(
                    name,
                    *map(rate, (setting.rate, setting.beta1)),
                    *map(rate, (setting.outer_lr, setting.outer_momentum)),
                    _loss(record),
                    _percent(_end(record) / _end(dense)),
                    *_bytes(record, dense),
                )
            )
    return lines


def _end(record: Record) -> float:
    return float("nan") if record["diverged"] else float(record["points"][-1]["loss"])


def _loss(record: Record) -> str:
    return "diverged" if record["diverged"] else f"{_end(record):.4f}"


def _percent(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{100 * (ratio - 1):+.2f} %"


def _bytes(record: Record, dense: Record) -> Sequence[str]:
    sent = record["bytes_per_step"]
    return f"{sent:,.0f}", f"{dense['bytes_per_step'] / sent:,.0f}"
