"""The tables of docs/diloco.md."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from benches.accuracy.store import Record
from benches.accuracy.tables import head, rate, row
from benches.compare.blocks import ROOT, replace

from .results import DENSE, Run
from .settings import CHOSEN, OVERLAPPED, SETTINGS, TRIED

PAGE = ROOT / "docs" / "diloco.md"

SEEDS = (0, 1, 2)
"""Those with which dense training is recorded."""

CHOICE, *JUDGING = SEEDS
"""The setting was chosen by the first, and not by the others."""

SHORT = 400
"""Steps of the runs that compare fragments and delays."""

Made = Mapping[Run, Record]


def runs() -> list[Run]:
    """Return all runs of the tables, most telling first."""
    return [
        *(Run(name, seed) for seed in SEEDS for name in (DENSE, CHOSEN)),
        *(Run(name, CHOICE) for name in (DENSE, *TRIED)),
        *(Run(name, CHOICE, SHORT) for name in OVERLAPPED),
    ]


def tables(made: Made) -> dict[str, list[str]]:
    """Return the tables by name, each of the rows that have results."""
    return {
        "held": _held(made),
        "overlapped": _overlapped(made),
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
                    rate(setting.mixing) if setting.delay else "",
                    _loss(record),
                    _percent(_end(record) / _end(first)),
                    f"{record['largest_message']:,.0f}",
                )
            )
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
