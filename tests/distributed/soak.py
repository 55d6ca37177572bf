"""A soak: training under random faults, restarts and changes of the number of ranks.

It drives any `Trainer`, as `scenarios.soak.Soaked` describes it.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.distributed.scenarios.soak import CHANCES

AHEAD = 3
"""Steps that are taken after a checkpoint, before all processes are killed."""


class Processes(Protocol):
    """A set of processes, one per rank, as `ranks.Ranks`."""

    def run(self, what: Any, /, *, limit: float, **arguments: Any) -> list[Any]:
        """Run a scenario on all ranks, and return what it returned on each."""

    def stop(self) -> None:
        """End the processes, whatever they are doing."""


@dataclass
class Outcome:
    """What a soak has seen."""

    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    largest_error: float = 0.0
    """Of an entry, between what went in and what came out or is left, over the largest sum."""

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        return f"{self.seconds:.0f} s: {counted}; largest error {self.largest_error:.1e}"


def soak(
    start: Callable[[int], Processes],
    folder: Path,
    steps: int,
    worlds: list[int],
    *,
    trainer: str,
    setting: dict[str, Any],
    error: float,
    without: set[str],
) -> Outcome:
    """Train so many steps, in as many parts as there are numbers of ranks.

    Checked are: replicas are bit-identical after every step; a restart with the same number of
    ranks goes on bit for bit; after every part, what all ranks gave since the first step is what
    was applied and what is left in the residuals; and everything has happened at least twice.

    Parameters
    ----------
    start : callable
        Starts so many ranks.
    folder : Path
        For checkpoints.
    steps : int
        Number of steps.
    worlds : list of int
        Number of ranks of each part. Each is a power of two, or three.
    trainer : str
        Module whose `Trainer` is driven.
    setting : dict
        Keywords of the trainer.
    error : float
        The largest error that sums may have, over the largest sum; 0.0: they are exact.
    without : set of str
        Which of `CHANCES` the trainer cannot deal with.
    """
    began, outcome = time.monotonic(), Outcome()
    pairs = list(itertools.pairwise(worlds))
    # A residual that is split among three ranks stays a multiple of something then.
    unit = quantum = float(3 ** sum(3 == new != old for old, new in pairs))
    given: dict[str, Any] = {}
    applied: dict[str, Any] = {}
    expected: list[str] = []
    last = ""
    for number, world_size in enumerate(worlds):
        resized = number > 0 and world_size != worlds[number - 1]
        if resized:
            quantum /= world_size
        at, end = (steps * part // len(worlds) for part in (number, number + 1))
        ranks = start(world_size)
        try:
            results = ranks.run(
                "soak.part",
                limit=240.0 + (end - at),
                trainer=trainer,
                setting=setting,
                folder=str(folder),
                number=number,
                steps=(at, end),
                ahead=AHEAD,
                unit=unit,
                quantum=None if error else quantum,
            )
        finally:
            ranks.stop()
        first = results[0]
        for each in results:
            assert each["resumed"] == (last or each["resumed"])
            assert each["prints"] == first["prints"], f"replicas differ in {at}..{end}"
            assert each["ahead"] == first["ahead"]
        if not resized:
            assert first["prints"][: len(expected)] == expected, f"resumed otherwise at {at}"
        last, expected = first["prints"][-1], first["ahead"][: end - at]
        for name in first["given"]:
            given[name] = given.get(name, 0.0) + sum(each["given"][name] for each in results)
            applied[name] = applied.get(name, 0.0) + first["applied"][name]
            left = sum(each["left"].get(name, 0.0) for each in results)
            scale = max(1.0, np.abs(given[name]).max())
            found = float(np.abs(applied[name] + left - given[name]).max() / scale)
            outcome.largest_error = max(outcome.largest_error, found)
        outcome.events.update(first["events"])
        outcome.events.update({"restarted": int(number > 0), "resized": int(resized)})
    outcome.seconds = time.monotonic() - began
    print(outcome)
    assert outcome.events["steps"] == steps
    assert outcome.largest_error <= error
    assert {each for each in CHANCES if outcome.events[each] < 2} == without
    return outcome
