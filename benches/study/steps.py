"""Times of steps: real processes over real shaped links, in which all methods take turns."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benches.ranks import joined

from . import methods
from .decisions import Decision, decided
from .estimates import settling_limit
from .plan import LARGE, PLENTY, SECTIONS, Cell, Plan

PASSES = 600
"""Steps that ``auto`` has at most to settle."""
FEW, TOGETHER, HALF_SECOND = 4, 48, 0.5
"""Steps that it takes at once, at least and at most, and the seconds that make them fewer."""
LONG = 2.0
"""Seconds of a step that is taken alone."""

MEMORY = 5e9
"""Bytes for each rank, with all contestants of the large model."""

Tell = Callable[[str], None]
Listed = list[tuple[str, str, float | None]]


class StudyRanks:
    """Processes of so many ranks in network namespaces, joined by a link of known speed."""

    def __init__(self, ranks: int, data: Path | None = None) -> None:
        self._data = None if data is None else str(data)
        self._stack = ExitStack()
        self._loaded: tuple[str, Listed] | None = None
        self._joined = self._stack.enter_context(joined(ranks, "benches.study.rank"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def ranks(self) -> int:
        """How many they are."""
        return len(self._joined)

    @property
    def why_not(self) -> str | None:
        """Why the link cannot be shaped: the ranks then use the loopback device."""
        return self._joined.why_not

    def shape(self, link: int | None) -> None:
        """Shape the link to so many bits per second; None takes the limit away."""
        self._joined.shape(link)

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """Return what every rank answers to a command."""
        return self._joined.ask(**command)

    def load(self, section: str, contestants: Listed) -> None:
        """Make the models of contestants, over a fast link, unless they are there."""
        if self._loaded != (section, contestants):
            self.shape(None)
            self.ask(do="load", section=section, contestants=contestants, data=self._data)
            self._loaded = section, contestants

    def loaded(self, section: str) -> bool:
        """Tell whether the models of a section are there."""
        return self._loaded is not None and self._loaded[0] == section

    def whole(self, **what: Any) -> list[dict[str, Any]]:
        """Train from scratch to the end."""
        self._loaded = None
        return self.ask(do="whole", data=self._data, **what)


def measure(
    ranks: StudyRanks, plan: Plan, cell: Cell, tell: Tell, listed: Listed | None = None
) -> list[dict[str, Any]]:
    """Return a row for each contestant of a cell, with the seconds of its steps.

    All take turns, each time in another order; a step takes as long as its slowest rank. Of a
    dense method with buckets of several sizes only the best goes on where steps are long; rows of
    the others say so. ``auto`` begins anew in each cell, as a run does, and is timed from when it
    has settled, or its time is over; its row tells which, after how many steps, and how long. It
    also tells all that ``auto`` had decided by the end of a timed turn.
    """
    listed = methods.contestants(cell.section) if listed is None else listed
    ranks.load(cell.section, listed)
    ranks.shape(cell.link)
    settled: dict[str, dict[str, Any]] = {}
    count = SECTIONS[cell.section].steps_a_turn
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in listed}
    worked: dict[str, list[float]] = {name: [] for name, _, _ in listed}
    said: dict[str, list[str]] = {name: [] for name, _, _ in listed}
    for turn in range(-1, plan.turns):
        at = turn % len(listed)
        for name, method, _ in [*listed[at:], *listed[:at]]:
            if turn > 0 and done(name, method, listed, seconds, count):
                continue
            if turn < 0 and cell.link is not None and method in methods.DENSE:
                continue  # they keep nothing that a first turn would settle
            tell(f"{name}, turn {max(0, turn + 1)} of {plan.turns}")
            if turn < 0 and method == methods.AUTO:
                settled[name] = settle(ranks.ask, name, settling_limit(cell, plan))
                continue
            answers = ranks.ask(do="step", contestant=name, steps=count)
            if turn >= 0:
                seconds[name].append(max(each["seconds"] for each in answers))
                worked[name].append(sum(each["cpu"] for each in answers) / len(answers))
                said[name].append(answers[0]["said"])
    rows = []
    for name, method, bucket in listed:
        facts = ranks.ask(do="facts", contestant=name)[0]
        rows.append(
            {
                "contestant": name,
                "method": method,
                "bucket": bucket,
                "dropped": plan.turns > 1 and len(seconds[name]) == 1,
                "seconds": [float(f"{each:.4g}") for each in seconds[name]],
                "processor_seconds": [float(f"{each:.4g}") for each in worked[name]],
                **facts,
                **settled.get(name, {}),
                **({"decided": decided(said[name])} if name in settled else {}),
            }
        )
    return rows


def too_large(cell: Cell) -> str | None:
    """Return why the models of a cell do not fit into memory; None if they do."""
    if cell.section != LARGE:
        return None
    needed, free = MEMORY * cell.ranks, _available()
    if free >= needed:
        return None
    return f"its models need {needed / 1e9:.0f} GB of memory, of which {free / 1e9:.1f} GB are free"


def _available() -> float:
    """Return the bytes of memory that are free; infinity where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return float("inf")
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * int(found[0]) if found else float("inf")


def settle(ask: Callable[..., list[dict[str, Any]]], name: str, seconds: float) -> dict[str, Any]:
    """Let ``auto`` begin anew on a link, and decide.

    Ranks do not pause between these steps. What it says after the timed turns may be something
    else: it compares anew from time to time.

    Returns
    -------
    dict
        Whether it has ``settled``, what it said then, and how many steps and seconds it took.
    """
    ask(do="anew", contestant=name)
    end, taken, steps, count = time.monotonic() + seconds, 0.0, 0, 1
    while True:
        answers = ask(do="settle", contestant=name, steps=count)
        last = max(each["seconds"] for each in answers)
        steps += count
        taken += count * last
        said = answers[0]["said"]
        settled = Decision.of(said).settled
        if settled or steps >= PASSES or time.monotonic() >= end:
            return {
                "settled": settled,
                "said_settled": said,
                "settling_steps": steps,
                "settling_seconds": round(taken, 3),
            }
        count = 1 if last > LONG else max(FEW, min(TOGETHER, int(HALF_SECOND / last)))
        count = min(count, PASSES - steps)


def done(
    name: str,
    method: str,
    listed: Listed,
    seconds: dict[str, list[float]],
    count: int,
) -> bool:
    """Tell whether a contestant has been timed for long enough."""
    if sum(seconds[name]) * count < PLENTY:
        return False
    if len(seconds[name]) > 1:
        return True
    rivals = [seconds[other][0] for other, same, _ in listed if same == method]
    return seconds[name][0] > min(rivals)


def show_progress(text: str) -> None:
    """Overwrite one line of a terminal; elsewhere say nothing."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)
