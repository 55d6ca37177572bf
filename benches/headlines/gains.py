"""What was timed, in a few words, and what is to be held against it."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from benches.accuracy.store import Record
from benches.circumstances import where, with_what
from gradwire.cli.plan.quantities import format_rate, parse_rate

from . import allreduce_rank, throughput_rank
from .links import ROUNDS, Row
from .results import EDITIONS

UNITS = {"accordion": "run", "sidco": "step", "dryden": "step"}
SIDCO, SIDCO_IN_TORCH = "gradwire sidco", "SIDCo in torch"

Cell = tuple[float, str]
"""A ratio or a number of ranks, and a link."""


def link(rate: str | None) -> str:
    """Return a link in words."""
    return "unshaped" if rate is None else format_rate(parse_rate(rate))


def seconds_of(rows: Iterable[Row], field: str) -> dict[str, dict[Cell, float]]:
    """Return the seconds of each method, by a field and the link."""
    found: dict[str, dict[Cell, float]] = {}
    for each in rows:
        found.setdefault(each["method"], {})[each[field], each["rate"]] = each["seconds"]
    return found


def over(slow: Mapping[Cell, float], fast: Mapping[Cell, float]) -> dict[Cell, float]:
    """Return by how much one method is faster than another, wherever both were timed."""
    return {cell: slow[cell] / fast[cell] for cell in fast if cell in slow}


def spread(gains: Mapping[Cell, float]) -> str:
    """Return the median of gains, and the range with its places."""
    least, most = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
    middle = f"{median(gains.values()):.1f} ×"
    if len(gains) == 1:
        return f"{middle} ({_place(most)})"
    return (
        f"{middle} ({gains[least]:.1f} × at {_place(least)} to {gains[most]:.1f} × at "
        f"{_place(most)})"
    )


def _place(cell: Cell) -> str:
    return f"{cell[0]}, {link(cell[1])}"


def loads(record: Record) -> list[float]:
    """Return the loads of the machine that were recorded."""
    found: list[float] = []
    for each in record["rows"]:
        load = each.get("load", [])
        found += load if isinstance(load, list) else [load]
    return found


def reserve(record: Record) -> str:
    """Return what is to be held against a measurement, in words; empty if nothing is."""
    name, rounds = record["key"]["headline"], record["key"]["rounds"]
    parts = []
    if rounds < ROUNDS[name]:
        many = "one" if rounds == 1 else f"{rounds} of {ROUNDS[name]}"
        parts.append(f"{many} {UNITS[name]}{'s' if rounds > 1 else ''} of each")
    found = loads(record)
    busy = max(record["machine"]["cores"], *(each.get("ranks", 2) for each in record["rows"]))
    if not found:
        parts.append("the load of the machine was not recorded")
    elif max(found) > busy + 1:
        parts.append("on a loaded machine")
    if record["key"]["edition"] < EDITIONS[name]:
        parts.append("with an earlier version of the command")
    return ", ".join(parts)


def said(record: Record) -> str:
    """Return when, where and how often a measurement was made."""
    found, rounds = loads(record), record["key"]["rounds"]
    load = f", load {min(found):.1f} to {max(found):.1f}" if found else ""
    unit = UNITS[record["key"]["headline"]]
    times = f"{rounds} {unit}{'s' if rounds > 1 else ''} of each"
    first = f"{record['date'][:10]}, {where(record)}{load}; {with_what(record)}; {times}."
    held = reserve(record)
    parts = [first, f"**{held[0].upper()}{held[1:]}.**" if held else "", record.get("note", "")]
    return " ".join(part for part in parts if part)


def accordion(rows: list[Row]) -> str:
    """Return what the schedule saves, in the middle of all runs and at the ends."""

    def ratios(name: str) -> str:
        found = sorted(each["low"][name] / each["scheduled"][name] for each in rows)
        ends = f" ({found[0]:.1f} to {found[-1]:.1f})" if len(found) > 1 else ""
        return f"{median(found):.1f} ×{ends}"

    lost = median(100 * (each["low"]["accuracy"] - each["scheduled"]["accuracy"]) for each in rows)
    side = "behind" if lost >= 0 else "ahead of"
    return (
        f"{ratios('bytes_per_step')} fewer bytes and {ratios('seconds')} the speed, "
        f"{abs(lost):.2f} points {side} the low compression ({link(rows[0]['rate'])})"
    )


def sidco(rows: list[Row]) -> str:
    """Return how much faster a step is with SIDCo: across frameworks, and within one."""
    found = seconds_of(rows, "ratio")
    pairs: dict[str, tuple[str, Sequence[str]]] = {
        "gradwire sidco": (SIDCO, (throughput_rank.DENSE, *throughput_rank.PEERS)),
        "Within gradwire": (SIDCO, [name for name in throughput_rank.OURS if name != SIDCO]),
        "Within torch": (
            SIDCO_IN_TORCH,
            [name for name in throughput_rank.PEERS if name != SIDCO_IN_TORCH],
        ),
    }
    parts = []
    for title, (fast, others) in pairs.items():
        gains = "; ".join(
            f"over {'none' if other == throughput_rank.DENSE else other} "
            f"{spread(over(found[other], found[fast]))}"
            for other in others
        )
        parts.append(f"{title}: {gains}")
    count = len(found[SIDCO])
    return f"median and range of {count} pairs of ratio and link. {'. '.join(parts)}"


def dryden(rows: list[Row]) -> str:
    """Return how much faster an adaptively quantised all-reduce is."""
    found = seconds_of(rows, "ranks")
    count = len(found[allreduce_rank.DENSE])
    parts = [
        f"{name} {spread(over(found[allreduce_rank.DENSE], each))}"
        for name, each in found.items()
        if name.startswith("adaptive")
    ]
    numel = rows[0]["numel"] / 1e6
    return f"median and range of {count} pairs of ranks and link, {numel:.0f} M entries. " + (
        "; ".join(parts)
    )


WORDS = {"accordion": accordion, "sidco": sidco, "dryden": dryden}


def words(record: Record) -> str:
    """Return what was timed for a headline, after what is to be held against it."""
    held = reserve(record)
    found = WORDS[record["key"]["headline"]](record["rows"])
    return f"**{held[0].upper()}{held[1:]}:** {found}" if held else found
