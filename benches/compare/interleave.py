"""Run several cases in interleaved rounds, with a copy at the start of each round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .contestant import Array
from .rounds import Spread, timed

WARM_UP = 2

Tick = Callable[[str], None]
Clock = Callable[[Callable[[], Any]], tuple[float, Any]]


@dataclass
class Timing:
    """The rounds of one case, in seconds and in copies of the same round."""

    seconds: Spread = field(default_factory=Spread)
    copies: Spread = field(default_factory=Spread)

    def record(self) -> dict[str, Any]:
        return {"seconds": self.seconds.record(), "copies": self.copies.record()}


def copying(tensor: Array) -> Callable[[], object]:
    """Return what copies a tensor."""
    out = np.zeros_like(tensor)
    return lambda: np.copyto(out, tensor)


def interleave(
    works: Mapping[str, Callable[[int], object]],
    copy: Callable[[], object],
    rounds: int,
    tick: Tick,
    *,
    warm_up: int = WARM_UP,
    before: Mapping[str, Callable[[int], object]] | None = None,
    clock: Clock = timed,
) -> tuple[Spread, dict[str, Timing]]:
    """Run every case once per round; return the times of the copy and of all cases.

    Each work is told the number of the round; ``before`` has what some of them need first, outside
    the time. ``clock`` returns the seconds that a call takes, and what it gave.
    """
    copies, timings = Spread(), {name: Timing() for name in works}
    for turn in range(-warm_up, rounds):
        tick("copy")
        once, _ = clock(copy)
        if turn >= 0:
            copies.values.append(once)
        for name, work in works.items():
            tick(name)
            if before is not None and name in before:
                before[name](turn)
            seconds, _ = clock(lambda work=work, turn=turn: work(turn))  # type: ignore[misc]
            if turn >= 0:
                timings[name].seconds.values.append(seconds)
                timings[name].copies.values.append(seconds / once)
    return copies, timings
